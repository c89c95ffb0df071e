//! Readers whose sender is gone.

use std::net::Shutdown;

use super::super::put_back::Bereaved;
use super::*;

/// The reader of a connection that has lost its sender.
fn bereaved<'a>(boards: &'a [Board; 2], segment: &'a Segment) -> Bereaved<'a> {
    Bereaved {
        receiver: boards[1].row(0).unwrap(),
        segment,
        direction: 0,
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
