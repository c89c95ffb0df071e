//! The two programs, as instructions. `bpf-helpers(7)` has the functions that they call, `linux/bpf.h` the structures and numbers.

use std::os::fd::{AsRawFd, BorrowedFd};

use millrace_agent::bpf_text::{
    ADD_ATOMIC_U64, ADD_REGISTER, AND, FRAME, JUMP_IF_EQUAL, JUMP_UNLESS_EQUAL, JUMP_UNLESS_SAME,
    LOAD_U32, LOAD_U64, MAP_LOOKUP, R0, R1, R2, R3, R4, STORE_U32, TO_BIG_ENDIAN, Text,
};

use super::sys::COUNTER_LINES;

/// Size of the key of a socket: its own address, the other's, its own port, the other's.
pub(super) const KEY_BYTES: u32 = 16;
/// Where counters are in their line.
pub(super) const SPLICED: usize = 0;
pub(super) const ORDINARY: usize = 8;

// Registers of the programs' own.
const CONTEXT: u8 = 6;
const SOCKET: u8 = 7;
const COUNTER: u8 = 8;

// Offsets from the frame's end.
const KEY: i16 = -16;
const LINE: i16 = -20;

// Functions, by their number in `enum bpf_func_id`.
const PROCESSOR: i32 = 8;
const SOCK_HASH_UPDATE: i32 = 70;
const MSG_REDIRECT_HASH: i32 = 71;
const SK_STORAGE_GET: i32 = 107;
const NETNS_COOKIE: i32 = 122;

// Members of `struct bpf_sock_ops`.
const OPS_OPERATION: i16 = 0;
const OPS: [i16; 4] = [28, 24, 68, 64];
// Members of `struct sk_msg_md`.
const MSG_PEER: [i16; 4] = [20, 24, 60, 64];
const MSG_SOCKET: i16 = 72;

const ACTIVE_ESTABLISHED: i32 = 4;
const PASSIVE_ESTABLISHED: i32 = 5;
const INGRESS: i32 = 1;
const CREATE: i32 = 1;
const PASS: i32 = 1;

/// Writes a key from two addresses and two ports. `swapped` is the remote port, which is in network byte order: converted as a word, it
/// is a number as the local port is.
fn key(text: &mut Text, members: [i16; 4], swapped: i16) {
    for (place, member) in (KEY..).step_by(4).zip(members) {
        text.load(LOAD_U32, R1, CONTEXT, member);
        if member == swapped {
            text.put(TO_BIG_ENDIAN, R1, 0, 0, 32);
        }
        text.put(STORE_U32, FRAME, R1, place, 0);
    }
}

/// The `sock_ops` program: a socket of this network namespace whose connection is established goes into the map.
pub(super) fn join(sockets: BorrowedFd<'_>, netns_cookie: u64) -> Vec<u64> {
    let mut text = Text::default();
    text.copy(CONTEXT, R1);
    // It is called for many other things, and for other people's sockets: those it costs these three instructions.
    text.load(LOAD_U32, R2, CONTEXT, OPS_OPERATION);
    let is_active = text.jump(JUMP_IF_EQUAL, R2, 0, ACTIVE_ESTABLISHED);
    let is_other = text.jump(JUMP_UNLESS_EQUAL, R2, 0, PASSIVE_ESTABLISHED);
    text.land(is_active);
    text.call(NETNS_COOKIE);
    text.set_u64(R1, netns_cookie);
    let is_elsewhere = text.jump(JUMP_UNLESS_SAME, R0, R1, 0);
    key(&mut text, OPS, OPS[3]);
    text.copy(R1, CONTEXT);
    text.set_map(R2, sockets.as_raw_fd());
    text.set_frame(R3, KEY);
    text.set(R4, 0);
    // That it fails (the map is full) is no harm: the connection stays what it was.
    text.call(SOCK_HASH_UPDATE);
    text.land(is_other);
    text.land(is_elsewhere);
    // Zero would deny other programs at this place their say.
    text.leave(1);
    text.finish()
}

/// The `sk_msg` program: each message goes to the receive queue of the peer, unless its sender has begun through TCP.
pub(super) fn redirect(
    sockets: BorrowedFd<'_>,
    begun: BorrowedFd<'_>,
    counters: BorrowedFd<'_>,
) -> Vec<u64> {
    let mut text = Text::default();
    text.copy(CONTEXT, R1);
    text.load(LOAD_U64, SOCKET, CONTEXT, MSG_SOCKET);
    key(&mut text, MSG_PEER, MSG_PEER[2]);
    text.set(COUNTER, ORDINARY as i32);
    begun_by(&mut text, begun, 0);
    let has_begun = text.jump(JUMP_UNLESS_EQUAL, R0, 0, 0);
    text.copy(R1, CONTEXT);
    text.set_map(R2, sockets.as_raw_fd());
    text.set_frame(R3, KEY);
    text.set(R4, INGRESS);
    text.call(MSG_REDIRECT_HASH);
    text.set(COUNTER, SPLICED as i32);
    let is_spliced = text.jump(JUMP_IF_EQUAL, R0, 0, PASS);
    // The peer is not in the map, or not yet. It would read what comes to its queue before what still waits in TCP, so this sender now
    // stays with TCP for good.
    text.set(COUNTER, ORDINARY as i32);
    begun_by(&mut text, begun, CREATE);
    let is_noted = text.jump(JUMP_UNLESS_EQUAL, R0, 0, 0);
    // No memory for the note: an error for the sender is better than bytes in the wrong order.
    text.leave(0);
    for jump in [has_begun, is_spliced, is_noted] {
        text.land(jump);
    }
    count(&mut text, counters);
    text.leave(PASS);
    text.finish()
}

/// The note that this socket has begun through TCP, or null.
fn begun_by(text: &mut Text, begun: BorrowedFd<'_>, flags: i32) {
    text.set_map(R1, begun.as_raw_fd());
    text.copy(R2, SOCKET);
    text.set(R3, 0);
    text.set(R4, flags);
    text.call(SK_STORAGE_GET);
}

/// Counts a message. Processors have lines of their own: a shared one would make the road slower than it is.
fn count(text: &mut Text, counters: BorrowedFd<'_>) {
    text.call(PROCESSOR);
    text.put(AND, R0, 0, 0, COUNTER_LINES as i32 - 1);
    text.put(STORE_U32, FRAME, R0, LINE, 0);
    text.set_map(R1, counters.as_raw_fd());
    text.set_frame(R2, LINE);
    text.call(MAP_LOOKUP);
    let is_missing = text.jump(JUMP_IF_EQUAL, R0, 0, 0);
    text.put(ADD_REGISTER, R0, COUNTER, 0, 0);
    text.set(R1, 1);
    text.put(ADD_ATOMIC_U64, R0, R1, 0, 0);
    text.land(is_missing);
}
