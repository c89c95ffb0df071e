//! Recalls that have to wait for the lock of the other half. Its owner may be in the middle of a copy; or it asks, too: a reader leaves its
//! ring, and at the same time its sender closes, and each holds the lock that the other's recall needs. Then both wait for the agent, and
//! neither lock has to be taken.
//!
//! Nobody is held up meanwhile but the two; and who has waited so long that it may not wait for its answer any more has met nobody.
//!
//! A reader that was refused for another cause asks again a little later. Should its sender leave meanwhile, that one's bytes are carried
//! over as if the two had met: nobody could send them later.
//!
//! One that cannot go on to read its ring, and was refused because the agent rests (`patience`), is asked for again after the rest: what
//! was refused would be missing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use millrace_wire::Recall;

use super::Refusal;
use super::stubborn::Stubborn;
use crate::offers::ClientId;
use crate::pairings::Pairing;
use crate::server::Server;

/// So long a recall may wait. Who asked waits for its answer for twice as long.
const WAIT_MAX: Duration = Duration::from_millis(150);
/// The same of a reader that cannot go on to read its ring, and waits for its answer longer than that.
const LEAVING_WAIT_MAX: Duration = Duration::from_millis(1500);
/// Until it is tried again.
const PAUSE: Duration = Duration::from_millis(2);
/// So long a reader that asked in vain may go on to ask.
const IN_VAIN_MAX: Duration = Duration::from_millis(300);
/// Of so many such readers.
const IN_VAIN_COUNT: usize = 1024;

/// Recalls that are not answered yet, one of a client at most.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    asks: Vec<Ask>,
    in_vain: VecDeque<InVain>,
    stubborn: Stubborn,
}

/// A reader that was refused: of this direction of a connection, so long ago.
#[derive(Debug)]
struct InVain {
    connection_id: u64,
    direction: usize,
    at: Instant,
}

/// A client's wish.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) client: ClientId,
    pub(super) recall: Recall,
    /// It is a reader that cannot go on to read its ring.
    is_leaving: bool,
    since: Instant,
    again_at: Instant,
    until: Instant,
}

impl Ask {
    pub(super) fn new(client: ClientId, recall: Recall, is_leaving: bool, now: Instant) -> Ask {
        let wait_max = if is_leaving {
            LEAVING_WAIT_MAX
        } else {
            WAIT_MAX
        };
        Ask {
            client,
            recall,
            is_leaving,
            since: now,
            again_at: now,
            until: now + wait_max,
        }
    }
}

impl Waiting {
    /// Keeps a recall that came to nothing, if it may wait. `rest`: the agent did not wait for it, and will not until then.
    pub(super) fn keep(
        &mut self,
        ask: Ask,
        refusal: &Refusal,
        rest: Option<Instant>,
        now: Instant,
    ) -> bool {
        let again_at = match refusal {
            Refusal::Locked => Some(now + PAUSE),
            Refusal::Sending | Refusal::Full | Refusal::UnderWay => rest.filter(|_| ask.is_leaving),
            _ => None,
        };
        let again_at = again_at.filter(|at| {
            *at < ask.until && self.asks.iter().all(|other| other.client != ask.client)
        });
        if let Some(again_at) = again_at {
            self.asks.push(Ask { again_at, ..ask });
        }
        again_at.is_some()
    }

    /// Somebody has been answered: others may be answered by that, too.
    pub(super) fn try_soon(&mut self, now: Instant) {
        let soon = self
            .asks
            .iter_mut()
            .filter(|ask| ask.again_at <= now + PAUSE);
        soon.for_each(|ask| ask.again_at = now);
    }

    /// Notes that the reader of a direction was refused.
    pub(super) fn note_in_vain(&mut self, connection_id: u64, direction: usize, now: Instant) {
        let is_over = |it: &InVain| now.duration_since(it.at) >= IN_VAIN_MAX;
        while self.in_vain.front().is_some_and(is_over) || self.in_vain.len() >= IN_VAIN_COUNT {
            self.in_vain.pop_front();
        }
        self.in_vain.push_back(InVain {
            connection_id,
            direction,
            at: now,
        });
    }

    /// Whether the reader of a direction leaves its ring, and has not managed yet.
    pub(super) fn is_being_left(&self, connection_id: u64, direction: usize, now: Instant) -> bool {
        self.in_vain.iter().any(|it| {
            (it.connection_id, it.direction) == (connection_id, direction)
                && now.duration_since(it.at) < IN_VAIN_MAX
        })
    }

    pub(super) fn due(&mut self, now: Instant) -> Vec<Ask> {
        self.asks
            .extract_if(.., |ask| ask.again_at <= now)
            .collect()
    }

