//! A queue of an interface: a socket, its rings, and the frames that packets lie in.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use millrace_shm::Mapping;
use nix::errno::Errno;

use super::sys::{self, Descriptor, Ring, Which};
use super::{Config, FRAMES_MAX, HEADROOM_BYTES, Mode, invalid, patiently};
use crate::burst::{Burst, PACKET_BYTES_MAX, Packet};
use crate::counters::{Cause, Tally};
use crate::memory::{Memory, Place};
use crate::port::SHORTEST;

/// The kernel sends so many packets for a call, or more.
const KICK_PACKETS: usize = 16;

/// A queue. Of its frames the first half is for what comes, and the other for what goes.
#[derive(Debug)]
pub(super) struct Queue {
    fd: OwnedFd,
    memory: Arc<Memory>,
    frame_bytes: u32,
    /// Of one packet.
    frames_max: usize,
    receive: Ring,
    fill: Ring,
    transmit: Ring,
    completion: Ring,
    /// Private, as the kernel's sides of the rings are the kernel's.
    received: u32,
    filled: u32,
    transmitted: u32,
    completed: u32,
    /// Frames that were received, and not given back yet.
    held: Vec<u32>,
    /// Frames to send from.
    free: Vec<u32>,
    /// Of a packet that is being received.
    chain: Vec<Place>,
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// That a socket has memory is no matter of patience.
fn has_memory(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EBUSY) => invalid("a socket of AF_XDP that somebody has begun to use"),
        _ => error,
    }
}

/// Why a queue has no memory.
fn unregistered(queue: u32, bytes: usize, error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOBUFS) {
        return error;
    }
    let what = format!(
        "no more memory may be locked, and queue {queue} needs {bytes} bytes: raise that limit (RLIMIT_MEMLOCK), or have smaller rings"
    );
    io::Error::new(io::ErrorKind::OutOfMemory, what)
}

/// Why a queue is not ours.
fn unbound(queue: u32, error: &io::Error) -> io::Error {
    let what = match error.raw_os_error() {
        Some(libc::EBUSY) => "it has another socket of AF_XDP".to_owned(),
        Some(libc::EINVAL) => format!("{error}; has the interface so many?"),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("queue {queue}: {what}"))
}

impl Queue {
    /// Gives a socket its memory, and binds it to a queue, which is waited for until then at most. Takes no capability.
    pub(super) fn new(
        fd: OwnedFd,
        ifindex: u32,
        queue: u32,
        config: &Config,
        until: Instant,
    ) -> io::Result<Queue> {
        let (size, frame_bytes) = (config.ring_size, config.frame_bytes);
        let bytes = 2 * size as usize * frame_bytes as usize;
        let memory = Arc::new(Memory::new(vec![Mapping::private(bytes)?]));
        let start = memory.start(Place {
            region: 0,
            offset: 0,
            length: 0,
        });
        patiently(until, || {
            sys::register(fd.as_fd(), start, bytes, frame_bytes).map_err(has_memory)
        })
        .map_err(|error| unregistered(queue, bytes, error))?;
        let ring = |which| Ring::make(fd.as_fd(), which, size);
        let (fill, completion) = (ring(Which::Fill)?, ring(Which::Completion)?);
        let (receive, transmit) = (ring(Which::Receive)?, ring(Which::Transmit)?);
        let how = match config.mode {
            Mode::Any => 0,
            Mode::Copy => libc::XDP_COPY,
            Mode::ZeroCopy => libc::XDP_ZEROCOPY,
        };
        let mut how = how | libc::XDP_USE_NEED_WAKEUP;
        if config.several_frames {
            how |= libc::XDP_USE_SG;
        }
        patiently(until, || sys::bind(fd.as_fd(), ifindex, queue, how))
            .map_err(|error| unbound(queue, &error))?;
        let mut queue = Queue {
            fd,
            memory,
            frame_bytes,
            frames_max: if config.several_frames { FRAMES_MAX } else { 1 },
            receive,
            fill,
            transmit,
            completion,
            received: 0,
            filled: 0,
            transmitted: 0,
            completed: 0,
            held: (0..size).map(|number| number * frame_bytes).collect(),
            free: (size..2 * size)
                .map(|number| number * frame_bytes)
                .collect(),
            chain: Vec::with_capacity(size as usize),
        };
        queue.release();
        Ok(queue)
    }

    /// Whether there is something to receive.
    pub(super) fn has_more(&self) -> bool {
        self.receive.produced() != self.received
    }

