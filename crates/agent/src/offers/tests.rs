use std::net::SocketAddr;

use millrace_wire::{End, Family};

use super::*;

fn address(text: &str) -> Address {
    text.parse::<SocketAddr>().unwrap().into()
}

fn offer(offer_id: u64, local: &str, remote: &str, cookie: u64) -> Offer {
    Offer {
        offer_id,
        fd: 3,
        row: 0,
        family: Family::V4,
        end: End::Active,
        local: address(local),
        remote: address(remote),
        cookie,
        netns_cookie: 1,
    }
}

const A: &str = "127.0.0.1:4000";
const B: &str = "127.0.0.1:80";
const ONE: ClientId = ClientId(1);
const TWO: ClientId = ClientId(2);

#[test]
fn mirrored_offers_find_each_other_also_within_one_client() {
    let now = Instant::now();
    for other in [ONE, TWO] {
        let mut offers = Offers::default();
        offers
            .insert((ONE, Tenant::Nobody), offer(1, A, B, 10), now)
            .unwrap();
        assert!(offers.partners((ONE, 1)).is_empty());
        offers
            .insert((other, Tenant::Nobody), offer(2, B, A, 11), now)
            .unwrap();
        assert_eq!(offers.partners((other, 2)), [(ONE, 1)]);
        assert_eq!(offers.partners((ONE, 1)), [(other, 2)]);
    }
}

#[test]
fn what_is_not_mirrored_or_the_same_socket_or_elsewhere_is_no_partner() {
    let now = Instant::now();
    let mut offers = Offers::default();
    offers
        .insert((ONE, Tenant::Nobody), offer(1, A, B, 10), now)
        .unwrap();
    offers
        .insert((TWO, Tenant::Nobody), offer(1, A, B, 11), now)
        .unwrap();
    offers
        .insert((TWO, Tenant::Nobody), offer(2, B, A, 10), now)
        .unwrap();
    offers
        .insert(
            (TWO, Tenant::Nobody),
            Offer {
                netns_cookie: 2,
                ..offer(3, B, A, 12)
            },
            now,
        )
        .unwrap();
    offers
        .insert((TWO, Tenant::Nobody), offer(4, "127.0.0.2:80", A, 13), now)
        .unwrap();
    assert!(offers.partners((ONE, 1)).is_empty());
}

#[test]
fn a_false_claim_does_not_displace_the_true_one() {
    let now = Instant::now();
    let mut offers = Offers::default();
    offers
        .insert((TWO, Tenant::Nobody), offer(1, A, B, 66), now)
        .unwrap();
    offers
        .insert((ONE, Tenant::Nobody), offer(1, A, B, 10), now)
        .unwrap();
    offers
        .insert((ONE, Tenant::Nobody), offer(2, B, A, 11), now)
        .unwrap();
    assert_eq!(offers.partners((ONE, 2)), [(TWO, 1), (ONE, 1)]);
    offers.remove((TWO, 1), now);
    assert_eq!(offers.partners((ONE, 2)), [(ONE, 1)]);
}

#[test]
fn of_offers_that_are_alike_the_oldest_that_waits_makes_room() {
    let now = Instant::now();
    let mut offers = Offers::default();
    for id in 1..=4 {
        offers
            .insert((ONE, Tenant::Nobody), offer(id, A, B, id), now)
            .unwrap();
    }
    offers
        .insert((TWO, Tenant::Nobody), offer(1, A, B, 9), now)
        .unwrap();
    offers
        .insert((ONE, Tenant::Nobody), offer(5, B, A, 10), now)
        .unwrap();
    offers.match_up([(ONE, 1), (ONE, 5)]);
    let next = offer(6, A, B, 11);
    assert_eq!(offers.alike(ONE, &next), 4);
    assert_eq!(offers.evict_alike(ONE, &next), Some(offer(2, A, B, 2)));
    assert_eq!(offers.evict_alike(ONE, &next), Some(offer(3, A, B, 3)));
    assert_eq!(offers.evict_alike(ONE, &next), Some(offer(4, A, B, 4)));
    assert_eq!(offers.evict_alike(ONE, &next), None, "it is matched");
    assert_eq!((offers.alike(ONE, &next), offers.alike(TWO, &next)), (1, 1));
}

