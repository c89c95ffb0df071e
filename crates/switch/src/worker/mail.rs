//! What a worker reads of the others.

use std::time::Instant;

use super::{Attached, Worker};
use crate::lane::{self, Mail};

impl Worker {
    /// So many bursts of each other worker, at most, and what was said beside them. False: there was none, and no more is there.
    pub(super) fn read_mail(&mut self, now: Instant, bursts: usize) -> bool {
        let mut is_busy = false;
        for place in 0..self.inlets.len() {
            let (mut bursts_left, mut messages_left) = (bursts, lane::MESSAGES);
            while let Some(mail) = self.inlets[place].next() {
                if matches!(mail, Mail::Packets(..)) {
                    is_busy = true;
                    bursts_left -= 1;
                }
                self.handle_mail(place, mail, now);
                messages_left -= 1;
                if bursts_left == 0 || messages_left == 0 {
                    is_busy = true;
                    self.bell.keep_news();
                    break;
                }
            }
        }
        is_busy
    }

    fn handle_mail(&mut self, place: usize, mail: Mail, now: Instant) {
        match mail {
            Mail::Packets(port, burst) => {
                self.poll_file(port, now);
                self.send(port, 0, &burst);
                self.inlets[place].give_back(burst);
            }
            // The port has gone for this worker and not for the other one yet: nobody would say that the station is to be forgotten. Of one
            // that is yet to come for this worker it is told again.
            Mail::Learnt(_, port) if !self.knows(port) => {}
            Mail::Learnt(station, port) => {
                self.table.learn(station, port, u32::MAX, self.now_ns);
            }
            Mail::Forget(port) => self.table.forget_port(port),
            Mail::Mtu(port, mtu) => self.set_mtu(port, mtu),
        }
    }

    /// Whether the plan has a port.
    fn knows(&self, number: u16) -> bool {
        let plan = self.plan.as_ref();
        plan.is_some_and(|plan| plan.port(number).is_some())
    }

    /// A file is told the time, which its packets get.
    fn poll_file(&mut self, number: u16, now: Instant) {
        if let Some(Some(Attached::Port {
            port,
            is_file: true,
            ..
        })) = self.ports.get_mut(usize::from(number))
        {
            port.poll(now);
        }
    }
}
