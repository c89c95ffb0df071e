//! Links that end, and peers that this end goes on without.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::{Endpoint, Held};
use crate::routes::PeerIndex;
use crate::sys;

/// A link for which there was no memory or descriptor is asked for again after so long.
const ASK_AFTER: Duration = Duration::from_secs(1);

impl Endpoint {
    /// The other end has gone, or goes on without this one, or could not make its end. What came from it can still be read.
    pub(super) fn leave(&mut self, index: usize) {
        if let Some(peer) = self.let_go(index) {
            // Not before: with another link it would have another share of the pool.
            self.control.say_left(peer);
        }
    }

    /// Lets go of a link. Returns with whom that is over; where messages came from there, it is over when they were read.
    pub(super) fn let_go(&mut self, index: usize) -> Option<u64> {
        let held = self.links.get_mut(index).and_then(Option::take)?;
        let _ = self.epoll.delete(held.bell.as_fd());
        for request in &held.owed {
            self.inbox.abandon(request);
        }
        if let Some(source) = held.source {
            self.inbox.end(source);
        }
        if let (Some(out), Some(outbox)) = (held.out, &mut self.outbox) {
            outbox.remove(out);
        }
        held.source.is_none().then_some(held.peer)
    }

    /// No link could be made here with somebody. It is asked for again after a while, when there may be what was missing.
    pub(super) fn note_unlinked(&mut self, peer: u64) {
        self.unlinked.push(peer);
        self.ask_at
            .get_or_insert_with(|| Instant::now() + ASK_AFTER);
    }

    /// Asks for those links again, when it is time.
    pub(super) fn ask_again(&mut self) {
        if self.ask_at.is_some_and(|at| at <= Instant::now()) {
            self.ask_at = None;
            for peer in std::mem::take(&mut self.unlinked) {
                self.control.say_left(peer);
            }
        }
    }

    /// How long until the agent is looked for, or asked for something, again.
    pub(super) fn retry_in(&self, now: Instant) -> Option<Duration> {
        let ask = self.ask_at.map(|at| at.saturating_duration_since(now));
        self.control.retry_in(now).into_iter().chain(ask).min()
    }

    /// Those whose links are over, and who may have another.
    pub(crate) fn report_over(&mut self) {
        for peer in std::mem::take(&mut self.inbox.over) {
            self.control.say_left(peer);
        }
    }

    /// Leaves those that give back what they do not have.
    pub(super) fn handle_liars(&mut self) {
        let liars = self
            .outbox
            .as_mut()
            .map(|outbox| std::mem::take(&mut outbox.liars))
            .unwrap_or_default();
        let lies = |held: &Held| {
            let replies = held.replies.as_ref();
            replies.is_some_and(|replies| !replies.liars.is_empty())
                || held.out.is_some_and(|out| liars.contains(&out))
        };
        self.hang_up_if(lies);
    }

    fn hang_up_if(&mut self, is_over: impl Fn(&Held) -> bool) {
        for index in 0..self.links.len() {
            if let Some(held) = self.links[index].as_ref().filter(|held| is_over(held)) {
                sys::hang_up(&held.bell);
                // A subscriber that lies gets no other link.
                let _ = self.let_go(index);
            }
        }
    }

    fn part_with(&mut self, slow: &[PeerIndex]) {
        for held in self.links.iter_mut().flatten() {
            if let Some(out) = held.out.filter(|out| slow.contains(out)) {
                held.is_parted = true;
                self.outbox.iter_mut().for_each(|outbox| outbox.part(out));
            }
        }
    }

    /// Goes on without one that hinders what its user was just told cannot go, and those that have no room for what dead members had, if
    /// they have done that for too long. True: without them, or with what has come back, there may be room.
    pub(crate) fn part_with_hindering(&mut self) -> bool {
        let (Some(patience), Some(outbox)) = (self.options.patience, &mut self.outbox) else {
            return false;
        };
        let now = Instant::now();
        if outbox.slow(now, patience).0.is_empty() {
            return false;
        }
        // What they have given back has not been looked at for all.
        let is_back = outbox.collect_all();
        let (mut slow, _) = outbox.slow(now, patience);
        slow.retain(|slow| outbox.is_hindering(*slow));
        self.part_with(&slow);
        is_back || !slow.is_empty()
    }

    /// Goes on without those that have kept this one waiting, or what dead members had, for too long; returns when the next one will have.
    pub(super) fn part_with_slow(&mut self) -> Option<Duration> {
        let (patience, now) = (self.options.patience?, Instant::now());
        let own = self.outbox.as_ref();
        let own = own.filter(|outbox| outbox.is_waited() || outbox.has_heirs());
        let own = own.map(|outbox| {
            let (mut slow, next) = outbox.slow(now, patience);
            slow.retain(|slow| outbox.is_hindering(*slow));
            (slow, next)
        });
        let (slow, next) = own.unwrap_or_default();
        self.part_with(&slow);
        // A client that takes no replies can read what it has, and its requests come back to it.
        let of_replies = |held: &Held| {
            let replies = held.replies.as_ref();
            let waited = replies.filter(|replies| replies.is_waited());
            waited.map(|replies| replies.slow(now, patience))
        };
        let is_slow = |held: &Held| of_replies(held).is_some_and(|(slow, _)| !slow.is_empty());
        let is_any_slow = !slow.is_empty() || self.links.iter().flatten().any(is_slow);
        self.hang_up_if(is_slow);
        if is_any_slow {
            // Without them there may be room: that is looked at first.
            return Some(Duration::ZERO);
        }
        let others = self.links.iter().flatten().filter_map(of_replies);
        let others = others.filter_map(|(_, left)| left);
        next.into_iter().chain(others).min()
    }
}
