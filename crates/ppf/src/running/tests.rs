//! What whoever asks may rely on.

use super::*;
use crate::spec::FarEnd;

fn two_workers() -> Running {
    let config = r#"
        [[port]]
        name = "n3"
        side = "radio"
        memif = { path = "@n3" }
        addresses = ["192.0.2.1/24"]
        [[port]]
        name = "n6"
        side = "core"
        memif = { path = "@n6" }
        addresses = ["203.0.113.1/24"]
    "#;
    let place = tempfile::tempdir().unwrap();
    let config = config.replace('@', &format!("{}/", place.path().display()));
    let mut config = Config::parse(&config).unwrap();
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let allowed = (0..nix::sched::CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap());
    config.processors = allowed.cycle().take(2).collect();
    Running::start(&config, None).unwrap()
}

/// A user's packets come by any worker's port, and not only by that of the worker that has the bearer.
#[test]
fn all_workers_know_a_user_when_its_bearer_is_added() {
    const QUESTIONS: usize = 5_000;
    let running = two_workers();
    let (answer, answers) = channel();
    for _ in 0..QUESTIONS {
        // Of these a worker answers one in a turn. The bearer, which is the first worker's, is behind all of them.
        running.workers[1].tell(Command::Report(answer.clone()));
    }
    let far = FarEnd::Tunnel([192, 0, 2, 9].into(), 7);
    let spec = BearerSpec::new(FarEnd::User([10, 0, 0, 1].into()), far);
    let added = running.add(&[spec]).unwrap();
    assert_eq!(added[0].as_ref().map(|id| id.shard()), Ok(0));
    assert_eq!(answers.try_iter().count(), QUESTIONS);
}
