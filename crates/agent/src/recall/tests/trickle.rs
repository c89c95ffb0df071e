//! Bytes that come one by one, so that nothing ever stands still.

use std::thread;

use super::*;

/// From one byte to the next: less than a standstill.
const GAP: Duration = Duration::from_millis(20);
/// They come for several times as long as a recall may wait.
const COUNT: usize = 60;

#[test]
fn a_queue_that_fills_byte_by_byte_is_not_waited_for_to_its_end() {
    let connection = Connection::new();
    let near = &connection.near;
    let taken = thread::scope(|scope| {
        scope.spawn(|| trickle(near));
        take(
            connection.far.as_fd(),
            COUNT,
            Instant::now() + TAKE_MAX,
            || true,
        )
    });
    assert!(taken.len() < COUNT, "all of {COUNT} bytes");
}

#[test]
fn the_queue_of_one_whose_sender_is_gone_is_not_waited_for_to_its_end_either() {
    let connection = Connection::new();
    let near = connection.near;
    let drained = thread::scope(|scope| {
        scope.spawn(move || trickle(&near));
        put_back::drain(connection.far.as_fd())
    });
    assert_eq!(drained, None);
}

fn trickle(mut near: &TcpStream) {
    for _ in 0..COUNT {
        near.write_all(b"x").unwrap();
        thread::sleep(GAP);
    }
}
