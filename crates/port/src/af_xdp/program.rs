//! The XDP program of an interface: takes the packets that were asked for to the socket of their queue, and leaves all others to the
//! kernel. It is written for what is asked for, instruction by instruction, as `millrace_agent::bpf` is: there is no compiler at run time.
//!
//! Registers: R6 is the context, R2 the place in the packet, R3 its end, R4 what was loaded last, R5 the protocol.

use super::text::{
    ADD, ADD_REGISTER, AND, JUMP_IF_ABOVE, JUMP_IF_EQUAL, JUMP_UNLESS_EQUAL, Jumps, LOAD_U8,
    LOAD_U16, LOAD_U32, R0, R1, R2, R3, R4, R5, R6, SHIFT_LEFT, Text,
};

/// Which packets are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// All.
    All,
    /// With this EtherType, behind up to two tags.
    EtherType(u16),
    /// With this protocol in IPv4 or IPv6.
    Protocol(u8),
    /// To this port of UDP.
    UdpPort(u16),
    /// To this port of TCP.
    TcpPort(u16),
    /// Of this VXLAN network, to UDP's port 4789.
    Vni(u32),
}

// `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

const REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;

const ETHERNET_BYTES: i32 = 14;
const TAG_BYTES: i32 = 4;
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const IPV6_BYTES: i32 = 40;
const TCP: i32 = 6;
const UDP: i32 = 17;
const VXLAN_PORT: u16 = 4789;
/// Bytes of a UDP header, and of a TCP header as many as are looked at.
const UDP_BYTES: i32 = 8;
const VXLAN_BYTES: i32 = 8;

/// As it is loaded from a packet.
fn network(value: u16) -> i32 {
    i32::from(u16::from_ne_bytes(value.to_be_bytes()))
}

/// Jumps on the way: to where packets are left to the kernel, and to where they are taken.
struct Goals {
    pass: Jumps,
    take: Jumps,
}

impl Text {
    /// Passes unless so many bytes are there.
    fn need(&mut self, goals: &mut Goals, bytes: i32) {
        self.copy(R1, R2);
        self.put(ADD, R1, 0, 0, bytes);
        self.jump(&mut goals.pass, JUMP_IF_ABOVE, R1, R3, 0);
    }

    /// Up to two tags; R4 is the EtherType behind them, and R2 so placed that the network header is 14 bytes on.
    fn ethernet(&mut self, goals: &mut Goals) {
        self.need(goals, ETHERNET_BYTES);
        self.put(LOAD_U16, R4, R2, 12, 0);
        let mut untagged = Jumps::default();
        for _ in 0..2 {
            let mut tagged = Jumps::default();
            self.jump(&mut tagged, JUMP_IF_EQUAL, R4, 0, network(TAGS[0]));
            self.jump(&mut untagged, JUMP_UNLESS_EQUAL, R4, 0, network(TAGS[1]));
            self.land(tagged);
            self.put(ADD, R2, 0, 0, TAG_BYTES);
            self.need(goals, ETHERNET_BYTES);
            self.put(LOAD_U16, R4, R2, 12, 0);
        }
        self.land(untagged);
    }

    /// R5 is the protocol, and R2 where its header begins. Fragments but the first have none, and are left to the kernel.
    fn internet(&mut self, goals: &mut Goals, protocols: &[u8]) {
        let (mut is_not_4, mut done) = (Jumps::default(), Jumps::default());
        self.jump(&mut is_not_4, JUMP_UNLESS_EQUAL, R4, 0, network(IPV4));
        self.need(goals, ETHERNET_BYTES + 20);
        self.put(LOAD_U8, R5, R2, 14 + 9, 0);
        self.protocols(goals, protocols);
        self.put(LOAD_U16, R4, R2, 14 + 6, 0);
        // More fragments, or an offset.
        self.put(AND, R4, 0, 0, network(0x3fff));
        self.jump(&mut goals.pass, JUMP_UNLESS_EQUAL, R4, 0, 0);
        self.put(LOAD_U8, R4, R2, 14, 0);
        self.put(AND, R4, 0, 0, 15);
        self.put(SHIFT_LEFT, R4, 0, 0, 2);
        self.put(ADD_REGISTER, R2, R4, 0, 0);
        self.put(ADD, R2, 0, 0, ETHERNET_BYTES);
        self.go(&mut done);
        self.land(is_not_4);
        self.jump(&mut goals.pass, JUMP_UNLESS_EQUAL, R4, 0, network(IPV6));
        self.need(goals, ETHERNET_BYTES + IPV6_BYTES);
        self.put(LOAD_U8, R5, R2, 14 + 6, 0);
        self.protocols(goals, protocols);
        self.put(ADD, R2, 0, 0, ETHERNET_BYTES + IPV6_BYTES);
        self.land(done);
    }

