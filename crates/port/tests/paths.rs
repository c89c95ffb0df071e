//! A server's socket in the file system: made safely, removed at the end, and nobody else's file is touched.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use millrace_port::memif::{Config, Memif, Role};

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
