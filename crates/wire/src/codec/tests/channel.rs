//! Messages of participants of channels.

use super::*;
use crate::channel::{CHANNEL_ABI, POOL_BYTES_MAX, SLOTS_MAX};

impl Random {
    pub(super) fn pool_bytes(&mut self) -> u64 {
        (1 + self.below(65_536)) << 16
    }

    fn name(&mut self) -> ChannelName {
        let letters = b"aB9._/-";
        let mut text = [b'x'; ChannelName::BYTES_MAX];
        let length = 1 + self.below(64) as usize;
        for byte in &mut text[1..length] {
            *byte = letters[self.below(7) as usize];
        }
        ChannelName::new(core::str::from_utf8(&text[..length]).unwrap()).unwrap()
    }

    pub(super) fn open(&mut self) -> Open {
        let role = Role::from_u8(self.below(4) as u8).unwrap();
        let pool_bytes = self.pool_bytes();
        Open {
            version_min: self.half(),
            version_max: self.half(),
            abi: self.half(),
            role,
            overwrites: self.below(2) == 1,
            pool: (role.sends() && self.below(2) == 1).then(|| self.word()),
            id: self.next(),
            pool_bytes: if role.sends() { pool_bytes } else { 0 },
            slots: 2 << self.below(15),
            peers: self.word(),
            name: self.name(),
            group: (self.below(2) == 1).then(|| self.name()),
        }
    }

    pub(super) fn linked(&mut self) -> Linked {
        let ends = [LinkEnd::Publishes, LinkEnd::Subscribes];
        let mut pool = || {
            let bytes = self.pool_bytes();
            bytes * self.below(2)
        };
        let (peer_pool_bytes, own_pool_bytes) = (pool(), pool());
        Linked {
            link: self.next() | 1,
            peer: self.next() | 1,
            slots: 2 << self.below(15),
            overwrites: self.below(2) == 1,
            two_way: self.below(2) == 1,
            end: ends[self.below(2) as usize],
            group: self.next(),
            peer_pool_bytes,
            own_pool_bytes,
            peer_pid: self.word(),
        }
    }
}

fn publisher() -> Open {
    Open {
        version_min: 2,
        version_max: 2,
        abi: CHANNEL_ABI,
        role: Role::Publisher,
        overwrites: true,
        pool: None,
        id: 3,
        pool_bytes: 65_536,
        slots: 16,
        peers: 1,
        name: ChannelName::new("a/b").unwrap(),
        group: Some(ChannelName::new("w").unwrap()),
    }
}

#[test]
fn names_are_short_and_harmless() {
    for good in ["a", "7", "upf/uplink-0.x_Y", &"n".repeat(64)] {
        assert_eq!(ChannelName::new(good).unwrap().as_str(), good);
    }
    for bad in [
        "",
        ".a",
        "/a",
        "-",
        "a b",
        "a\n",
        "ä",
        "a*",
        "a\0",
        &"n".repeat(65),
        &"n".repeat(300),
    ] {
        assert_eq!(ChannelName::new(bad), Err(NameError), "{bad}");
    }
}

#[test]
fn the_bytes_of_open_are_fixed_and_later_versions_may_append() {
    let open = ToAgent::Open(publisher());
    let (mut buffer, length) = encoded(open);
    let mut expected = [0; 174];
    expected[..20]
        .copy_from_slice(b"CRLM\x02\x00\x08\x00\x02\x00\x02\x00\x01\x00\x00\x01\x03\x00\x00\x00");
    (expected[26], expected[32], expected[36]) = (1, 16, 1);
    expected[44..48].copy_from_slice(b"\x03a/b");
    expected[109..111].copy_from_slice(b"\x01w");
    assert_eq!(buffer[..length], expected);
    buffer[4] = 9;
    assert_eq!(ToAgent::parse(&buffer[..length + 11]), Ok(open));
    // A flag that this version does not know.
    buffer[15] |= 0x80;
    assert_eq!(ToAgent::parse(&buffer[..length]), Ok(open));
}

#[test]
fn impossible_participants_are_refused_by_field() {
    let open = publisher();
    let refused = |open: Open, field| {
        let (buffer, length) = encoded(ToAgent::Open(open));
        let parsed = ToAgent::parse(&buffer[..length]);
        assert_eq!(parsed, Err(ParseError::Value(field)), "{open:?}");
    };
    for pool_bytes in [0, 4096, 65_537, POOL_BYTES_MAX + 65_536, u64::MAX] {
        refused(Open { pool_bytes, ..open }, "pool_bytes");
    }
    let role = Role::Subscriber;
    refused(Open { role, ..open }, "pool_bytes");
    let (pool_bytes, pool) = (0, Some(5));
    let server = Open {
        role: Role::Server,
        pool_bytes,
        pool,
        ..open
    };
    refused(server, "flags");
    for slots in [0, 1, 3, SLOTS_MAX * 2] {
        refused(Open { slots, ..open }, "slots");
    }
    // The role, and the names: no letter, one byte behind the name, none where one must be, too long.
    for (at, value, field) in [
        (14, 4, "role"),
        (45, b' ', "name"),
        (56, 1, "name"),
        (44, 0, "name"),
        (44, 65, "name"),
        (109, 0, "group"),
        (110, b'-', "group"),
    ] {
        let (mut buffer, length) = encoded(ToAgent::Open(open));
        buffer[at] = value;
        let parsed = ToAgent::parse(&buffer[..length]);
        assert_eq!(parsed, Err(ParseError::Value(field)), "{at}");
    }
}

#[test]
fn a_link_says_how_many_descriptors_come_with_it() {
    let linked = Linked {
        peer_pool_bytes: 0,
        own_pool_bytes: 0,
        ..Random(1).linked()
    };
    assert_eq!(linked.descriptors(), 2);
    let (peer_pool_bytes, own_pool_bytes) = (65_536, 65_536);
    let both = Linked {
        peer_pool_bytes,
        own_pool_bytes,
        ..linked
    };
    assert_eq!(both.descriptors(), 4);
}

#[test]
fn an_unknown_refusal_reads_as_other() {
    for (code, reason) in Refusal::ALL.into_iter().enumerate() {
        assert_eq!(
            (Refusal::from_u8(code as u8), reason as u8),
            (reason, code as u8)
        );
    }
    let mut buffer = [0; MAX_BYTES];
    let reason = Refusal::Quota;
    let length = ToClient::Refused(Refused { reason }).encode(VERSION_MAX, &mut buffer);
    buffer[length - 1] = 200;
    let other = Refused {
        reason: Refusal::Other,
    };
    assert_eq!(
        ToClient::parse(&buffer[..length]),
        Ok(ToClient::Refused(other))
    );
}
