extern crate std;
use std::format;

use super::*;
use crate::channel::{ChannelName, LinkEnd, NameError, Refusal, Role};
use crate::message::VERSION_MIN;

mod channel;

/// SplitMix64 (Steele, Lea, Flood 2014): enough randomness for tests, and every failure prints its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    fn half(&mut self) -> u16 {
        (self.next() >> 48) as u16
    }

    fn address(&mut self) -> Address {
        let mut ip = [0; 16];
        ip[..8].copy_from_slice(&self.next().to_le_bytes());
        ip[8..].copy_from_slice(&self.next().to_le_bytes());
        Address {
            ip,
            port: self.half(),
        }
    }

    fn end(&mut self) -> End {
        if self.below(2) == 0 {
            End::Active
        } else {
            End::Passive
        }
    }

    fn any_to_agent(&mut self) -> ToAgent {
        match self.below(11) {
            0 => ToAgent::Hello(Hello {
                version_min: self.half(),
                version_max: self.half(),
                segment_version: self.half(),
                mode: Mode::from_u8(self.below(4) as u8).unwrap(),
            }),
            1 => ToAgent::Offer(Offer {
                offer_id: self.next(),
                fd: (self.word() >> 1) as i32,
                row: self.word(),
                family: if self.below(2) == 0 {
                    Family::V4
                } else {
                    Family::V6
                },
                end: self.end(),
                local: self.address(),
                remote: self.address(),
                cookie: self.next(),
                netns_cookie: self.next(),
            }),
            2 => ToAgent::Withdraw(Withdraw {
                offer_id: self.next(),
            }),
            3 => ToAgent::Recall(Recall {
                offer_id: self.next(),
                connection_id: self.next(),
                fd: self.word().cast_signed(),
                sends: self.below(2) == 1,
            }),
            4 => ToAgent::Grow(Grow {
                offer_id: self.next(),
            }),
            5 => ToAgent::Take(Take {
                offer_id: self.next(),
            }),
            6 => ToAgent::Open(self.open()),
            7 => ToAgent::Holds(Holds { peer: self.next() }),
            8 => ToAgent::Ready(Ready { link: self.next() }),
            9 => ToAgent::Left(Left { peer: self.next() }),
            _ => ToAgent::Query(match self.below(4) {
                0 => Query::Connections,
                1 => Query::Status,
                2 => Query::Channels,
                _ => Query::StatusAndStay,
            }),
        }
    }

    fn any_to_client(&mut self) -> ToClient {
        match self.below(10) {
            0 => ToClient::Welcome(Welcome {
                version: self.half(),
                rows: self.word(),
                spin_us: self.word(),
                offer_after_calls: self.word(),
                offer_after_bytes: self.word(),
            }),
            1 => ToClient::Unsupported(Unsupported {
                version_min: self.half(),
                version_max: self.half(),
            }),
            2 => ToClient::Paired(Paired {
                offer_id: self.next(),
                connection_id: self.next(),
                end: self.end(),
                ring_bytes: 1 << self.below(32),
            }),
            3 => ToClient::Declined(Declined {
                offer_id: self.next(),
                reason: Reason::ALL[self.below(Reason::ALL.len() as u64) as usize],
            }),
            4 => ToClient::Recalled(Recalled {
                offer_id: self.next(),
                ok: self.below(2) == 1,
            }),
            5 => ToClient::Matched(Matched {
                offer_id: self.next(),
            }),
            6 => ToClient::Opened(Opened {
                version: self.half(),
                id: self.next() | 1,
                pool_bytes: self.pool_bytes(),
                huge: self.below(2) == 1,
            }),
            7 => ToClient::Refused(Refused {
                reason: Refusal::ALL[self.below(5) as usize],
            }),
            8 => ToClient::Linked(self.linked()),
            _ => ToClient::Answer(Answer { bytes: self.word() }),
        }
    }
}

