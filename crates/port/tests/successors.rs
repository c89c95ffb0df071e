//! A server's peer that has gone, and the next one, which was there before anybody noticed: it has the place. The others are turned away.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use millrace_port::Port;
use millrace_port::memif::{self, Memif, Role};
use millrace_port::vhost_user::{self, VhostUser};
use millrace_port::virtio_user::{self, VirtioUser};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, socket,
};

/// Somebody who connects, and says nothing.
fn somebody(kind: SockType, path: &Path) -> OwnedFd {
    let own = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(own.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    own
}

/// Whether the server has kept the connection, whatever it has said.
fn is_kept(own: &OwnedFd) -> bool {
    loop {
        match recv(own.as_raw_fd(), &mut [0; 256], MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN) => return true,
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

fn play(kind: SockType, path: &Path, port: &mut dyn Port) {
    let first = somebody(kind, path);
    port.poll(Instant::now());
    let further = somebody(kind, path);
    port.poll(Instant::now());
    assert!(is_kept(&first) && !is_kept(&further));
    drop(first);
    let next = somebody(kind, path);
    port.poll(Instant::now());
    assert!(is_kept(&next), "the next one was turned away");
    port.poll(Instant::now());
    assert!(is_kept(&next));
    // A few at a time: whoever comes again and again holds nobody up.
    let more: Vec<_> = (0..8).map(|_| somebody(kind, path)).collect();
    for left in [4, 0] {
        port.poll(Instant::now());
        assert_eq!(more.iter().filter(|own| is_kept(own)).count(), left);
    }
    assert!(is_kept(&next));
}

#[test]
fn of_memif() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.sock");
    let mut port = Memif::new(memif::Config::new(Role::Server, &path)).unwrap();
    play(SockType::SeqPacket, &path, &mut port);
}

#[test]
fn of_the_back_end() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.sock");
    let config = vhost_user::Config::new(vhost_user::Role::Server, &path);
    let mut port = VhostUser::new(config).unwrap();
    play(SockType::Stream, &path, &mut port);
}

#[test]
fn of_the_front_end() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.sock");
    let config = virtio_user::Config::new(vhost_user::Role::Server, &path);
    let mut port = VirtioUser::new(config).unwrap();
    play(SockType::Stream, &path, &mut port);
}
