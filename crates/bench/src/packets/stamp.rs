//! What tells one packet from another: 20 bytes behind the headers, in the machine's byte order, since they come back to it.

/// Bytes of a stamp.
pub(super) const STAMP_BYTES: usize = 20;

/// A packet's number and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Of the run: a packet of another one is a stranger.
    pub(super) run: u32,
    /// Packets of a run are counted from zero.
    pub(super) number: u64,
    /// When it was due, or sent where nothing is due; nanoseconds since the run's beginning.
    pub(super) time_ns: u64,
}

impl Stamp {
    /// Writes it to the first bytes of `place`, which has room.
    #[inline]
    pub(super) fn write(self, place: &mut [u8]) {
        place[..4].copy_from_slice(&self.run.to_ne_bytes());
        place[4..12].copy_from_slice(&self.number.to_ne_bytes());
        place[12..STAMP_BYTES].copy_from_slice(&self.time_ns.to_ne_bytes());
    }

    /// The sum of its words of 16 bits in the machine's byte order, folded once.
    #[inline]
    pub(super) fn sum(self) -> u32 {
        let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
        let sum = u64::from(self.run) + halves(self.number) + halves(self.time_ns);
        ((sum & 0xffff) + (sum >> 16)) as u32
    }

    /// Reads it from the first bytes of `place`. None: it is too short.
    #[inline]
    pub(super) fn read(place: &[u8]) -> Option<Stamp> {
        let (run, rest) = place.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        Some(Stamp {
            run: u32::from_ne_bytes(*run),
            number: u64::from_ne_bytes(*number),
            time_ns: u64::from_ne_bytes(*rest.first_chunk()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let stamp = Stamp {
            run: 7,
            number: u64::MAX - 1,
            time_ns: 12,
        };
        let mut bytes = [0; 24];
        stamp.write(&mut bytes);
        assert_eq!(Stamp::read(&bytes), Some(stamp));
        assert_eq!(Stamp::read(&bytes[..19]), None);
    }
}
