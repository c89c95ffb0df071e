//! Messages to bytes and back. Every message starts with `magic u32, version u16, kind u16`, then its fields in the
//! order in which their structs declare them, without padding.

use core::fmt;

use crate::channel::{Holds, Left, Linked, Open, Opened, Ready, Refused};
use crate::message::{
    Address, Answer, Declined, End, Family, Grow, Hello, Matched, Mode, Offer, Paired, Query,
    Recall, Recalled, Take, ToAgent, ToClient, Unsupported, VERSION_MAX, VERSION_MIN, Welcome,
    Withdraw,
};
use crate::reason::Reason;
use channel::{HOLDS, LEFT, LINKED, OPEN, OPENED, READY, REFUSED};

mod channel;

/// The first four bytes of every message: "CRLM" on the wire.
pub const MAGIC: u32 = 0x4d4c_5243;

/// No message is longer than this. The longest, `Open`, has 174 bytes; the rest is room to grow.
pub const MAX_BYTES: usize = 256;

const HELLO: u16 = 1;
const OFFER: u16 = 2;
const WITHDRAW: u16 = 3;
const QUERY: u16 = 4;
const RECALL: u16 = 5;
const GROW: u16 = 6;
const TAKE: u16 = 7;
const WELCOME: u16 = 101;
const UNSUPPORTED: u16 = 102;
const PAIRED: u16 = 103;
const DECLINED: u16 = 104;
const ANSWER: u16 = 105;
const RECALLED: u16 = 106;
const MATCHED: u16 = 107;

/// What `millrace run` appends to its question.
const STAY: u8 = 1;
/// What messages end with that have one more field in versions to come.
const AHEAD: u32 = 0x6461_6568;

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// The message ends before its last field.
    Truncated,
    /// Bytes follow the last field.
    TooLong,
    /// It does not start with [`MAGIC`].
    Magic(u32),
    /// It is of a version that this code does not speak.
    Version(u16),
    /// No message of this direction has this kind.
    Kind(u16),
    /// The field of this name has a value that it must not have.
    Value(&'static str),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Truncated => write!(f, "the message is too short"),
            ParseError::TooLong => write!(f, "the message is too long"),
            ParseError::Magic(magic) => write!(
                f,
                "the message starts with {magic:#010x}, not {MAGIC:#010x}"
            ),
            ParseError::Version(version) => {
                write!(f, "protocol version {version} is not supported")
            }
            ParseError::Kind(kind) => write!(f, "unknown kind of message {kind}"),
            ParseError::Value(field) => write!(f, "field {field} has an impossible value"),
        }
    }
}

impl core::error::Error for ParseError {}

impl ToAgent {
    /// Writes the message to the front of `buffer`, as the protocol of `version` has it, and returns its length.
    pub fn encode(&self, version: u16, buffer: &mut [u8; MAX_BYTES]) -> usize {
        match self {
            ToAgent::Hello(m) => {
                let mut w = Writer::new(buffer, version, HELLO);
                w.put(&m.version_min.to_le_bytes());
                w.put(&m.version_max.to_le_bytes());
                w.put(&m.segment_version.to_le_bytes());
                w.put(&[m.mode as u8]);
                w.length
            }
            ToAgent::Offer(m) => {
                let mut w = Writer::new(buffer, version, OFFER);
                w.put(&m.offer_id.to_le_bytes());
                w.put(&m.fd.to_le_bytes());
                w.put(&m.row.to_le_bytes());
                w.put(&[m.family as u8, u8::from(m.end == End::Active)]);
                w.address(&m.local);
                w.address(&m.remote);
                w.put(&m.cookie.to_le_bytes());
                w.put(&m.netns_cookie.to_le_bytes());
                w.ahead(3);
                w.length
            }
            ToAgent::Withdraw(m) => {
                let mut w = Writer::new(buffer, version, WITHDRAW);
                w.put(&m.offer_id.to_le_bytes());
                w.length
            }
            ToAgent::Query(query) => {
                let mut w = Writer::new(buffer, version, QUERY);
                w.put(match query {
                    Query::Connections => &[0],
                    Query::Status => &[1],
                    Query::StatusAndStay => &[1, STAY],
                    Query::Channels => &[2],
                });
                w.length
            }
            ToAgent::Recall(m) => {
                let mut w = Writer::new(buffer, version, RECALL);
                w.put(&m.offer_id.to_le_bytes());
                w.put(&m.connection_id.to_le_bytes());
                w.put(&m.fd.to_le_bytes());
                w.put(&[u8::from(m.sends)]);
                w.length
            }
            ToAgent::Grow(m) => {
                let mut w = Writer::new(buffer, version, GROW);
                w.put(&m.offer_id.to_le_bytes());
                w.length
            }
            ToAgent::Take(m) => {
                let mut w = Writer::new(buffer, version, TAKE);
                w.put(&m.offer_id.to_le_bytes());
                w.length
            }
            ToAgent::Open(m) => m.encode(version, buffer),
            ToAgent::Holds(m) => m.encode(version, buffer),
            ToAgent::Left(m) => m.encode(version, buffer),
            ToAgent::Ready(m) => m.encode(version, buffer),
        }
    }

