//! The two programs, as instructions. `bpf-helpers(7)` has the functions that they call, `linux/bpf.h` the structures and numbers.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::sys::COUNTER_LINES;

/// Size of the key of a socket: its own address, the other's, its own port, the other's.
pub(super) const KEY_BYTES: u32 = 16;
/// Where counters are in their line.
pub(super) const SPLICED: usize = 0;
pub(super) const ORDINARY: usize = 8;

// Registers. The kernel keeps those from 6 on across calls.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const CONTEXT: u8 = 6;
const SOCKET: u8 = 7;
const COUNTER: u8 = 8;
const FRAME: u8 = 10;

// Offsets from the frame's end.
const KEY: i16 = -16;
const LINE: i16 = -20;

// Functions, by their number in `enum bpf_func_id`.
const MAP_LOOKUP: i32 = 1;
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

const LOAD_U32: u8 = 0x61;
const LOAD_U64: u8 = 0x79;
const STORE_U32: u8 = 0x63;
const ADD_ATOMIC_U64: u8 = 0xdb;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const SET_U64: u8 = 0x18;
const ADD: u8 = 0x07;
const ADD_REGISTER: u8 = 0x0f;
const AND: u8 = 0x57;
const TO_BIG_ENDIAN: u8 = 0xdc;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const JUMP_UNLESS_SAME: u8 = 0x5d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// The source of `SET_U64` that says that its value is the descriptor of a map.
const IS_MAP: u8 = 1;

/// One instruction (`struct bpf_insn`).
fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") {
        from << 4 | to
    } else {
        to << 4 | from
    };
    let [offset0, offset1] = offset.to_ne_bytes();
    let [v0, v1, v2, v3] = value.to_ne_bytes();
    u64::from_ne_bytes([code, registers, offset0, offset1, v0, v1, v2, v3])
}

/// A jump whose target is not there yet.
#[must_use]
struct Jump(usize);

/// A program's text, while it is written.
#[derive(Default)]
struct Text(Vec<u64>);

impl Text {
    fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        self.0.push(instruction(code, to, from, offset, value));
    }

    fn load(&mut self, code: u8, to: u8, from: u8, offset: i16) {
        self.put(code, to, from, offset, 0);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.put(MOVE, to, from, 0, 0);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.put(SET, to, 0, 0, value);
    }

    /// Sixty-four bits take two instructions.
    fn set_u64(&mut self, to: u8, from: u8, value: u64) {
        self.put(SET_U64, to, from, 0, value as i32);
        self.put(0, 0, 0, 0, (value >> 32) as i32);
    }

    fn set_map(&mut self, to: u8, map: BorrowedFd<'_>) {
        self.set_u64(to, IS_MAP, u64::from(map.as_raw_fd().cast_unsigned()));
    }

    /// The address of something in the frame.
    fn set_frame(&mut self, to: u8, offset: i16) {
        self.copy(to, FRAME);
        self.put(ADD, to, 0, 0, offset.into());
    }

    fn call(&mut self, function: i32) {
        self.put(CALL, 0, 0, 0, function);
    }

    fn jump(&mut self, code: u8, register: u8, from: u8, value: i32) -> Jump {
        self.put(code, register, from, 0, value);
        Jump(self.0.len() - 1)
    }

    /// The next instruction is where this jump goes.
    fn land(&mut self, Jump(from): Jump) {
        let distance = (self.0.len() - from - 1) as i16;
        self.0[from] |= instruction(0, 0, 0, distance, 0);
    }

    /// Writes a key from two addresses and two ports. `swapped` is the remote port, which is in network byte order: converted as a word, it
    /// is a number as the local port is.
    fn key(&mut self, members: [i16; 4], swapped: i16) {
        for (place, member) in (KEY..).step_by(4).zip(members) {
            self.load(LOAD_U32, R1, CONTEXT, member);
            if member == swapped {
                self.put(TO_BIG_ENDIAN, R1, 0, 0, 32);
            }
            self.put(STORE_U32, FRAME, R1, place, 0);
        }
    }

    fn leave(&mut self, verdict: i32) {
        self.set(R0, verdict);
        self.put(EXIT, 0, 0, 0, 0);
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
    text.set_u64(R1, 0, netns_cookie);
    let is_elsewhere = text.jump(JUMP_UNLESS_SAME, R0, R1, 0);
    text.key(OPS, OPS[3]);
    text.copy(R1, CONTEXT);
    text.set_map(R2, sockets);
    text.set_frame(R3, KEY);
    text.set(R4, 0);
    // That it fails (the map is full) is no harm: the connection stays what it was.
    text.call(SOCK_HASH_UPDATE);
    text.land(is_other);
    text.land(is_elsewhere);
    // Zero would deny other programs at this place their say.
    text.leave(1);
    text.0
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
    text.key(MSG_PEER, MSG_PEER[2]);
    text.set(COUNTER, ORDINARY as i32);
    begun_by(&mut text, begun, 0);
    let has_begun = text.jump(JUMP_UNLESS_EQUAL, R0, 0, 0);
    text.copy(R1, CONTEXT);
    text.set_map(R2, sockets);
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
    text.0
}

/// The note that this socket has begun through TCP, or null.
fn begun_by(text: &mut Text, begun: BorrowedFd<'_>, flags: i32) {
    text.set_map(R1, begun);
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
    text.set_map(R1, counters);
    text.set_frame(R2, LINE);
    text.call(MAP_LOOKUP);
    let is_missing = text.jump(JUMP_IF_EQUAL, R0, 0, 0);
    text.put(ADD_REGISTER, R0, COUNTER, 0, 0);
    text.set(R1, 1);
    text.put(ADD_ATOMIC_U64, R0, R1, 0, 0);
    text.land(is_missing);
}
