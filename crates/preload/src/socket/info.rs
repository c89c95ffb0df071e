//! TCP_INFO: what took the ring is counted as if the kernel had carried it.
//!
//! When something was last sent or received the kernel knows to a second or so, since each direction in use shows itself to it
//! (`network`); the times that senders leave in the segment tell the rest.

use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;
use millrace_shm::segment::Stamps;

use super::Socket;
use crate::spin;

/// Places in `struct tcp_info` (`include/uapi/linux/tcp.h`), in bytes.
mod place {
    pub(super) const LAST_DATA_SENT: usize = 44;
    pub(super) const LAST_DATA_RECEIVED: usize = 52;
    pub(super) const LAST_ACK_RECEIVED: usize = 56;
    pub(super) const BYTES_ACKED: usize = 120;
    pub(super) const BYTES_RECEIVED: usize = 128;
    pub(super) const SEGMENTS_OUT: usize = 136;
    pub(super) const SEGMENTS_IN: usize = 140;
    pub(super) const DATA_SEGMENTS_IN: usize = 152;
    pub(super) const DATA_SEGMENTS_OUT: usize = 156;
    pub(super) const DELIVERED: usize = 192;
    pub(super) const BYTES_SENT: usize = 200;
}

/// What the kernel has told the program, as many bytes of it as there was room for.
struct Told<'a>(&'a mut [u8]);

impl Told<'_> {
    /// Adds to a number. Of one that is cut off, the lower bytes are there.
    fn add<const N: usize>(&mut self, place: usize, add: impl FnOnce([u8; N]) -> [u8; N]) {
        let end = self.0.len().min(place + N);
        if let Some(field) = self.0.get_mut(place..end) {
            let mut told = [0; N];
            told[..field.len()].copy_from_slice(field);
            field.copy_from_slice(&add(told)[..field.len()]);
        }
    }

    fn add_bytes(&mut self, place: usize, count: u64) {
        self.add(place, |told| {
            u64::from_le_bytes(told).wrapping_add(count).to_le_bytes()
        });
    }

    fn add_segments(&mut self, place: usize, count: u64) {
        self.add(place, |told| {
            u32::from_le_bytes(told)
                .wrapping_add(count as u32)
                .to_le_bytes()
        });
    }

    /// An age in milliseconds.
    fn age(&self, place: usize) -> Option<u32> {
        let field = self.0.get(place..place + 4)?;
        field.try_into().ok().map(u32::from_ne_bytes)
    }

    fn is_at_most(&mut self, place: usize, age: u32) {
        if let (Some(told), Some(field)) = (self.age(place), self.0.get_mut(place..place + 4)) {
            field.copy_from_slice(&told.min(age).to_ne_bytes());
        }
    }
}

impl Socket {
    /// Adds what took the ring to what `ask` has the kernel tell, and which lies at `value`, as many bytes as it says.
    pub(crate) fn complete_info(
        &'static self,
        fd: c_int,
        value: *mut u8,
        ask: impl FnOnce() -> Option<usize>,
    ) {
        // Whoever reads, or has something sent again, does so before or after.
        let locked = self.lock_receive(fd);
        let Some(bytes) = ask() else { return };
        // SAFETY: the kernel has just written them.
        let mut told = Told(unsafe { std::slice::from_raw_parts_mut(value, bytes) });
        let (send, receive) = (&self.row().send, &self.row().receive);
        let sent = send.ring_bytes.load(Relaxed);
        let sent = sent.wrapping_sub(send.resent_bytes.load(Relaxed));
        let unread = locked.as_ref().map_or(0, |locked| locked.half.unread());
        let received = receive.ring_bytes.load(Relaxed) + u64::from(unread);
        let received = received.wrapping_sub(receive.doubled_bytes.load(Relaxed));
        told.add_bytes(place::BYTES_ACKED, sent);
        told.add_bytes(place::BYTES_SENT, sent);
        told.add_bytes(place::BYTES_RECEIVED, received);
        let messages = send.ring_messages.load(Relaxed);
        for place in [
            place::SEGMENTS_OUT,
            place::DATA_SEGMENTS_OUT,
            place::DELIVERED,
        ] {
            told.add_segments(place, messages);
        }
        let messages = receive.ring_messages.load(Relaxed);
        for place in [place::SEGMENTS_IN, place::DATA_SEGMENTS_IN] {
            told.add_segments(place, messages);
        }
        let Some(locked) = locked else { return };
        let segment = locked.segment();
        for (place, direction) in [
            (place::LAST_DATA_SENT, self.send_direction()),
            (place::LAST_DATA_RECEIVED, 1 - self.send_direction()),
        ] {
            if let Some(age) = age_of(&segment.words(direction).stamps, told.age(place)) {
                told.is_at_most(place, age);
                told.is_at_most(place::LAST_ACK_RECEIVED, age);
            }
        }
    }
}

/// Milliseconds since the last publish. None: the kernel's answer is as good.
fn age_of(stamps: &Stamps, told_ms: Option<u32>) -> Option<u32> {
    let now = spin::clock();
    let cycles_per_ms = spin::cycles(1_000_000).max(1);
    let age = stamps.newest_age(now, u64::from(told_ms?) * cycles_per_ms)?;
    u32::try_from(age / cycles_per_ms).ok()
}