#[test]
fn duplicates_and_sockets_connected_to_themselves_are_refused() {
    let now = Instant::now();
    let mut offers = Offers::default();
    offers
        .insert((ONE, Tenant::Nobody), offer(1, A, B, 10), now)
        .unwrap();
    assert_eq!(
        offers.insert((ONE, Tenant::Nobody), offer(1, B, A, 11), now),
        Err(InsertError::Duplicate)
    );
    assert_eq!(
        offers.insert((ONE, Tenant::Nobody), offer(2, A, A, 12), now),
        Err(InsertError::SelfConnected)
    );
    assert_eq!(offers.count(), 1);
}

#[test]
fn offers_expire_in_order_and_once() {
    let start = Instant::now();
    let mut offers = Offers::default();
    offers
        .insert((ONE, Tenant::Nobody), offer(1, A, B, 10), start)
        .unwrap();
    offers
        .insert(
            (ONE, Tenant::Nobody),
            offer(2, A, B, 10),
            start + Duration::from_secs(1),
        )
        .unwrap();
    assert_eq!(offers.next_deadline(), Some(start + WAIT));
    assert_eq!(offers.expire(start + WAIT - Duration::from_millis(1)), None);
    assert_eq!(offers.expire(start + WAIT), Some((ONE, offer(1, A, B, 10))));
    assert_eq!(offers.expire(start + WAIT), None);
    assert_eq!((offers.count(), offers.waiting_count()), (1, 1));
    offers.remove((ONE, 2), start);
    assert_eq!(offers.next_deadline(), None);
}

#[test]
fn an_end_that_comes_late_finds_one_that_has_waited_in_vain() {
    let start = Instant::now();
    let mut offers = Offers::new(Reach(Some(2)));
    offers
        .insert((ONE, Tenant::Nobody), offer(1, A, B, 10), start)
        .unwrap();
    assert!(offers.has_distant());
    let late = start + WAIT * 100;
    assert!(offers.expire(late).is_some());
    assert!(offers.has_dormant() && !offers.has_distant());
    assert_eq!(offers.next_deadline(), None, "it costs nothing");
    // Also where only the one that came first is of another network namespace.
    let near = Offer {
        netns_cookie: 2,
        ..offer(1, B, A, 12)
    };
    offers.insert((TWO, Tenant::Nobody), near, late).unwrap();
    assert!(offers.has_distant());
    offers.remove((TWO, 1), late);

    offers
        .insert((TWO, Tenant::Nobody), offer(2, B, A, 11), late)
        .unwrap();
    let (first, second) = ((ONE, 1), (TWO, 2));
    assert_eq!(offers.partners(second), [first]);
    let between: Vec<_> = offers.waiting_between(&offer(2, B, A, 11)).collect();
    assert_eq!(between.len(), 2);
    assert_eq!(offers.match_up([first, second]), [first, second]);
    assert!(!offers.has_dormant() && offers.distant == 0);
    offers.take(first);
    offers.take(second);
    assert!(offers.both_taken(first).is_some());
    // A partner that goes leaves it waiting, and it waits in vain once more.
    assert_eq!(offers.remove(second, late).unwrap().left, Some(first));
    assert_eq!(
        offers.expire(late + WAIT).map(|(client, _)| client),
        Some(ONE)
    );
    assert!(offers.remove_client(ONE, late).is_empty());
    assert!(!offers.has_dormant() && offers.dormant_of.is_empty() && offers.distant == 0);
}

#[test]
fn what_has_waited_in_vain_makes_room_the_oldest_first() {
    let start = Instant::now();
    let mut offers = Offers::default();
    let count = DORMANT_MAX as u64 + 2;
    for offer_id in 0..count {
        let client = ClientId(offer_id % 2);
        offers
            .insert((client, Tenant::Nobody), offer(offer_id, A, B, 10), start)
            .unwrap();
    }
    assert_eq!(offers.evict(), None);
    assert_eq!(offers.evict_of(ONE), None, "it waits still");
    while offers.expire(start + WAIT).is_some() {}
    let evicted = |found: Option<(ClientId, Offer)>| found.map(|(_, offer)| offer.offer_id);
    assert_eq!(evicted(offers.evict()), Some(0));
    assert_eq!(evicted(offers.evict()), Some(1));
    assert_eq!(offers.evict(), None);
    assert_eq!(offers.evict_of(ONE).map(|offer| offer.offer_id), Some(3));
    assert_eq!(offers.evict_of(TWO), None);
    assert_eq!(offers.count_of(ONE) as usize, DORMANT_MAX / 2 - 1);
    let seen: Vec<u64> = offers.dormant_from(0).take(2).map(|it| it.1.1).collect();
    assert_eq!(seen, [2, 4]);
}

