//! A server's socket in the file system: made safely, removed at the end, nobody else's file is touched, and ports may share it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::Instant;

use millrace_port::memif::{Config, Memif, Role};
use millrace_port::{Burst, Port, State};

fn server(path: &std::path::Path) -> std::io::Result<Memif> {
    Memif::new(Config::new(Role::Server, path))
}

#[test]
fn the_socket_is_there_as_long_as_its_port_and_nothing_beside_it() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let port = server(&path).unwrap();
    let names: Vec<_> = fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["memif.sock"]);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    drop(port);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn what_a_dead_server_left_is_replaced() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(server(&path).unwrap());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_living_server_and_files_of_other_kinds_stay() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let first = server(&path).unwrap();
    assert_eq!(server(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    drop(first);
    let other = UnixListener::bind(&path).unwrap();
    assert_eq!(server(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(other);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    assert_eq!(server(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_socket_that_has_come_in_its_place_is_not_removed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let port = server(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(port);
    assert!(path.exists());
}

/// A port of an interface with this number.
fn numbered(role: Role, path: &Path, id: u32) -> std::io::Result<Memif> {
    let mut config = Config::new(role, path);
    config.id = id;
    Memif::new(config)
}

/// Polls both until packets pass between them.
fn connect(one: &mut Memif, other: &mut Memif) {
    let is_up = |port: &mut Memif| matches!(port.poll(Instant::now()), State::Connected);
    while !(is_up(one) & is_up(other)) {
        thread::yield_now();
    }
}

#[test]
fn ports_of_one_path_have_a_peer_each() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let ids = [3, 0, 4_000_000_000];
    let mut servers = ids.map(|id| numbered(Role::Server, &path, id).unwrap());
    let mut clients = ids.map(|id| numbered(Role::Client, &path, id).unwrap());
    for (server, client) in servers.iter_mut().zip(&mut clients) {
        connect(server, client);
    }
    for (server, client) in servers.iter_mut().zip(&mut clients) {
        let mut burst = Burst::new(1);
        assert!(burst.push(&[7; 60]));
        assert_eq!(client.transmit(0, &burst, 0), 1);
        assert_eq!(server.receive(0, &mut burst), 1);
        assert_eq!(server.counters().connections, 1);
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    // The others go on when one has gone, and its number can be had again.
    let [first, mut second, third] = servers;
    drop(first);
    assert!(path.exists());
    assert!(matches!(second.poll(Instant::now()), State::Connected));
    connect(
        &mut numbered(Role::Server, &path, 3).unwrap(),
        &mut clients[0],
    );
    drop((second, third));
    assert!(!path.exists());
}

#[test]
fn ports_of_one_path_are_woken_for_their_own_peers() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut first = numbered(Role::Server, &path, 1).unwrap();
    let mut second = numbered(Role::Server, &path, 2).unwrap();
    let mut client = numbered(Role::Client, &path, 2).unwrap();
    // Only the first is polled, until the client has been told HELLO and has said whom it wants.
    client.poll(Instant::now());
    first.poll(Instant::now());
    client.poll(Instant::now());
    first.poll(Instant::now());
    assert!(is_ready(&second) && !is_ready(&first));
    connect(&mut second, &mut client);
}

/// Whether who sleeps at a port would wake.
fn is_ready(port: &Memif) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polled = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).unwrap() > 0
}

#[test]
fn ports_of_one_path_agree_on_it() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let _first = numbered(Role::Server, &path, 1).unwrap();
    let error = numbered(Role::Server, &path, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().ends_with("has a port with id 1 already"));
    let mut config = Config::new(Role::Server, &path);
    (config.id, config.socket_mode) = (2, 0o666);
    let error = Memif::new(config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    // Who has taken the path away has it.
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    let error = numbered(Role::Server, &path, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

#[test]
fn configurations_that_cannot_be_are_refused() {
    let refused = |change: fn(&mut Config)| {
        let mut config = Config::new(Role::Client, "/nowhere");
        change(&mut config);
        assert_eq!(
            Memif::new(config).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    };
    refused(|config| config.receive_queues = 0);
    refused(|config| config.transmit_queues = 257);
    refused(|config| config.log2_ring_size = 15);
    refused(|config| config.buffer_bytes = 100);
    refused(|config| config.buffer_bytes = 1 << 20);
    refused(|config| {
        config.log2_ring_size = 14;
        config.receive_queues = 200;
    });
}
