//! Connections that two processes hold.

use std::net::TcpStream;

use crate::blocking::{receive_all, send_all, take_turns};
use crate::flow::End;
use crate::order::Shape;
use crate::sys;

/// Does `work` in a process of its own; returns that process's number.
pub(crate) fn start(work: impl FnOnce()) -> i32 {
    match sys::fork() {
        0 => {
            work();
            std::process::exit(0);
        }
        child => child,
    }
}

/// Where both ends send at will, this process reads and another writes. Where they take turns, another does all of it, and this
/// one only keeps the connection until that has ended.
pub(crate) fn run(stream: &TcpStream, mut end: End) {
    let words = end.words();
    let takes_turns = end.shape() == Shape::Lockstep;
    let worker = start(|| {
        words.worker.set(u64::from(std::process::id()));
        if takes_turns {
            take_turns(stream, &mut end);
        } else {
            send_all(stream, &mut end.outgoing);
        }
    });
    if !takes_turns {
        receive_all(stream, &mut end.incoming);
    }
    sys::wait_for(worker);
}
