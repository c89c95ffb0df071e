//! Real sockets in network namespaces of their own.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use super::{Messages, Sockmap, check, own_cookie, sys};

/// Runs a test in a new network namespace that has a loopback interface, if the machine permits that and BPF.
fn in_namespace(test: fn()) {
    if let Err(error) = check() {
        assert!(!nix::unistd::geteuid().is_root(), "{error:#}");
        eprintln!("skipped: {error:#}");
        return;
    }
    let inside = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let up = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.unwrap().success());
        test();
    });
    inside.join().unwrap();
}

fn pair() -> [TcpStream; 2] {
    pair_of(&TcpListener::bind("127.0.0.1:0").unwrap())
}

fn pair_of(listener: &TcpListener) -> [TcpStream; 2] {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [client, listener.accept().unwrap().0]
}

/// Bytes that the loopback interface of this namespace has carried.
fn carried() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = table
        .lines()
        .find_map(|line| line.trim().strip_prefix("lo:"));
    line.unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

/// Everything up to the end. The kernel's `tcp_bpf_recvmsg` can wake a blocking receive and find that another message is not there yet:
/// it returns EAGAIN then.
fn read_all(from: &mut TcpStream) -> Vec<u8> {
    let mut found = Vec::new();
    loop {
        match from.read_to_end(&mut found) {
            Ok(_) => return found,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at.wrapping_mul(31) >> 3 ^ at >> 11 ^ seed) as u8)
        .collect()
}

#[test]
fn messages_pass_tcp_by_and_arrive_whole() {
    in_namespace(|| {
        let sockmap = Sockmap::open(own_cookie().unwrap()).unwrap();
        let [mut client, mut server] = pair();
        let before = carried();
        let sent = [pattern(8 << 20, 1), pattern(8 << 20, 2)];
        let (there, back) = (sent[0].clone(), sent[1].clone());
        let mut peer = server.try_clone().unwrap();
        let serving = thread::spawn(move || {
            peer.write_all(&back).unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
        });
        let mut writer = client.try_clone().unwrap();
        let asking = thread::spawn(move || {
            writer.write_all(&there).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let reading = thread::spawn(move || read_all(&mut server));
        let found = read_all(&mut client);
        assert!(found == sent[1] && reading.join().unwrap() == sent[0]);
        serving.join().unwrap();
        asking.join().unwrap();
        let messages = sockmap.messages().unwrap();
        assert!(
            messages.spliced > 0 && messages.ordinary == 0,
            "{messages:?}"
        );
        // Both ends of the connection, and nothing of what was sent.
        assert!(carried() - before < 4096, "{}", carried() - before);
    });
}

#[test]
fn what_was_sent_before_the_peer_was_there_is_read_first() {
    in_namespace(|| {
        let sockmap = Sockmap::open(own_cookie().unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        sys::defer_accept(listener.as_fd());
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"first ").unwrap();
        let mut server = listener.accept().unwrap().0;
        client.write_all(b"second ").unwrap();
        client.write_all(b"third").unwrap();
        // The other direction has not begun.
        server.write_all(b"answer").unwrap();
        thread::sleep(Duration::from_millis(50));
        let (mut found, mut answer) = ([0; 18], [0; 6]);
        server.read_exact(&mut found).unwrap();
        client.read_exact(&mut answer).unwrap();
        assert_eq!((&found, &answer), (b"first second third", b"answer"));
        let told = sockmap.messages().unwrap();
        assert_eq!((told.spliced, told.ordinary), (1, 3));
        assert!(told.note().unwrap().starts_with("75.0 % of the messages"));
    });
}

#[test]
fn connections_elsewhere_or_from_before_are_let_alone() {
    in_namespace(|| {
        let cookie = own_cookie().unwrap();
        let mut streams = pair();
        let here = Sockmap::open(cookie).unwrap();
        let elsewhere = Sockmap::open(super::NOWHERE).unwrap();
        let talk = |[client, server]: &mut [TcpStream; 2]| {
            client.write_all(b"question").unwrap();
            let mut found = [0; 8];
            server.read_exact(&mut found).unwrap();
            assert_eq!(&found, b"question");
        };
        talk(&mut streams);
        assert_eq!(here.messages().unwrap(), Messages::default());
        talk(&mut pair());
        assert_eq!(elsewhere.messages().unwrap(), Messages::default());
        assert_eq!(here.messages().unwrap().spliced, 1);
        // Connections outlive the splice.
        let mut streams = pair();
        talk(&mut streams);
        drop(here);
        talk(&mut streams);
        talk(&mut pair());
    });
}

#[test]
fn notes_tell_what_took_another_way() {
    let note = |spliced, ordinary| Messages { spliced, ordinary }.note();
    assert_eq!(note(7, 0), None);
    assert_eq!(note(0, 0).unwrap(), "no message took the sockmap");
    let few = note(9_999, 1).unwrap();
    assert!(few.starts_with("a few messages took TCP"), "{few}");
    assert!(
        note(998, 2)
            .unwrap()
            .starts_with("0.2 % of the messages took TCP")
    );
}
