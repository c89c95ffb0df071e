//! Packets on their way from one worker to another: each lies in a parcel, which is one of its sender's, and an event of the scheduler
//! says which. Whoever gets the event empties the parcel, which its sender may then fill again.
//!
//! A parcel's lock is never waited for: its sender fills only what it finds empty, and only who was told of it empties it. It is there
//! because that is a promise of the scheduler's, and not of types.

use std::sync::{Arc, Mutex, TryLockError};

use millrace_port::Packet;

/// Parcels of a worker that are under way, at most.
pub(crate) const PARCELS: usize = 4096;
/// So many are looked at for an empty one. They come back in the order that they were sent in, but for those of a worker that is slow.
const LOOKS: usize = 8;
/// A parcel does not keep more memory than that.
const KEPT_BYTES: usize = 2048;

/// A packet that is under way.
#[derive(Debug, Default)]
struct Parcel {
    is_full: bool,
    /// By which it came, or is to leave.
    port: u16,
    bytes: Vec<u8>,
}

/// All parcels of a worker.
type Parcels = Arc<[Mutex<Parcel>]>;

/// A worker's parcels, and those of the others.
#[derive(Debug)]
pub(crate) struct Post {
    /// By worker.
    all: Vec<Parcels>,
    own: usize,
    next: usize,
}

impl Post {
    /// One for each of so many workers.
    pub(crate) fn new(workers: usize) -> Vec<Post> {
        // One worker has nobody to send anything to.
        let parcels = if workers == 1 { 0 } else { PARCELS };
        let made = |_| (0..parcels).map(|_| Mutex::default()).collect();
        let all: Vec<Parcels> = (0..workers).map(made).collect();
        let post = |own| Post {
            all: all.clone(),
            own,
            next: 0,
        };
        (0..workers).map(post).collect()
    }

    /// Puts a copy of a packet into a parcel; returns by what it is found. None: all that were looked at are under way.
    pub(crate) fn put(&mut self, port: u16, packet: Packet<'_>) -> Option<u64> {
        let parcels = &self.all[self.own];
        for _ in 0..LOOKS.min(parcels.len()) {
            let number = self.next;
            self.next = (number + 1) % parcels.len();
            let Some(mut parcel) = open(&parcels[number]) else {
                continue;
            };
            if parcel.is_full {
                continue;
            }
            packet.append_to(&mut parcel.bytes);
            (parcel.port, parcel.is_full) = (port, true);
            return Some((self.own as u64) << 32 | number as u64);
        }
        None
    }

    /// Takes back what was just put, and is not sent: its parcel is the next one.
    pub(crate) fn take_back(&mut self, found: u64) {
        self.take(found, &mut Vec::new());
        self.next = found as u32 as usize;
    }

    /// Takes what is in a parcel in exchange for this memory, whose contents are forgotten; returns the packet's port. None: there is no
    /// such parcel, or it is empty.
    pub(crate) fn take(&self, found: u64, packet: &mut Vec<u8>) -> Option<u16> {
        let (worker, number) = ((found >> 32) as usize, found as u32 as usize);
        let mut parcel = open(self.all.get(worker)?.get(number)?)?;
        if !std::mem::take(&mut parcel.is_full) {
            return None;
        }
        std::mem::swap(&mut parcel.bytes, packet);
        parcel.bytes.clear();
        if parcel.bytes.capacity() > KEPT_BYTES {
            parcel.bytes = Vec::new();
        }
        Some(parcel.port)
    }
}

/// Nobody else has it now.
fn open(parcel: &Mutex<Parcel>) -> Option<std::sync::MutexGuard<'_, Parcel>> {
    match parcel.try_lock() {
        Ok(parcel) => Some(parcel),
        // It is whole between two statements that can panic, and a panic ends the process.
        Err(TryLockError::Poisoned(parcel)) => Some(parcel.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use millrace_port::Burst;

    use super::*;

    #[test]
    fn a_parcel_is_its_senders_again_when_it_was_emptied() {
        let mut posts = Post::new(2);
        let mut burst = Burst::new(2);
        assert!(burst.push(&[7; 300]) && burst.push(&[8; 9000]));
        let packets: Vec<_> = burst.iter().collect();
        let mut sent = Vec::new();
        for number in 0..PARCELS {
            sent.extend(posts[0].put(number as u16, packets[number % 2]));
        }
        assert_eq!(sent.len(), PARCELS);
        assert_eq!(posts[0].put(0, packets[0]), None, "all are under way");
        let mut took = Vec::new();
        for (number, found) in sent.iter().enumerate() {
            assert_eq!(posts[1].take(*found, &mut took), Some(number as u16));
            assert_eq!(took, packets[number % 2].to_vec());
            assert_eq!(posts[1].take(*found, &mut took), None, "only once");
        }
        assert!(posts[0].put(0, packets[0]).is_some());
        assert_eq!(posts[1].take(2 << 32, &mut took), None);
        assert_eq!(posts[1].take(PARCELS as u64, &mut took), None);
    }
}
