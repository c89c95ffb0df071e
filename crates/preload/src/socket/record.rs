//! The end record of a connection that begins.

use std::sync::atomic::Ordering::Relaxed;

use millrace_shm::board::Row;

use crate::{client, process};

/// For a new connection. Nobody counts in it now, and a call that finds that it has the wrong record counts itself out again at once.
pub(crate) fn reset_row(row: &Row) {
    let Row {
        identity,
        send,
        receive,
    } = row;
    for word in [
        &send.tail,
        &send.pending,
        &send.epoch,
        &send.head_seen,
        &send.in_parts,
        &send.told_cpu,
    ] {
        word.store(0, Relaxed);
    }
    for word in [&receive.head, &receive.opened_at] {
        word.store(0, Relaxed);
    }
    send.seen_gate.forget();
    send.told_stamps.reset();
    send.grant.clear();
    receive.grant.clear();
    for word in [
        &send.kernel_position,
        &send.ring_bytes,
        &send.ring_messages,
        &send.kernel_messages,
        &send.resent_bytes,
        &receive.kernel_position,
        &receive.ring_bytes,
        &receive.ring_messages,
        &receive.kernel_messages,
        &receive.doubled_bytes,
        &identity.connection_id,
        &identity.cookie,
    ] {
        word.store(0, Relaxed);
    }
    identity.flags.store(0, Relaxed);
    identity.error.store(0, Relaxed);
    identity.reason.store(client::first_reason(), Relaxed);
    identity.owner.store(process::id(), Relaxed);
    identity.hold_alone(process::holder());
}
