//! What the agent is asked to bring back to the kernel's road, and how long its answer is waited for.

use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;
use millrace_shm::board::{Identity, flags};
use millrace_wire::Recall;

use super::session::Client;
use super::{link, with_client};
use crate::guarded::Guarded;
use crate::socket::{Socket, rests};
use crate::{kernel, process, spin};

/// Milliseconds that the agent has to answer a recall: one that stands still holds a program up once, not for each of its connections.
const RECALL_WAIT_MS: u64 = 300;
/// The same of a sender whose peers have held others of its recalls up: mostly the agent needs a third of that.
const RESTING_WAIT_MS: u64 = 1;
/// The same when a reader waits.
const READER_WAIT_MS: u64 = 600;
/// The same when it cannot go on to read its ring: a program that gets the connection would miss what lies there.
const LEAVING_WAIT_MS: u64 = 2000;

/// So long an agent may be at work on a recall: then it is gone, or stands still.
const WORK_WAIT_NS: u64 = 3_000_000_000;
/// Until it is looked whether it is still.
const WORK_PAUSE_MS: c_int = 1;

/// Held by the thread that asks for a recall, and waits for the answer: there is one at a time. Comes before `CLIENT`.
pub(super) static RECALLING: Guarded<()> = Guarded::new(());

/// Has the agent send by the kernel again what lies unread in the ring of a connection that this process reads no more, or
/// (`sends`) sends on no more. Waits for the answer, until it is [`RECALL_WAIT_MS`], [`READER_WAIT_MS`] or [`LEAVING_WAIT_MS`] late. The
/// caller looks into the ring to see what became of it. A forked child asks for connections of its parent, too.
pub(crate) fn recall(socket: &Socket, fd: c_int, sends: bool) {
    if !sends {
        return ask(socket, fd, sends);
    }
    let end = &socket.row().identity;
    end.begin_ask();
    ask(socket, fd, sends);
    end_ask(end);
}

/// The sender of an end waits no more for what was asked; where the agent is at work on it, this waits for that.
pub(crate) fn end_ask(end: &Identity) {
    if !end.end_ask() {
        return;
    }
    let began_ns = kernel::monotonic_ns();
    while end.is_at_work() {
        if kernel::monotonic_ns() - began_ns > WORK_WAIT_NS {
            return end.end_work();
        }
        kernel::pause(WORK_PAUSE_MS);
    }
}

/// Asks, and waits for the answer.
fn ask(socket: &Socket, fd: c_int, sends: bool) {
    let recall = Recall {
        offer_id: socket.offer_id.load(Relaxed),
        connection_id: socket.row().identity.connection_id.load(Relaxed),
        fd,
        sends,
    };
    let is_leaving = socket.row().identity.flags.load(Relaxed) & flags::LEAVES != 0;
    let patience_ms = match sends {
        true if rests() => RESTING_WAIT_MS,
        true => RECALL_WAIT_MS,
        false if is_leaving => LEAVING_WAIT_MS,
        false => READER_WAIT_MS,
    };
    // The peer may have read what lies in a copy of the ring.
    if socket.is_restored(fd, spin::clock()) {
        return;
    }
    // A thread that keeps introductions away asks for nothing, and waits for nobody who does.
    match with_client(|client| process::is_borrowed().then(|| client.path.clone())) {
        None => return,
        Some(Some(path)) => return link::recall_apart(&path, recall, patience_ms),
        Some(None) => {}
    }
    let Some(_turn) = RECALLING.lock() else {
        return;
    };
    // For what a sender asked that did not wait as long.
    if !sends {
        wait_for_answer(patience_ms);
    }
    if with_client(|client| client.recall(recall)) == Some(true) {
        wait_for_answer(patience_ms);
    }
}

/// Waits for the answer that the agent owes, if it does, until so long after it was asked. Others have their connections meanwhile.
fn wait_for_answer(patience_ms: u64) {
    while let Some((number, asked_at_ns)) = with_client(Client::owing).flatten()
        && kernel::monotonic_ns() < asked_at_ns + patience_ms * 1_000_000
    {
        link::wait_for_mail(number);
    }
}

/// Whether it is of use to ask for a recall once more: there is an agent, and it has answered.
pub(crate) fn answers() -> bool {
    with_client(|client| {
        if process::is_borrowed() {
            link::answers_apart()
        } else {
            client.has_answered()
        }
    })
    .unwrap_or(false)
}
