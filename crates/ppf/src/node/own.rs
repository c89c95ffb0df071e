//! What the function sends by itself: packets that waited for their bearers, and messages of its own.

use millrace_port::Burst;

use super::send::{Part, judged};
use super::{BURST, Node, Outs};
use crate::bearer::Side;
use crate::event::{Event, Sending};
use crate::function::{HEADER_BYTES_MAX, Verdict};
use crate::link::LinkCause;

impl Node {
    /// Something that whoever controls the function should know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.function.poll_event()
    }

    /// Whether there is.
    #[inline]
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.function.bearers.events.is_empty()
    }

    /// Sends so much of it as there is room for.
    pub(super) fn send_own(&mut self, outs: &mut Outs) {
        let Some(mut own) = self.own.take() else {
            return;
        };
        for turn in 0..BURST {
            if !self.has_room(outs) {
                break;
            }
            // In turns: neither waits for the other's end.
            let sent = match turn % 2 {
                0 => self
                    .send_message(&mut own, outs)
                    .or_else(|| self.send_released(&mut own, outs)),
                _ => self
                    .send_released(&mut own, outs)
                    .or_else(|| self.send_message(&mut own, outs)),
            };
            let Some((from, sent)) = sent else {
                break;
            };
            if let (Some(port), Err(cause)) = (self.port_of(from), sent) {
                self.counts[port].drop(cause);
            }
        }
        self.own = Some(own);
    }

    /// The first port of a side: where is counted what has no port.
    fn port_of(&self, side: Side) -> Option<usize> {
        self.interfaces.iter().position(|own| own.side == side)
    }

    /// Sends a message of the function's own. None: there is none.
    fn send_message(
        &mut self,
        own: &mut Burst,
        outs: &mut Outs,
    ) -> Option<(Side, Result<(), LinkCause>)> {
        loop {
            let sending = self.function.poll_sending()?;
            let (Sending::Datagram { side, .. } | Sending::Plain { side, .. }) = &sending;
            if self.port_of(*side).is_some() {
                return Some(self.send_sending(sending, own, outs));
            }
        }
    }

    fn send_sending(
        &mut self,
        sending: Sending,
        own: &mut Burst,
        outs: &mut Outs,
    ) -> (Side, Result<(), LinkCause>) {
        let (Sending::Datagram { side, bytes, .. } | Sending::Plain { side, bytes }) = &sending;
        if let Some(port) = self.port_of(*side) {
            self.counts[port].made += 1;
        }
        let Some(part) = part(own, bytes) else {
            return (*side, Err(LinkCause::TooLong));
        };
        let sent = match &sending {
            Sending::Datagram {
                side,
                from,
                to,
                class,
                ..
            } => self
                .find_way(*side, *to)
                .and_then(|way| self.send_towards(part, way, (*from, *to), *class, outs)),
            Sending::Plain { side, .. } => {
                let (first, first_bytes, known) = judged(([0; HEADER_BYTES_MAX], 0), bytes);
                self.send_user(part.from(known), *side, &first[..first_bytes], outs)
            }
        };
        (*side, sent)
    }

    /// Sends a packet that waited. None: there is none. What the function drops it has counted.
    fn send_released(
        &mut self,
        own: &mut Burst,
        outs: &mut Outs,
    ) -> Option<(Side, Result<(), LinkCause>)> {
        let too_long = Err(LinkCause::TooLong);
        match self.function.poll_released(self.now_ns)? {
            Verdict::Relay {
                side,
                to,
                path,
                class,
                header: (header, header_bytes),
                body,
                ..
            } => {
                let Some(part) = part(own, body) else {
                    return Some((side.other(), too_long));
                };
                let header = &header[..header_bytes];
                let sent = self.send(part, (path, side), to, header, class, outs);
                Some((side.other(), sent))
            }
            Verdict::Plain {
                side, header, body, ..
            } => {
                let (first, first_bytes, known) = judged(header, body);
                let Some(part) = part(own, body) else {
                    return Some((side.other(), too_long));
                };
                let sent = self.send_user(part.from(known), side, &first[..first_bytes], outs);
                Some((side.other(), sent))
            }
            _ => Some((Side::Core, Ok(()))),
        }
    }
}

/// Bytes as the only packet of a burst.
fn part<'a>(own: &'a mut Burst, bytes: &[u8]) -> Option<Part<'a>> {
    own.clear();
    if !own.push(bytes) {
        return None;
    }
    Some(Part {
        packet: own.get(0)?,
        at: 0,
        length: bytes.len(),
    })
}