    /// Reads a message that a client sent.
    ///
    /// `Hello`, `Open` and `Query` are read whatever version the sender speaks, and whatever it appends to them, so that
    /// versions can be negotiated.
    ///
    /// # Errors
    /// When the bytes are not such a message. Never panics.
    pub fn parse(bytes: &[u8]) -> Result<ToAgent, ParseError> {
        let mut r = Reader::new(bytes);
        match r.header()? {
            (_, HELLO) => Ok(ToAgent::Hello(Hello {
                version_min: r.u16()?,
                version_max: r.u16()?,
                segment_version: r.u16()?,
                mode: Mode::from_u8(r.u8()?).ok_or(ParseError::Value("mode"))?,
            })),
            (_, QUERY) => Ok(ToAgent::Query(match (r.u8()?, r.u8()) {
                (0, _) => Query::Connections,
                (1, Ok(STAY)) => Query::StatusAndStay,
                (1, _) => Query::Status,
                (2, _) => Query::Channels,
                _ => return Err(ParseError::Value("what")),
            })),
            (_, OPEN) => Open::parse(&mut r).map(ToAgent::Open),
            (version, OFFER) => {
                known(version)?;
                let offer = r.offer()?;
                r.finish(ToAgent::Offer(offer))
            }
            (version, WITHDRAW) => {
                known(version)?;
                let offer_id = r.u64()?;
                r.finish(ToAgent::Withdraw(Withdraw { offer_id }))
            }
            (version, RECALL) => {
                known(version)?;
                let recall = Recall {
                    offer_id: r.u64()?,
                    connection_id: r.u64()?,
                    fd: r.u32()?.cast_signed(),
                    sends: r.bool("sends")?,
                };
                r.finish(ToAgent::Recall(recall))
            }
            (version, GROW) => {
                known(version)?;
                let offer_id = r.u64()?;
                r.finish(ToAgent::Grow(Grow { offer_id }))
            }
            (version, TAKE) => {
                known(version)?;
                let offer_id = r.u64()?;
                r.finish(ToAgent::Take(Take { offer_id }))
            }
            (version, HOLDS) => {
                known(version)?;
                let peer = r.u64()?;
                r.finish(ToAgent::Holds(Holds { peer }))
            }
            (version, LEFT) => {
                known(version)?;
                let peer = r.u64()?;
                r.finish(ToAgent::Left(Left { peer }))
            }
            (version, READY) => {
                known(version)?;
                let link = r.u64()?;
                r.finish(ToAgent::Ready(Ready { link }))
            }
            (_, kind) => Err(ParseError::Kind(kind)),
        }
    }
}

