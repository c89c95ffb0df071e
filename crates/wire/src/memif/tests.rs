extern crate std;
use std::vec::Vec;

use super::*;

const SEEDS: u64 = if cfg!(miri) { 50 } else { 20_000 };

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn half(&mut self) -> u16 {
        (self.next() >> 48) as u16
    }

    fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    fn text<const N: usize>(&mut self) -> Text<N> {
        let mut bytes = [0; N];
        bytes.fill_with(|| self.next() as u8);
        Text(bytes)
    }

    fn message(&mut self) -> Message {
        match self.next() % 8 {
            0 => Message::Ack,
            1 => Message::Hello(Hello {
                name: self.text(),
                version_min: self.half(),
                version_max: self.half(),
                region_max: self.half(),
                s2c_ring_max: self.half(),
                c2s_ring_max: self.half(),
                log2_size_max: self.half() as u8,
            }),
            2 => Message::Init(Init {
                version: self.half(),
                id: self.word(),
                mode: [Mode::Ethernet, Mode::Ip, Mode::PuntInject][self.next() as usize % 3],
                secret: self.text(),
                name: self.text(),
            }),
            3 => Message::AddRegion(AddRegion {
                index: self.half(),
                bytes: self.next(),
            }),
            4 => Message::AddRing(AddRing {
                flags: self.half(),
                index: self.half(),
                region: self.half(),
                offset: self.word(),
                log2_size: self.half() as u8,
                private_header_bytes: self.half(),
            }),
            5 => Message::Connect(self.text()),
            6 => Message::Connected(self.text()),
            _ => Message::Disconnect(Disconnect {
                code: self.word(),
                reason: self.text(),
            }),
        }
    }
}

#[test]
fn parsing_what_was_emitted_is_the_identity() {
    for seed in 0..SEEDS {
        let message = Random(seed).message();
        assert_eq!(Message::parse(&message.emit()), Ok(message), "seed {seed}");
    }
}

#[test]
fn what_parses_is_emitted_again_as_it_was_up_to_its_end() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.fill_with(|| random.next() as u8);
        bytes[0] %= 12;
        bytes[1] = 0;
        if let Ok(message) = Message::parse(&bytes) {
            let emitted = message.emit();
            let end = emitted.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            assert_eq!(emitted[..=end], bytes[..=end], "seed {seed}");
        }
    }
}

#[test]
fn garbage_is_refused_and_never_panics() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let length = random.next() as usize % 200;
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let parsed = Message::parse(&bytes);
        if length != MESSAGE_BYTES {
            assert_eq!(parsed, Err(ParseError::Length(length)));
        }
    }
    assert_eq!(
        Message::parse(&[0; MESSAGE_BYTES]),
        Err(ParseError::Kind(0))
    );
}

#[test]
fn a_descriptor_is_two_words() {
    for seed in 0..1000 {
        let mut random = Random(seed);
        let words = [random.next(), random.next()];
        assert_eq!(Descriptor::parse(words).emit(), words);
    }
    let descriptor = Descriptor {
        flags: 1,
        region: 0x0302,
        length: 0x0706_0504,
        offset: 0x0b0a_0908,
        metadata: 0x0f0e_0d0c,
    };
    let bytes: Vec<u8> = descriptor.emit().map(u64::to_le_bytes).concat();
    assert_eq!(
        bytes,
        [1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    );
}

/// As `offsetof` has it in a program that includes DPDK's `memif.h`.
#[test]
fn fields_are_where_the_protocol_has_them() {
    let hello = Message::Hello(Hello {
        name: Text::new("name"),
        version_min: VERSION,
        version_max: VERSION,
        region_max: 0x1111,
        s2c_ring_max: 0x2222,
        c2s_ring_max: 0x3333,
        log2_size_max: 14,
    });
    let bytes = hello.emit();
    assert_eq!(bytes[..7], *b"\x02\x00name\x00");
    assert_eq!(
        bytes[34..46],
        [0, 2, 0, 2, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 14, 0]
    );
    let ring = Message::AddRing(AddRing {
        flags: RING_C2S,
        index: 2,
        region: 3,
        offset: 0x0807_0605,
        log2_size: 10,
        private_header_bytes: 0x0a09,
    });
    let wanted = [5, 0, 1, 0, 2, 0, 3, 0, 5, 6, 7, 8, 10, 9, 10, 0];
    assert_eq!(ring.emit()[..16], wanted);
    let init = Message::Init(Init {
        version: VERSION,
        id: 0x0403_0201,
        mode: Mode::Ip,
        secret: Text::new("secret"),
        name: Text::new("name"),
    });
    let bytes = init.emit();
    assert_eq!(bytes[..9], [3, 0, 0, 2, 1, 2, 3, 4, 1]);
    assert_eq!(
        (&bytes[9..15], &bytes[33..37]),
        (&b"secret"[..], &b"name"[..])
    );
}

#[test]
fn text_ends_at_its_zero_and_at_the_end_of_a_character() {
    assert_eq!(Text::<4>::new("abcdef").as_str(), "abc");
    assert_eq!(Text::<4>::new("abé").as_str(), "ab");
    assert_eq!(Text::<4>(*b"ab\xff\x00").as_str(), "ab");
    assert_eq!(Text::<4>(*b"abcd").bytes(), b"abcd");
    assert!(Text::<4>::new("").bytes().is_empty());
}
