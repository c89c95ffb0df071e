//! A server's peer that has gone, and the next one, which was there before anybody noticed: it has the place. The others are turned away.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use millrace_port::Port;
use millrace_port::memif::{self, Memif, Role};
use millrace_port::vhost_user::{self, VhostUser};
use millrace_port::virtio_user::{self, VirtioUser};
use millrace_wire::memif::{Init, Message, Text, VERSION};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};

/// Who connects to a server, and when they have its port.
struct Peers<'a> {
    kind: SockType,
    path: &'a Path,
    /// What they say.
    says: &'a [u8],
    /// So often is the port polled for one who is to have it.
    polls: usize,
}

impl Peers<'_> {
    fn connect(&self) -> OwnedFd {
        let own = socket(AddressFamily::Unix, self.kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(own.as_raw_fd(), &UnixAddr::new(self.path).unwrap()).unwrap();
        if !self.says.is_empty() {
            let sent = send(own.as_raw_fd(), self.says, MsgFlags::empty());
            assert_eq!(sent, Ok(self.says.len()));
        }
        own
    }

    fn poll(&self, port: &mut dyn Port) {
        for _ in 0..self.polls {
            port.poll(Instant::now());
        }
    }
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

fn play(peers: &Peers<'_>, port: &mut dyn Port) {
    let first = peers.connect();
    peers.poll(port);
    let further = peers.connect();
    peers.poll(port);
    assert!(is_kept(&first) && !is_kept(&further));
    drop(first);
    let next = peers.connect();
    peers.poll(port);
    assert!(is_kept(&next), "the next one was turned away");
    peers.poll(port);
    assert!(is_kept(&next));
    // A few at a time: whoever comes again and again holds nobody up.
    let more: Vec<_> = (0..8).map(|_| peers.connect()).collect();
    for left in [4, 0] {
        peers.poll(port);
        assert_eq!(more.iter().filter(|own| is_kept(own)).count(), left);
    }
    assert!(is_kept(&next));
}

#[test]
fn of_memif() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.sock");
    let mut port = Memif::new(memif::Config::new(Role::Server, &path)).unwrap();
    let init = Message::Init(Init {
        version: VERSION,
        id: 0,
        mode: memif::Mode::Ethernet,
        secret: Text::default(),
        name: Text::new("somebody"),
    });
    let peers = Peers {
        kind: SockType::SeqPacket,
        path: &path,
        says: &init.emit(),
        // To be told HELLO, and to be heard.
        polls: 2,
    };
    play(&peers, &mut port);
}

/// Those who have the port as soon as they are there.
fn silent(path: &Path) -> Peers<'_> {
    Peers {
        kind: SockType::Stream,
        path,
        says: &[],
        polls: 1,
    }
}

#[test]
fn of_the_back_end() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.sock");
    let config = vhost_user::Config::new(vhost_user::Role::Server, &path);
    let mut port = VhostUser::new(config).unwrap();
    play(&silent(&path), &mut port);
}

#[test]
fn of_the_front_end() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.sock");
    let config = virtio_user::Config::new(vhost_user::Role::Server, &path);
    let mut port = VirtioUser::new(config).unwrap();
    play(&silent(&path), &mut port);
}
