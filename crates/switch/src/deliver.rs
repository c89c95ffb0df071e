//! The last step: packets are handed to a port of this worker, with the work done that its peer does not do.

use millrace_port::{Burst, Offloads, Packet};

use crate::counters::Cause;
use crate::offload::{self, Cut};
use crate::worker::{Attached, Worker};

impl Worker {
    /// Sends a burst by a port of this worker: all of it is taken by the port, sent or dropped.
    pub(crate) fn send(&mut self, to: u16, queue: usize, burst: &Burst) {
        if burst.has_offloads() {
            let offloads = self.offloads(to);
            let is_taken =
                |packet: Packet<'_>| !packet.leaves_work() || offloads.takes(&packet.offload());
            if !burst.iter().all(is_taken) {
                self.finish(to, queue, burst, offloads);
                return;
            }
        }
        self.hand_over(to, queue, burst);
    }

    fn offloads(&self, to: u16) -> Offloads {
        match self.ports.get(usize::from(to)) {
            Some(Some(Attached::Port { port, .. })) => port.offloads(),
            _ => Offloads::default(),
        }
    }

    fn hand_over(&mut self, to: u16, queue: usize, burst: &Burst) {
        let place = usize::from(to);
        match self.ports.get_mut(place) {
            Some(Some(Attached::Port { port, .. })) => {
                // Packets of one flow come by one queue, and so go by one.
                let queue = match port.transmit_queues() {
                    0 | 1 => 0,
                    queues => queue % queues,
                };
                let taken = port.transmit(queue, burst, 0);
                if taken < burst.len() {
                    port.give_up(queue, burst, taken);
                }
            }
            Some(Some(Attached::Tunnel(at))) => {
                if let Some(endpoint) = &mut self.endpoints[*at] {
                    endpoint.transmit(to, burst);
                }
            }
            // It went while they were on their way.
            _ => {
                if let Some(tally) = self.tallies.get_mut(place) {
                    tally.drop(Cause::NoPort, burst.len() as u64);
                }
            }
        }
    }

    /// Does what the port's peer does not do, and sends.
    fn finish(&mut self, to: u16, queue: usize, burst: &Burst, offloads: Offloads) {
        let Some(mut ready) = self.scratch.take() else {
            return;
        };
        ready.clear();
        for packet in burst.iter() {
            let offload = packet.offload();
            match offload.segment {
                Some(how) if !offloads.takes(&offload) => match Cut::new(packet, how) {
                    Ok(cut) => self.cut(to, queue, cut, &mut ready),
                    Err(offload::Impossible) => self.fail(to),
                },
                _ => self.complete(to, queue, packet, offloads, &mut ready),
            }
        }
        self.hand_over(to, queue, &ready);
        ready.clear();
        self.scratch = Some(ready);
    }

    fn cut(&mut self, to: u16, queue: usize, mut cut: Cut<'_>, ready: &mut Burst) {
        if let Some(tally) = self.tallies.get_mut(usize::from(to)) {
            tally.made += cut.count() as u64 - 1;
        }
        while let Some(is_added) = cut.next(ready) {
            if !is_added {
                self.hand_over(to, queue, ready);
                ready.clear();
            }
        }
    }

    fn complete(
        &mut self,
        to: u16,
        queue: usize,
        packet: Packet<'_>,
        offloads: Offloads,
        ready: &mut Burst,
    ) {
        if !ready.append(packet) {
            self.hand_over(to, queue, ready);
            ready.clear();
            ready.append(packet);
        }
        let last = ready.len() - 1;
        if !offloads.takes(&packet.offload()) && offload::complete(ready, last).is_err() {
            ready.truncate(last);
            self.fail(to);
        }
    }

    fn fail(&mut self, to: u16) {
        if let Some(tally) = self.tallies.get_mut(usize::from(to)) {
            tally.drop(Cause::Offload, 1);
        }
    }
}
