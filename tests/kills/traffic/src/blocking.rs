//! Blocking calls: a thread per direction, or one thread where the ends take turns.

use std::net::TcpStream;
use std::time::Instant;

use crate::flow::{Did, End, Incoming, Outgoing};
use crate::order::Shape;

/// Serves one end until both of its directions have ended.
pub(crate) fn run(stream: &TcpStream, mut end: End) {
    if end.shape() == Shape::Lockstep {
        take_turns(stream, &mut end);
        return;
    }
    if !end.reads() {
        send_all(stream, &mut end.outgoing);
        receive_all(stream, &mut end.incoming);
        return;
    }
    let End {
        mut incoming,
        mut outgoing,
    } = end;
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(stream, &mut outgoing));
        receive_all(stream, &mut incoming);
    });
}

/// Receives until the direction ends.
pub(crate) fn receive_all(stream: &TcpStream, incoming: &mut Incoming) {
    while incoming.receive(stream) != Did::Ended {}
}

/// Sends until the direction ends.
pub(crate) fn send_all(stream: &TcpStream, outgoing: &mut Outgoing) {
    loop {
        match outgoing.transmit(stream) {
            Did::Ended => return,
            Did::Idle(until) => rest(until),
            Did::Moved | Did::Blocked => {}
        }
    }
}

fn rest(until: Option<Instant>) {
    // A server that only listens looks now and then whether its reader has ended.
    let nap = until.map_or(std::time::Duration::from_millis(5), |until| {
        until.saturating_duration_since(Instant::now())
    });
    std::thread::sleep(nap);
}

/// Sends what there is to send, then waits for what comes.
pub(crate) fn take_turns(stream: &TcpStream, end: &mut End) {
    let End { incoming, outgoing } = end;
    while !(incoming.has_ended() && outgoing.has_ended()) {
        match if outgoing.has_ended() {
            Did::Ended
        } else {
            outgoing.transmit(stream)
        } {
            Did::Moved | Did::Blocked => {}
            Did::Idle(Some(until)) => rest(Some(until)),
            Did::Idle(None) | Did::Ended => {
                if !incoming.has_ended() {
                    incoming.receive(stream);
                }
            }
        }
    }
}
