use std::net::Ipv4Addr;

use super::*;
use crate::fragment::{emit_v4_fragment_place, emit_v6_fragment_header, pieces};
use crate::random::Random;

const SECOND: u64 = 1_000_000_000;

fn part(identification: u32, at: usize, has_more: bool, payload: &[u8]) -> Fragment<'_> {
    Fragment {
        source: Ipv4Addr::new(192, 0, 2, 1).into(),
        destination: Ipv4Addr::new(192, 0, 2, 2).into(),
        protocol: 17,
        identification,
        at,
        has_more,
        class: 0,
        payload,
    }
}

fn reassembler() -> Reassembler {
    Reassembler::new(ReassemblyLimits::default())
}

/// An outer packet of either family with so many bytes behind its header, cut for an MTU.
fn cut(is_v6: bool, payload: &[u8], mtu: usize, identification: u32) -> Vec<Vec<u8>> {
    let cuts = pieces(payload.len(), is_v6, mtu);
    let parts = cuts.map(|piece| {
        let mut packet = Vec::new();
        if is_v6 {
            packet.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, 44, 64]);
            packet.extend_from_slice(&[7; 32]);
            packet.extend_from_slice(&emit_v6_fragment_header(17, identification, &piece));
        } else {
            packet.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
            packet.extend_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
            packet[4..6].copy_from_slice(&(identification as u16).to_be_bytes());
            packet[6..8].copy_from_slice(&emit_v4_fragment_place(&piece));
        }
        packet.extend_from_slice(&payload[piece.at..piece.at + piece.bytes]);
        let length = if is_v6 {
            packet.len() - 40
        } else {
            packet.len()
        };
        let place = if is_v6 { 4 } else { 2 };
        packet[place..place + 2].copy_from_slice(&(length as u16).to_be_bytes());
        packet
    });
    parts.collect()
}

#[test]
fn what_is_cut_comes_together_in_any_order() {
    let mut random = Random(1);
    for round in 0..300 {
        let is_v6 = round % 2 == 0;
        let length = 1 + random.below(65_000 - 1) as usize;
        let payload = random.bytes(length);
        let mtu = 1280 + random.below(8000) as usize;
        let mut parts = cut(is_v6, &payload, mtu, round);
        if parts.len() == 1 {
            continue;
        }
        assert!(parts.iter().all(|part| part.len() <= mtu));
        for at in (1..parts.len()).rev() {
            parts.swap(at, random.below(at as u64 + 1) as usize);
        }
        let mut reassembler = reassembler();
        let last = parts.len() - 1;
        for (number, packet) in parts.iter().enumerate() {
            let fragment = Fragment::parse(packet).unwrap().unwrap();
            let outcome = reassembler.handle_fragment(&fragment, 0);
            if number < last {
                assert_eq!(outcome, Outcome::Waits);
            } else {
                assert_eq!(
                    outcome,
                    Outcome::Whole {
                        protocol: 17,
                        class: 0,
                        parts: parts.len(),
                        bytes: &payload,
                    }
                );
            }
        }
        assert_eq!((reassembler.bytes(), reassembler.waiting()), (0, 0));
    }
}

#[test]
fn a_whole_packet_is_no_fragment_and_wrong_ones_are_none() {
    let whole = cut(false, &[1; 100], 1500, 1);
    assert_eq!((whole.len(), Fragment::parse(&whole[0])), (1, Ok(None)));
    let mut part = cut(false, &[1; 3000], 1500, 1).remove(0);
    part[3] -= 1;
    assert_eq!(Fragment::parse(&part), Err(Cause::Fragment));
    let mut last = cut(false, &[1; 3000], 1500, 1).remove(1);
    last[6..8].copy_from_slice(&0x1fffu16.to_be_bytes());
    assert_eq!(Fragment::parse(&last), Err(Cause::Fragment));
    last[3] = 20;
    last[2] = 0;
    assert_eq!(Fragment::parse(&last), Err(Cause::Fragment));
    assert_eq!(pieces(100, true, 40).count(), 0);
}

#[test]
fn overlaps_kill_the_packet_and_what_comes_after() {
    let mut reassembler = reassembler();
    assert_eq!(
        reassembler.handle_fragment(&part(1, 0, true, &[1; 16]), 0),
        Outcome::Waits
    );
    let twice = reassembler.handle_fragment(&part(1, 0, true, &[1; 16]), 0);
    assert_eq!(twice, Outcome::Drops(Cause::FragmentTwice));
    let overlap = Outcome::Drops(Cause::FragmentOverlap);
    assert_eq!(
        reassembler.handle_fragment(&part(1, 8, true, &[2; 16]), 0),
        overlap
    );
    assert_eq!(
        reassembler.handle_fragment(&part(1, 16, false, &[2; 16]), 0),
        overlap
    );
    assert_eq!((reassembler.bytes(), reassembler.waiting()), (0, 1));
    // The first one, the overlapping one, and the last.
    assert_eq!(reassembler.drops().of(Cause::FragmentOverlap), 3);
    // Later the number is another packet's.
    let later = reassembler.handle_fragment(&part(1, 0, true, &[1; 16]), 61 * SECOND);
    assert_eq!(later, Outcome::Waits);
    // What says that all is shorter than what came is no better, and neither is another content.
    for wrong in [
        part(1, 0, false, &[1; 8]),
        part(1, 0, true, &[2; 16]),
        part(1, 8, false, &[1; 4]),
    ] {
        let mut reassembler = Reassembler::new(ReassemblyLimits::default());
        reassembler.handle_fragment(&part(1, 0, true, &[1; 16]), 0);
        let outcome = reassembler.handle_fragment(&wrong, 0);
        let is_whole_of_its_own = wrong.at == 0 && !wrong.has_more;
        assert_eq!(
            matches!(outcome, Outcome::Whole { .. }),
            is_whole_of_its_own
        );
        assert!(is_whole_of_its_own || outcome == overlap);
    }
}

