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

    fn state(&mut self) -> VringState {
        VringState {
            index: self.next() as u32,
            number: self.next() as u32,
        }
    }

    fn ring(&mut self) -> VringFd {
        VringFd {
            index: self.next() as u8,
            has_fd: self.next().is_multiple_of(2),
        }
    }

    fn region(&mut self) -> Region {
        Region {
            guest: self.next(),
            bytes: self.next(),
            user: self.next(),
            offset: self.next(),
        }
    }

    fn inflight(&mut self) -> Inflight {
        Inflight {
            bytes: self.next(),
            offset: self.next(),
            queues: self.next() as u16,
            size: self.next() as u16,
        }
    }

    fn request(&mut self) -> Request {
        match self.next() % 21 {
            0 => Request::GetFeatures,
            1 => Request::SetFeatures(self.next()),
            2 => Request::SetOwner,
            3 => Request::ResetOwner,
            4 => {
                let count = self.next() as usize % (REGIONS_MAX + 1);
                let regions: Vec<_> = (0..count).map(|_| self.region()).collect();
                Request::SetMemTable(Table::new(&regions).unwrap())
            }
            5 => Request::SetVringNum(self.state()),
            6 => Request::SetVringAddr(VringAddress {
                index: self.next() as u32,
                flags: self.next() as u32,
                descriptors: self.next(),
                used: self.next(),
                available: self.next(),
                log: self.next(),
            }),
            7 => Request::SetVringBase(self.state()),
            8 => Request::GetVringBase(self.state()),
            9 => Request::SetVringKick(self.ring()),
            10 => Request::SetVringCall(self.ring()),
            11 => Request::SetVringErr(self.ring()),
            12 => Request::GetProtocolFeatures,
            13 => Request::SetProtocolFeatures(self.next()),
            14 => Request::GetQueueNum,
            15 => Request::SetVringEnable(self.state()),
            16 => Request::GetInflightFd(self.inflight()),
            17 => Request::SetInflightFd(self.inflight()),
            18 => Request::GetMaxMemSlots,
            19 => Request::AddMemReg(self.region()),
            _ => Request::RemMemReg(self.region()),
        }
    }
}

fn split(bytes: &[u8]) -> (Header, &[u8]) {
    let (header, payload) = bytes.split_first_chunk().unwrap();
    (Header::parse(*header).unwrap(), payload)
}

#[test]
fn parsing_what_was_emitted_is_the_identity() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let request = random.request();
        let needs_reply = random.next().is_multiple_of(2);
        let emitted = request.emit(needs_reply);
        let (header, payload) = split(emitted.bytes());
        assert_eq!(header.bytes as usize, payload.len());
        assert_eq!(
            (header.request, header.needs_reply, header.is_reply),
            (request.number(), needs_reply, false)
        );
        assert_eq!(Request::parse(header, payload), Ok(request), "seed {seed}");
        assert_eq!(Answer::parse(header, payload), Err(ParseError::Direction));
        let (answer, number) = match random.next() % 3 {
            0 => (Answer::Number(random.next()), 1),
            1 => (Answer::State(random.state()), 11),
            _ => (Answer::Inflight(random.inflight()), 31),
        };
        let emitted = answer.emit(number);
        let (header, payload) = split(emitted.bytes());
        assert_eq!(Answer::parse(header, payload), Ok(answer), "seed {seed}");
        assert_eq!(Request::parse(header, payload), Err(ParseError::Direction));
    }
}

#[test]
fn a_payload_of_another_size_is_refused() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let request = random.request();
        let emitted = request.emit(false);
        let (header, payload) = split(emitted.bytes());
        let mut longer = payload.to_vec();
        longer.push(0);
        assert!(Request::parse(header, &longer).is_err(), "seed {seed}");
        if !payload.is_empty() {
            let shorter = &payload[..payload.len() - 1];
            assert!(Request::parse(header, shorter).is_err(), "seed {seed}");
        }
    }
}

#[test]
fn garbage_is_refused_and_never_panics() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let mut bytes = [0; HEADER_BYTES];
        bytes.fill_with(|| random.next() as u8);
        bytes[0] %= 42;
        bytes[1..4].fill(0);
        bytes[4] = bytes[4] & 12 | 1;
        bytes[9..].fill(0);
        let header = Header::parse(bytes).unwrap();
        let payload: Vec<u8> = (0..header.bytes).map(|_| random.next() as u8).collect();
        // Any result is right.
        let _ = Request::parse(header, &payload);
        let _ = Answer::parse(header, &payload);
    }
    assert_eq!(
        Header::parse([1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]),
        Err(ParseError::Version(2))
    );
    let long = [5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0];
    assert!(matches!(Header::parse(long), Err(ParseError::Size { .. })));
    let header = Header {
        request: 5,
        is_reply: false,
        needs_reply: false,
        bytes: 8,
    };
    assert_eq!(
        Request::parse(header, &9u64.to_le_bytes()),
        Err(ParseError::Regions(9))
    );
    let unknown = Header {
        request: 99,
        ..header
    };
    assert_eq!(Request::parse(unknown, &[]), Err(ParseError::Request(99)));
}

/// As the structures of QEMU's `hw/virtio/vhost-user.c` have it.
#[test]
fn fields_are_where_the_protocol_has_them() {
    let region = Region {
        guest: 1,
        bytes: 2,
        user: 3,
        offset: 4,
    };
    let emitted = Request::SetMemTable(Table::new(&[region]).unwrap()).emit(true);
    let bytes = emitted.bytes();
    assert_eq!(bytes[..12], [5, 0, 0, 0, 9, 0, 0, 0, 40, 0, 0, 0]);
    assert_eq!(bytes[12..20], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!([bytes[20], bytes[28], bytes[36], bytes[44]], [1, 2, 3, 4]);
    let address = VringAddress {
        index: 1,
        flags: 2,
        descriptors: 3,
        used: 4,
        available: 5,
        log: 6,
    };
    let emitted = Request::SetVringAddr(address).emit(false);
    let bytes = &emitted.bytes()[12..];
    let fields = [0, 4, 8, 16, 24, 32].map(|at| bytes[at]);
    assert_eq!((fields, bytes.len()), ([1, 2, 3, 4, 5, 6], 40));
    let no_fd = VringFd {
        index: 7,
        has_fd: false,
    };
    let emitted = Request::SetVringKick(no_fd).emit(false);
    assert_eq!(emitted.bytes()[12..], [7, 1, 0, 0, 0, 0, 0, 0]);
    let emitted = Answer::Number(5).emit(1);
    assert_eq!(emitted.bytes()[..9], [1, 0, 0, 0, 5, 0, 0, 0, 8]);
    let inflight = Inflight {
        bytes: 1,
        offset: 2,
        queues: 3,
        size: 4,
    };
    let emitted = Request::GetInflightFd(inflight).emit(false);
    let bytes = &emitted.bytes()[12..];
    assert_eq!((bytes.len(), bytes[16], bytes[18]), (24, 3, 4));
    let header = Header {
        request: 31,
        is_reply: false,
        needs_reply: false,
        bytes: 20,
    };
    let unpadded = Request::parse(header, &bytes[..20]);
    assert_eq!(unpadded, Ok(Request::GetInflightFd(inflight)));
}
