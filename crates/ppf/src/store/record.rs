//! Records of a journal.

use std::borrow::Borrow;
use std::net::{IpAddr, Ipv6Addr};

use super::treated;
use crate::bearer::{BearerId, Side, Thresholds};
use crate::spec::{BearerSpec, FarEnd, Gates, UeSpec};

const BEARER: u8 = 1;
const FREE: u8 = 2;
const UE: u8 = 3;
const NO_UE: u8 = 4;
/// Of a side: it has no tunnel.
const USER: u8 = 0x80;
/// Bytes before what a record says.
const LEAD_BYTES: usize = 8;
/// Bytes of a record about a user equipment.
pub(super) const UE_BYTES: usize = LEAD_BYTES + 5 + 2 * 24;
/// What a record says is not shorter…
const RECORD_BYTES_MIN: usize = 5;
/// …and not longer.
const RECORD_BYTES_MAX: usize = 4096;

/// What else is said of a bearer, each thing by a byte that says which: only what is not as it usually is.
const USER_V6: u8 = 1;
const TREATMENT: u8 = 2;
const REPORT: u8 = 4;
const NUMBERS: u8 = 5;
const DELIVERY: u8 = 6;
const OF_UE: u8 = 7;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record<Spec = BearerSpec> {
    /// A bearer is so from now on.
    Bearer(BearerId, Spec),
    /// A place is free, and goes on with this number.
    Free(BearerId),
    /// A user equipment is limited so from now on; none: it is no more.
    Ue(u32, Option<UeSpec>),
}

impl<Spec: Borrow<BearerSpec>> Record<Spec> {
    /// Appends it.
    pub(super) fn emit(&self, to: &mut Vec<u8>) {
        let begin = to.len();
        to.extend_from_slice(&[0; LEAD_BYTES]);
        match self {
            Record::Bearer(id, spec) => {
                to.push(BEARER);
                to.extend_from_slice(&id.number().to_le_bytes());
                emit_spec(spec.borrow(), to);
            }
            Record::Free(id) => {
                to.push(FREE);
                to.extend_from_slice(&id.number().to_le_bytes());
            }
            Record::Ue(ue, spec) => {
                to.push(if spec.is_some() { UE } else { NO_UE });
                to.extend_from_slice(&ue.to_le_bytes());
                for limit in spec.iter().flat_map(UeSpec::limits) {
                    treated::emit_limit(&limit, to);
                }
            }
        }
        let said = &to[begin + LEAD_BYTES..];
        // Some hundreds of bytes at most.
        let length = (said.len() as u32).to_le_bytes();
        let sum = crc32fast::hash(said).to_le_bytes();
        to[begin..begin + 4].copy_from_slice(&length);
        to[begin + 4..begin + LEAD_BYTES].copy_from_slice(&sum);
    }
}

impl Record {
    /// What bytes say. None: something that this program does not know.
    fn parse(said: &[u8]) -> Option<Record> {
        let (&kind, rest) = said.split_first()?;
        let (number, mut rest) = rest.split_first_chunk::<4>()?;
        let number = u32::from_le_bytes(*number);
        match kind {
            BEARER => Some(Record::Bearer(
                BearerId::checked(number)?,
                parse_spec(&mut rest)?,
            )),
            FREE => Some(Record::Free(BearerId::checked(number)?)),
            UE => {
                let (to_core, to_radio) = (treated::limit(&mut rest)?, treated::limit(&mut rest)?);
                Some(Record::Ue(number, Some(UeSpec { to_core, to_radio })))
            }
            NO_UE => Some(Record::Ue(number, None)),
            _ => None,
        }
    }
}

