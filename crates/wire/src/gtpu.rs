//! GTP version 1 of the user plane, as 3GPP TS 29.281 (release 17) has it: the header with its extension headers, and the messages that
//! peers speak about tunnels. What their extension headers say is in [`extension`], with two that have a specification of their own:
//! [`pdu_session`] and [`nr_ran`]. What is said of a path is in [`path`].
//!
//! ```text
//!   flags u8 | kind u8 | length u16 | TEID u32                                  always (clause 5.1)
//!   sequence u16 | N-PDU number u8 | kind of the first extension u8             when one of E, S, PN is set
//!   length in units of 4 bytes u8 | content … | kind of the next one u8         each extension (clause 5.2)
//! ```
//!
//! `length` counts what follows the first eight bytes. Everything is big endian. Bytes behind `length` are nobody's, and are not looked at.

use core::fmt;

pub mod extension;
mod fields;
pub mod nr_ran;
pub mod path;
pub mod pdu_session;

#[cfg(test)]
mod tests;

/// The UDP port that messages go to (clause 4.4.2).
pub const PORT: u16 = 2152;
/// A header without options.
pub const HEADER_BYTES: usize = 8;
/// A header with them, before the first extension.
pub const LONG_HEADER_BYTES: usize = 12;

/// Kinds of messages (clause 6.1).
pub const ECHO_REQUEST: u8 = 1;
/// See [`ECHO_REQUEST`].
pub const ECHO_RESPONSE: u8 = 2;
/// A packet came for a tunnel that there is not.
pub const ERROR_INDICATION: u8 = 26;
/// Which extension headers the sender understands.
pub const SUPPORTED_EXTENSIONS: u8 = 31;
/// What a tunnel's other end should know of its state.
pub const TUNNEL_STATUS: u8 = 253;
/// The last message of a tunnel on this path.
pub const END_MARKER: u8 = 254;
/// A packet of a user.
pub const G_PDU: u8 = 255;

/// Kinds of extension headers (clause 5.2.1). This one is of user data that is forwarded, with sequence numbers of 18 bits.
pub const EXTENSION_LONG_PDCP: u8 = 0x03;
/// For GERAN.
pub const EXTENSION_SERVICE_CLASS: u8 = 0x20;
/// Where a packet came from that an error indication is about.
pub const EXTENSION_UDP_PORT: u8 = 0x40;
/// TS 36.425, between base stations of LTE.
pub const EXTENSION_RAN: u8 = 0x81;
/// What earlier releases have for [`EXTENSION_LONG_PDCP`].
pub const EXTENSION_LONG_PDCP_EARLIER: u8 = 0x82;
/// TS 36.464, between LTE and a wireless LAN.
pub const EXTENSION_XW_RAN: u8 = 0x83;
/// TS 38.425.
pub const EXTENSION_NR_RAN: u8 = 0x84;
/// TS 38.415.
pub const EXTENSION_PDU_SESSION: u8 = 0x85;
/// Of user data that is forwarded.
pub const EXTENSION_PDCP: u8 = 0xc0;
/// All of these.
pub const EXTENSIONS: [u8; 9] = [
    EXTENSION_LONG_PDCP,
    EXTENSION_SERVICE_CLASS,
    EXTENSION_UDP_PORT,
    EXTENSION_RAN,
    EXTENSION_LONG_PDCP_EARLIER,
    EXTENSION_XW_RAN,
    EXTENSION_NR_RAN,
    EXTENSION_PDU_SESSION,
    EXTENSION_PDCP,
];

const VERSION: u8 = 1 << 5;
const VERSION_MASK: u8 = 7 << 5;
const PROTOCOL_TYPE: u8 = 1 << 4;
const HAS_EXTENSION: u8 = 1 << 2;
const HAS_SEQUENCE: u8 = 1 << 1;
const HAS_NPDU: u8 = 1 << 0;
const HAS_OPTIONS: u8 = HAS_EXTENSION | HAS_SEQUENCE | HAS_NPDU;

/// Who must understand an extension header, by the two highest bits of its kind (clause 5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comprehension {
    /// Nobody; who relays the message hands it on.
    Forward,
    /// Nobody; who relays the message leaves it out.
    Discard,
    /// The end of the tunnel; who relays the message hands it on.
    Endpoint,
    /// Everybody.
    Everybody,
}