    fn protocols(&mut self, goals: &mut Goals, protocols: &[u8]) {
        for protocol in protocols {
            self.jump(&mut goals.take, JUMP_IF_EQUAL, R5, 0, (*protocol).into());
        }
    }

    /// Takes those to ports, and falls through with the rest.
    fn ports(&mut self, goals: &mut Goals, protocol: i32, ports: &[u16]) {
        if ports.is_empty() {
            return;
        }
        let mut other = Jumps::default();
        self.jump(&mut other, JUMP_UNLESS_EQUAL, R5, 0, protocol);
        for port in ports {
            self.jump(&mut goals.take, JUMP_IF_EQUAL, R4, 0, network(*port));
        }
        self.land(other);
    }

    /// Takes those of networks. R4 is the port that they are to.
    fn networks(&mut self, goals: &mut Goals, networks: &[u32]) {
        if networks.is_empty() {
            return;
        }
        self.jump(&mut goals.pass, JUMP_UNLESS_EQUAL, R5, 0, UDP);
        let port = network(VXLAN_PORT);
        self.jump(&mut goals.pass, JUMP_UNLESS_EQUAL, R4, 0, port);
        self.need(goals, UDP_BYTES + VXLAN_BYTES);
        // The flag that there is a network's number.
        self.put(LOAD_U8, R4, R2, 8, 0);
        self.put(AND, R4, 0, 0, 8);
        self.jump(&mut goals.pass, JUMP_IF_EQUAL, R4, 0, 0);
        // In the upper three bytes of four.
        self.put(LOAD_U32, R4, R2, 12, 0);
        let mask = u32::from_ne_bytes(0xffff_ff00u32.to_be_bytes());
        self.put(AND, R4, 0, 0, mask.cast_signed());
        // Where the mask has a sign it fills the register's upper half, at which a comparison of 32 bits does not look.
        for number in networks {
            let value = u32::from_ne_bytes((number << 8).to_be_bytes());
            self.jump(&mut goals.take, JUMP_IF_EQUAL, R4, 0, value.cast_signed());
        }
    }
}

fn chosen<T>(takes: &[Take], choose: impl Fn(Take) -> Option<T>) -> Vec<T> {
    takes.iter().filter_map(|take| choose(*take)).collect()
}

/// Writes the program. Sockets are in the map with that descriptor, by their queue.
pub(super) fn assemble(takes: &[Take], map: i32) -> Vec<u64> {
    let mut text = Text::default();
    let mut goals = Goals {
        pass: Jumps::default(),
        take: Jumps::default(),
    };
    text.copy(R6, R1);
    if !takes.contains(&Take::All) {
        text.put(LOAD_U32, R2, R6, DATA, 0);
        text.put(LOAD_U32, R3, R6, DATA_END, 0);
        text.ethernet(&mut goals);
        let types = chosen(takes, |take| match take {
            Take::EtherType(number) => Some(number),
            _ => None,
        });
        for number in types {
            text.jump(&mut goals.take, JUMP_IF_EQUAL, R4, 0, network(number));
        }
        let protocols = chosen(takes, |take| match take {
            Take::Protocol(number) => Some(number),
            _ => None,
        });
        text.internet(&mut goals, &protocols);
        text.need(&mut goals, UDP_BYTES);
        text.put(LOAD_U16, R4, R2, 2, 0);
        let udp = chosen(takes, |take| match take {
            Take::UdpPort(port) => Some(port),
            _ => None,
        });
        text.ports(&mut goals, UDP, &udp);
        let tcp = chosen(takes, |take| match take {
            Take::TcpPort(port) => Some(port),
            _ => None,
        });
        text.ports(&mut goals, TCP, &tcp);
        let networks = chosen(takes, |take| match take {
            Take::Vni(number) => Some(number),
            _ => None,
        });
        text.networks(&mut goals, &networks);
        text.land(goals.pass);
        text.set(R0, XDP_PASS);
        text.leave();
    }
    text.land(goals.take);
    text.set_map(R1, map);
    text.put(LOAD_U32, R2, R6, RX_QUEUE_INDEX, 0);
    // Where the queue has no socket.
    text.set(R3, XDP_PASS);
    text.call(REDIRECT_MAP);
    text.leave();
    text.finish()
}
