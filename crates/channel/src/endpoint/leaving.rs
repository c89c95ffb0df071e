//! Links that end, and peers that this end goes on without.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::{Endpoint, Held};
use crate::sys;

impl Endpoint {
    /// The other end has gone, or goes on without this one. What came from it can still be read.
    pub(super) fn leave(&mut self, index: usize) {
        let Some(held) = self.links.get_mut(index).and_then(Option::take) else {
            return;
        };
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
        if held.is_parted && held.source.is_none() {
            // Not before: with another link it would have another share of the pool. Where messages come from it, too, it is over when they
            // were read.
            self.control.say_left(held.peer);
        }
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
                self.leave(index);
            }
        }
    }

    /// Goes on without those that have kept this one waiting, or what dead members had, for too long; returns when the next one will have.
    pub(super) fn part_with_slow(&mut self) -> Option<Duration> {
        let (patience, now) = (self.patience?, Instant::now());
        let own = self.outbox.as_ref();
        let own = own.filter(|outbox| outbox.is_waited() || outbox.has_orphans());
        let own = own.map(|outbox| outbox.slow(now, patience));
        let (slow, next) = own.unwrap_or_default();
        for held in self.links.iter_mut().flatten() {
            if let Some(out) = held.out.filter(|out| slow.contains(out)) {
                held.is_parted = true;
                self.outbox.iter_mut().for_each(|outbox| outbox.part(out));
            }
        }
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
