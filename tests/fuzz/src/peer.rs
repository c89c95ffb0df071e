//! What a port's hostile peer is made of, and what must hold of the port whatever the peer does.

use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use millrace_port::{Burst, PACKET_BYTES_MAX, Port, State};
use millrace_shm::Mapping;
use millrace_shm::sys::{create_sealed, create_unsealed};
use nix::cmsg_space;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::{Choices, sys};

/// Of the memory that a peer shares.
pub(crate) const MEMORY_BYTES: usize = 64 * 1024;

/// A name for a socket, which is free afterwards.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("port-{}-{number}", std::process::id());
        Place(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A port has removed its own.
        let _ = fs::remove_file(&self.0);
    }
}

/// What this process holds: descriptors, and mappings of memory files.
pub(crate) fn held() -> (usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").expect("proc").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("proc");
    let is_memory = |line: &&str| line.contains("memfd:");
    (descriptors, maps.lines().filter(is_memory).count())
}

/// Plays one input, and compares what is held before and after.
pub(crate) fn leaves_nothing(play: impl FnOnce()) {
    let before = held();
    play();
    // What a peer handed over and is none of ours to use is closed by a thread, which may not have run yet.
    let until = Instant::now() + Duration::from_secs(60);
    while before != held() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(before, held(), "descriptors and mappings are left");
}

/// Descriptors that a peer can hand over.
pub(crate) struct Hand {
    pub(crate) memory: OwnedFd,
    pub(crate) bell: OwnedFd,
    others: [OwnedFd; 5],
}

impl Hand {
    pub(crate) fn new() -> Hand {
        let bell = || EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).expect("a bell");
        let null = File::open("/dev/null").expect("a device");
        Hand {
            memory: create_sealed(c"hostile", MEMORY_BYTES, 0).expect("memory"),
            bell: bell().into(),
            others: [
                create_sealed(c"hostile", 4096, 0).expect("memory"),
                create_unsealed(c"hostile", MEMORY_BYTES).expect("memory"),
                bell().into(),
                null.into(),
                create_sealed(c"hostile", MEMORY_BYTES, 0).expect("memory"),
            ],
        }
    }

    /// One of them.
    pub(crate) fn get(&self, number: usize) -> BorrowedFd<'_> {
        match number % 7 {
            0 => self.memory.as_fd(),
            1 => self.bell.as_fd(),
            other => self.others[other - 2].as_fd(),
        }
    }

    pub(crate) fn map(&self) -> Mapping {
        Mapping::new(self.memory.as_fd(), MEMORY_BYTES).expect("mapped")
    }
}

