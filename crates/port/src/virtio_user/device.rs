//! The device that a back end is asked to be: memory and rings, which stay when it goes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_wire::vhost_user::{Inflight, Region, VringAddress};
use millrace_wire::virtio::RING_PACKED;
use nix::sys::epoll::Epoll;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::Config;
use super::memory::Layout;
use crate::bell::Bell;
use crate::burst::Burst;
use crate::counters::Tally;
use crate::handed::Gifts;
use crate::offload::Offloads;
use crate::virtio::Malformed;
use crate::virtio::driver::{Packed, Queue, Receiver, Split, Transmitter};

/// A queue that packets come from.
#[derive(Debug)]
pub(super) enum Receiving {
    Split(Receiver<Split>),
    Packed(Receiver<Packed>),
}

/// A queue that packets go to.
#[derive(Debug)]
pub(super) enum Sending {
    Split(Transmitter<Split>),
    Packed(Transmitter<Packed>),
}

/// Does the same with a queue of either kind.
macro_rules! either {
    ($kind:ident, $queue:expr, $own:ident => $does:expr) => {
        match $queue {
            $kind::Split($own) => $does,
            $kind::Packed($own) => $does,
        }
    };
}

impl Receiving {
    #[inline]
    pub(super) fn receive(
        &mut self,
        burst: &mut Burst,
        tally: &mut Tally,
    ) -> Result<(), Malformed> {
        either!(Receiving, self, own => own.receive(burst, tally))
    }

    #[inline]
    pub(super) fn release(&mut self) -> Option<BorrowedFd<'_>> {
        either!(Receiving, self, own => own.release())
    }

    pub(super) fn cut_off(&mut self) -> Result<(), Malformed> {
        either!(Receiving, self, own => own.cut_off())
    }

    pub(super) fn want_call(&mut self, wanted: bool) {
        either!(Receiving, self, own => own.want_call(wanted));
    }

    pub(super) fn has_more(&self) -> bool {
        either!(Receiving, self, own => own.has_more())
    }

    fn base(&self) -> u32 {
        either!(Receiving, self, own => own.queue().base())
    }
}

impl Sending {
    #[inline]
    pub(super) fn transmit(
        &mut self,
        burst: &Burst,
        first: usize,
        tally: &mut Tally,
    ) -> (usize, Result<(), Malformed>) {
        either!(Sending, self, own => own.transmit(burst, first, tally))
    }

    #[inline]
    pub(super) fn publish(&mut self) -> Option<BorrowedFd<'_>> {
        either!(Sending, self, own => own.publish())
    }

    fn base(&self) -> u32 {
        either!(Sending, self, own => own.queue().base())
    }

    fn offloads(&self) -> Offloads {
        either!(Sending, self, own => own.offloads())
    }
}

/// The eventfds of a ring.
#[derive(Debug)]
pub(super) struct Bells {
    pub(super) kick: Arc<OwnedFd>,
    pub(super) call: OwnedFd,
    /// The same, while it is waited for.
    _watched: Bell,
}

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) features: u64,
    pub(super) pairs: u16,
    layout: Layout,
    pub(super) memory: OwnedFd,
    pub(super) region: Region,
    pub(super) size: u16,
    pub(super) receiving: Vec<Receiving>,
    pub(super) sending: Vec<Sending>,
    /// By rings' numbers.
    pub(super) bells: Vec<Bells>,
    /// What the first back end has made, for those after it.
    pub(super) inflight: Option<(Inflight, Gifts)>,
}

impl Device {
    pub(super) fn new(
        config: &Config,
        features: u64,
        pairs: u16,
        epoll: &Arc<Epoll>,
    ) -> io::Result<Device> {
        let layout = Layout::new(pairs, config.ring_size, config.buffer_bytes);
        let (memory, region, guest) = layout.make()?;
        let outside = || io::Error::from(io::ErrorKind::InvalidData);
        let (mut receiving, mut sending, mut bells) = (Vec::new(), Vec::new(), Vec::new());
        let is_packed = features & RING_PACKED != 0;
        for ring in 0..usize::from(pairs) * 2 {
            let own = make_bells(epoll)?;
            let (extent, kick) = (layout.extent(ring), own.kick.clone());
            bells.push(own);
            if is_packed {
                let queue = Queue::new(&guest, &extent, features, kick).ok_or_else(outside)?;
                match ring % 2 {
                    0 => receiving.push(Receiving::Packed(Receiver::new(queue))),
                    _ => sending.push(Sending::Packed(Transmitter::new(queue))),
                }
            } else {
                let queue = Queue::new(&guest, &extent, features, kick).ok_or_else(outside)?;
                match ring % 2 {
                    0 => receiving.push(Receiving::Split(Receiver::new(queue))),
                    _ => sending.push(Sending::Split(Transmitter::new(queue))),
                }
            }
        }
        Ok(Device {
            features,
            pairs,
            layout,
            memory,
            region,
            size: config.ring_size,
            receiving,
            sending,
            bells,
            inflight: None,
        })
    }

    pub(super) fn address(&self, ring: usize) -> VringAddress {
        self.layout.address(ring)
    }

    /// Where a ring goes on.
    pub(super) fn base(&self, ring: usize) -> u32 {
        match ring % 2 {
            0 => self.receiving[ring / 2].base(),
            _ => self.sending[ring / 2].base(),
        }
    }

    /// Whether its rings are good for another back end, who agrees to these. Where a packed ring goes on, only in-flight memory says.
    pub(super) fn is_good_for(&self, features: u64, pairs: u16, has_inflight: bool) -> bool {
        let is_known = features & RING_PACKED == 0 || (has_inflight && self.inflight.is_some());
        self.features == features && self.pairs == pairs && is_known
    }

    pub(super) fn offloads(&self) -> Offloads {
        self.sending
            .first()
            .map(Sending::offloads)
            .unwrap_or_default()
    }
}

fn make_bells(epoll: &Arc<Epoll>) -> io::Result<Bells> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let bell = || EventFd::from_value_and_flags(0, flags).map(OwnedFd::from);
    let call: OwnedFd = bell()?;
    let watched = Bell::new(call.as_fd().try_clone_to_owned()?, epoll)?;
    Ok(Bells {
        kick: Arc::new(bell()?),
        call,
        _watched: watched,
    })
}
