//! The program: for each descriptor of a list that is a socket, one record. Written for the types of the running kernel.
//!
//! It goes from the task to the socket by reading the kernel's memory, field by field (`bpf_probe_read_kernel`): what is null, or no
//! address, reads as zeros. Nothing is held meanwhile. What was freed and used again under it is noticed by the cookie, which is read first
//! and last and never comes back; what is no socket at all by its file's operations; both by whoever reads the record.

use std::ops::Range;

use super::btf::Btf;
use super::text::{
    ADD, ADD_REGISTER, FRAME, JUMP_IF_EQUAL, JUMP_IF_NOT_BELOW, JUMP_IF_REGISTER_NOT_BELOW,
    JUMP_UNLESS_EQUAL, LOAD_U32, LOAD_U64, MAP_LOOKUP, R0, R1, R2, R3, SHIFT_LEFT, STORE_U32,
    STORE_U64, Text,
};

/// Descriptors that one run looks at. The kernel's verifier follows each when the program is loaded, half a millisecond long; and their
/// records have to fit into the iterator's buffer, eight pages.
pub(super) const LIST_MAX: usize = 64;
/// A list is how many there are, and their numbers, each four bytes.
pub(super) const LIST_BYTES: usize = 4 + 4 * LIST_MAX;

/// Size of a record, and where its fields are.
pub(super) const RECORD_BYTES: usize = 128;
pub(super) const FD: usize = 0;
pub(super) const OWNER: usize = 4;
pub(super) const COOKIE: usize = 8;
pub(super) const COOKIE_AFTER: usize = 16;
pub(super) const NETNS_COOKIE: usize = 24;
/// The address of the file's operations, which all sockets share.
pub(super) const OPERATIONS: usize = 32;
pub(super) const SEND_NEXT: usize = 40;
pub(super) const SEND_UNACKNOWLEDGED: usize = 44;
pub(super) const RECEIVE_NEXT: usize = 48;
/// One byte.
pub(super) const STATE: usize = 52;
/// Two bytes each.
pub(super) const FAMILY: usize = 54;
pub(super) const KIND: usize = 56;
pub(super) const PROTOCOL: usize = 58;
/// The names of queueing disciplines: of the interface by which the socket sends, when it sends and receives; and the same of the other
/// half of that interface, where it is a veth. Zeros where there is none.
pub(super) const DISCIPLINES: usize = 64;
pub(super) const DISCIPLINE_BYTES: usize = 16;
/// Behind the record on the stack: what was read on the way; how many entries the table of descriptors has, and where they are; and where
/// the socket is.
const SCRATCH: usize = 128;
const TABLE_SIZE: usize = 136;
const TABLE: usize = 144;
const SOCKET: usize = 152;
const FRAME_BYTES: usize = 160;

/// Where this kernel has what the program reads.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) attach_function: u32,
    task_files: u32,
    files_table: u32,
    table_size: u32,
    table_files: u32,
    file_operations: u32,
    file_socket: u32,
    socket_sk: u32,
    state: u32,
    family: u32,
    kind: u32,
    protocol: u32,
    cookie: u32,
    net: u32,
    net_cookie: u32,
    net_owner: u32,
    owner_number: u32,
    send_next: u32,
    send_unacknowledged: u32,
    receive_next: u32,
    meta_file: u32,
    /// Of a kernel without queueing disciplines there is none.
    interface: Option<Interface>,
}

/// Where it has what an interface does with packets.
#[derive(Debug, Clone, Copy)]
struct Interface {
    socket_route: u32,
    route_device: u32,
    sending: u32,
    receiving: u32,
    queue_discipline: u32,
    discipline_kind: u32,
    kind_name: u32,
    device_kind: u32,
    device_kind_name: u32,
    /// Where the data of its driver begin; a veth's first datum is its other half (`struct veth_priv`).
    driver: u32,
}

impl Interface {
    fn find(table: &Btf) -> Option<Interface> {
        let device = |name| table.offset("net_device", &[name]);
        // Before Linux 6.11 nothing but the size said where they are (`netdev_priv`).
        let behind = || Some(table.size("net_device")?.next_multiple_of(32));
        Some(Interface {
            socket_route: table.offset("sock", &["sk_dst_cache"])?,
            route_device: table.offset("dst_entry", &["dev"])?,
            sending: device("qdisc")?,
            receiving: device("ingress_queue")?,
            queue_discipline: table.offset("netdev_queue", &["qdisc_sleeping"])?,
            discipline_kind: table.offset("Qdisc", &["ops"])?,
            kind_name: table.offset("Qdisc_ops", &["id"])?,
            device_kind: device("rtnl_link_ops")?,
            device_kind_name: table.offset("rtnl_link_ops", &["kind"])?,
            driver: device("priv").or_else(behind)?,
        })
    }
}

