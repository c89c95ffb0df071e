//! Of a record: what is done with what goes towards a side.
//!
//! ```text
//!   bits u8            1 paused, 2 a flow, 4 a marking, 8 a limit, 16 reflective, 32 a paging policy
//!   flow u8            64: removed; 65: by those that packets come with: 64 bytes follow, 255 for none
//!   marking u8         a DSCP; 255: the user's packet's
//!   limit              bytes u64 | burst u64 | packets u32 | burst u32, each second's first
//!   paging policy u8   0 to 7
//! ```

use crate::bearer::Flows;
use crate::mark::Marking;
use crate::meter::Limit;
use crate::spec::{PPI_MAX, Treatment};

const PAUSED: u8 = 1;
const FLOW: u8 = 2;
const MARKING: u8 = 4;
const LIMIT: u8 = 8;
const REFLECTIVE: u8 = 16;
const POLICY: u8 = 32;
const ALL: u8 = PAUSED | FLOW | MARKING | LIMIT | REFLECTIVE | POLICY;
const REMOVED: u8 = 64;
const MAPPED: u8 = 65;
const NO_FLOW: u8 = 255;

/// The first byte, which is then gone.
pub(super) fn byte(bytes: &mut &[u8]) -> Option<u8> {
    let (&first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(first)
}

/// So many bytes, which are then gone.
pub(super) fn chunk<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (chunk, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(chunk)
}

pub(super) fn emit(treatment: &Treatment, to: &mut Vec<u8>) {
    let usual = Treatment::default();
    let bit = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
    to.push(
        bit(PAUSED, treatment.paused)
            | bit(FLOW, treatment.flow != usual.flow)
            | bit(MARKING, treatment.dscp != usual.dscp)
            | bit(LIMIT, treatment.limit != usual.limit)
            | bit(REFLECTIVE, treatment.rqi)
            | bit(POLICY, treatment.ppi.is_some()),
    );
    match &treatment.flow {
        Flows::Kept => {}
        Flows::Removed => to.push(REMOVED),
        Flows::Set(flow) => to.push(*flow),
        Flows::Mapped(map) => {
            to.push(MAPPED);
            to.extend(map.iter().map(|flow| flow.unwrap_or(NO_FLOW)));
        }
    }
    if treatment.dscp != usual.dscp {
        to.push(treatment.dscp.to_byte());
    }
    if treatment.limit != usual.limit {
        emit_limit(&treatment.limit, to);
    }
    to.extend(treatment.ppi);
}

pub(super) fn emit_limit(limit: &Limit, to: &mut Vec<u8>) {
    to.extend_from_slice(&limit.bytes_per_second.to_le_bytes());
    to.extend_from_slice(&limit.burst_bytes.to_le_bytes());
    to.extend_from_slice(&limit.packets_per_second.to_le_bytes());
    to.extend_from_slice(&limit.burst_packets.to_le_bytes());
}

pub(super) fn parse(bytes: &mut &[u8]) -> Option<Treatment> {
    let bits = byte(bytes)?;
    if bits & !ALL != 0 {
        return None;
    }
    let mut treatment = Treatment {
        paused: bits & PAUSED != 0,
        rqi: bits & REFLECTIVE != 0,
        ..Treatment::default()
    };
    if bits & FLOW != 0 {
        treatment.flow = match byte(bytes)? {
            flow @ 0..64 => Flows::Set(flow),
            REMOVED => Flows::Removed,
            MAPPED => {
                let map = chunk::<64>(bytes)?;
                Flows::Mapped(Box::new(map.map(|flow| (flow < 64).then_some(flow))))
            }
            _ => return None,
        };
    }
    if bits & MARKING != 0 {
        treatment.dscp = Marking::of_byte(byte(bytes)?);
    }
    if bits & LIMIT != 0 {
        treatment.limit = limit(bytes)?;
    }
    if bits & POLICY != 0 {
        treatment.ppi = Some(byte(bytes)?).filter(|policy| *policy <= PPI_MAX);
        treatment.ppi?;
    }
    Some(treatment)
}

pub(super) fn limit(bytes: &mut &[u8]) -> Option<Limit> {
    Some(Limit {
        bytes_per_second: u64::from_le_bytes(*chunk(bytes)?),
        burst_bytes: u64::from_le_bytes(*chunk(bytes)?),
        packets_per_second: u32::from_le_bytes(*chunk(bytes)?),
        burst_packets: u32::from_le_bytes(*chunk(bytes)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_version_wrote_is_read() {
        let older = [PAUSED | FLOW | MARKING, 63, 46];
        let mut written = Vec::new();
        let treatment = parse(&mut &older[..]).unwrap();
        assert_eq!((treatment.rqi, treatment.ppi), (false, None));
        assert_eq!(treatment.flow, Flows::Set(63));
        emit(&treatment, &mut written);
        assert_eq!(written, older);
        let newer =
            |policy: &[u8]| parse(&mut &[&[FLOW | REFLECTIVE | POLICY, 9], policy].concat()[..]);
        let treatment = newer(&[7]).unwrap();
        assert_eq!((treatment.rqi, treatment.ppi), (true, Some(7)));
        assert_eq!((newer(&[8]), newer(&[])), (None, None));
    }
}