fn emit_spec(spec: &BearerSpec, to: &mut Vec<u8>) {
    emit_end(spec.core, to);
    emit_end(spec.radio, to);
    to.push(u8::from(spec.gates.core) | u8::from(spec.gates.radio) << 1);
    if let Some(user) = spec.user_v6 {
        to.push(USER_V6);
        to.extend_from_slice(&user.octets());
    }
    for (side, treatment) in Side::BOTH.into_iter().zip([&spec.to_core, &spec.to_radio]) {
        if let Some(treatment) = treatment {
            to.push(TREATMENT + side as u8);
            treated::emit(treatment, to);
        }
    }
    if let Some(report) = &spec.report {
        to.push(REPORT);
        to.extend_from_slice(&report.packets.to_le_bytes());
        to.extend_from_slice(&report.bytes.to_le_bytes());
        to.extend_from_slice(&report.seconds.to_le_bytes());
    }
    if spec.forwards_numbers {
        to.push(NUMBERS);
    }
    if spec.follows_delivery {
        to.push(DELIVERY);
    }
    if let Some(ue) = spec.ue {
        to.push(OF_UE);
        to.extend_from_slice(&ue.to_le_bytes());
    }
}

fn parse_spec(bytes: &mut &[u8]) -> Option<BearerSpec> {
    let core = parse_end(bytes)?;
    let radio = parse_end(bytes)?;
    let gates = treated::byte(bytes)?;
    let mut spec = BearerSpec::new(core, radio);
    spec.gates = Gates {
        core: gates & 1 != 0,
        radio: gates & 2 != 0,
    };
    while let Some(kind) = treated::byte(bytes) {
        match kind {
            USER_V6 => spec.user_v6 = Some(Ipv6Addr::from(*treated::chunk::<16>(bytes)?)),
            TREATMENT => spec.to_core = Some(Box::new(treated::parse(bytes)?)),
            _ if kind == TREATMENT + 1 => spec.to_radio = Some(Box::new(treated::parse(bytes)?)),
            REPORT => {
                spec.report = Some(Box::new(Thresholds {
                    packets: u64::from_le_bytes(*treated::chunk(bytes)?),
                    bytes: u64::from_le_bytes(*treated::chunk(bytes)?),
                    seconds: u32::from_le_bytes(*treated::chunk(bytes)?),
                }));
            }
            NUMBERS => spec.forwards_numbers = true,
            DELIVERY => spec.follows_delivery = true,
            OF_UE => spec.ue = Some(u32::from_le_bytes(*treated::chunk(bytes)?)),
            _ => return None,
        }
    }
    Some(spec)
}

fn emit_end(end: FarEnd, to: &mut Vec<u8>) {
    let (address, user, teid) = match end {
        FarEnd::Tunnel(address, teid) => (address, 0, Some(teid)),
        FarEnd::User(address) => (address, USER, None),
    };
    match address {
        IpAddr::V4(address) => {
            to.push(4 | user);
            to.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            to.push(6 | user);
            to.extend_from_slice(&address.octets());
        }
    }
    if let Some(teid) = teid {
        to.extend_from_slice(&teid.to_le_bytes());
    }
}

fn parse_end(bytes: &mut &[u8]) -> Option<FarEnd> {
    let kind = treated::byte(bytes)?;
    let address = match kind & !USER {
        4 => IpAddr::from(*treated::chunk::<4>(bytes)?),
        6 => IpAddr::from(*treated::chunk::<16>(bytes)?),
        _ => return None,
    };
    if kind & USER != 0 {
        return Some(FarEnd::User(address));
    }
    let teid = u32::from_le_bytes(*treated::chunk(bytes)?);
    Some(FarEnd::Tunnel(address, teid))
}

/// The records that bytes begin with. They end where one is not whole.
#[derive(Debug)]
pub(super) struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
    /// One is whole, and says what this program does not know.
    is_unknown: bool,
}

impl<'a> Records<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Records<'a> {
        Records {
            bytes,
            at: 0,
            is_unknown: false,
        }
    }

    /// Whether they ended because somebody else has written something further: it is not for us to cut off.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Where the last one that was given ended.
    pub(super) fn at(&self) -> usize {
        self.at
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let rest = self.bytes.get(self.at..)?;
        let (&[l0, l1, l2, l3, c0, c1, c2, c3], rest) = rest.split_first_chunk::<LEAD_BYTES>()?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        // Nothing has a right checksum, too: zeros that a machine without power has left are no record.
        if !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(&length) {
            return None;
        }
        let said = rest.get(..length)?;
        if crc32fast::hash(said) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return None;
        }
        let record = Record::parse(said);
        self.is_unknown = record.is_none();
        let record = record?;
        self.at += LEAD_BYTES + length;
        Some(record)
    }
}