    /// Gives the frames back that were received last.
    pub(super) fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        // There are no more frames than the ring has entries.
        for frame in self.held.drain(..) {
            self.fill.set_address(self.filled, frame.into());
            self.filled = self.filled.wrapping_add(1);
        }
        self.fill.produce(self.filled);
    }

    /// The place of a packet that the kernel tells of, if that can be: inside of one of the frames that are for what comes.
    fn place(&self, descriptor: Descriptor) -> Option<Place> {
        let Descriptor {
            address, length, ..
        } = descriptor;
        let end = u64::from(self.receive.size()) * u64::from(self.frame_bytes);
        let in_frame = address % u64::from(self.frame_bytes) + u64::from(length);
        (address < end && in_frame <= self.frame_bytes.into()).then_some(Place {
            region: 0,
            offset: address as u32,
            length,
        })
    }

    /// Takes the parts of the next packet, of so many descriptors that are there; returns its length. None: there is none, or not all.
    fn next(&mut self, left: &mut u32) -> Option<Result<u32, Cause>> {
        self.chain.clear();
        let mut length = Ok(0u32);
        for index in 0..*left {
            let descriptor = self.receive.descriptor(self.received.wrapping_add(index));
            match (self.place(descriptor), &mut length) {
                (Some(place), Ok(length)) => {
                    self.chain.push(place);
                    // Of at most 32 768 frames of 4 096 bytes.
                    *length += place.length;
                }
                _ => length = Err(Cause::Malformed),
            }
            if descriptor.goes_on {
                continue;
            }
            let frame = |place: &Place| place.offset - place.offset % self.frame_bytes;
            self.held.extend(self.chain.iter().map(frame));
            self.received = self.received.wrapping_add(index + 1);
            *left -= index + 1;
            return Some(length);
        }
        None
    }

    pub(super) fn receive(&mut self, burst: &mut Burst, tally: &mut Tally) {
        self.release();
        burst.begin(&self.memory);
        let mut bytes = 0;
        let there = self.receive.produced().wrapping_sub(self.received);
        if there == 0 && self.fill.needs_kick() {
            sys::kick_receiver(self.fd.as_fd());
        }
        let mut left = there.min(self.receive.size());
        while !burst.is_full() {
            let Some(length) = self.next(&mut left) else {
                break;
            };
            let length = match length {
                Ok(length) if length < SHORTEST => Err(Cause::TooShort),
                Ok(length) if length as usize > PACKET_BYTES_MAX => Err(Cause::TooLong),
                other => other,
            };
            match (length, self.chain.as_slice()) {
                (Err(cause), _) => {
                    tally.drop(cause, 1);
                    continue;
                }
                (Ok(_), [place]) => burst.admit(&self.memory, *place),
                (Ok(length), chain) => burst.admit_chain(&self.memory, chain, length),
            }
            bytes += u64::from(length.unwrap_or(0));
        }
        self.receive.consume(self.received);
        tally.pass(burst.len() as u64, bytes);
    }

    /// Takes frames back that were sent.
    fn reap(&mut self) {
        let there = self.completion.produced().wrapping_sub(self.completed);
        for _ in 0..there.min(self.completion.size()) {
            let address = self.completion.address(self.completed);
            self.completed = self.completed.wrapping_add(1);
            let frame = address - address % u64::from(self.frame_bytes);
            let begin = u64::from(self.receive.size()) * u64::from(self.frame_bytes);
            if (begin..2 * begin).contains(&frame)
                && self.free.len() < self.transmit.size() as usize
            {
                self.free.push(frame as u32);
            }
        }
        self.completion.consume(self.completed);
    }

    fn send(&mut self, packet: Packet<'_>) -> Result<bool, Cause> {
        if packet.len() < SHORTEST as usize {
            return Err(Cause::TooShort);
        }
        let frame = (self.frame_bytes - HEADROOM_BYTES) as usize;
        let frames = packet.len().div_ceil(frame);
        if frames > self.frames_max {
            return Err(Cause::TooLong);
        }
        if packet.leaves_work() {
            return Err(Cause::Offload);
        }
        if self.free.len() < frames {
            return Ok(false);
        }
        let mut at = 0;
        for _ in 0..frames {
            let Some(frame_at) = self.free.pop() else {
                break;
            };
            let length = frame.min(packet.len() - at);
            let place = Place {
                region: 0,
                offset: frame_at,
                length: length as u32,
            };
            packet.write_to(at, &self.memory, place);
            at += length;
            let descriptor = Descriptor {
                address: frame_at.into(),
                length: place.length,
                goes_on: at < packet.len(),
            };
            self.transmit.set_descriptor(self.transmitted, descriptor);
            self.transmitted = self.transmitted.wrapping_add(1);
        }
        Ok(true)
    }

    /// Sends packets from number `first` on; returns how many were taken, and what the kernel said of it.
    pub(super) fn transmit(
        &mut self,
        burst: &Burst,
        first: usize,
        tally: &mut Tally,
    ) -> (usize, nix::Result<()>) {
        self.reap();
        let (mut taken, mut sent, mut bytes) = (0, 0, 0);
        for packet in burst.iter().skip(first) {
            match self.send(packet) {
                Ok(true) => {
                    sent += 1;
                    bytes += packet.len() as u64;
                }
                Ok(false) => break,
                Err(cause) => tally.drop(cause, 1),
            }
            taken += 1;
        }
        tally.pass(sent, bytes);
        if sent > 0 {
            self.transmit.produce(self.transmitted);
        }
        (taken, self.kick())
    }

    /// Has the kernel send, as long as it says that it has more and wants to be called.
    pub(super) fn kick(&mut self) -> nix::Result<()> {
        let left = self.transmitted.wrapping_sub(self.transmit.consumed()) as usize;
        if left == 0 || !self.transmit.needs_kick() {
            return Ok(());
        }
        for _ in 0..=left / KICK_PACKETS {
            match sys::kick_sender(self.fd.as_fd()) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                // The driver's ring is full: there will be another turn.
                Err(Errno::EBUSY | Errno::ENOBUFS | Errno::ENOMEM) => break,
                other => return other,
            }
        }
        Ok(())
    }
}