impl ToClient {
    /// Writes the message to the front of `buffer`, as the protocol of `version` has it, and returns its length.
    pub fn encode(&self, version: u16, buffer: &mut [u8; MAX_BYTES]) -> usize {
        match self {
            ToClient::Welcome(m) => {
                let mut w = Writer::new(buffer, version, WELCOME);
                w.put(&m.version.to_le_bytes());
                w.put(&m.rows.to_le_bytes());
                w.put(&m.spin_us.to_le_bytes());
                w.put(&m.offer_after_calls.to_le_bytes());
                w.put(&m.offer_after_bytes.to_le_bytes());
                w.length
            }
            ToClient::Unsupported(m) => {
                let mut w = Writer::new(buffer, version, UNSUPPORTED);
                w.put(&m.version_min.to_le_bytes());
                w.put(&m.version_max.to_le_bytes());
                w.length
            }
            ToClient::Paired(m) => {
                let mut w = Writer::new(buffer, version, PAIRED);
                w.put(&m.offer_id.to_le_bytes());
                w.put(&m.connection_id.to_le_bytes());
                w.put(&[m.end as u8]);
                w.put(&m.ring_bytes.to_le_bytes());
                w.ahead(4);
                w.length
            }
            ToClient::Declined(m) => {
                let mut w = Writer::new(buffer, version, DECLINED);
                w.put(&m.offer_id.to_le_bytes());
                w.put(&[m.reason as u8]);
                w.length
            }
            ToClient::Answer(m) => {
                let mut w = Writer::new(buffer, version, ANSWER);
                w.put(&m.bytes.to_le_bytes());
                w.length
            }
            ToClient::Recalled(m) => {
                let mut w = Writer::new(buffer, version, RECALLED);
                w.put(&m.offer_id.to_le_bytes());
                w.put(&[u8::from(m.ok)]);
                w.length
            }
            ToClient::Matched(m) => {
                let mut w = Writer::new(buffer, version, MATCHED);
                w.put(&m.offer_id.to_le_bytes());
                w.length
            }
            ToClient::Opened(m) => m.encode(version, buffer),
            ToClient::Refused(m) => m.encode(version, buffer),
            ToClient::Linked(m) => m.encode(version, buffer),
        }
    }

    /// Reads a message that the agent sent.
    ///
    /// `Unsupported` and `Answer` are read whatever version the agent speaks.
    ///
    /// # Errors
    /// When the bytes are not such a message. Never panics.
    pub fn parse(bytes: &[u8]) -> Result<ToClient, ParseError> {
        let mut r = Reader::new(bytes);
        let (version, kind) = r.header()?;
        match kind {
            UNSUPPORTED => {
                return Ok(ToClient::Unsupported(Unsupported {
                    version_min: r.u16()?,
                    version_max: r.u16()?,
                }));
            }
            ANSWER => return Ok(ToClient::Answer(Answer { bytes: r.u32()? })),
            WELCOME | PAIRED | DECLINED | RECALLED | MATCHED | OPENED | REFUSED | LINKED => {
                known(version)?;
            }
            _ => return Err(ParseError::Kind(kind)),
        }
        let message = match kind {
            WELCOME => ToClient::Welcome(Welcome {
                version: r.u16()?,
                rows: r.u32()?,
                spin_us: r.u32()?,
                offer_after_calls: r.u32()?,
                offer_after_bytes: r.u32()?,
            }),
            PAIRED => ToClient::Paired(r.paired()?),
            RECALLED => ToClient::Recalled(Recalled {
                offer_id: r.u64()?,
                ok: r.bool("ok")?,
            }),
            MATCHED => ToClient::Matched(Matched { offer_id: r.u64()? }),
            OPENED => ToClient::Opened(Opened::parse(&mut r)?),
            REFUSED => ToClient::Refused(Refused::parse(&mut r)?),
            LINKED => ToClient::Linked(Linked::parse(&mut r)?),
            _ => ToClient::Declined(Declined {
                offer_id: r.u64()?,
                reason: Reason::from_u8(r.u8()?).unwrap_or(Reason::Unsupported),
            }),
        };
        r.finish(message)
    }
}

