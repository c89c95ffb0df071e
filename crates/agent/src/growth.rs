//! Growth: most connections need no more than the small rings of their segment's header page. One that does asks, and the agent allocates
//! a part of the large ring of that direction: first for messages, then for bulk. Who asks, pays.

use tracing::debug;

use crate::offers::OfferKey;
use crate::server::Server;

impl Server {
    /// A sender's ring is too small for it.
    pub(crate) fn handle_grow(&mut self, key: OfferKey) {
        if let Err(what) = self.grow(key) {
            debug!(client = key.0.0, offer = key.1, "no larger ring: {what}");
        }
    }

    fn grow(&mut self, key: OfferKey) -> Result<(), String> {
        let (pairing, direction) = self.pairings.get(key).ok_or("there is no other end")?;
        let (connection_id, granted) = (pairing.connection_id, pairing.granted[direction]);
        let Some(next) = self.segments.next_step(granted) else {
            return Ok(());
        };
        for end in &pairing.ends {
            // An end that has not joined yet forgets what its row says.
            self.row_of(end, connection_id)
                .map_err(|refusal| refusal.to_string())?;
        }
        let payer = self.payer(key.0);
        let more = u64::from(next) - u64::from(granted);
        if !self.segments.charge_growth(connection_id, payer, more) {
            return Err("a quota is used up".to_owned());
        }
        let (pairing, _) = self.pairings.get(key).ok_or("there is no other end")?;
        if let Err(error) = pairing.segment.allocate(direction, next) {
            self.segments.undo_growth(connection_id);
            return Err(error.to_string());
        }
        let [sender, receiver] = [direction, 1 - direction].map(|index| &pairing.ends[index]);
        // In this order: a receiver that opens a larger window finds a sender that may use it.
        if let Ok(row) = self.row_of(sender, connection_id) {
            row.send.grant.give(connection_id, next.ilog2());
        }
        if let Ok(row) = self.row_of(receiver, connection_id) {
            row.receive.grant.give(connection_id, next.ilog2());
        }
        self.metrics.grown += 1;
        self.pairings.grant(key, next);
        Ok(())
    }
}
