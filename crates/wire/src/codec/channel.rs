//! The bytes of what participants of channels and the agent say.

use super::{AHEAD, MAX_BYTES, ParseError, Reader, Writer};
use crate::channel::{
    ChannelName, Holds, Left, LinkEnd, Linked, Open, Opened, POOL_BYTES_MAX, POOL_UNIT_BYTES,
    Ready, Refusal, Refused, Role, SLOTS_MAX, SLOTS_MIN,
};

pub(super) const OPEN: u16 = 8;
pub(super) const HOLDS: u16 = 9;
pub(super) const READY: u16 = 10;
pub(super) const LEFT: u16 = 11;
pub(super) const OPENED: u16 = 108;
pub(super) const REFUSED: u16 = 109;
pub(super) const LINKED: u16 = 110;

const OVERWRITES: u8 = 1;
const HAS_POOL: u8 = 2;
const TWO_WAY: u8 = 2;

type Buffer = [u8; MAX_BYTES];

fn bit(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

impl Open {
    pub(super) fn encode(&self, version: u16, buffer: &mut Buffer) -> usize {
        let mut w = Writer::new(buffer, version, OPEN);
        w.put(&self.version_min.to_le_bytes());
        w.put(&self.version_max.to_le_bytes());
        w.put(&self.abi.to_le_bytes());
        let flags = bit(self.overwrites, OVERWRITES) | bit(self.pool.is_some(), HAS_POOL);
        w.put(&[self.role as u8, flags]);
        w.put(&self.id.to_le_bytes());
        w.put(&self.pool_bytes.to_le_bytes());
        w.put(&self.slots.to_le_bytes());
        w.put(&self.peers.to_le_bytes());
        w.put(&self.pool.unwrap_or(0).to_le_bytes());
        let no_group = ([0; ChannelName::BYTES_MAX], 0);
        for (name, length) in [
            self.name.to_bytes(),
            self.group.map_or(no_group, ChannelName::to_bytes),
        ] {
            w.put(&[length]);
            w.put(&name);
        }
        w.length
    }

    /// Flags of later versions are passed over.
    pub(super) fn parse(r: &mut Reader<'_>) -> Result<Open, ParseError> {
        let (version_min, version_max, abi) = (r.u16()?, r.u16()?, r.u16()?);
        let role = Role::from_u8(r.u8()?).ok_or(ParseError::Value("role"))?;
        let flags = r.u8()?;
        let (id, pool_bytes) = (r.u64()?, r.u64()?);
        if role.sends() != is_pool_size(pool_bytes) || !role.sends() && pool_bytes != 0 {
            return Err(ParseError::Value("pool_bytes"));
        }
        let has_pool = flags & HAS_POOL != 0;
        if has_pool && pool_bytes == 0 {
            return Err(ParseError::Value("flags"));
        }
        let (slots, peers, pool) = (r.slots()?, r.u32()?, r.u32()?);
        let mut name = |what| {
            let (length, bytes) = (r.u8()?, r.take()?);
            let is_none = length == 0 && bytes == [0; ChannelName::BYTES_MAX];
            let name = ChannelName::of_bytes(bytes, length);
            if name.is_none() && !is_none {
                return Err(ParseError::Value(what));
            }
            Ok(name)
        };
        let (name, group) = (name("name")?, name("group")?);
        let name = name.ok_or(ParseError::Value("name"))?;
        Ok(Open {
            version_min,
            version_max,
            abi,
            role,
            overwrites: flags & OVERWRITES != 0,
            pool: has_pool.then_some(pool),
            id,
            group,
            pool_bytes,
            slots,
            peers,
            name,
        })
    }
}

impl Holds {
    pub(super) fn encode(self, version: u16, buffer: &mut Buffer) -> usize {
        let mut w = Writer::new(buffer, version, HOLDS);
        w.put(&self.peer.to_le_bytes());
        w.length
    }
}

impl Left {
    pub(super) fn encode(self, version: u16, buffer: &mut Buffer) -> usize {
        let mut w = Writer::new(buffer, version, LEFT);
        w.put(&self.peer.to_le_bytes());
        w.length
    }
}

impl Ready {
    pub(super) fn encode(self, version: u16, buffer: &mut Buffer) -> usize {
        let mut w = Writer::new(buffer, version, READY);
        w.put(&self.link.to_le_bytes());
        w.length
    }
}

impl Opened {
    pub(super) fn encode(&self, version: u16, buffer: &mut Buffer) -> usize {
        let mut w = Writer::new(buffer, version, OPENED);
        w.put(&self.version.to_le_bytes());
        w.put(&self.id.to_le_bytes());
        w.put(&self.pool_bytes.to_le_bytes());
        w.put(&[u8::from(self.huge)]);
        w.length
    }

    pub(super) fn parse(r: &mut Reader<'_>) -> Result<Opened, ParseError> {
        Ok(Opened {
            version: r.u16()?,
            id: r.number("id")?,
            pool_bytes: r.pool_bytes("pool_bytes")?,
            huge: r.bool("huge")?,
        })
    }
}

impl Refused {
    pub(super) fn encode(self, version: u16, buffer: &mut Buffer) -> usize {
        let mut w = Writer::new(buffer, version, REFUSED);
        w.put(&[self.reason as u8]);
        w.length
    }

    pub(super) fn parse(r: &mut Reader<'_>) -> Result<Refused, ParseError> {
        let reason = Refusal::from_u8(r.u8()?);
        Ok(Refused { reason })
    }
}

impl Linked {
    pub(super) fn encode(&self, version: u16, buffer: &mut Buffer) -> usize {
        let mut w = Writer::new(buffer, version, LINKED);
        w.put(&self.link.to_le_bytes());
        w.put(&self.peer.to_le_bytes());
        w.put(&self.slots.to_le_bytes());
        let flags = bit(self.overwrites, OVERWRITES) | bit(self.two_way, TWO_WAY);
        w.put(&[flags, self.end as u8]);
        w.put(&self.group.to_le_bytes());
        w.put(&self.peer_pool_bytes.to_le_bytes());
        w.put(&self.own_pool_bytes.to_le_bytes());
        w.put(&self.peer_pid.to_le_bytes());
        w.ahead(3);
        w.length
    }

    pub(super) fn parse(r: &mut Reader<'_>) -> Result<Linked, ParseError> {
        let (link, peer) = (r.number("link")?, r.number("peer")?);
        let slots = r.slots()?;
        let flags = r.u8()?;
        if flags & !(OVERWRITES | TWO_WAY) != 0 {
            return Err(ParseError::Value("flags"));
        }
        let end = match r.u8()? {
            0 => LinkEnd::Publishes,
            1 => LinkEnd::Subscribes,
            _ => return Err(ParseError::Value("end")),
        };
        let linked = Linked {
            link,
            peer,
            slots,
            overwrites: flags & OVERWRITES != 0,
            two_way: flags & TWO_WAY != 0,
            end,
            group: r.u64()?,
            peer_pool_bytes: r.pool_bytes("peer_pool_bytes")?,
            own_pool_bytes: r.pool_bytes("own_pool_bytes")?,
            peer_pid: r.u32()?,
        };
        r.ahead(3)?;
        Ok(linked)
    }
}

fn is_pool_size(bytes: u64) -> bool {
    bytes.is_multiple_of(POOL_UNIT_BYTES) && (POOL_UNIT_BYTES..=POOL_BYTES_MAX).contains(&bytes)
}

impl Reader<'_> {
    fn slots(&mut self) -> Result<u32, ParseError> {
        let slots = self.u32()?;
        if slots.is_power_of_two() && (SLOTS_MIN..=SLOTS_MAX).contains(&slots) {
            Ok(slots)
        } else {
            Err(ParseError::Value("slots"))
        }
    }

    /// A pool's size, or 0.
    fn pool_bytes(&mut self, field: &'static str) -> Result<u64, ParseError> {
        let bytes = self.u64()?;
        if bytes == 0 || is_pool_size(bytes) {
            Ok(bytes)
        } else {
            Err(ParseError::Value(field))
        }
    }

    /// A number that is not 0.
    fn number(&mut self, field: &'static str) -> Result<u64, ParseError> {
        match self.u64()? {
            0 => Err(ParseError::Value(field)),
            number => Ok(number),
        }
    }
}

// The longest message, with what may be appended to it in a build that is ahead.
const _: () = assert!(8 + 40 + 1 + ChannelName::BYTES_MAX + size_of_val(&AHEAD) <= MAX_BYTES);