/// Says something; the other end may have gone.
pub(crate) fn say(socket: &impl AsRawFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let rights = if numbers.is_empty() { &[] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let parts = [IoSlice::new(bytes)];
    let _ = sendmsg::<()>(socket.as_raw_fd(), &parts, rights, flags, None);
}

/// Hears something, if there is something, with the descriptors that came with it.
pub(crate) fn hear(socket: &impl AsRawFd, buffer: &mut [u8]) -> Option<(usize, Vec<OwnedFd>)> {
    let mut control = cmsg_space!([RawFd; 8]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
    let mut fds = Vec::new();
    for message in got.cmsgs().ok()? {
        if let ControlMessageOwned::ScmRights(list) = message {
            fds.extend(list.into_iter().map(sys::owned));
        }
    }
    (got.bytes > 0).then_some((got.bytes, fds))
}

/// A message that is said at its time, and the descriptors that go with it, by their numbers in a [`Hand`].
pub(crate) struct Line {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<usize>,
}

impl Line {
    pub(crate) fn new(bytes: &[u8], fds: &[usize]) -> Line {
        Line {
            bytes: bytes.to_vec(),
            fds: fds.to_vec(),
        }
    }
}

/// What a peer says next: mostly what is due, or nearly that.
pub(crate) fn next_line(choices: &mut Choices<'_>, script: &[Line], next: &mut usize) -> Line {
    let what = choices.byte() % 8;
    let due = match what {
        0..=4 => {
            *next += 1;
            &script[(*next - 1) % script.len()]
        }
        _ => &script[choices.below(script.len())],
    };
    let mut line = Line::new(&due.bytes, &due.fds);
    match what {
        // As it is.
        0..=2 | 5 => {}
        3 => {
            let at = choices.below(line.bytes.len().max(1));
            if let Some(byte) = line.bytes.get_mut(at) {
                *byte = choices.byte();
            }
        }
        4 => line.fds = (0..choices.below(10)).map(|_| choices.below(7)).collect(),
        6 => line.bytes.truncate(choices.below(line.bytes.len() + 1)),
        _ => {
            for _ in 0..choices.below(24) {
                let at = choices.below(line.bytes.len().max(1));
                if let Some(byte) = line.bytes.get_mut(at) {
                    *byte = choices.byte();
                }
            }
        }
    }
    line
}

/// A port, and what it must have counted.
pub(crate) struct Watched<P> {
    pub(crate) port: P,
    burst: Burst,
    handed_out: u64,
    offered: u64,
    now: Instant,
}

impl<P: Port> Watched<P> {
    pub(crate) fn new(port: P) -> Watched<P> {
        Watched {
            port,
            burst: Burst::new(8),
            handed_out: 0,
            offered: 0,
            now: Instant::now(),
        }
    }

    pub(crate) fn poll(&mut self) {
        self.now += Duration::from_millis(10);
        self.port.poll(self.now);
        if let State::Connecting(Some(why)) = self.port.state() {
            assert!(!why.to_string().is_empty(), "{why:?}");
        }
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.poll();
    }

    /// Until packets may pass, by what an honest peer does each time.
    pub(crate) fn until_connected(&mut self, mut does: impl FnMut()) {
        for _ in 0..400 {
            does();
            self.poll();
            if matches!(self.port.state(), State::Connected) {
                return;
            }
        }
        panic!("the next one is harmed: {:?}", self.port.state());
    }

    pub(crate) fn receive(&mut self) {
        let count = self.port.receive(0, &mut self.burst);
        assert_eq!(count, self.burst.len());
        for packet in self.burst.iter() {
            assert!((14..=PACKET_BYTES_MAX).contains(&packet.len()));
            assert_eq!(packet.to_vec().len(), packet.len());
            assert!(packet.offload().fits(packet.len()));
        }
        self.handed_out += count as u64;
        assert_eq!(self.port.counters().received.packets, self.handed_out);
    }

    /// Sends what came last.
    pub(crate) fn forward(&mut self) {
        let taken = self.port.transmit(0, &self.burst, 0);
        assert!(taken <= self.burst.len());
        self.port.give_up(0, &self.burst, taken);
        self.offered += self.burst.len() as u64;
        assert_eq!(self.port.counters().transmitted.offered(), self.offered);
    }

    /// Sends so many packets of a program's.
    pub(crate) fn send(&mut self, packets: usize, bytes: usize) {
        let mut burst = Burst::new(packets);
        while burst.push(&vec![7; bytes]) {}
        let taken = self.port.transmit(0, &burst, 0);
        assert!(taken <= burst.len());
        self.port.give_up(0, &burst, taken);
        self.offered += burst.len() as u64;
        assert_eq!(self.port.counters().transmitted.offered(), self.offered);
    }

    /// One thing that a program does.
    pub(crate) fn work(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 8 {
            0..=2 => self.receive(),
            3 => self.forward(),
            4 => self.send(1 + choices.below(16), 10 + choices.size() * 5),
            5 => self.port.release(0),
            6 => drop(self.port.arm()),
            _ => self.poll(),
        }
    }

    /// The port with the memory of whoever was connected given up.
    pub(crate) fn end(mut self) -> P {
        self.receive();
        self.port
    }
}
