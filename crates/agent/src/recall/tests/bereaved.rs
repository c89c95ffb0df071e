//! Readers whose sender is gone.

use std::net::Shutdown;
use std::sync::atomic::Ordering::Release;

use millrace_wire::Address;
use nix::errno::Errno;

use super::super::put_back::Bereaved;
use super::*;

const ANY: Address = Address {
    ip: [0; 16],
    port: 0,
};

/// The reader of a connection that has lost its sender.
fn bereaved<'a>(boards: &'a [Board; 2], segment: &'a Segment) -> Bereaved<'a> {
    Bereaved {
        receiver: boards[1].row(0).unwrap(),
        segment,
        direction: 0,
        local: &ANY,
        may_await_room: false,
    }
}

#[test]
fn what_a_sender_that_is_gone_has_left_is_put_where_its_reader_finds_it() {
    for (before, behind) in [(0, 0), (5, 0), (0, 7), (3000, 3000)] {
        let mut connection = Connection::new();
        if !may_repair(&connection.far) {
            return;
        }
        let bytes = pattern(RING as usize, 0);
        connection.near.write_all(&pattern(before, 1)).unwrap();
        connection.send_by_ring(before as u64, &bytes);
        connection.near.write_all(&pattern(behind, 2)).unwrap();
        let Connection {
            near,
            mut far,
            segment,
            boards,
        } = connection;
        setsockopt(&far, sockopt::ReuseAddr, &true).unwrap();
        let size = getsockopt(&far, sockopt::RcvBuf).unwrap();
        let bereaved = bereaved(&boards, &segment);
        let alive = bereaved.put_back(far.as_fd(), || false);
        assert!(matches!(alive, Err(Refusal::Connected)), "{alive:?}");
        drop(near);
        bereaved.put_back(far.as_fd(), || false).unwrap();
        bereaved.put_back(far.as_fd(), || false).unwrap();
        let mut stream = Vec::new();
        far.read_to_end(&mut stream).unwrap();
        let expected = [pattern(before, 1), bytes, pattern(behind, 2)].concat();
        assert_eq!(stream, expected);
        assert!(getsockopt(&far, sockopt::ReuseAddr).unwrap());
        assert_eq!(getsockopt(&far, sockopt::RcvBuf).unwrap(), size);
        // As after any other FIN, who goes on to send meets a reset.
        far.write_all(b"x").unwrap();
        while far.write_all(b"x").is_ok() {}
    }
}

#[test]
fn a_position_that_no_stream_has_is_refused() {
    for position in [u64::MAX, u64::MAX - 5, 1 << 63] {
        let connection = Connection::new();
        connection.send_by_ring(0, &pattern(10, 0));
        let Connection {
            near,
            far,
            segment,
            boards,
        } = connection;
        drop(near);
        segment.words(0).switch_position.store(position, Relaxed);
        let bereaved = bereaved(&boards, &segment);
        let refusal = bereaved.put_back(far.as_fd(), || false);
        assert!(matches!(refusal, Err(Refusal::Overtaken)), "{refusal:?}");
    }
}

/// A sender's FIN stands behind bytes for which its reader's queue has no room, and nobody says that the sender has closed.
#[test]
fn the_end_of_a_stream_is_waited_for_where_it_needs_room() {
    for (may_await_room, closes) in [(true, true), (true, false), (false, true)] {
        let connection = Connection::new();
        if !may_repair(&connection.far) {
            return;
        }
        let near = connection.near.try_clone().unwrap();
        near.set_nonblocking(true).unwrap();
        let block = pattern(251 * 64, 0);
        let mut position = 0;
        while let Ok(count) = (&near).write(&block[position % 251..]) {
            position += count;
        }
        let bytes = pattern(RING as usize, position);
        connection.send_by_ring(position as u64, &bytes);
        if closes {
            near.shutdown(Shutdown::Write).unwrap();
        }
        let Connection {
            mut far,
            segment,
            boards,
            ..
        } = connection;
        let size = getsockopt(&far, sockopt::RcvBuf).unwrap();
        let bereaved = Bereaved {
            may_await_room,
            ..bereaved(&boards, &segment)
        };
        let outcome = bereaved.put_back(far.as_fd(), || false);
        assert_eq!(getsockopt(&far, sockopt::RcvBuf).unwrap(), size);
        if may_await_room && closes {
            outcome.unwrap();
            let mut stream = Vec::new();
            far.read_to_end(&mut stream).unwrap();
            assert_eq!(stream, pattern(position + RING as usize, 0));
        } else {
            assert!(matches!(outcome, Err(Refusal::Connected)), "{outcome:?}");
            let mut early = vec![0; position];
            far.read_exact(&mut early).unwrap();
            assert_eq!(early, pattern(position, 0));
        }
    }
}

