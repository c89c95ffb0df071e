//! The Internet's checksum (RFC 1071): a sum in ones' complement of words of 16 bits. Eight bytes at a time, as whole packets are summed
//! where UDP in IPv6 has to have one.

/// A sum so far. Its words are as they lie in memory, which the sum in the network's order only has its bytes exchanged of (RFC 1071, 2 B);
/// carries are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds bytes that begin at an even place. Only the last of several runs may have an odd length.
    #[inline]
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            let word = u64::from_ne_bytes(*word);
            self.0 += (word >> 32) + (word & 0xffff_ffff);
        }
        let (halves, rest) = rest.as_chunks::<4>();
        for half in halves {
            self.0 += u64::from(u32::from_ne_bytes(*half));
        }
        let (pairs, odd) = rest.as_chunks::<2>();
        for pair in pairs {
            self.0 += u64::from(u16::from_ne_bytes(*pair));
        }
        if let [last] = odd {
            self.0 += u64::from(u16::from_ne_bytes([*last, 0]));
        }
    }

    /// Adds a word.
    #[inline]
    pub(crate) fn add_word(&mut self, word: u16) {
        self.0 += u64::from(word.to_be());
    }

    /// Adds an address.
    pub(crate) fn add_address(&mut self, address: std::net::IpAddr) {
        match address {
            std::net::IpAddr::V4(address) => self.add(&address.octets()),
            std::net::IpAddr::V6(address) => self.add(&address.octets()),
        }
    }

    /// The sum in 16 bits.
    #[inline]
    pub(crate) fn folded(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        // Nothing is left above.
        u16::from_be(sum as u16)
    }

    /// What belongs in a packet.
    #[inline]
    pub(crate) fn complement(self) -> u16 {
        !self.folded()
    }

    /// The same in UDP, where zero says that there is none (RFC 768).
    #[inline]
    pub(crate) fn complement_of_udp(self) -> u16 {
        match self.complement() {
            0 => 0xffff,
            sum => sum,
        }
    }
}

/// A checksum when one word of what it is of has changed (RFC 1624, equation 3).
pub(crate) fn adjusted(checksum: u16, before: u16, after: u16) -> u16 {
    let mut sum = Sum::default();
    sum.add_word(!checksum);
    sum.add_word(!before);
    sum.add_word(after);
    sum.complement()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        let mut sum = Sum::default();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
    }

    #[test]
    fn sums_are_those_of_words_one_by_one() {
        let bytes: Vec<u8> = (0..2000_u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for length in (0..64).chain([1500, 1999, 2000]) {
            let mut plain: u64 = 0;
            for pair in bytes[..length].chunks(2) {
                plain += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
            }
            while plain >> 16 != 0 {
                plain = (plain & 0xffff) + (plain >> 16);
            }
            let mut sum = Sum::default();
            sum.add(&bytes[..length]);
            assert_eq!(u64::from(sum.folded()), plain, "{length}");
        }
    }

    #[test]
    fn an_adjusted_checksum_is_that_of_the_changed_bytes() {
        let mut bytes = [8, 0, 0x12, 0x34, 0x56, 0x78];
        let of = |bytes: &[u8]| {
            let mut sum = Sum::default();
            sum.add(bytes);
            sum.complement()
        };
        let before = of(&bytes);
        bytes[0] = 0;
        assert_eq!(adjusted(before, 0x0800, 0), of(&bytes));
    }
}