#[test]
fn parse_of_encode_is_identity() {
    for seed in 0..if cfg!(miri) { 50 } else { 10_000 } {
        let mut random = Random(seed);
        let mut buffer = [0xaa; MAX_BYTES];
        let message = random.any_to_agent();
        let length = message.encode(VERSION_MAX, &mut buffer);
        assert_eq!(
            ToAgent::parse(&buffer[..length]),
            Ok(message),
            "seed {seed}"
        );
        let message = random.any_to_client();
        let length = message.encode(VERSION_MAX, &mut buffer);
        assert_eq!(
            ToClient::parse(&buffer[..length]),
            Ok(message),
            "seed {seed}"
        );
    }
}

#[test]
fn every_prefix_is_refused() {
    for seed in 0..if cfg!(miri) { 5 } else { 200 } {
        let mut random = Random(seed);
        let mut buffer = [0; MAX_BYTES];
        let message = random.any_to_agent();
        let mut length = message.encode(VERSION_MAX, &mut buffer);
        if message == ToAgent::Query(Query::StatusAndStay) {
            // Its last byte was appended later.
            length -= 1;
            let older = ToAgent::parse(&buffer[..length]);
            assert_eq!(older, Ok(ToAgent::Query(Query::Status)));
        }
        for short in 0..length {
            assert_eq!(
                ToAgent::parse(&buffer[..short]),
                Err(ParseError::Truncated),
                "seed {seed} length {short}"
            );
        }
        let length = random.any_to_client().encode(VERSION_MAX, &mut buffer);
        for short in 0..length {
            assert_eq!(
                ToClient::parse(&buffer[..short]),
                Err(ParseError::Truncated),
                "seed {seed} length {short}"
            );
        }
    }
}

#[test]
fn garbage_never_panics_and_what_parses_comes_back() {
    for seed in 0..if cfg!(miri) { 50 } else { 50_000 } {
        let mut random = Random(seed);
        let mut bytes = [0; 2 * MAX_BYTES];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes());
        }
        // Half of the time a valid header, so that the fields' parsers see the garbage.
        if random.below(2) == 0 {
            let kinds = [
                HELLO,
                OFFER,
                WITHDRAW,
                QUERY,
                WELCOME,
                UNSUPPORTED,
                PAIRED,
                DECLINED,
                ANSWER,
                RECALL,
                RECALLED,
                TAKE,
                MATCHED,
                OPEN,
                HOLDS,
                LEFT,
                READY,
                OPENED,
                REFUSED,
                LINKED,
            ];
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[4..6].copy_from_slice(&VERSION_MAX.to_le_bytes());
            bytes[6..8]
                .copy_from_slice(&kinds[random.below(kinds.len() as u64) as usize].to_le_bytes());
        }
        let length = random.below(bytes.len() as u64 + 1) as usize;
        let mut buffer = [0; MAX_BYTES];
        if let Ok(message) = ToAgent::parse(&bytes[..length]) {
            let again = message.encode(VERSION_MAX, &mut buffer);
            assert_eq!(ToAgent::parse(&buffer[..again]), Ok(message), "seed {seed}");
        }
        if let Ok(message) = ToClient::parse(&bytes[..length]) {
            let again = message.encode(VERSION_MAX, &mut buffer);
            assert_eq!(
                ToClient::parse(&buffer[..again]),
                Ok(message),
                "seed {seed}"
            );
        }
    }
}

fn encoded(message: ToAgent) -> ([u8; MAX_BYTES], usize) {
    let mut buffer = [0; MAX_BYTES];
    let length = message.encode(VERSION_MIN, &mut buffer);
    (buffer, length)
}

#[test]
fn the_bytes_of_hello_are_fixed() {
    let hello = Hello {
        version_min: 2,
        version_max: 2,
        segment_version: 7,
        mode: Mode::Eager,
    };
    let (buffer, length) = encoded(ToAgent::Hello(hello));
    assert_eq!(
        buffer[..length],
        *b"CRLM\x02\x00\x01\x00\x02\x00\x02\x00\x07\x00\x01"
    );
}

