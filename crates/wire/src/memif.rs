//! memif, version 2.0: packets in shared memory, as VPP's libmemif and DPDK's `net_memif` speak it.
//!
//! The control messages go over a `SOCK_SEQPACKET` socket of the Unix domain, one to a datagram of [`MESSAGE_BYTES`]: a kind of two bytes,
//! and packed fields in the byte order of the machine, which is little endian wherever Millrace runs. The rest of the datagram is of no
//! meaning, and is sent as zeros. Facts from the header `memif.h` of libmemif (`extras/libmemif/src`, FDio/vpp) and of DPDK 22.11
//! (`drivers/net/memif`), which say the same in two vocabularies: *server* and *client* are their master and slave.
//!
//! A client makes the memory and gives it away: regions, and rings in them (`docs/memif.rst` of libmemif):
//!
//! ```text
//!   0       4       6       8            64      66           128                      128 + 16 n
//!   | cookie| flags | head  |            | tail  |            | descriptor 0 | … | descriptor n - 1 |
//! ```
//!
//! In a ring from client to server, the client writes descriptors and `head`, the server `tail` when it has read. In a ring from server to
//! client, the client gives empty buffers by `head`; the server fills them, writes lengths and flags, and says so by `tail`. Both cursors
//! run freely in 16 bits and are masked on access.

use core::fmt;

/// At the start of every ring.
pub const COOKIE: u32 = 0x3e3_1f20;
/// Version 2.0, the only one.
pub const VERSION: u16 = 2 << 8;
/// Every control message has this length.
pub const MESSAGE_BYTES: usize = 128;
/// Of names of programs and of interfaces, with the zero at their end.
pub const NAME_BYTES: usize = 32;
/// Of the secret that a server may ask for.
pub const SECRET_BYTES: usize = 24;
/// Of a disconnect's reason, with the zero at its end.
pub const REASON_BYTES: usize = 96;

/// In [`AddRing::flags`]: the ring is from client to server.
pub const RING_C2S: u16 = 1;

/// Where a ring's fields are, in bytes from its start.
pub const RING_COOKIE: usize = 0;
/// See [`RING_COOKIE`]: its flags, of which there is [`MASK_INTERRUPT`].
pub const RING_FLAGS: usize = 4;
/// See [`RING_COOKIE`].
pub const RING_HEAD: usize = 6;
/// See [`RING_COOKIE`]: on a line of its own.
pub const RING_TAIL: usize = 64;
/// See [`RING_COOKIE`]: the first descriptor, on the next line.
pub const RING_DESCRIPTORS: usize = 128;
/// In a ring's flags: whoever reads the ring polls it, and wants no interrupt.
pub const MASK_INTERRUPT: u16 = 1;

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;
/// In a descriptor's flags: the packet goes on in the next one.
pub const FLAG_NEXT: u16 = 1;

/// Bytes of a ring with so many descriptors.
#[must_use]
pub const fn ring_bytes(log2_size: u8) -> usize {
    RING_DESCRIPTORS + (DESCRIPTOR_BYTES << log2_size)
}

/// A buffer in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// [`FLAG_NEXT`], or nothing.
    pub flags: u16,
    /// The region that the buffer is in.
    pub region: u16,
    /// Bytes of the packet in it, or of the buffer while it is empty.
    pub length: u32,
    /// Where it begins, in bytes from the region's start.
    pub offset: u32,
    /// Of no meaning here.
    pub metadata: u32,
}

impl Descriptor {
    /// As it lies in memory: two words of eight bytes.
    #[must_use]
    pub const fn emit(self) -> [u64; 2] {
        [
            self.flags as u64 | (self.region as u64) << 16 | (self.length as u64) << 32,
            self.offset as u64 | (self.metadata as u64) << 32,
        ]
    }

    /// From such words. Any are a descriptor; what it says is to be checked.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
    pub const fn parse(words: [u64; 2]) -> Descriptor {
        Descriptor {
            flags: words[0] as u16,
            region: (words[0] >> 16) as u16,
            length: (words[0] >> 32) as u32,
            offset: words[1] as u32,
            metadata: (words[1] >> 32) as u32,
        }
    }
}

