//! What another process has opened: looked at before it is used, and let go of when it is something else.

use std::fs::File;
use std::net::UdpSocket;
use std::time::Duration;

use millrace_port::af_xdp::Opened;

use super::*;

/// Two queues of one end, as whoever hands them over has them. What was there before may be held a moment longer by a process that another
/// test begins.
fn two() -> (Opened, Config) {
    let mut config = config("to", &[Take::All]);
    (config.queues, config.patience) = (2, Duration::from_secs(20));
    (open(&config).unwrap(), config)
}

/// It is refused, and the interface is as before: it has no program, and its queues are free.
fn is_refused(change: impl FnOnce(&mut Opened), why: &str) {
    let (mut handed, config) = two();
    change(&mut handed);
    let error = AfXdp::from_opened(handed, &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains(why), "{error}");
    drop(opened(&config));
}

#[test]
fn descriptors_of_anything_else_are_refused_and_let_go_of() {
    if !is_apart() {
        return;
    }
    is_refused(|handed| handed.sockets.clear(), "at least one queue");
    for number in 0..2 {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let change = |handed: &mut Opened| handed.sockets[number] = udp.into();
        is_refused(change, "no socket of AF_XDP");
        let file = File::open("/dev/null").unwrap();
        let change = |handed: &mut Opened| handed.sockets[number] = file.into();
        is_refused(change, "no socket of AF_XDP");
    }
    let change = |handed: &mut Opened| handed.sockets[1] = handed.sockets[0].try_clone().unwrap();
    is_refused(change, "begun to use");
    let change = |handed: &mut Opened| handed.link = Some(handed.sockets[0].try_clone().unwrap());
    is_refused(change, "no program at an interface");
    let elsewhere = open(&config("from", &[Take::All])).unwrap();
    is_refused(|handed| handed.link = elsewhere.link, "interface number");
    is_refused(|handed| handed.ifindex = 1, "interface number");
    let (mut handed, config) = two();
    (handed.ifindex, handed.link) = (99, None);
    let error = AfXdp::from_opened(handed, &config).unwrap_err();
    assert!(error.to_string().starts_with("queue 0: No such device"));
    let (handed, config) = two();
    ip("link del to");
    let error = AfXdp::from_opened(handed, &config).unwrap_err();
    assert!(error.to_string().contains("is gone"), "{error}");
}

#[test]
fn a_queue_that_the_interface_does_not_have_is_named() {
    if !is_apart() {
        return;
    }
    let mut config = config("to", &[Take::All]);
    config.queues = 3;
    let error = AfXdp::open(&config).unwrap_err().to_string();
    assert!(
        error.starts_with("queue 2: ") && error.ends_with("so many?"),
        "{error}"
    );
}

#[test]
fn a_queue_that_somebody_has_is_waited_for_as_long_as_was_said() {
    if !is_apart() {
        return;
    }
    let holder = AfXdp::open(&Config::new("to")).unwrap();
    let (handed, mut config) = two();
    let patience = std::mem::take(&mut config.patience);
    let error = AfXdp::from_opened(handed, &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert_eq!(
        error.to_string(),
        "queue 0: it has another socket of AF_XDP"
    );
    let first = opened(&config_of_one());
    let error = AfXdp::open(&config).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the interface has a program (XDP) already, and can have one"
    );
    drop(first);
    config.patience = patience;
    let handed = open(&config).unwrap();
    let leaves = std::thread::spawn(move || drop(holder));
    let parts = AfXdp::from_opened(handed, &config)
        .unwrap()
        .split(2)
        .unwrap();
    leaves.join().unwrap();
    // Parted as one that was opened here, and each part has its packets.
    let mut sender = Config::new("from");
    sender.queues = 2;
    let mut sender = opened(&sender);
    for (mut part, queue) in parts.into_iter().zip(0..) {
        let mut burst = Burst::new(1);
        assert!(burst.push(&[queue; 60]));
        assert_eq!(sender.transmit(queue.into(), &burst, 0), 1);
        assert_eq!(received(&mut part, 1), [vec![queue; 60]]);
    }
}

/// The other queue, with a program.
fn config_of_one() -> Config {
    let mut config = config("to", &[Take::All]);
    config.first_queue = 1;
    config
}
