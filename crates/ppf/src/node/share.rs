//! Messages that are of no bearer, where there are several workers.
//!
//! Each worker knows all bearers' peers, and one of them asks each if it lives ([`paths::asker`]). An answer comes by any port, and
//! goes to the worker that asked: another one's numbers say nothing of it. That a peer has a tunnel no more names the tunnel as the
//! peer does, which does not say whose bearer it is: all look for it, each among its own.

use millrace_port::Packet;
use millrace_wire::gtpu::{ECHO_RESPONSE, ERROR_INDICATION};

use super::meet::Met;
use super::{Node, Outs, Whose};
use crate::bearer::{Bearer, Peer, Side};
use crate::link::LinkCause;
use crate::paths;

/// A bearer's far ends that are tunnels'.
fn tunnels(bearer: &Bearer) -> impl Iterator<Item = (Side, Peer)> {
    let ends = Side::BOTH.map(|side| (side, bearer.peer(side)));
    ends.into_iter().filter(|(_, peer)| !peer.is_plain())
}

impl Node {
    /// A bearer has these peers, whoever has the bearer.
    pub(super) fn know_peers(&mut self, bearer: &Bearer) {
        for (side, peer) in tunnels(bearer) {
            // Where there are too many its owner has not taken the bearer either.
            self.function.bearers.paths.know(side, peer.address);
        }
    }

    /// It has them no more.
    pub(super) fn forget_peers(&mut self, bearer: &Bearer) {
        let paths = &mut self.function.bearers.paths;
        for (side, peer) in tunnels(bearer) {
            paths.forget(side, peer.address);
        }
    }

    /// Does with a packet what is to be done with such a one, or has another worker do it.
    #[inline]
    pub(super) fn share_or_deal(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        what: &Met,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        match self.share(port, packet, what, outs) {
            Some(outcome) => outcome,
            None => self.deal(port, packet, what, outs),
        }
    }

    /// Hands a message over that another worker is to deal with. None: it is this worker's, perhaps among others.
    #[inline]
    fn share(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        what: &Met,
        outs: &mut Outs,
    ) -> Option<Result<(), LinkCause>> {
        if self.workers == 1 || self.is_work {
            return None;
        }
        let Met::Message(datagram) = what else {
            return None;
        };
        match (datagram.kind, datagram.teid) {
            (ECHO_RESPONSE, 0) => {
                let asker = paths::asker(datagram.outer.source, self.workers);
                if asker == self.worker {
                    return None;
                }
                Some(outs.hand_over(Whose::Worker(asker), packet))
            }
            (ERROR_INDICATION, 0) => {
                self.share_with_all(port, packet, outs);
                None
            }
            _ => None,
        }
    }

    /// Hands copies to all other workers.
    pub(super) fn share_with_all(&mut self, port: u16, packet: Packet<'_>, outs: &mut Outs) {
        let counts = &mut self.counts[usize::from(port)];
        let others = self.workers as u64 - 1;
        counts.made += others;
        if let Err(cause) = outs.hand_over(Whose::Others, packet) {
            counts.drop_many(cause, others);
        }
    }
}