/// What passes: frames with a MAC header, or packets that begin with their IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Ethernet frames.
    #[default]
    Ethernet,
    /// IPv4 and IPv6 packets.
    Ip,
    /// VPP's own use.
    PuntInject,
}

/// Text in a field of fixed size, zeros behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// As much of the text as there is room for, with the zero at its end; at the end of a character, where it is too long.
    #[must_use]
    pub fn new(text: &str) -> Text<N> {
        let mut end = text.len().min(N - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; N];
        for (to, from) in bytes.iter_mut().zip(&text.as_bytes()[..end]) {
            *to = *from;
        }
        Text(bytes)
    }

    /// The bytes before the first zero.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// As text, as far as it is some: what somebody else wrote.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes();
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        }
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Text([0; N])
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Server: what it can do. Its first word on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The program.
    pub name: Text<NAME_BYTES>,
    /// The lowest version that it speaks.
    pub version_min: u16,
    /// The highest.
    pub version_max: u16,
    /// The highest number of a region.
    pub region_max: u16,
    /// The highest number of a ring from server to client.
    pub s2c_ring_max: u16,
    /// The highest number of a ring from client to server.
    pub c2s_ring_max: u16,
    /// The binary logarithm of a ring's largest size.
    pub log2_size_max: u8,
}

/// Client: to which interface it wants to be connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// The version that it has chosen.
    pub version: u16,
    /// The interface's number.
    pub id: u32,
    /// What passes.
    pub mode: Mode,
    /// What the server may have asked for out of band.
    pub secret: Text<SECRET_BYTES>,
    /// The program.
    pub name: Text<NAME_BYTES>,
}

/// Client: a region, whose descriptor comes with the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddRegion {
    /// Its number, from 0 on.
    pub index: u16,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Client: a ring. With the message comes an eventfd, by which whoever reads the ring is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddRing {
    /// [`RING_C2S`], or nothing.
    pub flags: u16,
    /// Its number among those of its direction, from 0 on.
    pub index: u16,
    /// The region that it is in.
    pub region: u16,
    /// Where it begins, in bytes from the region's start.
    pub offset: u32,
    /// The binary logarithm of the number of descriptors.
    pub log2_size: u8,
    /// Bytes of metadata before each packet.
    pub private_header_bytes: u16,
}

/// Either: the connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnect {
    /// Programs differ in what it means.
    pub code: u32,
    /// Why.
    pub reason: Text<REASON_BYTES>,
}

/// A control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Server: the client's last message is accepted.
    Ack,
    /// See [`Hello`].
    Hello(Hello),
    /// See [`Init`].
    Init(Init),
    /// See [`AddRegion`].
    AddRegion(AddRegion),
    /// See [`AddRing`].
    AddRing(AddRing),
    /// Client: that was all. The name of its interface.
    Connect(Text<NAME_BYTES>),
    /// Server: packets may come. The name of its interface.
    Connected(Text<NAME_BYTES>),
    /// See [`Disconnect`].
    Disconnect(Disconnect),
}

const ACK: u16 = 1;
const HELLO: u16 = 2;
const INIT: u16 = 3;
const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
const CONNECT: u16 = 6;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;

/// Why bytes are not a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// It has another length than [`MESSAGE_BYTES`].
    Length(usize),
    /// There is no message of this kind.
    Kind(u16),
    /// An interface has no such mode.
    Mode(u8),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Length(bytes) => {
                write!(f, "a message of {bytes} bytes, not {MESSAGE_BYTES}")
            }
            ParseError::Kind(kind) => write!(f, "a message of unknown kind {kind}"),
            ParseError::Mode(mode) => write!(f, "unknown mode {mode}"),
        }
    }
}

impl core::error::Error for ParseError {}

