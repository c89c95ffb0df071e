//! The program: for each descriptor of a process that is a TCP socket, one record. Written for the types of the running kernel.

use super::btf::Btf;

/// Size of a record, and where its fields are.
pub(super) const RECORD_BYTES: usize = 48;
pub(super) const FD: usize = 0;
pub(super) const STATE: usize = 4;
pub(super) const COOKIE: usize = 8;
pub(super) const NETNS_COOKIE: usize = 16;
pub(super) const OWNER: usize = 24;
pub(super) const SEND_NEXT: usize = 28;
pub(super) const SEND_UNACKNOWLEDGED: usize = 32;
pub(super) const RECEIVE_NEXT: usize = 36;

/// Where this kernel has what the program reads.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) attach_function: u32,
    socket_sk: u32,
    state: u32,
    cookie: u32,
    net: u32,
    net_cookie: u32,
    net_owner: u32,
    owner_number: u32,
    send_next: u32,
    send_unacknowledged: u32,
    receive_next: u32,
    meta_file: u32,
}

impl Layout {
    pub(super) fn find(table: &Btf) -> Option<Layout> {
        let common = |name: &[&str]| {
            let path = [&["inet_conn", "icsk_inet", "sk", "__sk_common"], name].concat();
            table.offset("tcp_sock", &path)
        };
        Some(Layout {
            attach_function: table.function("bpf_iter_task_file")?,
            socket_sk: table.offset("socket", &["sk"])?,
            state: common(&["skc_state"])?,
            cookie: common(&["skc_cookie"])?,
            net: common(&["skc_net", "net"])?,
            net_cookie: table.offset("net", &["net_cookie"])?,
            net_owner: table.offset("net", &["user_ns"])?,
            owner_number: table.offset("user_namespace", &["ns", "inum"])?,
            send_next: table.offset("tcp_sock", &["snd_nxt"])?,
            send_unacknowledged: table.offset("tcp_sock", &["snd_una"])?,
            receive_next: table.offset("tcp_sock", &["rcv_nxt"])?,
            meta_file: table.offset("bpf_iter_meta", &["seq"])?,
        })
    }
}

// Registers.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const CONTEXT: u8 = 6;
const NUMBER: u8 = 7;
const TCP: u8 = 8;
const FRAME: u8 = 10;

// Helper functions, by their number in `enum bpf_func_id`.
const SEQ_WRITE: i32 = 127;
const SKC_TO_TCP_SOCK: i32 = 137;
const SOCK_FROM_FILE: i32 = 162;

// `struct bpf_iter__task_file`: each member has eight bytes.
const META: u32 = 0;
const DESCRIPTOR: u32 = 16;
const FILE: u32 = 24;

const LOAD_U8: u8 = 0x71;
const LOAD_U32: u8 = 0x61;
const LOAD_U64: u8 = 0x79;
const STORE_U32: u8 = 0x63;
const STORE_U64: u8 = 0x7b;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const JUMP_IF_EQUAL: u8 = 0x15;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// One instruction (`struct bpf_insn`).
fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") {
        from << 4 | to
    } else {
        to << 4 | from
    };
    let offset = offset.to_ne_bytes();
    let value = value.to_ne_bytes();
    u64::from_ne_bytes([
        code, registers, offset[0], offset[1], value[0], value[1], value[2], value[3],
    ])
}

/// The program's text, while it is written.
#[derive(Default)]
struct Text {
    code: Vec<u64>,
    /// Jumps to the end.
    leaving: Vec<usize>,
}

impl Text {
    fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        self.code.push(instruction(code, to, from, offset, value));
    }

    fn load(&mut self, code: u8, to: u8, from: u8, offset: u32) {
        self.put(code, to, from, offset as i16, 0);
    }

    fn leave_if_null(&mut self, register: u8) {
        self.leaving.push(self.code.len());
        self.put(JUMP_IF_EQUAL, register, 0, 0, 0);
    }

    /// Copies a field of what `from` points to into the record.
    fn record(&mut self, (load, store): (u8, u8), from: u8, offset: u32, field: usize) {
        self.load(load, R1, from, offset);
        self.put(store, FRAME, R1, field as i16 - RECORD_BYTES as i16, 0);
    }

    fn end(mut self) -> Vec<u64> {
        let end = self.code.len();
        for jump in self.leaving {
            let distance = (end - jump - 1) as i16;
            self.code[jump] |= instruction(0, 0, 0, distance, 0);
        }
        self.code.push(instruction(SET, R0, 0, 0, 0));
        self.code.push(instruction(EXIT, 0, 0, 0, 0));
        self.code
    }
}

/// Writes the program.
pub(super) fn assemble(layout: &Layout) -> Vec<u64> {
    let word = (LOAD_U32, STORE_U32);
    let long = (LOAD_U64, STORE_U64);
    let mut text = Text::default();
    text.put(MOVE, CONTEXT, R1, 0, 0);
    text.load(LOAD_U64, R1, CONTEXT, FILE);
    text.leave_if_null(R1);
    text.load(LOAD_U32, NUMBER, CONTEXT, DESCRIPTOR);
    text.put(CALL, 0, 0, 0, SOCK_FROM_FILE);
    text.leave_if_null(R0);
    text.load(LOAD_U64, R1, R0, layout.socket_sk);
    text.leave_if_null(R1);
    text.put(CALL, 0, 0, 0, SKC_TO_TCP_SOCK);
    text.leave_if_null(R0);
    text.put(MOVE, TCP, R0, 0, 0);
    // The last eight bytes of a record are padding.
    text.put(SET, R1, 0, 0, 0);
    text.put(STORE_U64, FRAME, R1, -8, 0);
    text.put(STORE_U32, FRAME, NUMBER, FD as i16 - RECORD_BYTES as i16, 0);
    text.record((LOAD_U8, STORE_U32), TCP, layout.state, STATE);
    text.record(long, TCP, layout.cookie, COOKIE);
    text.record(word, TCP, layout.send_next, SEND_NEXT);
    text.record(word, TCP, layout.send_unacknowledged, SEND_UNACKNOWLEDGED);
    text.record(word, TCP, layout.receive_next, RECEIVE_NEXT);
    text.load(LOAD_U64, R2, TCP, layout.net);
    text.record(long, R2, layout.net_cookie, NETNS_COOKIE);
    text.load(LOAD_U64, R2, R2, layout.net_owner);
    text.record(word, R2, layout.owner_number, OWNER);
    text.load(LOAD_U64, R1, CONTEXT, META);
    text.load(LOAD_U64, R1, R1, layout.meta_file);
    text.put(MOVE, R2, FRAME, 0, 0);
    text.put(ADD, R2, 0, 0, -(RECORD_BYTES as i32));
    text.put(SET, R3, 0, 0, RECORD_BYTES as i32);
    text.put(CALL, 0, 0, 0, SEQ_WRITE);
    text.end()
}
