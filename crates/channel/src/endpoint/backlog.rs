//! What waits for room while its participant does something else: messages of dead members of a group, and the word to a client that there
//! is no reply.

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
            return self.inbox.abandon(&request);
        };
        if held.is_empty() && say_none(replies, request.sequence) {
            give_back(&mut self.inbox, &request);
        } else {
            held.push_back(request);
        }
    }

    /// Does what there was no room for.
    pub(super) fn work_off(&mut self) {
        if let Some(outbox) = self.outbox.as_mut().filter(|outbox| outbox.has_orphans()) {
            outbox.collect_all();
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
        let waiting = self.outbox.iter_mut().filter(|outbox| outbox.has_orphans());
        let links = self.links.iter_mut().flatten();
        let owing = links.filter(|held| !held.owed.is_empty());
        let mut all = waiting.chain(owing.filter_map(|held| held.replies.as_mut()));
        all.all(Outbox::sleep)
    }

    /// Somebody waits on [`Endpoint::epoll`] himself: he is woken when there is room for what waits, and when it is time to look for the
    /// agent again.
    pub(super) fn watch_for_own(&mut self) {
        if !self.backlog_sleeps() {
            self.ring_own();
        }
        let due = self.control.retry_in(Instant::now());
        // Where there is no timer to be had, the next news or call does.
        let _ = self.alarm.set(
            due.map(|due| due.max(Duration::from_millis(1))),
            &self.epoll,
        );
    }
}
