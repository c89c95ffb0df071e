//! What takes long to close, and text that a terminal would do something by.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use millrace_wire::memif::Disconnect;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::*;

/// A connection with bytes that nobody takes, whose last descriptor takes ten minutes to close, and the end that would have to take them.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 65_536]).is_ok() {}
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 600,
    };
    setsockopt(&near, sockopt::Linger, &linger).unwrap();
    (near, far)
}

#[test]
fn what_takes_long_to_close_holds_nobody_up() {
    // With a message that is read, and with one that is not, since another client is there.
    for is_second in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("memif.sock");
        let mut port = server(&path);
        let first = is_second.then(|| Raw::new(&mut port, &path));
        let hostile = Raw::connect(&path);
        let (near, far) = lingering();
        let numbers = [near.as_raw_fd(); 64];
        let rights = [ControlMessage::ScmRights(&numbers)];
        let bytes = init(0).emit();
        let parts = [IoSlice::new(&bytes)];
        sendmsg::<()>(
            hostile.as_raw_fd(),
            &parts,
            &rights,
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        drop(near);
        let began = Instant::now();
        for _ in 0..4 {
            port.poll(Instant::now());
        }
        drop((first, hostile));
        until(&mut port, |port| why(port) == "the peer has gone");
        if !is_second {
            // Nobody is taken while so much is not closed.
            let next = Raw::connect(&path);
            say(&next, &init(0).emit(), None);
            until(&mut port, |port| {
                port.poll_at().is_some() && why(port).contains("not closed yet")
            });
            drop(next);
            // It is reset.
            drop(far);
        }
        Raw::new(&mut port, &path);
        assert!(began.elapsed() < Duration::from_secs(300), "nobody lingers");
    }
}

#[test]
fn who_has_gone_before_they_were_taken_wakes_nobody() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let hostile = Raw::connect(&path);
    let (near, _far) = lingering();
    say(&hostile, &init(0).emit(), Some(near.as_fd()));
    drop((hostile, near));
    for _ in 0..4 {
        port.poll(Instant::now());
    }
    let mut polled = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut polled, PollTimeout::ZERO), Ok(0));
}

#[test]
fn what_a_peer_says_is_shown_as_text_whatever_it_is() {
    let reason = "\u{1b}[2Jno \u{202e}\nmore, it's \"done\"";
    let disconnect = Message::Disconnect(Disconnect {
        code: 0,
        reason: Text::new(reason),
    });
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let raw = Raw::new(&mut port, &path);
    raw.say(&disconnect.emit(), None);
    port.poll(Instant::now());
    let wanted = r#"the peer disconnected: \u{1b}[2Jno \u{202e}\nmore, it's "done""#;
    assert_eq!(why(&port), wanted);
}