#[test]
fn another_version_can_say_hello_and_ask_but_not_offer() {
    let hello = ToAgent::Hello(Hello {
        version_min: 8,
        version_max: 9,
        segment_version: 1,
        mode: Mode::Default,
    });
    let (mut buffer, length) = encoded(hello);
    buffer[4] = 9;
    assert_eq!(ToAgent::parse(&buffer[..length]), Ok(hello));
    assert_eq!(
        ToAgent::parse(&buffer[..length + 20]),
        Ok(hello),
        "later versions may append"
    );

    let (mut buffer, length) = encoded(ToAgent::Withdraw(Withdraw { offer_id: 1 }));
    assert_eq!(ToAgent::parse(&buffer[..=length]), Err(ParseError::TooLong));
    buffer[4] = 9;
    assert_eq!(
        ToAgent::parse(&buffer[..length]),
        Err(ParseError::Version(9))
    );
}

#[test]
fn impossible_values_are_refused_by_name() {
    let mut random = Random(1);
    let offer = loop {
        if let ToAgent::Offer(offer) = random.any_to_agent() {
            break offer;
        }
    };
    for (at, field) in [(19, "fd"), (24, "family"), (25, "active")] {
        let (mut buffer, length) = encoded(ToAgent::Offer(offer));
        buffer[at] = 0xff;
        assert_eq!(
            ToAgent::parse(&buffer[..length]),
            Err(ParseError::Value(field))
        );
    }
}

#[test]
fn a_recall_s_answer_is_yes_or_no() {
    let mut buffer = [0; MAX_BYTES];
    let recalled = ToClient::Recalled(Recalled {
        offer_id: 3,
        ok: true,
    });
    let length = recalled.encode(VERSION_MAX, &mut buffer);
    assert!(!recalled.carries_descriptor());
    buffer[length - 1] = 2;
    assert_eq!(
        ToClient::parse(&buffer[..length]),
        Err(ParseError::Value("ok"))
    );
}

#[test]
fn an_unknown_reason_reads_as_unsupported() {
    let mut buffer = [0; MAX_BYTES];
    let length = ToClient::Declined(Declined {
        offer_id: 3,
        reason: Reason::Quota,
    })
    .encode(VERSION_MAX, &mut buffer);
    buffer[length - 1] = 0xee;
    let expected = Declined {
        offer_id: 3,
        reason: Reason::Unsupported,
    };
    assert_eq!(
        ToClient::parse(&buffer[..length]),
        Ok(ToClient::Declined(expected))
    );
}

#[test]
fn addresses_compare_equal_across_families() {
    use core::net::SocketAddr;
    let v4: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let mapped: SocketAddr = "[::ffff:127.0.0.1]:80".parse().unwrap();
    assert_eq!(Address::from(v4), Address::from(mapped));
    assert!(Address::from(v4).is_v4());
    assert_eq!(SocketAddr::from(Address::from(mapped)), v4);
    let v6: SocketAddr = "[2001:db8::1]:443".parse().unwrap();
    assert_eq!(
        format!("{}", SocketAddr::from(Address::from(v6))),
        "[2001:db8::1]:443"
    );
}

#[test]
#[cfg(feature = "ahead")]
fn a_build_that_is_ahead_speaks_each_version_as_it_is() {
    let mut random = Random(2);
    let (mut offer, mut paired) = (None, None);
    while offer.is_none() || paired.is_none() {
        offer = Some(random.any_to_agent())
            .filter(|it| matches!(it, ToAgent::Offer(_)))
            .or(offer);
        paired = Some(random.any_to_client())
            .filter(|it| matches!(it, ToClient::Paired(_)))
            .or(paired);
    }
    let (offer, paired) = (offer.unwrap(), paired.unwrap());
    let mut buffer = [0; MAX_BYTES];
    let mut lengths = [[0; 2]; 3];
    for (version, lengths) in (VERSION_MIN..=VERSION_MAX).zip(&mut lengths) {
        let length = offer.encode(version, &mut buffer);
        assert_eq!(ToAgent::parse(&buffer[..length]), Ok(offer));
        lengths[0] = length;
        let length = paired.encode(version, &mut buffer);
        assert_eq!(ToClient::parse(&buffer[..length]), Ok(paired));
        lengths[1] = length;
    }
    assert_eq!(lengths, [[78, 29], [82, 29], [82, 33]]);
}