impl Layout {
    pub(super) fn find(table: &Btf) -> Option<Layout> {
        let socket = |name: &[&str]| {
            let path = [&["inet_conn", "icsk_inet", "sk"], name].concat();
            table.offset("tcp_sock", &path)
        };
        let common = |name: &[&str]| socket(&[&["__sk_common"], name].concat());
        Some(Layout {
            attach_function: table.function("bpf_iter_task")?,
            task_files: table.offset("task_struct", &["files"])?,
            files_table: table.offset("files_struct", &["fdt"])?,
            table_size: table.offset("fdtable", &["max_fds"])?,
            table_files: table.offset("fdtable", &["fd"])?,
            file_operations: table.offset("file", &["f_op"])?,
            file_socket: table.offset("file", &["private_data"])?,
            socket_sk: table.offset("socket", &["sk"])?,
            state: common(&["skc_state"])?,
            family: common(&["skc_family"])?,
            kind: socket(&["sk_type"])?,
            protocol: socket(&["sk_protocol"])?,
            cookie: common(&["skc_cookie"])?,
            net: common(&["skc_net", "net"])?,
            net_cookie: table.offset("net", &["net_cookie"])?,
            net_owner: table.offset("net", &["user_ns"])?,
            owner_number: table.offset("user_namespace", &["ns", "inum"])?,
            send_next: table.offset("tcp_sock", &["snd_nxt"])?,
            send_unacknowledged: table.offset("tcp_sock", &["snd_una"])?,
            receive_next: table.offset("tcp_sock", &["rcv_nxt"])?,
            meta_file: table.offset("bpf_iter_meta", &["seq"])?,
            interface: Interface::find(table),
        })
    }
}

// Registers of the program's own.
const CONTEXT: u8 = 6;
const LIST: u8 = 7;
const POINTER: u8 = 8;
const INDEX: u8 = 9;

// Helper functions, by their number in `enum bpf_func_id`.
const PROBE_READ_KERNEL: i32 = 113;
const SEQ_WRITE: i32 = 127;

// `struct bpf_iter__task`: each member has eight bytes.
const META: i16 = 0;
const TASK: i16 = 8;

/// Where on the stack a field is.
fn on_stack(field: usize) -> i16 {
    field as i16 - FRAME_BYTES as i16
}

impl Text {
    /// Copies so many bytes of what `from` points to into the record.
    fn record(&mut self, from: u8, offset: u32, bytes: i32, field: usize) {
        self.copy(R3, from);
        self.put(ADD, R3, 0, 0, offset.cast_signed());
        self.set_frame(R1, on_stack(field));
        self.set(R2, bytes);
        self.call(PROBE_READ_KERNEL);
    }

    /// Loads a pointer that `from` points to.
    fn follow(&mut self, to: u8, from: u8, offset: u32) {
        self.record(from, offset, 8, SCRATCH);
        self.load(LOAD_U64, to, FRAME, on_stack(SCRATCH));
    }

    /// Fills the record in, from the entry of the table that POINTER points to.
    fn socket(&mut self, layout: &Layout) {
        self.follow(POINTER, POINTER, 0);
        self.record(POINTER, layout.file_operations, 8, OPERATIONS);
        self.follow(POINTER, POINTER, layout.file_socket);
        self.follow(POINTER, POINTER, layout.socket_sk);
        self.record(POINTER, layout.cookie, 8, COOKIE);
        self.record(POINTER, layout.state, 1, STATE);
        self.record(POINTER, layout.family, 2, FAMILY);
        self.record(POINTER, layout.kind, 2, KIND);
        self.record(POINTER, layout.protocol, 2, PROTOCOL);
        self.record(POINTER, layout.send_next, 4, SEND_NEXT);
        let unacknowledged = layout.send_unacknowledged;
        self.record(POINTER, unacknowledged, 4, SEND_UNACKNOWLEDGED);
        self.record(POINTER, layout.receive_next, 4, RECEIVE_NEXT);
        self.follow(R1, POINTER, layout.net);
        self.record(R1, layout.net_cookie, 8, NETNS_COOKIE);
        self.follow(R1, POINTER, layout.net);
        self.follow(R1, R1, layout.net_owner);
        self.record(R1, layout.owner_number, 4, OWNER);
        self.put(STORE_U64, FRAME, POINTER, on_stack(SOCKET), 0);
        if let Some(interface) = layout.interface {
            self.follow(POINTER, POINTER, interface.socket_route);
            self.follow(POINTER, POINTER, interface.route_device);
            self.disciplines(interface, DISCIPLINES);
            self.follow(R1, POINTER, interface.device_kind);
            self.follow(R1, R1, interface.device_kind_name);
            self.record(R1, 0, 8, SCRATCH);
            self.load(LOAD_U32, R1, FRAME, on_stack(SCRATCH));
            let other_half = DISCIPLINES + 2 * DISCIPLINE_BYTES;
            self.clear(other_half..RECORD_BYTES);
            let no_veth = self.jump(JUMP_UNLESS_EQUAL, R1, 0, i32::from_ne_bytes(*b"veth"));
            self.follow(POINTER, POINTER, interface.driver);
            self.disciplines(interface, other_half);
            self.land(no_veth);
        }
        self.load(LOAD_U64, POINTER, FRAME, on_stack(SOCKET));
        self.record(POINTER, layout.cookie, 8, COOKIE_AFTER);
    }

