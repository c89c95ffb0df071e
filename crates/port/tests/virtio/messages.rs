//! Front ends that say what they must not: the connection ends with a reason, and the port goes on with the next one.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use millrace_port::{Burst, Port, State};
use millrace_shm::sys::create_sealed;
use millrace_wire::vhost_user::{
    F_PROTOCOL_FEATURES, Inflight, PROTOCOL_INFLIGHT_SHMFD, Region, Request, Table, VringFd,
    VringState,
};

use crate::Random;
use crate::raw::{MEMORY_BYTES, RX, Raw, SIZE, USER, server, until, why};

/// What the port says of a front end that says this after its features.
fn against(dialogue: impl Fn(&Raw), wanted: &str) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let mut raw = Raw::silent(&path, false);
    raw.say_features(0);
    dialogue(&raw);
    port.poll(Instant::now());
    port.poll(Instant::now());
    assert_eq!(why(&port), wanted);
    assert!(raw.is_closed());
}

fn state(index: u32, number: u32) -> VringState {
    VringState { index, number }
}

#[test]
fn messages_that_cannot_be_end_the_connection() {
    against(
        |raw| raw.say(&Request::SetFeatures(1 << 60), &[]),
        "features 0x1000000000000000 cannot be",
    );
    against(
        |raw| raw.say(&Request::SetProtocolFeatures(1 << 1), &[]),
        "features 0x2 cannot be",
    );
    for (size, what) in [(0, "0"), (40_000, "40000")] {
        against(
            |raw| raw.say(&Request::SetVringNum(state(0, size)), &[]),
            &format!("a ring cannot have {what} descriptors"),
        );
    }
    against(
        |raw| {
            raw.say_memory();
            raw.say(&Request::SetVringNum(state(0, 12)), &[]);
            raw.say(&Request::SetVringAddr(Raw::address(0)), &[]);
            raw.say(&Request::SetVringKick(Raw::fd(0)), &[raw.bell.as_fd()]);
        },
        "a ring cannot have 12 descriptors",
    );
    against(
        |raw| raw.say(&Request::SetVringNum(state(2, 16)), &[]),
        "there is no ring 2",
    );
    against(
        |raw| raw.say(&Request::SetVringEnable(state(u32::MAX, 16)), &[]),
        "there is no ring 4294967295",
    );
}

#[test]
fn descriptors_that_cannot_be_end_the_connection() {
    against(
        |raw| raw.say(&Request::SetVringKick(Raw::fd(0)), &[raw.bell.as_fd()]),
        "ring 0 has no memory",
    );
    against(
        |raw| raw.say(&Request::SetVringKick(Raw::fd(0)), &[raw.memory.as_fd()]),
        "ring 0 came with a descriptor that is no eventfd",
    );
    let wanted = "SET_VRING_CALL came with another number of descriptors than it must";
    against(
        |raw| raw.say(&Request::SetVringCall(Raw::fd(0)), &[]),
        wanted,
    );
    let no_fd = VringFd {
        index: 0,
        has_fd: false,
    };
    against(
        |raw| raw.say(&Request::SetVringCall(no_fd), &[raw.bell.as_fd()]),
        wanted,
    );
    against(
        |raw| raw.say(&Request::GetInflightFd(Inflight::default()), &[]),
        "unexpected message GET_INFLIGHT_FD",
    );
    against(
        |raw| raw.say_bytes(&[99, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], &[]),
        "a message of unknown kind 99",
    );
    against(
        |raw| raw.say_bytes(&[1, 0, 0, 0, 1, 0, 0, 0, 255, 255, 0, 0], &[]),
        "a message of kind 1 with 65535 bytes",
    );
    against(
        |raw| {
            raw.say_bytes(&[1, 0, 0, 0, 1], &[]);
            raw.socket.shutdown(std::net::Shutdown::Write).unwrap();
        },
        "the peer has gone",
    );
}

#[test]
fn memory_that_cannot_be_ends_the_connection() {
    let table = |change: fn(&mut Region)| {
        let mut region = Raw::region();
        change(&mut region);
        move |raw: &Raw| {
            let table = Table::new(&[region]).unwrap();
            raw.say(&Request::SetMemTable(table), &[raw.memory.as_fd()]);
        }
    };
    let tail = "is not backed, too large, or in another's place";
    against(
        table(|region| region.bytes += 1),
        &format!("a region of 65537 bytes at 0x100000 {tail}"),
    );
    against(
        table(|region| region.offset = 4096),
        &format!("a region of 65536 bytes at 0x100000 {tail}"),
    );
    against(
        table(|region| region.bytes = u64::MAX),
        "with a region of 18446744073709551615 bytes there is more memory than memory_bytes_max, 1099511627776",
    );
    against(
        table(|region| region.guest = u64::MAX - 10),
        &format!("a region of 65536 bytes at 0xfffffffffffffff5 {tail}"),
    );
    against(
        table(|region| region.offset = u64::MAX - 10),
        &format!("a region of 65536 bytes at 0x100000 {tail}"),
    );
    against(
        |raw| {
            let mut other = Raw::region();
            other.guest += 4096;
            other.user += 1 << 30;
            let table = Table::new(&[Raw::region(), other]).unwrap();
            let fds = [raw.memory.as_fd(), raw.memory.as_fd()];
            raw.say(&Request::SetMemTable(table), &fds);
        },
        &format!("a region of 65536 bytes at 0x101000 {tail}"),
    );
    against(
        |raw| {
            let unsealed = tempfile::tempfile().unwrap();
            unsealed.set_len(MEMORY_BYTES as u64).unwrap();
            let table = Table::new(&[Raw::region()]).unwrap();
            raw.say(&Request::SetMemTable(table), &[unsealed.as_fd()]);
        },
        "a region's memory is not sealed against shrinking",
    );
}

