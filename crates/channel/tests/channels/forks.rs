//! Participants that fork: what their children have, and what others see of their death meanwhile.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use millrace_channel::{Channel, Error, WhenFull};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::agent::Running;
use crate::{SOON, channel, number, send, sys};

/// Says to the process that a test starts which part it plays, and where the agent is.
const PART: &str = "MILLRACE_TEST_PART";
const AGENT: &str = "MILLRACE_AGENT";
/// Said where the process has come so far, before the number of its child.
const READY: &str = "ready ";

#[test]
fn a_child_cannot_use_what_it_inherited() {
    let agent = Running::start();
    let channel = channel(&agent, "fork");
    let publisher = channel.publisher().unwrap();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    send(&publisher, 1);
    let is_refused =
        || matches!(publisher.loan(8), Err(Error::Forked)) && subscriber.pop().is_none();
    assert!(sys::in_a_child(is_refused));
    assert_eq!(number(&subscriber), 1);
    send(&publisher, 2);
    assert_eq!(number(&subscriber), 2);
}

#[test]
fn what_a_child_finds_in_place_of_messages_is_its_own() {
    let agent = Running::start();
    let channel = channel(&agent, "fork");
    let publisher = channel.publisher().unwrap();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    send(&publisher, 1);
    let message = subscriber.receive().unwrap();
    let mut loan = publisher.loan(8).unwrap();
    loan.fill(2);
    let has_nothing = || {
        let was_empty = loan.iter().all(|byte| *byte == 0);
        loan.fill(3);
        was_empty && message.to_vec().is_empty() && message.u64_at(0).is_none()
    };
    assert!(sys::in_a_child(has_nothing));
    assert_eq!(message.u64_at(0), Some(1));
    publisher.push(loan).unwrap();
    publisher.publish();
    assert_eq!(subscriber.receive().unwrap().to_vec(), [2; 8]);
}

/// A process that takes part. It ends with the test, and so does its child.
struct Participant {
    process: Child,
    /// The process and its child wait for its end.
    order: Option<ChildStdin>,
}

impl Participant {
    fn start(agent: &Running, part: &str) -> Participant {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "forks::the_process_of_another_test",
            "--nocapture",
        ]);
        command.env(PART, part).env(AGENT, agent.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let order = process.stdin.take();
        Participant { process, order }
    }

    /// Waits until it has come so far; returns its child.
    fn child(&mut self) -> Pid {
        let said = BufReader::new(self.process.stdout.take().unwrap());
        let lines = said.lines().map(Result::unwrap);
        let mut numbers = lines.filter_map(|line| {
            let (_, number) = line.split_once(READY)?;
            number.parse().ok()
        });
        Pid::from_raw(numbers.next().expect("it ended before"))
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.order = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn comes(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + SOON;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn is_alive(process: Pid) -> bool {
    kill(process, None).is_ok()
}

/// Not a test by itself: the process that one of the others starts.
#[test]
fn the_process_of_another_test() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let channel = Channel::new("fork").timeout(SOON);
    match part.as_str() {
        "publisher" => {
            let publisher = channel.publisher().unwrap();
            assert!(publisher.wait_for_subscribers(1, SOON));
            send(&publisher, 1);
            have_a_child();
        }
        "subscriber" => {
            let subscriber = channel.subscriber().unwrap();
            let _message = subscriber.receive().unwrap();
            have_a_child();
        }
        "server" => {
            let server = channel.server().unwrap();
            let _request = server.receive().unwrap();
            have_a_child();
        }
        "busy" => fork_beside_others(&channel.pool_bytes(1 << 16).when_full(WhenFull::DropOldest)),
        other => panic!("no part {other:?}"),
    }
}

/// Makes a child that lives until the test ends, says so, and waits for that, too.
fn have_a_child() {
    let child = sys::standing_child();
    println!("\n{READY}{child}");
    std::io::stdout().flush().unwrap();
    sys::wait_for_end_of_input();
}

#[test]
fn a_publisher_s_death_is_seen_while_its_child_lives() {
    let agent = Running::start();
    let subscriber = channel(&agent, "fork").subscriber().unwrap();
    let mut participant = Participant::start(&agent, "publisher");
    assert_eq!(number(&subscriber), 1);
    let child = participant.child();
    assert_eq!(agent.roles(), ["publisher", "subscriber"]);
    participant.kill();
    assert!(comes(|| subscriber.publishers() == 0));
    assert!(comes(|| agent.roles() == ["subscriber"]));
    assert!(
        comes(|| agent.bytes() == 0),
        "the child has none of its memory"
    );
    assert!(is_alive(child));
}

#[test]
fn a_subscriber_s_death_is_seen_while_its_child_lives() {
    let agent = Running::start();
    let publisher = channel(&agent, "fork").publisher().unwrap();
    let mut participant = Participant::start(&agent, "subscriber");
    assert!(publisher.wait_for_subscribers(1, SOON));
    send(&publisher, 1);
    let child = participant.child();
    participant.kill();
    assert!(publisher.drain(SOON), "what it had comes back");
    assert!(comes(|| agent.roles() == ["publisher"]));
    drop(publisher);
    assert!(
        comes(|| agent.bytes() == 0),
        "the child has none of its peer's memory"
    );
    assert!(is_alive(child));
}

#[test]
fn a_server_s_death_is_seen_while_its_child_lives() {
    let agent = Running::start();
    let client = channel(&agent, "fork").client().unwrap();
    let mut participant = Participant::start(&agent, "server");
    assert!(client.wait_for_servers(1, SOON));
    let request = client.loan(1).unwrap();
    let request = client.push(request, None).unwrap();
    client.publish();
    let child = participant.child();
    participant.kill();
    let lost = client.receive().unwrap().unwrap_err();
    assert_eq!(lost.request, request);
    assert!(comes(|| agent.roles() == ["client"]));
    drop(client);
    assert!(comes(|| agent.bytes() == 0));
    assert!(is_alive(child));
}

/// Forks while other threads come and go, and looks at what each child has.
fn fork_beside_others(channel: &Channel) {
    let is_over = AtomicBool::new(false);
    let come_and_go = || {
        while !is_over.load(Ordering::Relaxed) {
            let publisher = channel.publisher().unwrap();
            let subscriber = channel.subscriber().unwrap();
            assert!(publisher.wait_for_subscribers(1, SOON));
            // The one that is there may be another thread's, or one that is about to go.
            while subscriber.pop().is_none() {
                send(&publisher, 1);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(come_and_go)));
        let all = (0..200).all(|_| sys::in_a_child(has_nothing_of_channels));
        is_over.store(true, Ordering::Relaxed);
        assert!(all);
    });
}

fn has_nothing_of_channels() -> bool {
    let file_of = |fd: i32| {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        link.to_string_lossy().into_owned()
    };
    // What the test itself was given is below.
    let files = (3..256).map(file_of);
    let files = files.filter(|file| file.starts_with("socket:") || file.contains("memfd:"));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let maps = maps.lines().filter(|map| map.contains("memfd:millrace-"));
    let ours: Vec<String> = files.chain(maps.map(str::to_owned)).collect();
    if !ours.is_empty() {
        eprintln!("a child has {ours:?}");
    }
    ours.is_empty()
}

#[test]
fn a_child_has_nothing_of_channels_whenever_it_is_made() {
    let agent = Running::start();
    let mut participant = Participant::start(&agent, "busy");
    let ended = participant.process.wait().unwrap();
    assert!(ended.success());
}
