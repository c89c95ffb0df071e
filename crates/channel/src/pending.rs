//! Requests that have no reply yet.

use std::collections::VecDeque;

/// Numbers of requests, of which each is answered once at most.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The number of the first entry.
    first: u64,
    /// Whether each has been answered; the first has not.
    answered: VecDeque<bool>,
    count: usize,
}

impl Pending {
    /// A request of this number has gone out. Numbers are given in order.
    pub(crate) fn add(&mut self, number: u64) {
        if self.answered.is_empty() {
            self.first = number;
        }
        let missing = number.saturating_sub(self.first + self.answered.len() as u64);
        // Numbers that went to nobody.
        self.answered.extend((0..missing).map(|_| true));
        self.answered.push_back(false);
        self.count += 1;
    }

    /// An answer to it has come. False: there was one before, or no such request.
    pub(crate) fn answer(&mut self, number: u64) -> bool {
        let place = number
            .checked_sub(self.first)
            .and_then(|place| usize::try_from(place).ok());
        let Some(answered) = place.and_then(|place| self.answered.get_mut(place)) else {
            return false;
        };
        if std::mem::replace(answered, true) {
            return false;
        }
        self.count -= 1;
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.first += 1;
        }
        true
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::Pending;

    #[test]
    fn each_request_is_answered_once_in_whatever_order() {
        let mut pending = Pending::default();
        assert!(!pending.answer(0));
        for number in [5, 6, 8] {
            pending.add(number);
        }
        assert_eq!(pending.count(), 3);
        assert!(!pending.answer(7) && !pending.answer(4) && !pending.answer(9));
        assert!(pending.answer(6) && !pending.answer(6));
        assert!(pending.answer(5) && pending.answer(8));
        assert_eq!((pending.count(), pending.answered.len()), (0, 0));
        pending.add(20);
        assert!(pending.answer(20));
    }
}
