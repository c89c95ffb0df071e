//! The two ends of a connection are not offered at the same time.

use millrace_agent::{Config, QuotaConfig};
use millrace_wire::{Declined, End, Reason, ToClient};

use crate::client::Running;
use crate::pair;

#[test]
fn an_end_that_has_waited_in_vain_is_paired_when_the_other_one_comes_or_makes_room() {
    let agent = Running::start(Config {
        quota: QuotaConfig {
            offers_per_client: 2,
            ..QuotaConfig::default()
        },
        ..Config::default()
    });
    let (early, late) = (agent.client(), agent.client());
    let pairs = [pair(), pair(), pair()];
    early.offer(&pairs[0].0, 1, End::Active);
    early.offer(&pairs[1].0, 2, End::Active);
    let reason = Reason::NotBothEnds;
    // Ten seconds, in which nothing happens.
    std::thread::sleep(std::time::Duration::from_secs(5));
    agent.wait_for(|status| status.declined.get(reason.as_str()) == Some(&2));
    agent.wait_for(|status| status.offers_waiting == 0);
    late.offer(&pairs[0].1, 7, End::Passive);
    assert_eq!((early.take(), late.take()), (1, 7));
    assert_eq!(early.paired().0.offer_id, 1);
    assert_eq!(late.paired().0.offer_id, 7);
    // Whoever has as many offers as it may have loses what has waited in vain, and nothing else.
    early.offer(&pairs[2].0, 3, End::Active);
    early.offer(&pairs[0].0, 4, End::Active);
    let offer_id = 2;
    assert_eq!(
        early.hear(),
        ToClient::Declined(Declined { offer_id, reason })
    );
    late.offer(&pairs[2].1, 8, End::Passive);
    assert_eq!((early.take(), late.take()), (3, 8));
}
