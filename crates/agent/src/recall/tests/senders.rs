//! Senders that are in a call, or whose kernel holds bytes back.

use std::process::{Child, Command};

use super::*;

#[test]
fn a_sender_that_is_never_done_does_not_hold_the_agent_up() {
    let connection = Connection::new();
    let near = connection.near.try_clone().unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 1 << 16]).is_ok() {}
    connection.road().sender.send.raw.store(1, Relaxed);
    let is_over = AtomicBool::new(false);
    let drawn = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let _ = (&near).write(b"x");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (near, far) = (connection.near.as_fd(), connection.far.as_fd());
        let drawn = connection
            .road()
            .draw((near, far), &mut Room::of(near, true));
        is_over.store(true, Relaxed);
        drawn
    });
    assert!(!drawn.is_empty());
}

/// A process that stands still.
struct Stopped(Child);

impl Stopped {
    fn new() -> Stopped {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let stopped = Stopped(child);
        let status = Command::new("kill")
            .args(["-STOP", &stopped.0.id().to_string()])
            .status();
        assert!(status.unwrap().success());
        while !crate::proof::is_stopped(stopped.0.id()) {
            std::thread::yield_now();
        }
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_stopped_call_has_sent_is_sent_again_behind_the_ring_s() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut connection = Connection::new();
    connection.near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    connection.far = listener.accept().unwrap().0;
    let bytes = pattern(100, 0);
    connection.near.write_all(b"first").unwrap();
    connection.send_by_ring(5, &bytes);
    // A call with ten bytes, of which it could send five.
    connection.near.write_all(b"later").unwrap();
    connection.segment.words(0).kernel_hint.store(15, Relaxed);
    let stopped = Stopped::new();
    let (near, far) = (connection.near.as_fd(), connection.far.as_fd());
    let mut road = connection.road();
    road.sender.send.raw.store(1, Relaxed);
    let refusal = road.bring_back(near, Some(far), SHORT_WAIT);
    assert!(matches!(refusal, Err(Refusal::Sending)), "{refusal:?}");
    road.callers = vec![std::process::id(), stopped.0.id()];
    let refusal = road.bring_back(near, Some(far), SHORT_WAIT);
    assert!(matches!(refusal, Err(Refusal::Sending)), "{refusal:?}");
    road.callers = vec![stopped.0.id()];
    road.bring_back(near, Some(far), WAIT).unwrap();
    assert!(road.is_drained().unwrap());
    assert_eq!(road.receiver.receive.kernel_position.load(Relaxed), 10);
    let noted = &road.sender.send.kernel_position;
    noted.fetch_add(5, Relaxed);
    assert_eq!(
        noted.load(Relaxed),
        120,
        "it notes its part when it goes on"
    );
    let expected = [b"first", &bytes[..], b"later"].concat();
    assert_eq!(connection.read(110), expected);
}

#[test]
fn of_one_that_went_on_in_the_middle_the_reset_is_seen_and_no_byte() {
    let mut connection = Connection::new();
    connection.near.write_all(b"in some order").unwrap();
    let ends = (connection.near.as_fd(), Some(connection.far.as_fd()));
    connection.road().must_have_sent(13, ends).unwrap();
    let refusal = connection.road().must_have_sent(12, ends);
    assert!(matches!(refusal, Err(Refusal::Sending)), "{refusal:?}");
    let told = connection.far.read(&mut [0; 10]).unwrap_err();
    assert_eq!(told.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_sender_that_waits_no_more_is_left_alone() {
    let mut connection = Connection::new();
    let bytes = pattern(100, 0);
    connection.send_by_ring(0, &bytes);
    let near = connection.near.as_fd();
    let mut road = connection.road();
    road.asker = Asker::Sender;
    let end = &road.sender.identity;
    assert!(!end.end_ask());
    let refusal = road.bring_back(near, None, WAIT);
    assert!(matches!(refusal, Err(Refusal::TooLate)), "{refusal:?}");
    assert!(!end.is_at_work());
    end.begin_ask();
    road.bring_back(near, None, WAIT).unwrap();
    assert!(!end.end_ask() && !end.is_at_work());
    assert_eq!(connection.read(100), bytes);
}

/// What a sender said there is more of is held back by its kernel for 200 ms, and its reader leaves meanwhile.
#[test]
fn what_the_kernel_holds_back_is_sent_again_behind_the_ring_s() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut connection = Connection::new();
    connection.near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    connection.far = listener.accept().unwrap().0;
    // As on every connection that has been on the ring.
    connection.near.set_nodelay(true).unwrap();
    let bytes = pattern(100, 0);
    connection.send_by_ring(0, &bytes);
    let more = MsgFlags::from_bits_retain(libc::MSG_MORE);
    send(connection.near.as_raw_fd(), b"later", more).unwrap();
    let road = Road {
        carries: true,
        ..connection.road()
    };
    road.sender.send.kernel_position.store(5, Relaxed);
    let (near, far) = (connection.near.as_fd(), connection.far.as_fd());
    road.bring_back(near, Some(far), WAIT).unwrap();
    assert!(road.is_drained().unwrap());
    let expected = [&bytes[..], b"later"].concat();
    assert_eq!(connection.read(105), expected);
}
