//! Outer packets that come in parts: what is whole goes through the node as a packet of its own, as if it had come so.

use millrace_port::{Burst, HEAD_BYTES, Packet};

use super::meet::Parted;
use super::{Node, Outs};
use crate::bearer::Side;
use crate::cause::Drops;
use crate::ethernet::{Frame, IPV4, IPV6};
use crate::fragment::Fragment;
use crate::ip::{UDP, Written};
use crate::link::LinkCause;
use crate::reassembly::{Outcome, Reassembler, ReassemblyLimits};

impl Node {
    /// Has parts of outer packets wait as these limits say, on each side.
    #[must_use]
    pub fn with_reassembly(mut self, limits: ReassemblyLimits) -> Node {
        self.reassemblers = Side::BOTH.map(|_| Reassembler::new(limits));
        self
    }

    /// What was dropped, of what came by a side's ports, by causes of the function: messages, and parts of outer packets.
    #[must_use]
    pub fn drops(&self, side: Side) -> Drops {
        let mut drops = *self.function.drops(side);
        drops.add_all(self.reassemblers[side as usize].drops());
        drops
    }

    /// Parts of outer packets that wait for the others.
    #[must_use]
    pub fn waiting_parts(&self) -> usize {
        let parts = self.reassemblers.iter();
        parts.map(Reassembler::waiting_parts).sum()
    }

    /// Takes a part. It is a packet that waits until its whole is there, and consumed then; the whole is one that was made.
    #[cold]
    pub(super) fn handle_part(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        parted: &Parted,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let interface = &self.interfaces[usize::from(port)];
        let reassembler = &mut self.reassemblers[interface.side as usize];
        // Once: what is judged is what is kept, whatever the memory that it came in is by then.
        let shown = &mut self.shown[..parted.length];
        packet.copy_to(parted.at, shown);
        let fragment = match Fragment::parse(shown) {
            Ok(Some(fragment)) if fragment.protocol == UDP => fragment,
            Ok(_) => return Err(LinkCause::Fragment),
            Err(cause) => {
                reassembler.refuse(cause);
                return Ok(());
            }
        };
        let outcome = reassembler.handle_fragment(&fragment, self.now_ns);
        let Outcome::Whole {
            class,
            parts,
            bytes,
            ..
        } = outcome
        else {
            return Ok(());
        };
        let counts = &mut self.counts[usize::from(port)];
        counts.consumed += parts as u64;
        counts.made += 1;
        let mut ip = Written::new(fragment.source, fragment.destination, UDP, bytes.len());
        ip.class = class;
        let kind = if ip.source.is_ipv4() { IPV4 } else { IPV6 };
        let mut lead = [0; HEAD_BYTES];
        let (own, vlan) = (interface.mac, interface.vlan);
        let begin = Frame::emit(&mut lead, own, parted.mac, vlan, kind);
        ip.emit(&mut lead[begin..]).ok_or(LinkCause::IpHeader)?;
        let end = begin + ip.bytes();
        let Some(mut whole) = self.own.take() else {
            return Err(LinkCause::NoRoom);
        };
        whole.clear();
        let dealt = match whole.push(bytes) && whole.insert(0, 0, &lead[..end]) {
            true => self.deal_whole(port, &whole, outs),
            false => Err(LinkCause::TooLong),
        };
        self.own = Some(whole);
        dealt
    }

    /// Does with a packet that was put together what is to be done with such a one. It is no part, and so this is not done again.
    fn deal_whole(&mut self, port: u16, burst: &Burst, outs: &mut Outs) -> Result<(), LinkCause> {
        let packet = burst.get(0).ok_or(LinkCause::NoRoom)?;
        let what = self.meet(usize::from(port), packet)?;
        self.share_or_deal(port, packet, &what, outs)
    }
}