#[test]
fn rings_that_cannot_be_end_the_connection() {
    let start = |descriptors: u64, used: u64, available: u64| {
        move |raw: &Raw| {
            raw.say_memory();
            let mut address = Raw::address(0);
            address.descriptors = descriptors;
            address.used = used;
            address.available = available;
            raw.say(&Request::SetVringNum(state(0, u32::from(SIZE))), &[]);
            raw.say(&Request::SetVringAddr(address), &[]);
            raw.say(&Request::SetVringKick(Raw::fd(0)), &[raw.bell.as_fd()]);
        }
    };
    let end = USER + MEMORY_BYTES as u64;
    let wanted = "ring 0 is not inside the memory, or not aligned";
    against(start(end - 16, USER, USER + 0x800), wanted);
    against(start(USER + 8, USER + 0x400, USER + 0x800), wanted);
    against(start(USER, USER + 0x402, USER + 0x800), wanted);
    against(start(USER, USER + 0x400, USER + 0x801), wanted);
    against(start(USER, end - 64, USER + 0x800), wanted);
    against(start(USER, USER + 0x400, end - 16), wanted);
    against(start(0, 0, 0), wanted);
    against(
        |raw| {
            start(USER, USER + 0x400, USER + 0x800)(raw);
            raw.say(&Request::SetVringBase(state(0, 7)), &[]);
        },
        "ring 0 is changed while it runs",
    );
    against(
        |raw| {
            start(USER, USER + 0x400, USER + 0x800)(raw);
            raw.say(&Request::SetFeatures(F_PROTOCOL_FEATURES), &[]);
        },
        "unexpected message SET_FEATURES",
    );
    against(
        |raw| {
            start(USER, USER + 0x400, USER + 0x800)(raw);
            let table = Table::new(&[]).unwrap();
            raw.say(&Request::SetMemTable(table), &[]);
        },
        wanted,
    );
}

#[test]
fn in_flight_memory_that_cannot_be_ends_the_connection() {
    let say = |bytes: u64, offset: u64, size: u16| {
        move |raw: &Raw| {
            raw.say(&Request::SetProtocolFeatures(PROTOCOL_INFLIGHT_SHMFD), &[]);
            let memory = create_sealed(c"inflight", 4096, 0).unwrap();
            let inflight = Inflight {
                bytes,
                offset,
                queues: 2,
                size,
            };
            raw.say(&Request::SetInflightFd(inflight), &[memory.as_fd()]);
        }
    };
    let wanted = "in-flight memory is not as it must be";
    against(say(4096, 4096, SIZE), wanted);
    against(say(4096, u64::MAX, SIZE), wanted);
    against(say(64, 0, SIZE), wanted);
    against(say(4096, 0, u16::MAX), wanted);
    against(
        |raw| {
            say(4096, 0, 8)(raw);
            raw.say_memory();
            raw.say_ring(RX);
        },
        wanted,
    );
}

#[test]
fn descriptors_that_are_too_many_are_closed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    for count in [9, 100, 253] {
        let (end, other) = UnixStream::pair().unwrap();
        let raw = Raw::silent(&path, false);
        raw.say(&Request::SetOwner, &vec![other.as_fd(); count]);
        drop(other);
        port.poll(Instant::now());
        port.poll(Instant::now());
        // The last one's may not all be closed yet.
        until(&mut port, |port| !why(port).contains("not closed yet"));
        assert_eq!(why(&port), "a message came with too many descriptors");
        // Nobody has the other end any more, as soon as the thread that closes it has run.
        end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!((&end).read(&mut [0]).unwrap(), 0);
        until(&mut port, |port| port.poll_at().is_none());
    }
}

#[test]
fn a_second_front_end_is_turned_away() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let _first = Raw::new(&mut port, &path, false);
    let mut second = Raw::silent(&path, false);
    assert!(matches!(port.poll(Instant::now()), State::Connected));
    assert!(second.is_closed());
}

#[test]
fn a_front_end_that_is_silent_is_given_up() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let _silent = Raw::silent(&path, false);
    let now = Instant::now();
    port.poll(now);
    let until = port.poll_at().unwrap();
    assert!(until > now);
    port.poll(until);
    assert_eq!(why(&port), "the peer began to connect and went silent");
    Raw::new(&mut port, &path, false);
}

#[test]
fn whatever_a_front_end_says_the_port_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    for seed in 0..400 {
        let mut random = Random(seed);
        let raw = Raw::silent(&path, seed % 2 == 1);
        raw.say_features(0);
        raw.say_memory();
        for _ in 0..12 {
            let mut bytes = vec![0; random.below(48) as usize];
            bytes.fill_with(|| (random.below(3) as u8).wrapping_mul(random.next() as u8));
            let size = bytes.len() as u32 - u32::from(random.below(30) == 0 && !bytes.is_empty());
            let mut message = (random.below(41) as u32).to_le_bytes().to_vec();
            message.extend((1 + 8 * random.below(2) as u32).to_le_bytes());
            message.extend(size.to_le_bytes());
            message.extend(bytes);
            let fds = [raw.memory.as_fd(), raw.bell.as_fd()];
            let begin = random.below(3) as usize;
            raw.say_bytes(&message, &fds[begin.min(2)..(begin + 1).min(2)]);
            if random.below(3) == 0 {
                raw.say_ring(random.below(3) as u32);
            }
            port.poll(Instant::now());
            let mut burst = Burst::new(4);
            port.receive(0, &mut burst);
        }
        until(&mut port, |port| {
            !why(port).contains("not closed yet") || port.poll_at().is_none()
        });
    }
    until(&mut port, |port| !matches!(port.state(), State::Connected));
    Raw::new(&mut port, &path, false);
}
