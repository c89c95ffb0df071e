//! A driver's memory, by the addresses that its descriptors have.

use std::sync::Arc;

use millrace_shm::Mapping;

use super::error::Malformed;
use crate::memory::{Memory, Place};

/// A region of a memory has at most so many bytes; larger ones of a driver's are several.
const WINDOW_BYTES: u64 = 1 << 31;

/// Some of a driver's memory.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    /// Where it is for the driver.
    pub(crate) guest: u64,
    /// Where it is for the front end.
    pub(crate) user: u64,
    pub(crate) bytes: u64,
    /// Where it is here: from an offset in a mapping.
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) offset: usize,
}

/// Bytes one after another in a driver's addresses, and in one region of a memory.
#[derive(Debug, Clone, Copy)]
struct Window {
    guest: u64,
    user: u64,
    bytes: u64,
    region: u16,
}

/// A driver's memory.
#[derive(Debug)]
pub(crate) struct Guest {
    memory: Arc<Memory>,
    windows: Box<[Window]>,
}

impl Guest {
    /// Of regions that are inside of their mappings.
    pub(crate) fn new(regions: &[Region]) -> Guest {
        let (mut windows, mut parts) = (Vec::new(), Vec::new());
        for region in regions {
            let mut at = 0;
            while at < region.bytes {
                let bytes = WINDOW_BYTES.min(region.bytes - at);
                windows.push(Window {
                    guest: region.guest + at,
                    user: region.user + at,
                    bytes,
                    region: windows.len() as u16,
                });
                let offset = region.offset + at as usize;
                parts.push((region.mapping.clone(), offset, bytes as usize));
                at += bytes;
            }
        }
        // Most buffers are in the largest.
        windows.sort_by_key(|window| std::cmp::Reverse(window.bytes));
        Guest {
            memory: Arc::new(Memory::of_windows(parts)),
            windows: windows.into_boxed_slice(),
        }
    }

    #[inline]
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where a buffer is. None: not in one window.
    #[inline]
    pub(super) fn place(&self, address: u64, length: u32) -> Option<Place> {
        self.windows
            .iter()
            .find_map(|window| inside(window, window.guest, address, length))
    }

    /// The same by the front end's own addresses.
    pub(crate) fn place_of_user(&self, address: u64, length: u32) -> Option<Place> {
        self.windows
            .iter()
            .find_map(|window| inside(window, window.user, address, length))
    }

    /// Adds the places of a buffer, which may be in several windows.
    pub(super) fn places(
        &self,
        address: u64,
        length: u32,
        places: &mut Vec<Place>,
    ) -> Result<(), Malformed> {
        if let Some(place) = self.place(address, length) {
            places.push(place);
            return Ok(());
        }
        let wrong = Malformed::Address { address, length };
        let (mut at, mut left) = (address, length);
        while left > 0 {
            let part = self.windows.iter().find_map(|window| {
                let behind = at.checked_sub(window.guest)?;
                let rest = window.bytes.checked_sub(behind)?.min(u64::from(left)) as u32;
                inside(window, window.guest, at, rest)
            });
            let part = part.filter(|part| part.length > 0).ok_or(wrong)?;
            places.push(part);
            left -= part.length;
            at = at.checked_add(u64::from(part.length)).ok_or(wrong)?;
        }
        Ok(())
    }
}

#[inline]
fn inside(window: &Window, begin: u64, address: u64, length: u32) -> Option<Place> {
    let offset = address.wrapping_sub(begin);
    let is_inside = offset < window.bytes && u64::from(length) <= window.bytes - offset;
    is_inside.then_some(Place {
        region: window.region,
        // Less than a window.
        offset: offset as u32,
        length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(guest: u64, bytes: u64) -> Region {
        Region {
            guest,
            user: guest + (1 << 40),
            bytes,
            mapping: Arc::new(Mapping::private(bytes as usize).unwrap()),
            offset: 0,
        }
    }

    #[test]
    fn buffers_are_found_where_they_are_and_nowhere_else() {
        let guest = Guest::new(&[region(0x1000, 0x1000), region(0x8000, 0x4000)]);
        let at = |address, length| guest.place(address, length);
        assert_eq!(
            at(0x8010, 16).map(|place| (place.region, place.offset)),
            Some((1, 16))
        );
        assert_eq!(
            at(0x1fff, 1).map(|place| (place.region, place.offset)),
            Some((0, 0xfff))
        );
        assert_eq!(at(0x1fff, 2), None);
        assert_eq!(at(0xfff, 1), None);
        assert_eq!(at(u64::MAX, u32::MAX), None);
        assert_eq!(at(0x8000, u32::MAX), None);
        let user = guest.place_of_user((1 << 40) + 0x8010, 16);
        assert_eq!(user, at(0x8010, 16));
    }

    #[test]
    fn a_buffer_across_regions_is_several_places() {
        let guest = Guest::new(&[region(0x1000, 0x1000), region(0x2000, 0x1000)]);
        let mut places = Vec::new();
        assert_eq!(guest.places(0x1ff0, 0x20, &mut places), Ok(()));
        let found: Vec<_> = places
            .iter()
            .map(|place| (place.region, place.offset, place.length))
            .collect();
        assert_eq!(found, [(0, 0xff0, 16), (1, 0, 16)]);
        let (address, length) = (0x2ff0, 0x20);
        assert_eq!(
            guest.places(address, length, &mut places),
            Err(Malformed::Address { address, length })
        );
    }

    #[test]
    fn a_large_region_is_several_windows() {
        let guest = Guest::new(&[region(0, 5 << 30)]);
        let last = guest.place((5 << 30) - 8, 8).unwrap();
        assert_eq!((last.region, last.offset), (2, (1 << 30) - 8));
        let mut places = Vec::new();
        assert_eq!(guest.places((2 << 30) - 8, 16, &mut places), Ok(()));
        assert_eq!(places.len(), 2);
    }
}