impl Comprehension {
    /// Of an extension header of this kind.
    #[must_use]
    pub fn of(kind: u8) -> Comprehension {
        match kind >> 6 {
            0 => Comprehension::Forward,
            1 => Comprehension::Discard,
            2 => Comprehension::Endpoint,
            _ => Comprehension::Everybody,
        }
    }
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// [`G_PDU`] or another; not all numbers are known.
    pub kind: u8,
    /// Of the tunnel, by its receiver's number; 0 where the message is of the path.
    pub teid: u32,
    /// The sequence number, if it means something.
    pub sequence: Option<u16>,
    /// The N-PDU number, if it means something.
    pub npdu: Option<u8>,
    /// Its extension headers.
    pub extensions: Extensions<'a>,
    /// What follows: a user's packet, or information elements.
    pub body: &'a [u8],
}

/// Why bytes are no message. Each is to be dropped and counted, and nobody is told (clause 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// Fewer bytes than a header, with the options that it says it has, takes.
    Truncated,
    /// Of another version than 1.
    Version(u8),
    /// GTP', which is for charging.
    Prime,
    /// It is said to be longer than what came.
    Length(u16),
    /// An extension header of this kind is empty, or longer than the message.
    Extension(u8),
    /// An information element of this kind is not there, or is longer than the message.
    Element(u8),
}

impl ParseError {
    /// One word for counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ParseError::Truncated => "truncated",
            ParseError::Version(_) => "version",
            ParseError::Prime => "gtp_prime",
            ParseError::Length(_) => "length",
            ParseError::Extension(_) => "extension_length",
            ParseError::Element(_) => "element",
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Truncated => write!(f, "too short for its header"),
            ParseError::Version(version) => write!(f, "of version {version}"),
            ParseError::Prime => write!(f, "GTP', which is for charging"),
            ParseError::Length(length) => {
                write!(f, "said to be of {length} bytes, which did not come")
            }
            ParseError::Extension(kind) => {
                write!(f, "extension header {kind:#04x} has a wrong length")
            }
            ParseError::Element(kind) => {
                write!(f, "information element {kind} is missing or cut off")
            }
        }
    }
}

impl core::error::Error for ParseError {}

impl<'a> Message<'a> {
    /// The message that a UDP datagram holds.
    ///
    /// # Errors
    /// When it is none. Never panics.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Message<'a>, ParseError> {
        let Some((header, rest)) = datagram.split_first_chunk::<HEADER_BYTES>() else {
            return Err(ParseError::Truncated);
        };
        let &[flags, kind, length_high, length_low, teid @ ..] = header;
        if flags & VERSION_MASK != VERSION {
            return Err(ParseError::Version(flags >> 5));
        }
        if flags & PROTOCOL_TYPE == 0 {
            return Err(ParseError::Prime);
        }
        let length = u16::from_be_bytes([length_high, length_low]);
        let rest = rest
            .get(..usize::from(length))
            .ok_or(ParseError::Length(length))?;
        let mut message = Message {
            kind,
            teid: u32::from_be_bytes(teid),
            sequence: None,
            npdu: None,
            extensions: Extensions::default(),
            body: rest,
        };
        if flags & HAS_OPTIONS != 0 {
            message.parse_options(flags)?;
        }
        Ok(message)
    }

    /// Parses what the flags say that the body begins with.
    fn parse_options(&mut self, flags: u8) -> Result<(), ParseError> {
        let Some((&[high, low, npdu, first], rest)) = self.body.split_first_chunk::<4>() else {
            return Err(ParseError::Truncated);
        };
        // A field whose flag is not set has any value, and none is to be looked at (clause 5.1).
        self.sequence = (flags & HAS_SEQUENCE != 0).then_some(u16::from_be_bytes([high, low]));
        self.npdu = (flags & HAS_NPDU != 0).then_some(npdu);
        self.body = rest;
        if flags & HAS_EXTENSION != 0 {
            self.extensions = Extensions { kind: first, rest };
            let mut after = self.extensions;
            while after.kind != 0 {
                after.step()?;
            }
            self.extensions.rest = &rest[..rest.len() - after.rest.len()];
            self.body = after.rest;
        }
        Ok(())
    }
}

