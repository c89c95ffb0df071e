//! The Internet's checksum (RFC 1071): a sum in ones' complement of words of 16 bits.

/// A sum so far. Words are in the order of the network; carries are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds bytes that begin at an even place. Only the last of several runs may have an odd length.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            let mut four = [0; 4];
            four.copy_from_slice(word);
            self.0 += u64::from(u32::from_be_bytes(four));
        }
        let mut last = [0; 4];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        self.0 += u64::from(u32::from_be_bytes(last));
    }

    /// Adds a word.
    pub(crate) fn add_word(&mut self, word: u16) {
        self.0 += u64::from(word);
    }

    /// The sum in 16 bits.
    pub(crate) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        // Nothing is left above.
        sum as u16
    }

    /// What belongs in a packet.
    pub(crate) fn complement(self) -> u16 {
        !self.folded()
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
    fn an_odd_end_counts_as_if_a_zero_followed() {
        let (mut odd, mut even) = (Sum::default(), Sum::default());
        odd.add(&[1, 2, 3, 4, 5]);
        even.add(&[1, 2, 3, 4, 5, 0]);
        assert_eq!(odd.folded(), even.folded());
    }

    #[test]
    fn an_adjusted_checksum_is_that_of_the_changed_bytes() {
        let mut bytes = [
            0x45, 0, 0, 84, 1, 2, 0x40, 0, 64, 1, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        let of = |bytes: &[u8]| {
            let mut sum = Sum::default();
            sum.add(bytes);
            sum.complement()
        };
        for value in 0..=255 {
            let before = of(&bytes);
            let word = u16::from_be_bytes([bytes[0], bytes[1]]);
            bytes[1] = value;
            let changed = u16::from_be_bytes([bytes[0], bytes[1]]);
            assert_eq!(adjusted(before, word, changed), of(&bytes));
        }
    }
}