impl Message {
    /// What it is called in the protocol's documents.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Message::Ack => "ACK",
            Message::Hello(_) => "HELLO",
            Message::Init(_) => "INIT",
            Message::AddRegion(_) => "ADD_REGION",
            Message::AddRing(_) => "ADD_RING",
            Message::Connect(_) => "CONNECT",
            Message::Connected(_) => "CONNECTED",
            Message::Disconnect(_) => "DISCONNECT",
        }
    }

    /// The datagram.
    #[must_use]
    pub fn emit(&self) -> [u8; MESSAGE_BYTES] {
        let mut w = Writer {
            bytes: [0; MESSAGE_BYTES],
            length: 0,
        };
        match self {
            Message::Ack => w.put(&ACK.to_le_bytes()),
            Message::Hello(m) => {
                w.put(&HELLO.to_le_bytes());
                w.put(&m.name.0);
                w.put(&m.version_min.to_le_bytes());
                w.put(&m.version_max.to_le_bytes());
                w.put(&m.region_max.to_le_bytes());
                w.put(&m.s2c_ring_max.to_le_bytes());
                w.put(&m.c2s_ring_max.to_le_bytes());
                w.put(&[m.log2_size_max]);
            }
            Message::Init(m) => {
                w.put(&INIT.to_le_bytes());
                w.put(&m.version.to_le_bytes());
                w.put(&m.id.to_le_bytes());
                w.put(&[m.mode as u8]);
                w.put(&m.secret.0);
                w.put(&m.name.0);
            }
            Message::AddRegion(m) => {
                w.put(&ADD_REGION.to_le_bytes());
                w.put(&m.index.to_le_bytes());
                w.put(&m.bytes.to_le_bytes());
            }
            Message::AddRing(m) => {
                w.put(&ADD_RING.to_le_bytes());
                w.put(&m.flags.to_le_bytes());
                w.put(&m.index.to_le_bytes());
                w.put(&m.region.to_le_bytes());
                w.put(&m.offset.to_le_bytes());
                w.put(&[m.log2_size]);
                w.put(&m.private_header_bytes.to_le_bytes());
            }
            Message::Connect(name) => {
                w.put(&CONNECT.to_le_bytes());
                w.put(&name.0);
            }
            Message::Connected(name) => {
                w.put(&CONNECTED.to_le_bytes());
                w.put(&name.0);
            }
            Message::Disconnect(m) => {
                w.put(&DISCONNECT.to_le_bytes());
                w.put(&m.code.to_le_bytes());
                w.put(&m.reason.0);
            }
        }
        w.bytes
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// When it is no message. Never panics; numbers and names are the sender's, and to be checked.
    pub fn parse(datagram: &[u8]) -> Result<Message, ParseError> {
        let bytes: &[u8; MESSAGE_BYTES] = datagram
            .try_into()
            .map_err(|_| ParseError::Length(datagram.len()))?;
        let mut r = Reader { bytes, at: 0 };
        Ok(match r.u16() {
            ACK => Message::Ack,
            HELLO => Message::Hello(Hello {
                name: Text(r.take()),
                version_min: r.u16(),
                version_max: r.u16(),
                region_max: r.u16(),
                s2c_ring_max: r.u16(),
                c2s_ring_max: r.u16(),
                log2_size_max: r.u8(),
            }),
            INIT => Message::Init(Init {
                version: r.u16(),
                id: r.u32(),
                mode: match r.u8() {
                    0 => Mode::Ethernet,
                    1 => Mode::Ip,
                    2 => Mode::PuntInject,
                    mode => return Err(ParseError::Mode(mode)),
                },
                secret: Text(r.take()),
                name: Text(r.take()),
            }),
            ADD_REGION => Message::AddRegion(AddRegion {
                index: r.u16(),
                bytes: u64::from_le_bytes(r.take()),
            }),
            ADD_RING => Message::AddRing(AddRing {
                flags: r.u16(),
                index: r.u16(),
                region: r.u16(),
                offset: r.u32(),
                log2_size: r.u8(),
                private_header_bytes: r.u16(),
            }),
            CONNECT => Message::Connect(Text(r.take())),
            CONNECTED => Message::Connected(Text(r.take())),
            DISCONNECT => Message::Disconnect(Disconnect {
                code: r.u32(),
                reason: Text(r.take()),
            }),
            kind => return Err(ParseError::Kind(kind)),
        })
    }
}

/// Puts fields one after another. No message is longer than the datagram: the longest, `Disconnect`, has 102 bytes.
struct Writer {
    bytes: [u8; MESSAGE_BYTES],
    length: usize,
}

impl Writer {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.length..self.length + field.len()].copy_from_slice(field);
        self.length += field.len();
    }
}

/// Takes fields one after another, of a datagram that has the length for all of any message.
struct Reader<'a> {
    bytes: &'a [u8; MESSAGE_BYTES],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn u8(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests;
