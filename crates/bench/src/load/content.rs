//! What is sent, so that each answer can be known from every other: bytes that follow from a seed and a request's number.

use std::fmt;

/// Contents that differ: any so many numbers in a row have different ones (as far as their length allows).
const VARIANTS: usize = 1 << 16;
/// Odd, and so a permutation of the variants; Knuth's multiplicative hash with the golden ratio in 16 bits.
const SPREAD: u64 = 40503;
/// Bytes that an error shows, and how many of them stand before the first difference.
const EXCERPT: usize = 32;
const BEFORE: usize = 8;

/// Which content; the place in the table where it begins.
pub(super) type Variant = u16;

/// Contents of one length: pieces of one table of random bytes, so that making one is a copy and checking one a comparison.
#[derive(Debug)]
pub(super) struct Contents {
    table: Vec<u8>,
    bytes: usize,
}

impl Contents {
    pub(super) fn new(seed: u64, bytes: usize) -> Contents {
        let length = bytes + VARIANTS;
        let mut table = Vec::with_capacity(length + 8);
        for index in 0..length.div_ceil(8) as u64 {
            table.extend_from_slice(&mix(seed, index).to_le_bytes());
        }
        Contents { table, bytes }
    }

    #[inline]
    pub(super) fn variant(number: u64) -> Variant {
        (number.wrapping_mul(SPREAD) % VARIANTS as u64) as Variant
    }

    #[inline]
    pub(super) fn get(&self, variant: Variant) -> &[u8] {
        &self.table[usize::from(variant)..][..self.bytes]
    }
}

/// A pseudo-random number that follows from both: the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
#[inline]
pub(super) fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An answer that is not what it has to be.
#[derive(Debug, PartialEq)]
pub(super) struct Wrong {
    expected: String,
    got: String,
}

impl Wrong {
    pub(super) fn new(expected: impl Into<String>, got: impl Into<String>) -> Wrong {
        Wrong {
            expected: expected.into(),
            got: got.into(),
        }
    }

    /// As the first line of an answer: what stands there instead.
    pub(super) fn line(expected: &[u8], got: &[u8]) -> Wrong {
        let line = got.split(|&byte| byte == b'\n').next().unwrap_or(got);
        Wrong::new(quote(expected), quote(line.trim_ascii_end()))
    }

    /// Says where two byte strings of one length differ first.
    pub(super) fn difference(expected: &[u8], got: &[u8]) -> Wrong {
        let same = expected.iter().zip(got).take_while(|(a, b)| a == b).count();
        let from = same.saturating_sub(BEFORE);
        let excerpt = |bytes: &[u8]| quote(&bytes[from.min(bytes.len())..]);
        Wrong::new(
            format!("{} at byte {from} of {}", excerpt(expected), expected.len()),
            format!(
                "{}, which differs from byte {same} on",
                excerpt(&got[..got.len().min(expected.len())])
            ),
        )
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "expected {}, got {}", self.expected, self.got)
    }
}

fn quote(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(EXCERPT)];
    let more = if bytes.len() > EXCERPT { "…" } else { "" };
    format!("\"{}{more}\"", shown.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_of_neighbouring_requests_differ_and_follow_from_the_seed() {
        let contents = Contents::new(1, 16);
        let of = |number| contents.get(Contents::variant(number));
        for number in 0..1000 {
            assert_ne!(of(number), of(number + 1));
        }
        assert_eq!(of(7), Contents::new(1, 16).get(Contents::variant(7)));
        assert_ne!(of(7), Contents::new(2, 16).get(Contents::variant(7)));
        let variants: std::collections::HashSet<_> =
            (0..VARIANTS as u64).map(Contents::variant).collect();
        assert_eq!(variants.len(), VARIANTS);
    }

    #[test]
    fn a_difference_is_shown_with_its_place() {
        let wrong = Wrong::difference(b"0123456789abcdef", b"0123456789Xbcdef");
        let expected = r#"expected "23456789abcdef" at byte 2 of 16, got "23456789Xbcdef", which differs from byte 10 on"#;
        assert_eq!(wrong.to_string(), expected);
    }
}