/// Extension headers of a message, in their order. They were looked through: each is whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// Of the next one; 0: there is none.
    kind: u8,
    rest: &'a [u8],
}

/// An extension header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension<'a> {
    /// [`EXTENSION_PDU_SESSION`] or another.
    pub kind: u8,
    /// What is between its length and the kind of the next one.
    pub content: &'a [u8],
}

impl<'a> Extensions<'a> {
    /// Moves beyond the next one, which there is.
    fn step(&mut self) -> Result<Extension<'a>, ParseError> {
        let kind = self.kind;
        let wrong = ParseError::Extension(kind);
        let (&units, _) = self.rest.split_first().ok_or(wrong)?;
        let (this, rest) = self
            .rest
            .split_at_checked(usize::from(units) * 4)
            .ok_or(wrong)?;
        // A length of 0 would be no end.
        let [_, content @ .., next] = this else {
            return Err(wrong);
        };
        *self = Extensions { kind: *next, rest };
        Ok(Extension { kind, content })
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Extension<'a>;

    fn next(&mut self) -> Option<Extension<'a>> {
        if self.kind == 0 {
            return None;
        }
        self.step().ok()
    }
}

/// What a header to be written says. Its extension headers are written behind it, by [`emit_extension`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// [`G_PDU`] or another.
    pub kind: u8,
    /// See [`Message::teid`].
    pub teid: u32,
    /// See [`Message::sequence`].
    pub sequence: Option<u16>,
    /// Of the first extension header; 0: there is none.
    pub extension: u8,
}

impl Header {
    /// How many bytes it takes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.sequence.is_some() || self.extension != 0 {
            true => LONG_HEADER_BYTES,
            false => HEADER_BYTES,
        }
    }

    /// Writes it before so many bytes of extension headers and body; returns how many it took. None: there is no room for it, or the
    /// message would be longer than 16 bits can say.
    #[inline]
    #[must_use]
    pub fn emit(&self, following: usize, to: &mut [u8]) -> Option<usize> {
        self.emit_numbered(None, following, to)
    }

    /// The same with an N-PDU number, which only a function that forwards data between systems hands on (clause 5.1).
    #[inline]
    #[must_use]
    pub fn emit_numbered(
        &self,
        npdu: Option<u8>,
        following: usize,
        to: &mut [u8],
    ) -> Option<usize> {
        let bytes = if npdu.is_some() {
            LONG_HEADER_BYTES
        } else {
            self.bytes()
        };
        let length = u16::try_from(bytes - HEADER_BYTES + following).ok()?;
        let to = to.get_mut(..bytes)?;
        let mut flags = VERSION | PROTOCOL_TYPE;
        if self.sequence.is_some() {
            flags |= HAS_SEQUENCE;
        }
        if self.extension != 0 {
            flags |= HAS_EXTENSION;
        }
        if npdu.is_some() {
            flags |= HAS_NPDU;
        }
        let [high, low] = length.to_be_bytes();
        to[..4].copy_from_slice(&[flags, self.kind, high, low]);
        to[4..8].copy_from_slice(&self.teid.to_be_bytes());
        if bytes == LONG_HEADER_BYTES {
            let [high, low] = self.sequence.unwrap_or(0).to_be_bytes();
            to[8..].copy_from_slice(&[high, low, npdu.unwrap_or(0), self.extension]);
        }
        Some(bytes)
    }
}

/// How many bytes an extension header with so many of content takes.
#[must_use]
pub const fn extension_bytes(content: usize) -> usize {
    (content + 2).next_multiple_of(4)
}

/// Writes an extension header, whose kind stands before it, and is filled up with zeros; `next` is the kind of the one behind it, or 0.
/// Returns how many bytes it took. None: there is no room, or it would be longer than 1 020 bytes.
#[must_use]
pub fn emit_extension(content: &[u8], next: u8, to: &mut [u8]) -> Option<usize> {
    let bytes = extension_bytes(content.len());
    let units = u8::try_from(bytes / 4).ok()?;
    let to = to.get_mut(..bytes)?;
    to.fill(0);
    to[0] = units;
    to[1..=content.len()].copy_from_slice(content);
    to[bytes - 1] = next;
    Some(bytes)
}