#[test]
fn memory_places_and_time_have_limits() {
    let limits = ReassemblyLimits {
        packets: 4,
        bytes: 100,
        parts: 3,
        age_ns: 5 * SECOND,
    };
    let mut reassembler = Reassembler::new(limits);
    for number in 0..10 {
        assert_eq!(
            reassembler.handle_fragment(&part(number, 0, true, &[1; 16]), number.into()),
            Outcome::Waits
        );
        assert!(reassembler.waiting() <= 4 && reassembler.bytes() <= 100);
    }
    assert_eq!(reassembler.drops().of(Cause::FragmentMemory), 6);
    reassembler.handle_fragment(&part(20, 0, true, &[1; 80]), 20);
    assert!(reassembler.bytes() <= 100);
    let too_long = reassembler.handle_fragment(&part(21, 0, true, &[1; 104]), 20);
    assert_eq!(too_long, Outcome::Drops(Cause::FragmentMemory));
    assert_eq!(reassembler.next_timeout_ns(), Some(9 + 5 * SECOND));
    reassembler.handle_timeout(20 + 5 * SECOND);
    assert_eq!((reassembler.waiting(), reassembler.bytes()), (0, 0));
    assert_eq!(reassembler.drops().of(Cause::FragmentAge), 2);
    for at in 0..3 {
        assert_eq!(
            reassembler.handle_fragment(&part(30, at * 16, true, &[1; 8]), 0),
            Outcome::Waits
        );
    }
    let many = reassembler.handle_fragment(&part(30, 64, true, &[1; 8]), 0);
    assert_eq!(many, Outcome::Drops(Cause::FragmentMemory));
}

#[test]
fn congestion_of_a_part_is_that_of_the_whole() {
    for (classes, wanted) in [
        ([0x02, 0x02], Some(0x02)),
        ([0xba, 0x03], Some(0xbb)),
        ([0x00, 0x02], Some(0x00)),
        ([0x00, 0x03], None),
    ] {
        let mut reassembler = reassembler();
        let mut first = part(1, 0, true, &[1; 8]);
        let mut second = part(1, 8, false, &[1; 3]);
        (first.class, second.class) = (classes[0], classes[1]);
        assert_eq!(reassembler.handle_fragment(&first, 0), Outcome::Waits);
        let got = match reassembler.handle_fragment(&second, 0) {
            Outcome::Whole { class, .. } => Some(class),
            _ => None,
        };
        assert_eq!(got, wanted);
    }
}

/// A packet of which each byte is known or not, as whoever reads RFC 5722 would do it first.
#[derive(Default)]
struct Naive {
    bytes: Vec<Option<u8>>,
    parts: Vec<(usize, usize, bool)>,
    total: Option<usize>,
    is_dead: bool,
}

impl Naive {
    fn take(&mut self, at: usize, has_more: bool, payload: &[u8]) -> Option<Vec<u8>> {
        let end = at + payload.len();
        self.bytes.resize(self.bytes.len().max(end), None);
        let there = &self.bytes[at..end];
        if self.is_dead {
            return None;
        }
        let is_twice = self.parts.contains(&(at, end, has_more))
            && there
                .iter()
                .zip(payload)
                .all(|(old, new)| *old == Some(*new));
        if is_twice {
            return None;
        }
        let highest = self.parts.iter().map(|part| part.1).max().unwrap_or(0);
        let wrong_end = match (has_more, self.total) {
            (true, Some(total)) => end > total,
            (false, Some(_)) => true,
            (false, None) => end < highest,
            (true, None) => false,
        };
        if wrong_end || there.iter().any(Option::is_some) {
            self.is_dead = true;
            return None;
        }
        for (place, byte) in self.bytes[at..end].iter_mut().zip(payload) {
            *place = Some(*byte);
        }
        self.parts.push((at, end, has_more));
        if !has_more {
            self.total = Some(end);
        }
        let total = self.total?;
        self.bytes[..total].iter().copied().collect()
    }
}

#[test]
fn any_fragments_do_what_they_do_to_a_naive_one() {
    for seed in 1..400 {
        let mut random = Random(seed);
        let mut reassembler = reassembler();
        let mut naive = Naive::default();
        let content = random.bytes(200);
        for _ in 0..12 {
            let at = random.below(8) as usize * 8;
            let has_more = random.below(4) != 0;
            let length = match has_more {
                true => 8 * (1 + random.below(3) as usize),
                false => 1 + random.below(20) as usize,
            };
            if at == 0 && !has_more {
                continue;
            }
            let mut payload = content[at..at + length].to_vec();
            if random.below(8) == 0 {
                payload[0] ^= 1;
            }
            let wanted = naive.take(at, has_more, &payload);
            let got = match reassembler.handle_fragment(&part(1, at, has_more, &payload), 0) {
                Outcome::Whole { bytes, .. } => Some(bytes.to_vec()),
                _ => None,
            };
            assert_eq!(got, wanted, "seed {seed}");
            if got.is_some() {
                naive = Naive::default();
            }
        }
    }
}