/// The sender is killed with bytes unread, and its reset comes while the end is waited for, some of whose waiting asks for room.
#[test]
fn a_reset_that_is_waited_for_is_told() {
    let connection = Connection::new();
    if !may_repair(&connection.far) {
        return;
    }
    let local = Address::from(connection.far.local_addr().unwrap());
    connection.send_by_ring(0, b"all");
    let Connection {
        near,
        mut far,
        segment,
        boards,
    } = connection;
    let bereaved = Bereaved {
        local: &local,
        may_await_room: true,
        ..bereaved(&boards, &segment)
    };
    // Asked between two looks.
    let dies = || {
        sys::reset(near.as_fd());
        false
    };
    bereaved.put_back(far.as_fd(), dies).unwrap();
    let mut bytes = [0; 3];
    far.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"all");
    let told = far.read(&mut bytes).unwrap_err();
    assert_eq!(told.kind(), std::io::ErrorKind::ConnectionReset);
}

/// What a recall that failed leaves: both ends are reset, and what came before the ring's bytes is thrown away. The other one is asked.
#[test]
fn of_a_queue_that_was_given_up_the_reset_is_told_still() {
    for is_taken in [false, true] {
        let connection = Connection::new();
        if !may_repair(&connection.far) {
            return;
        }
        let local = Address::from(connection.far.local_addr().unwrap());
        (&connection.near).write_all(b"first").unwrap();
        connection.send_by_ring(5, b"second");
        reorder::give_up(connection.near.as_fd(), Some(connection.far.as_fd()));
        let Connection {
            near,
            mut far,
            segment,
            boards,
        } = connection;
        drop(near);
        let bereaved = Bereaved {
            local: &local,
            ..bereaved(&boards, &segment)
        };
        if is_taken {
            keep_error(&far, bereaved.receiver, Errno::ECONNRESET);
        }
        let refusal = bereaved.put_back(far.as_fd(), || false);
        assert!(matches!(refusal, Err(Refusal::Overtaken)), "{refusal:?}");
        // As the reader does then.
        sys::reset(far.as_fd());
        let told = far.read(&mut [0; 10]).unwrap_err();
        assert_eq!(told.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

/// The reader has taken the error, and has not told it yet.
fn keep_error(socket: &TcpStream, row: &Row, error: Errno) {
    getsockopt(socket, sockopt::SocketError).unwrap();
    let error = (error as i32).cast_unsigned();
    row.identity.error.store(error, Release);
}

#[test]
fn an_error_that_cannot_be_made_again_is_told_as_a_reset() {
    let connection = Connection::new();
    if !may_repair(&connection.far) {
        return;
    }
    connection.send_by_ring(0, b"all");
    sys::reset(connection.near.as_fd());
    let Connection {
        mut far,
        segment,
        boards,
        ..
    } = connection;
    while !sys::is_over(far.as_fd()) {
        std::thread::yield_now();
    }
    let bereaved = bereaved(&boards, &segment);
    keep_error(&far, bereaved.receiver, Errno::ETIMEDOUT);
    bereaved.put_back(far.as_fd(), || false).unwrap();
    let mut bytes = [0; 3];
    far.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"all");
    let told = far.read(&mut bytes).unwrap_err();
    assert_eq!(told.kind(), std::io::ErrorKind::ConnectionReset);
}
