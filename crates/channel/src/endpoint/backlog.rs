//! What waits for room while its participant does something else: messages of dead members of a group, the word to a client that there is
//! no reply, and what a user who waits himself could not send.

use std::time::{Duration, Instant};

use millrace_shm::link::flags;

use super::{Endpoint, Held};
use crate::inbox::{Inbox, Taken};
use crate::outbox::{Details, Outbox};

/// Tells a client that its request gets no reply. False: there is no room for that.
fn say_none(replies: &mut Outbox, request: u64) -> bool {
    let Ok(buffer) = replies.loan(0) else {
        return false;
    };
    match replies.push(buffer, Details::of_reply(request, flags::NO_REPLY)) {
        Ok(_) => replies.publish(),
        Err((buffer, _)) => {
            replies.pool_mut().give_back(buffer);
            return false;
        }
    }
    true
}

fn give_back(inbox: &mut Inbox, request: &Taken) {
    inbox.release(request.source, request.publisher, request.descriptor.ticket);
}

impl Endpoint {
    /// A request gets no reply: its client is told so, and it is given back then. Where there is no room for that it waits, so that a
    /// client that takes no replies has no more requests under way than its link has slots.
    pub(crate) fn let_fall(&mut self, request: Taken) {
        if self.check().is_err() {
            return;
        }
        let is_its = |held: &&mut Held| {
            held.source == Some(request.source) && held.peer == request.publisher
        };
        let held = self.links.iter_mut().flatten().find(is_its);
        let Some((held, replies)) =
            held.and_then(|held| Some((&mut held.owed, held.replies.as_mut()?)))
        else {
            // Its client has gone, or is left: to that it is lost, or another server's.
            self.inbox.abandon(&request);
            return self.report_over();
        };
        if held.is_empty() && say_none(replies, request.sequence) {
            give_back(&mut self.inbox, &request);
        } else {
            held.push_back(request);
            self.rearm();
        }
        self.report_over();
    }

    /// Does what there was no room for.
    pub(super) fn work_off(&mut self) {
        if let Some(outbox) = self.outbox.as_mut().filter(|outbox| outbox.has_orphans()) {
            outbox.collect_all();
            self.part_with_slow();
        }
        for held in self.links.iter_mut().flatten() {
            while let (Some(replies), Some(request)) = (&mut held.replies, held.owed.front())
                && say_none(replies, request.sequence)
            {
                give_back(&mut self.inbox, request);
                held.owed.pop_front();
            }
        }
    }

    /// Where something waits for room: says to those who are to make it that this end sleeps. False: there may be some.
    pub(super) fn backlog_sleeps(&mut self) -> bool {
        let is_refused = self.is_refused;
        let waits = |outbox: &&mut Outbox| is_refused || outbox.has_orphans();
        let waiting = self.outbox.iter_mut().filter(waits);
        let links = self.links.iter_mut().flatten();
        let owing = links.filter(|held| !held.owed.is_empty());
        let mut all = waiting.chain(owing.filter_map(|held| held.replies.as_mut()));
        all.all(Outbox::sleep)
    }

    /// Takes what everybody has given back.
    pub(super) fn collect_all(&mut self) {
        let links = self.links.iter_mut().flatten();
        let replies = links.filter_map(|held| held.replies.as_mut());
        let all = self.outbox.iter_mut().chain(replies);
        all.for_each(|outbox| {
            outbox.collect_all();
        });
    }

    pub(super) fn has_orphans(&self) -> bool {
        self.outbox.as_ref().is_some_and(Outbox::has_orphans)
    }

    /// At the end of whatever may have heard a bell, or said that this end is awake: somebody who waits on [`Endpoint::epoll`] himself is
    /// woken by what comes from now on, and at once where there is something.
    pub(crate) fn rearm(&mut self) {
        if !self.is_watched {
            return;
        }
        if !self.inbox.sleep() || self.has_lost() {
            self.ring_own();
        }
        self.rearm_backlog();
    }

    /// His message found no room, as he is told: he is woken when there may be some.
    pub(crate) fn note_refused(&mut self) {
        self.is_refused = true;
        if !self.is_watched {
            return;
        }
        // What others have given back would wake him for nothing, again and again; what came back just now may be the room.
        if self.outbox.as_mut().is_some_and(Outbox::collect_all) {
            self.ring_own();
        }
        self.rearm();
    }

    /// He is woken, too, when there is room for what waits, and when something is to be done again.
    pub(super) fn rearm_backlog(&mut self) {
        if !self.backlog_sleeps() {
            // Once, until he is refused again.
            self.is_refused = false;
            self.ring_own();
        }
        let now = Instant::now();
        let is_refused = self.is_refused;
        let waits = |outbox: &&Outbox| is_refused || outbox.has_orphans();
        let outbox = self.outbox.as_ref().filter(waits);
        let slow = outbox.and_then(|outbox| outbox.slow(now, self.options.patience?).1);
        let due = self.retry_in(now).into_iter().chain(slow).min();
        // Where there is no timer to be had, the next news or call does.
        let _ = self.alarm.set(
            due.map(|due| due.max(Duration::from_millis(1))),
            &self.epoll,
        );
    }
}
