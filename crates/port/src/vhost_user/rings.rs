//! The rings of a session: what is known of each, and its end once it runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_wire::vhost_user::VringAddress;
use millrace_wire::virtio::{
    DESCRIPTOR_BYTES, EVENT_BYTES, RING_PACKED, RING_SIZE_MAX, available_bytes, used_bytes,
};

use super::error::ControlError;
use crate::bell::{Bell, ring};
use crate::burst::Burst;
use crate::counters::Tally;
use crate::offload::Offloads;
use crate::virtio::device::{Packed, Queue, Receiver, Split, Transmitter};
use crate::virtio::guest::Guest;
use crate::virtio::inflight::InFlight;
use crate::virtio::{Malformed, Places};

/// The device's end of a ring that runs.
#[derive(Debug)]
pub(super) enum End {
    ReceiveSplit(Receiver<Split>),
    ReceivePacked(Receiver<Packed>),
    TransmitSplit(Transmitter<Split>),
    TransmitPacked(Transmitter<Packed>),
}

/// Does the same with the queue of any end.
macro_rules! queue {
    ($end:expr, $queue:ident => $does:expr) => {
        match $end {
            End::ReceiveSplit(Receiver { queue: $queue, .. }) => $does,
            End::ReceivePacked(Receiver { queue: $queue, .. }) => $does,
            End::TransmitSplit(Transmitter { queue: $queue, .. }) => $does,
            End::TransmitPacked(Transmitter { queue: $queue, .. }) => $does,
        }
    };
}

impl End {
    fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        queue!(self, queue => queue.set_call(call));
    }

    /// Whether the driver is to notify of what comes.
    pub(super) fn want_kick(&mut self, wanted: bool) {
        queue!(self, queue => queue.want_kick(wanted));
    }

    pub(super) fn has_more(&self) -> bool {
        queue!(self, queue => queue.has_more())
    }

    fn position(&self) -> u32 {
        queue!(self, queue => queue.position())
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        burst: &mut Burst,
        tally: &mut Tally,
    ) -> Result<(), Malformed> {
        match self {
            End::ReceiveSplit(receiver) => receiver.receive(burst, tally),
            End::ReceivePacked(receiver) => receiver.receive(burst, tally),
            End::TransmitSplit(_) | End::TransmitPacked(_) => Ok(()),
        }
    }

    #[inline]
    pub(super) fn transmit(
        &mut self,
        burst: &Burst,
        first: usize,
        tally: &mut Tally,
    ) -> (usize, Result<(), Malformed>) {
        match self {
            End::TransmitSplit(transmitter) => transmitter.transmit(burst, first, tally),
            End::TransmitPacked(transmitter) => transmitter.transmit(burst, first, tally),
            End::ReceiveSplit(_) | End::ReceivePacked(_) => (0, Ok(())),
        }
    }

    /// Gives back what was taken. The bell to ring, if the driver wants it rung.
    #[inline]
    pub(super) fn give_back(&mut self) -> Option<BorrowedFd<'_>> {
        queue!(self, queue => queue.give_back())
    }

    pub(super) fn offloads(&self) -> Offloads {
        match self {
            End::TransmitSplit(transmitter) => transmitter.offloads(),
            End::TransmitPacked(transmitter) => transmitter.offloads(),
            End::ReceiveSplit(_) | End::ReceivePacked(_) => Offloads::default(),
        }
    }
}

/// A ring.
#[derive(Debug, Default)]
pub(super) struct Vring {
    index: u32,
    size: Option<u16>,
    address: Option<VringAddress>,
    /// Where it goes on.
    base: u32,
    kick: Option<Bell>,
    /// Whether the driver kicks: without, it wants to be polled.
    pub(super) has_kick: bool,
    call: Option<Arc<OwnedFd>>,
    pub(super) is_enabled: bool,
    pub(super) end: Option<End>,
}

impl Vring {
    pub(super) fn new(index: u32) -> Vring {
        Vring {
            index,
            ..Vring::default()
        }
    }

    fn wrong(&self, what: &'static str) -> ControlError {
        ControlError::Ring {
            index: self.index,
            what,
        }
    }

    fn must_rest(&self) -> Result<(), ControlError> {
        match self.end {
            None => Ok(()),
            Some(_) => Err(self.wrong("is changed while it runs")),
        }
    }

