//! The Toeplitz hash, by which interfaces spread flows over queues ("receive side scaling", Microsoft's specification of RSS).
//!
//! Each bit of the input that is set adds the 32 bits of the key that begin at its place. What each byte adds is made once, so that a hash
//! is one look-up for each byte.

/// The key that specifications and most drivers use, of 40 bytes: for inputs of 36 bytes.
pub const STANDARD_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// A key that repeats after 16 bits: both directions of a connection have the same hash (Woo and Park, "Scalable TCP Session Monitoring
/// with Symmetric Receive-side Scaling", 2012).
pub const SYMMETRIC_KEY: [u8; 40] = {
    let mut key = [0x6d; 40];
    let mut at = 1;
    while at < 40 {
        key[at] = 0x5a;
        at += 2;
    }
    key
};

/// A key, ready to be used.
#[derive(Debug, Clone)]
pub struct Toeplitz {
    /// What each value of each byte of the input adds.
    tables: Box<[[u32; 256]]>,
}

impl Toeplitz {
    /// For inputs that are four bytes shorter than the key, or shorter still.
    ///
    /// # Panics
    /// When the key has fewer than five bytes.
    #[must_use]
    pub fn new(key: &[u8]) -> Toeplitz {
        assert!(key.len() >= 5, "a key has at least five bytes");
        let table = |window: &[u8]| {
            // The 32 bits that begin at bit `bit` of this byte.
            let bits = window
                .iter()
                .fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
            let at = |bit: u32| (bits >> (8 - bit)) as u32;
            std::array::from_fn(|value| {
                let is_set = |bit: &u32| value & 0x80 >> bit != 0;
                (0..8).filter(is_set).fold(0, |sum, bit| sum ^ at(bit))
            })
        };
        Toeplitz {
            tables: key.windows(5).map(table).collect(),
        }
    }

    /// The hash of an input: addresses and ports, from source to destination, as they are in the packet. Bytes that the key is too short
    /// for add nothing.
    #[inline]
    #[must_use]
    pub fn hash(&self, input: &[u8]) -> u32 {
        let bytes = input.iter().zip(&self.tables);
        bytes.fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let ports = ports.map(u16::to_be_bytes).concat();
        [&source[..], &destination, &ports].concat()
    }

    #[test]
    fn the_specification_s_examples_are_right() {
        let standard = Toeplitz::new(&STANDARD_KEY);
        let examples = [
            (
                [66, 9, 149, 187],
                [161, 142, 100, 80],
                [2794, 1766],
                0x323e_8fc2,
                0x51cc_c178,
            ),
            (
                [199, 92, 111, 2],
                [65, 69, 140, 83],
                [14230, 4739],
                0xd718_262a,
                0xc626_b0ea,
            ),
            (
                [24, 19, 198, 95],
                [12, 22, 207, 184],
                [12898, 38024],
                0xd2d0_a5de,
                0x5c2b_394a,
            ),
            (
                [38, 27, 205, 30],
                [209, 142, 163, 6],
                [48228, 2217],
                0x8298_9176,
                0xafc7_327f,
            ),
            (
                [153, 39, 163, 191],
                [202, 188, 127, 2],
                [44251, 1303],
                0x5d18_09c5,
                0x10e8_28a2,
            ),
        ];
        for (source, destination, ports, addresses, all) in examples {
            let input = v4(source, destination, ports);
            assert_eq!(standard.hash(&input[..8]), addresses);
            assert_eq!(standard.hash(&input), all);
        }
    }

    /// Bit by bit, as the specification says it.
    fn slow(key: &[u8], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
        let mut sum = 0;
        for at in (0..input.len() * 8).filter(|at| bit(input, *at) == 1) {
            sum ^= (at..at + 32).fold(0, |word: u32, at| word << 1 | u32::from(bit(key, at)));
        }
        sum
    }

    #[test]
    fn tables_and_bits_agree() {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for length in 1..=36 {
            let input: Vec<u8> = (0..length).map(|_| random()).collect();
            for key in [STANDARD_KEY, SYMMETRIC_KEY] {
                assert_eq!(Toeplitz::new(&key).hash(&input), slow(&key, &input));
            }
        }
    }

    #[test]
    fn both_directions_are_one_flow_by_the_symmetric_key() {
        let symmetric = Toeplitz::new(&SYMMETRIC_KEY);
        let there = v4([10, 0, 0, 1], [192, 168, 7, 9], [40000, 2152]);
        let back = v4([192, 168, 7, 9], [10, 0, 0, 1], [2152, 40000]);
        assert_eq!(symmetric.hash(&there), symmetric.hash(&back));
    }
}
