//! What whoever asks may rely on.

use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::api::Api;
use crate::http::Question;
use crate::spec::FarEnd;
use crate::worker::errand::{ERRAND, ROOM};
use crate::worker::stages;

fn two_workers() -> Running {
    two_workers_with("")
}

fn two_workers_with(settings: &str) -> Running {
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
    let config = format!("{settings}{config}");
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

fn relay(teid: u32) -> BearerSpec {
    let far = |last| FarEnd::Tunnel([192, 0, 2, last].into(), teid);
    BearerSpec::new(far(8), far(9))
}

/// Neither by the registry, nor by the store, nor by any worker.
#[test]
fn what_workers_have_no_room_to_be_told_of_is_not_changed() {
    let running = two_workers();
    let added = running.add(&[relay(1)]).unwrap();
    let id = *added[0].as_ref().unwrap();
    let before = running.bearer(id);
    // Into another graph, in which nobody does anything.
    let (_parts, mut entry, stages) = stages::build(2, &[0, 1]).unwrap();
    let event = entry.event(stages.bearer, 0, ERRAND);
    assert_eq!(entry.enter(&vec![event; ROOM]), ROOM);
    let mut way = Way::new(entry, stages.bearer, running.errands.clone());
    way.wait_for(Duration::ZERO);
    let own = std::mem::replace(&mut *running.way.lock().unwrap(), way);
    let api = Api::new(running);
    let one = serde_json::to_string(&relay(2)).unwrap();
    let (json, lines) = ("application/json", "application/x-ndjson");
    let path = format!("/v1/bearers/{id}");
    let ids = format!(r#"{{"ids":[{id}]}}"#);
    let ask = |method: &str, target: &str, kind: &str, body: &str| {
        let question = Question::new(method, target, kind, body.into());
        api.answer(&question)
    };
    for (method, target, kind, body) in [
        ("POST", "/v1/bearers", json, &one),
        ("POST", "/v1/bearers", lines, &one),
        ("PUT", &path, json, &one),
        ("DELETE", &path, "", &String::new()),
        ("POST", "/v1/bearers/remove", json, &ids),
    ] {
        let answer = ask(method, target, kind, body);
        let why = String::from_utf8(answer.body).unwrap();
        assert_eq!(answer.status, 503, "{method} {target}: {why}");
        assert!(why.contains("nothing was changed"), "{why}");
    }
    *api.running().way.lock().unwrap() = own;
    assert_eq!(api.running().count(), 1);
    assert_eq!(api.running().bearer(id), before);
    assert_eq!(ask("PUT", &path, json, &one).status, 200);
}

#[test]
fn queues_that_are_apart_are_several_workers_and_one_of_them_sends() {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        eprintln!("skipped: no network namespace here: {error}");
        return;
    }
    let port = |name: &str, side: &str, tap: &str, net: u8| {
        let tap = format!("tap = {{ interface = \"{name}\", {tap} }}");
        let addresses = format!("addresses = [\"10.0.{net}.1/24\"]");
        format!("[[port]]\nname = \"{name}\"\nside = \"{side}\"\n{tap}\n{addresses}\n")
    };
    let all = port("a", "radio", "queues = 3", 1)
        + &port("b", "core", "queues = 2", 2)
        + &port("c", "core", "queues = 2", 3)
        + "worker = 1\n";
    let config = Config::parse(&format!("workers = 2\n{all}")).unwrap();
    let (attached, owners) = begin::attach(&config).unwrap();
    assert_eq!(owners, [0, 1, 1]);
    let has = |worker: usize| -> Vec<(u16, usize)> {
        let ports = attached[worker].iter();
        ports
            .map(|one| (one.number, one.port.receive_queues()))
            .collect()
    };
    assert_eq!(has(0), [(0, 2), (1, 1)]);
    assert_eq!(has(1), [(0, 1), (1, 1), (2, 2)]);
}

/// A figure that nobody has said is none, and not 0.
#[test]
fn what_workers_do_not_say_is_not_known() {
    let running = two_workers();
    let added = running.add(&[relay(1), relay(2)]).unwrap();
    let id = *added[0].as_ref().unwrap();
    assert!(running.bearer(id).unwrap().usage.is_some());
    // Nobody answers there, and nothing more has room.
    let (_parts, mut entry, stages) = stages::build(2, &[0, 1]).unwrap();
    let event = entry.event(stages.bearer, 0, ERRAND);
    assert_eq!(entry.enter(&vec![event; ROOM]), ROOM);
    let mut way = Way::new(entry, stages.bearer, running.errands.clone());
    way.wait_for(Duration::ZERO);
    let own = std::mem::replace(&mut *running.way.lock().unwrap(), way);
    assert_eq!(running.bearer(id).unwrap().usage, None);
    let page = running.bearers(0, 10);
    let is_said = page.bearers.iter().map(|bearer| bearer.usage);
    assert_eq!(is_said.collect::<Vec<_>>(), [None, None]);
    *running.way.lock().unwrap() = own;
    let page = running.bearers(0, 10);
    assert!(page.bearers.iter().all(|bearer| bearer.usage.is_some()));
    let api = Api::new(running);
    let get = |target: &str| api.answer(&Question::new("GET", target, "", Vec::new()));
    assert_eq!(get("/metrics").status, 200);
    assert_eq!(get("/v1/neighbours").status, 200);
    let said = |target: &str| {
        let said: serde_json::Value = serde_json::from_slice(&get(target).body).unwrap();
        said["unanswered"].clone()
    };
    assert_eq!(said("/v1/status"), serde_json::json!([]));
    // One worker has ended.
    api.running().workers[1].tell(Command::Stop);
    let thread = api.running().workers[1].thread.lock().unwrap().take();
    thread.unwrap().join().unwrap();
    for target in ["/v1/status", "/v1/paths"] {
        assert_eq!(said(target), serde_json::json!([1]), "{target}");
    }
    for target in ["/metrics", "/v1/neighbours"] {
        let answer = get(target);
        let why = String::from_utf8(answer.body).unwrap();
        assert_eq!(answer.status, 503, "{target}: {why}");
        assert!(why.contains("[1]"), "{why}");
    }
}

#[test]
fn with_a_latency_as_many_workers_are_active_as_are_needed() {
    let active = |running: &Running| {
        let workers = running.status().workers;
        workers.iter().filter(|worker| worker.is_active).count()
    };
    let all = two_workers();
    assert!((0..200).all(|_| active(&all) == 2));
    let few = two_workers_with("latency_us = 1000");
    let begun = Instant::now();
    while active(&few) != 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "both stay");
    }
}