    pub(super) fn set_size(&mut self, size: u32) -> Result<(), ControlError> {
        self.must_rest()?;
        let fits = u16::try_from(size)
            .ok()
            .filter(|size| (1..=RING_SIZE_MAX).contains(size));
        self.size = Some(fits.ok_or(ControlError::Size(size))?);
        Ok(())
    }

    pub(super) fn set_base(&mut self, base: u32) -> Result<(), ControlError> {
        self.must_rest()?;
        self.base = base;
        Ok(())
    }

    pub(super) fn set_address(&mut self, address: VringAddress) {
        self.address = Some(address);
    }

    pub(super) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call.map(Arc::new);
        if let Some(end) = &mut self.end {
            end.set_call(self.call.clone());
            self.notify();
        }
    }

    /// Notifies the driver, whether it wants to be or not: a back end may have died between giving chains back and saying so, and the
    /// driver would wait for ever, for one that has come long ago.
    fn notify(&self) {
        if let Some(call) = &self.call {
            ring(call.as_fd());
        }
    }

    pub(super) fn set_kick(&mut self, kick: Option<Bell>) {
        self.has_kick = kick.is_some();
        self.kick = kick;
    }

    /// Stops it: the driver has back what was taken. Where it goes on.
    pub(super) fn stop(&mut self) -> u32 {
        if let Some(mut end) = self.end.take() {
            if let Some(bell) = end.give_back() {
                ring(bell);
            }
            self.base = end.position();
        }
        self.kick = None;
        self.has_kick = false;
        self.base
    }

    /// Runs it, or runs it on after its memory has changed.
    pub(super) fn start(
        &mut self,
        guest: Option<&Arc<Guest>>,
        features: u64,
        inflight: Option<&InFlight>,
    ) -> Result<(), ControlError> {
        if let Some(mut end) = self.end.take() {
            if let Some(bell) = end.give_back() {
                ring(bell);
            }
            self.base = end.position();
        }
        let guest = guest.ok_or_else(|| self.wrong("has no memory"))?;
        let size = self.size.ok_or_else(|| self.wrong("has no size"))?;
        let address = self.address.ok_or_else(|| self.wrong("has no place"))?;
        let is_packed = features & RING_PACKED != 0;
        if !is_packed && !size.is_power_of_two() {
            return Err(ControlError::Size(u32::from(size)));
        }
        let outside = || self.wrong("is not inside the memory, or not aligned");
        let places = places(guest, &address, size, is_packed).ok_or_else(outside)?;
        let memory = guest.memory();
        let from_driver = self.index % 2 == 1;
        let queue = self.index as u16;
        let mut end = if is_packed {
            let record = inflight.map(|inflight| inflight.packed(queue, size));
            let record = record.map(|record| record.ok_or(ControlError::InFlight));
            let ring = Packed::new(memory, &places, size, self.base as u16, record.transpose()?);
            let queue = Queue::new(ring.ok_or_else(outside)?, guest.clone(), features);
            if from_driver {
                End::ReceivePacked(Receiver::new(queue))
            } else {
                End::TransmitPacked(Transmitter::new(queue))
            }
        } else {
            let record = inflight.map(|inflight| inflight.split(queue, size));
            let record = record.map(|record| record.ok_or(ControlError::InFlight));
            let ring = Split::new(memory, &places, size, features, record.transpose()?);
            let queue = Queue::new(ring.ok_or_else(outside)?, guest.clone(), features);
            if from_driver {
                End::ReceiveSplit(Receiver::new(queue))
            } else {
                End::TransmitSplit(Transmitter::new(queue))
            }
        };
        end.set_call(self.call.clone());
        // Until it is waited for.
        end.want_kick(false);
        self.end = Some(end);
        self.notify();
        Ok(())
    }

    /// Its end, if packets may pass.
    #[inline]
    pub(super) fn active(&mut self) -> Option<&mut End> {
        match &mut self.end {
            Some(end) if self.is_enabled => Some(end),
            _ => None,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.is_enabled && self.end.is_some()
    }
}

fn places(guest: &Guest, address: &VringAddress, size: u16, is_packed: bool) -> Option<Places> {
    let (driver, device) = if is_packed {
        (EVENT_BYTES, EVENT_BYTES)
    } else {
        (available_bytes(size), used_bytes(size))
    };
    // At most 2^15 of 16 bytes.
    let place = |address, bytes: usize| guest.place_of_user(address, bytes as u32);
    Some(Places {
        descriptors: place(address.descriptors, usize::from(size) * DESCRIPTOR_BYTES)?,
        driver: place(address.available, driver)?,
        device: place(address.used, device)?,
    })
}
