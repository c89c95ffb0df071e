//! Copies to and from the ring of direction 0.

use millrace_shm::segment::Segment;

pub(super) fn write(segment: &Segment, tail: u32, window: u32, bytes: &[u8]) {
    // SAFETY: a slice is readable.
    unsafe { segment.write(0, tail, window, bytes.as_ptr(), bytes.len() as u32) };
}

pub(super) fn read(segment: &Segment, head: u32, window: u32, target: &mut [u8]) {
    let bytes = target.len() as u32;
    // SAFETY: a slice that is borrowed mutably is writable.
    unsafe { segment.read(0, head, window, target.as_mut_ptr(), bytes) };
}
