//! The memory that a front end makes: all rings, and behind them a buffer for each descriptor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use millrace_shm::{Mapping, sys};
use millrace_wire::vhost_user::{Region, VringAddress};
use millrace_wire::virtio::{DESCRIPTOR_BYTES, NET_HEADER_BYTES, available_bytes, used_bytes};

use crate::memory::{LINE_BYTES, Place, stride};
use crate::virtio::Places;
use crate::virtio::driver::Extent;
use crate::virtio::guest::{self, Guest};

/// Where the memory begins for the device. No address is zero, which some take for none.
const ADDRESS: u64 = 1 << 32;
const LINE: usize = LINE_BYTES as usize;
/// Buffers begin so far behind a line that a packet begins with one, behind its header: short packets are on one line, and who does not
/// look at headers has nothing to do with the line before.
const SHIFT: usize = LINE - NET_HEADER_BYTES;
const PAGE: usize = 4096;

/// Where everything is. Areas of a split ring are large enough for a packed one's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    rings: usize,
    size: u16,
    buffer_bytes: u32,
}

impl Layout {
    pub(super) fn new(pairs: u16, size: u16, buffer_bytes: u32) -> Layout {
        Layout {
            rings: usize::from(pairs) * 2,
            size,
            buffer_bytes,
        }
    }

    /// Sizes of a ring's areas.
    fn areas(&self) -> [usize; 3] {
        [
            usize::from(self.size) * DESCRIPTOR_BYTES,
            available_bytes(self.size),
            used_bytes(self.size),
        ]
        .map(|bytes| bytes.next_multiple_of(LINE))
    }

    fn ring_bytes(&self) -> usize {
        self.areas().iter().sum()
    }

    fn buffers_at(&self) -> usize {
        (self.rings * self.ring_bytes()).next_multiple_of(PAGE)
    }

    fn ring_buffers(&self) -> usize {
        usize::from(self.size) * stride(self.buffer_bytes) as usize
    }

    pub(super) fn bytes(&self) -> usize {
        (self.buffers_at() + SHIFT + self.rings * self.ring_buffers()).next_multiple_of(PAGE)
    }

    fn areas_of(&self, ring: usize) -> [Place; 3] {
        let mut at = ring * self.ring_bytes();
        self.areas().map(|bytes| {
            let place = Place {
                region: 0,
                // Less than 2 GiB, as `Config::check` has it.
                offset: at as u32,
                length: bytes as u32,
            };
            at += bytes;
            place
        })
    }

    pub(super) fn extent(&self, ring: usize) -> Extent {
        let [descriptors, driver, device] = self.areas_of(ring);
        let buffers = self.buffers_at() + SHIFT + ring * self.ring_buffers();
        Extent {
            places: Places {
                descriptors,
                driver,
                device,
            },
            size: self.size,
            buffers: buffers as u32,
            address: ADDRESS + buffers as u64,
            buffer_bytes: self.buffer_bytes,
        }
    }

    /// A ring's place, as the back end is told.
    pub(super) fn address(&self, ring: usize) -> VringAddress {
        let [descriptors, driver, device] = self
            .areas_of(ring)
            .map(|place| ADDRESS + u64::from(place.offset));
        VringAddress {
            index: ring as u32,
            flags: 0,
            descriptors,
            used: device,
            available: driver,
            log: 0,
        }
    }

    /// The memory, sealed, as the back end is told, and as it is used here.
    pub(super) fn make(&self) -> io::Result<(OwnedFd, Region, Guest)> {
        let bytes = self.bytes();
        let fd = sys::create_sealed(c"millrace-virtio", bytes, bytes)?;
        let region = Region {
            guest: ADDRESS,
            bytes: bytes as u64,
            user: ADDRESS,
            offset: 0,
        };
        let own = guest::Region {
            guest: region.guest,
            user: region.user,
            bytes: region.bytes,
            mapping: Arc::new(Mapping::new(fd.as_fd(), bytes)?),
            offset: 0,
        };
        Ok((fd, region, Guest::new(&[own])))
    }
}