    /// Those that still wait.
    pub(super) fn at(&self, now: Instant) -> impl Iterator<Item = &Ask> {
        self.asks.iter().filter(move |ask| now < ask.until)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.asks.iter().map(|ask| ask.again_at).min()
    }
}

impl Server {
    /// As [`Waiting::keep`]; but not for the lock of a client that has let others wait for so long.
    pub(super) fn keep(
        &mut self,
        ask: Ask,
        refusal: &Refusal,
        rest: Option<Instant>,
        now: Instant,
    ) -> bool {
        let other = self
            .other_client(&ask)
            .filter(|_| matches!(refusal, Refusal::Locked));
        if other.is_some_and(|other| self.waiting.stubborn.is(other, now)) {
            return false;
        }
        let is_kept = self.waiting.keep(ask, refusal, rest, now);
        if let Some(other) = other.filter(|_| !is_kept) {
            let waited = now.saturating_duration_since(ask.since);
            self.waiting.stubborn.note(other, waited, now);
        }
        is_kept
    }

    /// Whose the other end is.
    fn other_client(&self, ask: &Ask) -> Option<ClientId> {
        let (pairing, direction) = self.asked_for(ask.client, &ask.recall).ok()?;
        let other = if ask.recall.sends {
            1 - direction
        } else {
            direction
        };
        Some(pairing.ends[other].client)
    }

    /// Tries those recalls again that had to wait.
    pub(crate) fn retry_recalls(&mut self, now: Instant) {
        let mut asks = self.waiting.due(now);
        while let Some(ask) = asks.pop() {
            self.try_recall(ask);
        }
    }

    /// The wish of the other end of a direction, which waits with its half locked.
    pub(super) fn met(&self, connection_id: u64, direction: usize, sends: bool) -> Option<Ask> {
        let now = Instant::now();
        let mut others = self.waiting.at(now).filter(|ask| ask.recall.sends != sends);
        others
            .find(|other| {
                let asked = self.asked_for(other.client, &other.recall);
                asked.is_ok_and(|(pairing, its)| {
                    (pairing.connection_id, its) == (connection_id, direction)
                        && (sends || self.is_waiting(pairing, its))
                })
            })
            .copied()
    }

    /// Whether the sender of a direction, which has asked, waits still. If not, it may have unlocked its half.
    fn is_waiting(&self, pairing: &Pairing, direction: usize) -> bool {
        let sender = self.row_of(&pairing.ends[direction], pairing.connection_id);
        sender.is_ok_and(|row| row.identity.is_asking())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_asked_in_vain_is_leaving_for_a_while() {
        let now = Instant::now();
        let mut waiting = Waiting::default();
        for connection in 0..2 * IN_VAIN_COUNT as u64 {
            waiting.note_in_vain(connection, 1, now);
        }
        assert_eq!(waiting.in_vain.len(), IN_VAIN_COUNT);
        let last = 2 * IN_VAIN_COUNT as u64 - 1;
        assert!(waiting.is_being_left(last, 1, now));
        assert!(!waiting.is_being_left(last, 0, now) && !waiting.is_being_left(0, 1, now));
        assert!(!waiting.is_being_left(last, 1, now + IN_VAIN_MAX));
        waiting.note_in_vain(last, 0, now + IN_VAIN_MAX);
        assert_eq!(waiting.in_vain.len(), 1);
    }

    #[test]
    fn who_waits_is_tried_again_until_it_is_too_late() {
        let now = Instant::now();
        let recall = Recall {
            offer_id: 1,
            connection_id: 2,
            fd: 3,
            sends: true,
        };
        let ask = Ask::new(ClientId(7), recall, false, now);
        let mut waiting = Waiting::default();
        assert!(!waiting.keep(ask, &Refusal::Full, Some(now), now));
        assert!(waiting.keep(ask, &Refusal::Locked, None, now));
        let again = waiting.keep(ask, &Refusal::Locked, None, now);
        assert!(!again, "one of a client");
        assert!(waiting.due(now).is_empty());
        let later = now + PAUSE;
        assert_eq!(waiting.next_deadline(), Some(later));
        assert_eq!(waiting.at(later).count(), 1);
        assert_eq!(waiting.at(now + WAIT_MAX).count(), 0);
        assert_eq!(waiting.due(later).len(), 1);
        assert_eq!(waiting.next_deadline(), None);
        assert!(!waiting.keep(ask, &Refusal::Locked, None, now + WAIT_MAX));
        let leaving = Ask::new(ClientId(7), recall, true, now);
        let rest = now + WAIT_MAX;
        assert!(!waiting.keep(leaving, &Refusal::Full, None, now));
        assert!(waiting.keep(leaving, &Refusal::Full, Some(rest), now));
        waiting.try_soon(now);
        assert_eq!(waiting.next_deadline(), Some(rest), "nobody ends a rest");
    }
}
