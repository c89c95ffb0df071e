//! Requests that have no answer yet, and who is to give it.

use std::collections::{BTreeMap, VecDeque};

/// Of a request that is answered, or whose number went to nobody.
const DONE: u64 = 0;
/// In the place of a server, of a request that found none.
pub(crate) const NOBODY: u64 = u64::MAX;

/// So many numbers lie side by side. Of those before, only the ones that wait still are kept.
const WINDOW: usize = 4096;

/// Numbers of requests, of which each is answered once at most, and by the server that has it.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The number of the first entry, or of the next request.
    first: u64,
    /// The server that each request has gone to last; the first is not done.
    servers: VecDeque<u64>,
    /// Those that have waited for longer than so many that came after them.
    older: BTreeMap<u64, u64>,
    count: usize,
    /// Of those that wait, what nobody will answer.
    lost: VecDeque<u64>,
}

impl Pending {
    /// A request of this number has gone to a server: for the first time, with numbers in order, or again.
    pub(crate) fn went(&mut self, number: u64, server: u64) {
        if self.servers.is_empty() {
            self.first = self.first.max(number);
        }
        let next = self.first + self.servers.len() as u64;
        let Some(missing) = number.checked_sub(next) else {
            if let Some(holder) = self.holder(number).filter(|holder| **holder != DONE) {
                *holder = server;
            }
            return;
        };
        self.servers.extend((0..missing).map(|_| DONE));
        self.servers.push_back(server);
        self.count += 1;
        while self.servers.len() > WINDOW {
            if let Some(server) = self.servers.pop_front().filter(|server| *server != DONE) {
                self.older.insert(self.first, server);
            }
            self.first += 1;
        }
        self.skip_done();
    }

    fn holder(&mut self, number: u64) -> Option<&mut u64> {
        if number < self.first {
            return self.older.get_mut(&number);
        }
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.servers.get_mut(place)
    }

    /// This server has answered a request. False: it does not have that, or has answered it before.
    pub(crate) fn answer(&mut self, number: u64, server: u64) -> bool {
        let is_its = self
            .holder(number)
            .is_some_and(|holder| *holder == server && server != DONE);
        if is_its {
            self.settle(number);
        }
        is_its
    }

    /// This server will not answer a request any more, nor will another one.
    pub(crate) fn give_up(&mut self, number: u64, server: u64) {
        let holder = self.holder(number);
        if holder.is_some_and(|holder| *holder == server && server != DONE) {
            self.lost.push_back(number);
        }
    }

    /// Whoever had this request, it will not be answered.
    pub(crate) fn forget(&mut self, number: u64) {
        if self.holder(number).is_some_and(|holder| *holder != DONE) {
            self.lost.push_back(number);
        }
    }

    /// The next that nobody will answer.
    pub(crate) fn next_lost(&mut self) -> Option<u64> {
        loop {
            let number = self.lost.pop_front()?;
            // Its answer may have come after all.
            if self.holder(number).is_some_and(|holder| *holder != DONE) {
                self.settle(number);
                return Some(number);
            }
        }
    }

    /// Whether there is one that nobody will answer.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    fn settle(&mut self, number: u64) {
        if let Some(holder) = self.holder(number) {
            *holder = DONE;
            self.count -= 1;
        }
        self.older.remove(&number);
        self.skip_done();
    }

    fn skip_done(&mut self) {
        while self.servers.front() == Some(&DONE) {
            self.servers.pop_front();
            self.first += 1;
        }
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::{Pending, WINDOW};

    #[test]
    fn each_request_is_answered_once_in_whatever_order() {
        let mut pending = Pending::default();
        assert!(!pending.answer(0, 1));
        for number in [5, 6, 8] {
            pending.went(number, 1);
        }
        assert_eq!(pending.count(), 3);
        for number in [7, 4, 9] {
            assert!(!pending.answer(number, 1));
        }
        assert!(pending.answer(6, 1) && !pending.answer(6, 1));
        assert!(pending.answer(5, 1) && pending.answer(8, 1));
        assert_eq!((pending.count(), pending.servers.len()), (0, 0));
        pending.went(20, 1);
        assert!(pending.answer(20, 1));
    }

    #[test]
    fn one_that_is_never_answered_keeps_no_place_for_those_after_it() {
        let mut pending = Pending::default();
        pending.went(0, 1);
        for number in 1..10 * WINDOW as u64 {
            pending.went(number, 2);
            assert!(pending.answer(number, 2));
        }
        assert!(pending.servers.len() <= WINDOW && pending.older.len() <= 1);
        assert_eq!(pending.count(), 1);
        pending.went(0, 2);
        assert!(!pending.answer(0, 1) && !pending.answer(1, 2));
        assert!(pending.answer(0, 2) && !pending.answer(0, 2));
        assert_eq!((pending.count(), pending.older.len()), (0, 0));
    }

    #[test]
    fn only_the_server_that_has_a_request_answers_it() {
        let mut pending = Pending::default();
        pending.went(0, 1);
        pending.went(1, 2);
        assert!(!pending.answer(0, 2) && !pending.answer(1, 1) && !pending.answer(0, 0));
        pending.went(0, 2);
        assert!(!pending.answer(0, 1), "it is another's now");
        pending.give_up(1, 1);
        assert!(!pending.has_lost(), "not its to give up");
        assert!(pending.answer(0, 2) && pending.answer(1, 2));
        pending.went(1, 3);
        assert!(!pending.answer(1, 3), "it was answered before");
        assert_eq!(pending.count(), 0);
    }

    #[test]
    fn what_nobody_will_answer_is_told_once_and_not_where_an_answer_came_first() {
        let mut pending = Pending::default();
        for number in 0..3 {
            pending.went(number, 1);
            pending.give_up(number, 1);
        }
        assert!(pending.answer(1, 1));
        assert_eq!(pending.next_lost(), Some(0));
        assert_eq!(pending.next_lost(), Some(2));
        assert_eq!((pending.next_lost(), pending.count()), (None, 0));
    }
}