    /// Fills a part of the stack with zeros.
    fn clear(&mut self, fields: Range<usize>) {
        self.set(R2, 0);
        for field in fields.step_by(8) {
            self.put(STORE_U64, FRAME, R2, on_stack(field), 0);
        }
    }

    /// Copies the names of the two disciplines of the interface that POINTER points to.
    fn disciplines(&mut self, interface: Interface, field: usize) {
        self.follow(R1, POINTER, interface.sending);
        self.discipline(interface, field);
        self.follow(R1, POINTER, interface.receiving);
        self.follow(R1, R1, interface.queue_discipline);
        self.discipline(interface, field + DISCIPLINE_BYTES);
    }

    /// Copies the name of the discipline that R1 points to.
    fn discipline(&mut self, interface: Interface, field: usize) {
        self.follow(R1, R1, interface.discipline_kind);
        self.record(R1, interface.kind_name, DISCIPLINE_BYTES as i32, field);
    }
}

/// Writes the program. Its list is the one value of the map with that descriptor.
pub(super) fn assemble(layout: &Layout, map: i32) -> Vec<u64> {
    let mut text = Text::default();
    text.copy(CONTEXT, R1);
    text.clear(0..FRAME_BYTES);
    text.load(LOAD_U64, POINTER, CONTEXT, TASK);
    let no_task = text.jump(JUMP_IF_EQUAL, POINTER, 0, 0);
    // The key is zero, which is there.
    text.set_map(R1, map);
    text.set_frame(R2, on_stack(SCRATCH));
    text.call(MAP_LOOKUP);
    let no_list = text.jump(JUMP_IF_EQUAL, R0, 0, 0);
    text.copy(LIST, R0);
    text.follow(POINTER, POINTER, layout.task_files);
    text.follow(POINTER, POINTER, layout.files_table);
    text.record(POINTER, layout.table_size, 4, TABLE_SIZE);
    text.record(POINTER, layout.table_files, 8, TABLE);
    text.set(INDEX, 0);

    let next = text.here();
    let full = text.jump(JUMP_IF_NOT_BELOW, INDEX, 0, LIST_MAX as i32);
    text.load(LOAD_U32, R1, LIST, 0);
    let all = text.jump(JUMP_IF_REGISTER_NOT_BELOW, INDEX, R1, 0);
    text.copy(R1, INDEX);
    text.put(SHIFT_LEFT, R1, 0, 0, 2);
    text.put(ADD_REGISTER, R1, LIST, 0, 0);
    text.load(LOAD_U32, R1, R1, 4);
    text.put(ADD, INDEX, 0, 0, 1);
    text.load(LOAD_U32, R2, FRAME, on_stack(TABLE_SIZE));
    let beyond = text.jump(JUMP_IF_REGISTER_NOT_BELOW, R1, R2, 0);
    text.put(STORE_U32, FRAME, R1, on_stack(FD), 0);
    text.load(LOAD_U64, POINTER, FRAME, on_stack(TABLE));
    text.put(SHIFT_LEFT, R1, 0, 0, 3);
    text.put(ADD_REGISTER, POINTER, R1, 0, 0);
    text.socket(layout);
    text.load(LOAD_U64, R1, CONTEXT, META);
    text.load(LOAD_U64, R1, R1, layout.meta_file as i16);
    text.set_frame(R2, on_stack(0));
    text.set(R3, RECORD_BYTES as i32);
    text.call(SEQ_WRITE);
    text.land(beyond);
    text.jump_back(next);

    for jump in [no_task, no_list, full, all] {
        text.land(jump);
    }
    text.leave(0);
    text.finish()
}