#[test]
fn nothing_of_a_client_stays_when_it_is_gone() {
    let now = Instant::now();
    let mut offers = Offers::default();
    for offer_id in [0, 7, u64::MAX] {
        offers
            .insert((ONE, Tenant::Nobody), offer(offer_id, A, B, 10), now)
            .unwrap();
    }
    assert!(offers.expire(now + WAIT).is_some());
    offers
        .insert((TWO, Tenant::Nobody), offer(0, B, A, 11), now)
        .unwrap();
    assert_eq!(offers.count_of(ONE), 3);
    assert!(offers.remove_client(ONE, now).is_empty());
    assert_eq!((offers.count_of(ONE), offers.count()), (0, 1));
    assert!(offers.partners((TWO, 0)).is_empty());
    offers.remove_client(TWO, now);
    assert!(offers.waiting.is_empty() && offers.by_ends.is_empty() && offers.deadlines.is_empty());
    assert!(offers.counts.is_empty() && offers.dormant.is_empty() && offers.dormant_of.is_empty());
}

#[test]
fn both_ends_have_to_take_what_was_matched() {
    let now = Instant::now();
    let mut offers = Offers::default();
    let keys = [(ONE, 1), (TWO, 1)];
    offers
        .insert((ONE, Tenant::Nobody), offer(1, A, B, 10), now)
        .unwrap();
    offers
        .insert((TWO, Tenant::Nobody), offer(1, B, A, 11), now)
        .unwrap();
    offers.take(keys[0]);
    assert_eq!(offers.match_up(keys), keys);
    assert_eq!(offers.next_deadline(), None, "a match does not expire");
    assert!(offers.partners(keys[0]).is_empty());
    offers.take(keys[0]);
    assert_eq!(offers.both_taken(keys[0]), None);
    offers.take(keys[1]);
    assert_eq!(offers.both_taken(keys[1]), Some([keys[1], keys[0]]));
    assert!(offers.settle(keys).iter().all(Option::is_some));
    assert!(offers.waiting.is_empty() && offers.by_ends.is_empty() && offers.counts.is_empty());
}

#[test]
fn an_offer_whose_partner_goes_waits_again_and_stays_taken() {
    let now = Instant::now();
    let later = now + WAIT;
    let mut offers = Offers::default();
    offers
        .insert((ONE, Tenant::Nobody), offer(1, A, B, 10), now)
        .unwrap();
    offers
        .insert((TWO, Tenant::Nobody), offer(1, B, A, 11), now)
        .unwrap();
    offers.match_up([(ONE, 1), (TWO, 1)]);
    offers.take((ONE, 1));
    // A child of the second client has taken the connection over.
    let removed = offers.remove((TWO, 1), later).unwrap();
    assert_eq!((removed.taken, removed.left), (false, Some((ONE, 1))));
    assert_eq!(offers.next_deadline(), Some(later + WAIT));
    let child = ClientId(3);
    offers
        .insert((child, Tenant::Nobody), offer(5, B, A, 11), later)
        .unwrap();
    assert_eq!(offers.partners((child, 5)), [(ONE, 1)]);
    assert_eq!(offers.match_up([(ONE, 1), (child, 5)]), [(child, 5)]);
    offers.take((child, 5));
    assert!(offers.both_taken((child, 5)).is_some());
    assert_eq!(offers.remove_client(child, later), [(ONE, 1)]);
    let removed = offers.remove((ONE, 1), later).unwrap();
    assert_eq!((removed.taken, removed.left), (true, None));
    assert!(offers.deadlines.is_empty() && offers.counts.is_empty());
}

#[test]
fn offers_of_all_clients_of_a_tenant_are_counted() {
    let now = Instant::now();
    let (mut offers, tenant) = (Offers::default(), Tenant::User(1000));
    for (client, address, id) in [(ONE, (A, B), 1), (TWO, (B, A), 2)] {
        let offer = offer(id, address.0, address.1, id);
        offers.insert((client, tenant), offer, now).unwrap();
    }
    let stranger = offer(3, A, B, 3);
    offers.insert((TWO, Tenant::Nobody), stranger, now).unwrap();
    offers.match_up([(ONE, 1), (TWO, 2)]);
    assert_eq!(offers.count_of_tenant(&tenant), 2, "matched ones as well");
    offers.remove_client(TWO, now);
    assert_eq!(offers.count_of_tenant(&tenant), 1);
    assert_eq!(offers.count_of_tenant(&Tenant::Nobody), 0);
    offers.remove((ONE, 1), now);
    assert!(offers.counts_of_tenants.is_empty() && offers.counts.is_empty());
}
