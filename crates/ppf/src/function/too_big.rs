//! Packets that are longer than their path takes.

use millrace_wire::gtpu::Message;

use super::carry::Way;
use super::{Function, Verdict};
use crate::bearer::{BearerId, Side};
use crate::cause::Cause;
use crate::inner;

impl Function {
    /// Whether a message, or a user's packet that leaves as it is, is longer than its path takes.
    #[inline]
    pub(super) fn is_too_big(&self, way: &Way<'_>) -> bool {
        let (Way::Tunnel { side, .. } | Way::Plain { side, .. }) = way else {
            return false;
        };
        let mtu = self.settings.mtu[*side as usize];
        mtu != 0 && outer_bytes(way) > mtu
    }

    /// Tells a packet's sender by the way that it came.
    pub(super) fn tell_too_big(
        &mut self,
        id: BearerId,
        from: Side,
        message: Option<&Message<'_>>,
        packet: &[u8],
        way: &Way<'_>,
        now_ns: u64,
    ) -> Verdict<'static> {
        let dropped = self.drop(from, Cause::TooBig);
        if !self.too_big.allows(self.settings.errors_per_second, now_ns) {
            return dropped;
        }
        let mtu = self.settings.mtu[from.other() as usize];
        let around = outer_bytes(way).saturating_sub(packet.len());
        let gateway = self.settings.gateways[usize::from(packet[0] >> 4 == 6)];
        if let Some(told) = inner::too_big(packet, mtu.saturating_sub(around), gateway) {
            self.send_back(id, from, message, told);
        }
        dropped
    }
}

/// Bytes of the packet that leaves.
fn outer_bytes(way: &Way<'_>) -> usize {
    match way {
        Way::Tunnel {
            to,
            header_bytes,
            body,
            ..
        } => {
            let internet = if to.address.is_ipv4() { 20 } else { 40 };
            internet + 8 + header_bytes + body.len()
        }
        Way::Plain {
            header_bytes, body, ..
        } => header_bytes + body.len(),
        Way::Ends => 0,
    }
}
