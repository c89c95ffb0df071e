//! A queue of a TAP interface: packets out of it and into it, one call each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_shm::Mapping;
use millrace_wire::virtio::{NET_HEADER_BYTES, NetHeader};
use nix::errno::Errno;

use super::sys;
use crate::burst::{Burst, PACKET_BYTES_MAX, Packet};
use crate::counters::{Cause, Tally};
use crate::limits::DROPS_PER_CALL;
use crate::memory::{Memory, Place};
use crate::offload::Offloads;
use crate::port::{Closed, SHORTEST};
use crate::virtio::header;

/// Packets are read into this much memory, one behind the other: small ones stay beside each other, and 15 of the longest have room.
const RECEIVE_BYTES: u32 = 1 << 20;
/// A packet begins on a line of its own.
const LINE_BYTES: u32 = 64;
/// One byte more than a packet may have tells that it has more.
const ROOM_BYTES: u32 = PACKET_BYTES_MAX as u32 + 1;

/// Regions of the queue's memory: what came, and what goes and lies in too many parts.
const RECEIVE: u16 = 0;
const GATHER: u16 = 1;

/// Why no more packets were taken.
#[derive(Debug)]
pub(super) enum Stopped {
    /// There were no more.
    Done,
    /// The kernel has no memory for another now.
    Full,
    /// The interface is down.
    Down,
    /// It is gone, or does what it never should.
    Broken(Closed),
}

/// What became of a packet.
enum Fate {
    Sent,
    Dropped(Cause),
    Kept(Stopped),
}

/// A queue. What it was read into last is read over by the next `receive`.
#[derive(Debug)]
pub(super) struct Queue {
    fd: OwnedFd,
    memory: Arc<Memory>,
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What an error of the kernel's says of the interface.
fn broken(error: io::Error) -> Closed {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EBADFD) => Closed::PeerGone,
        _ => Closed::Io(error),
    }
}

impl Queue {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Queue> {
        let regions = vec![
            Mapping::private(RECEIVE_BYTES as usize)?,
            Mapping::private(PACKET_BYTES_MAX)?,
        ];
        Ok(Queue {
            fd,
            memory: Arc::new(Memory::new(regions)),
        })
    }

    /// Fills a burst, as far as there are packets.
    pub(super) fn receive(
        &self,
        burst: &mut Burst,
        accepts: Offloads,
        tally: &mut Tally,
    ) -> Result<(), Closed> {
        burst.begin(&self.memory);
        let mut place = Place {
            region: RECEIVE,
            offset: 0,
            length: ROOM_BYTES,
        };
        let (mut bytes, mut drops) = (0, 0);
        let mut result = Ok(());
        while !burst.is_full()
            && drops < DROPS_PER_CALL
            && place.offset + ROOM_BYTES <= RECEIVE_BYTES
        {
            let mut says = [0; NET_HEADER_BYTES];
            let length = match sys::read(self.as_fd(), &mut says, &self.memory, place) {
                Ok(Some(count)) => count.saturating_sub(NET_HEADER_BYTES),
                Ok(None) => break,
                Err(error) => {
                    result = Err(broken(error));
                    break;
                }
            };
            let offload = header::parse(NetHeader::parse(says), length, accepts);
            let offload = match offload {
                _ if length > PACKET_BYTES_MAX => Err(Cause::TooLong),
                _ if length < SHORTEST as usize => Err(Cause::TooShort),
                None => Err(Cause::Offload),
                Some(offload) => Ok(offload),
            };
            let admitted = offload.and_then(|offload| {
                let length = length as u32;
                burst.admit(&self.memory, Place { length, ..place });
                let is_good = burst.admit_offload(offload);
                is_good.then_some(length).ok_or(Cause::Offload)
            });
            match admitted {
                Ok(length) => {
                    place.offset += length.next_multiple_of(LINE_BYTES);
                    bytes += u64::from(length);
                }
                Err(cause) => {
                    tally.drop(cause, 1);
                    drops += 1;
                }
            }
        }
        tally.pass(burst.len() as u64, bytes);
        result
    }

    /// Sends packets from number `first` on; returns how many were taken, and why no more.
    pub(super) fn transmit(
        &self,
        burst: &Burst,
        first: usize,
        takes: Offloads,
        tally: &mut Tally,
    ) -> (usize, Stopped) {
        let mut taken = 0;
        for packet in burst.iter().skip(first) {
            match self.send(packet, takes) {
                Fate::Sent => tally.pass(1, packet.len() as u64),
                Fate::Dropped(cause) => tally.drop(cause, 1),
                Fate::Kept(stopped) => return (taken, stopped),
            }
            taken += 1;
        }
        (taken, Stopped::Done)
    }

    fn send(&self, packet: Packet<'_>, takes: Offloads) -> Fate {
        if packet.len() < SHORTEST as usize {
            return Fate::Dropped(Cause::TooShort);
        }
        let offload = packet.offload();
        if !takes.takes(&offload) {
            return Fate::Dropped(Cause::Offload);
        }
        let says = header::emit(offload, 0).emit();
        let written = if packet.part_count() <= sys::PARTS_MAX {
            sys::write(self.as_fd(), &says, packet.parts())
        } else {
            // No longer than `PACKET_BYTES_MAX`, as no packet is.
            let place = Place {
                region: GATHER,
                offset: 0,
                length: packet.len() as u32,
            };
            packet.write_to(0, &self.memory, place);
            let whole = (self.memory.start(place), packet.len());
            sys::write(self.as_fd(), &says, std::iter::once(whole))
        };
        let Err(error) = written else {
            return Fate::Sent;
        };
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => Fate::Kept(Stopped::Full),
            Some(Errno::EIO) => Fate::Kept(Stopped::Down),
            Some(Errno::EMSGSIZE) => Fate::Dropped(Cause::TooLong),
            // The kernel has found something in the header that does not fit the packet.
            Some(Errno::EINVAL) if packet.leaves_work() => Fate::Dropped(Cause::Offload),
            Some(Errno::EINVAL) => Fate::Dropped(Cause::Malformed),
            _ => Fate::Kept(Stopped::Broken(broken(error))),
        }
    }
}