fn known(version: u16) -> Result<(), ParseError> {
    if (VERSION_MIN..=VERSION_MAX).contains(&version) {
        Ok(())
    } else {
        Err(ParseError::Version(version))
    }
}

struct Writer<'a> {
    buffer: &'a mut [u8; MAX_BYTES],
    version: u16,
    length: usize,
}

impl Writer<'_> {
    fn new(buffer: &mut [u8; MAX_BYTES], version: u16, kind: u16) -> Writer<'_> {
        let mut writer = Writer {
            buffer,
            version,
            length: 0,
        };
        writer.put(&MAGIC.to_le_bytes());
        writer.put(&version.to_le_bytes());
        writer.put(&kind.to_le_bytes());
        writer
    }

    /// A field that this message has since that version, in a build that is ahead.
    fn ahead(&mut self, since: u16) {
        if cfg!(feature = "ahead") && self.version >= since {
            self.put(&AHEAD.to_le_bytes());
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        self.buffer[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }

    fn address(&mut self, address: &Address) {
        self.put(&address.ip);
        self.put(&address.port.to_le_bytes());
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    version: u16,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            rest: bytes,
            version: 0,
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (first, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(ParseError::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, ParseError> {
        self.take::<1>().map(|b| b[0])
    }

    fn bool(&mut self, field: &'static str) -> Result<bool, ParseError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ParseError::Value(field)),
        }
    }

    fn u16(&mut self) -> Result<u16, ParseError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, ParseError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ParseError> {
        self.take().map(u64::from_le_bytes)
    }

    fn address(&mut self) -> Result<Address, ParseError> {
        Ok(Address {
            ip: self.take()?,
            port: self.u16()?,
        })
    }

    fn header(&mut self) -> Result<(u16, u16), ParseError> {
        let magic = self.u32()?;
        if magic != MAGIC {
            return Err(ParseError::Magic(magic));
        }
        self.version = self.u16()?;
        Ok((self.version, self.u16()?))
    }

    /// As the writer's.
    fn ahead(&mut self, since: u16) -> Result<(), ParseError> {
        if cfg!(feature = "ahead") && self.version >= since && self.u32()? != AHEAD {
            return Err(ParseError::Value("ahead"));
        }
        Ok(())
    }

    fn offer(&mut self) -> Result<Offer, ParseError> {
        let offer_id = self.u64()?;
        let fd = i32::try_from(self.u32()?).map_err(|_| ParseError::Value("fd"))?;
        let row = self.u32()?;
        let family = match self.u8()? {
            4 => Family::V4,
            6 => Family::V6,
            _ => return Err(ParseError::Value("family")),
        };
        let end = match self.u8()? {
            0 => End::Passive,
            1 => End::Active,
            _ => return Err(ParseError::Value("active")),
        };
        let offer = Offer {
            offer_id,
            fd,
            row,
            family,
            end,
            local: self.address()?,
            remote: self.address()?,
            cookie: self.u64()?,
            netns_cookie: self.u64()?,
        };
        self.ahead(3)?;
        Ok(offer)
    }

    fn paired(&mut self) -> Result<Paired, ParseError> {
        let offer_id = self.u64()?;
        let connection_id = self.u64()?;
        let end = match self.u8()? {
            0 => End::Active,
            1 => End::Passive,
            _ => return Err(ParseError::Value("end")),
        };
        let ring_bytes = self.u32()?;
        if !ring_bytes.is_power_of_two() {
            return Err(ParseError::Value("ring_bytes"));
        }
        self.ahead(4)?;
        Ok(Paired {
            offer_id,
            connection_id,
            end,
            ring_bytes,
        })
    }

    fn finish<T>(self, message: T) -> Result<T, ParseError> {
        if self.rest.is_empty() {
            Ok(message)
        } else {
            Err(ParseError::TooLong)
        }
    }
}

#[cfg(test)]
mod tests;
