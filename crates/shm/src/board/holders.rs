//! Which processes hold an end: their count, and as many of their numbers as there is room for.
//!
//! A process that is killed does not say that it lets go. Whoever needs to know asks the kernel whether the others are alive, by their
//! numbers. A number that another process has got meanwhile counts as alive: then the connection is slower, and right.
//!
//! | a place has | meaning | becomes |
//! |---|---|---|
//! | 0 | free | a token or a number |
//! | a token: the highest bit, and what no other fork has | a child that is being made | its number, by child or parent, whoever is first |
//! | [`UNKNOWN`] | a holder whose number means nothing here | 0, by itself |
//! | another number | that process | 0, by itself, or by whoever finds it dead; the next, by itself |
//! | a number and [`STRANGER`] | that process, which has become a program that knows of no ring | 0, by whoever finds it dead |
//!
//! What a stranger starts, nobody sees: a shell ends, and its command goes on in the background. So the end has [`flags::HEIRS`] from a
//! stranger's death on, and is nobody's alone any more.
//!
//! The count goes up before a place is taken and down after it is given up: a holder that dies in between, or finds no place, counts for
//! ever. **Forbidden**: counting a holder down twice. So only who has emptied a place counts down for it. And using a token again: the
//! child of an earlier fork may begin only now, and would name itself in the place of another.
//!
//! The last holder's number stays in its place when the count comes to zero, until the record is another end's: it has not said yet that
//! the record is free, and may be killed before it does. Whoever finds a count of zero and a dead number there may use the record.

use super::{Identity, flags};
use crate::atomic::{AtomicU32, Ordering};

/// How many holders of an end are known by number.
pub const PLACES: usize = 8;

/// A holder in another PID namespace. No process has this number (`PID_MAX_LIMIT` is 2^22).
pub const UNKNOWN: u32 = 0x7fff_ffff;

const TOKEN: u32 = 1 << 31;
/// Of a process that has become another program. It reads and writes by the kernel only.
pub const STRANGER: u32 = 1 << 30;

/// What stands for the child of the fork that `thread` makes as the `count`th of its process. Nobody makes so many forks that it comes
/// again while one of them is under way; another process's is the same by chance once in 2^30 pairs.
#[must_use]
pub fn token(thread: u32, count: u32) -> u32 {
    // 2^32 divided by the golden ratio: threads whose numbers are near to each other are far apart.
    TOKEN | thread.wrapping_mul(0x9e37_79b1).wrapping_add(count) & (STRANGER - 1)
}

/// The number of the process that a place stands for, where it has one that means something.
#[must_use]
pub fn number(place: u32) -> Option<u32> {
    let is_number = place != 0 && place != UNKNOWN && place & TOKEN == 0;
    is_number.then_some(place & !STRANGER)
}

impl Identity {
    fn replace(&self, from: u32, to: u32) -> bool {
        self.processes.iter().any(|place: &AtomicU32| {
            place
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Whether the holder is known by this number or token.
    #[must_use]
    pub fn is_held_by(&self, process: u32) -> bool {
        let mut places = self.processes.iter();
        places.any(|place| place.load(Ordering::Relaxed) == process)
    }

    /// The end's first and only holder.
    pub fn hold_alone(&self, process: u32) {
        for place in &self.processes {
            place.store(0, Ordering::Relaxed);
        }
        self.processes[0].store(process, Ordering::Relaxed);
        self.holders.store(1, Ordering::Release);
    }

    /// Whether one more holder finds a place. If not, counting the dead out may help.
    #[must_use]
    pub fn has_place(&self) -> bool {
        self.processes
            .iter()
            .any(|place| place.load(Ordering::Relaxed) == 0)
    }

    /// One more holder: a process's number, or the token of one that is being made. False: it is the only one.
    pub fn join(&self, process: u32) -> bool {
        let is_held = self.holders.fetch_add(1, Ordering::AcqRel) != 0;
        self.replace(0, process);
        is_held
    }

    /// One more holder, which counts until it lets go.
    pub fn join_unnamed(&self) {
        self.holders.fetch_add(1, Ordering::AcqRel);
    }

    /// The child of a fork exists and has this number. Said by both processes, and true once.
    pub fn name(&self, token: u32, process: u32) {
        self.replace(token, process);
    }

    /// The holder becomes another program, or, when that has failed, is what it was.
    pub fn become_stranger(&self, process: u32, failed: bool) {
        let stranger = process | STRANGER;
        if failed {
            self.replace(stranger, process);
        } else {
            self.replace(process, stranger);
        }
    }

    /// Whether all holders that there are have become other programs. One that has no place may not have.
    #[must_use]
    pub fn are_strangers(&self) -> bool {
        let places = self
            .processes
            .iter()
            .map(|place| place.load(Ordering::Acquire));
        let strangers = places.filter(|place| place & STRANGER != 0 && number(*place).is_some());
        strangers.count() >= self.holders.load(Ordering::Acquire) as usize
    }

    /// A holder lets go. True: it was the last.
    ///
    /// An [`UNKNOWN`] one that has no place may have been named by its parent, and goes when its death is seen.
    pub fn leave(&self, process: u32) -> bool {
        if process == UNKNOWN && !self.is_held_by(UNKNOWN) {
            return false;
        }
        while !self.leave_to_others(process) {
            // AcqRel: the last one sees what the others did.
            let is_last = self
                .holders
                .compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed);
            // Or else another thread makes a child just now, which counts already.
            match is_last {
                Ok(_) => return true,
                Err(0) => return false,
                Err(_) => {}
            }
        }
        false
    }

    /// A holder lets go if there are others. False: there are none, and it is what it was.
    pub fn leave_to_others(&self, process: u32) -> bool {
        let mut had_place = false;
        loop {
            let count = self.holders.load(Ordering::Acquire);
            if count <= 1 {
                // They have all gone just now.
                if had_place {
                    self.replace(0, process);
                }
                return false;
            }
            // Who tried in vain to become another program may be marked still.
            had_place |= self.replace(process, 0) || self.replace(process | STRANGER, 0);
            // AcqRel: the last one sees what the others did.
            if self
                .holders
                .compare_exchange(count, count - 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return true;
            }
        }
    }

    /// What `token` stands for is no holder any more. True: it was the last. Where the record may be another end's by now (not `stays`),
    /// one that found no place counts for ever.
    pub fn take_back(&self, token: u32, stays: bool) -> bool {
        let counts = self.replace(token, 0) || stays;
        counts && self.holders.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// A program that got the end, and that `token` stands for, has ended. True: it was the last that was known.
    pub fn leave_to_heirs(&self, token: u32, stays: bool) -> bool {
        if stays || self.is_held_by(token) {
            self.flags.fetch_or(flags::HEIRS, Ordering::Release);
        }
        self.take_back(token, stays)
    }

    /// Whether no other process holds the end, as far as is known here.
    #[must_use]
    pub fn is_held_alone(&self) -> bool {
        // Acquire: who sees that a stranger is counted out sees what it may have left.
        self.holders.load(Ordering::Acquire) <= 1 && !self.has_heirs()
    }

    /// Whether programs may have the end of which nobody knows.
    #[must_use]
    pub fn has_heirs(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & flags::HEIRS != 0
    }

    /// Counts the dead out; returns how many are left.
    pub fn forget_dead(&self, is_alive: impl Fn(u32) -> bool) -> u32 {
        self.count_out(is_alive);
        self.holders.load(Ordering::Acquire)
    }

    /// Whether nobody has the end, and nobody is about to say so: its last holder is found dead here and now, or died when it had let go.
    pub fn is_left(&self, is_alive: impl Fn(u32) -> bool) -> bool {
        if self.holders.load(Ordering::Acquire) != 0 {
            return self.count_out(is_alive);
        }
        let mut places = self
            .processes
            .iter()
            .map(|place| place.load(Ordering::Acquire))
            .filter(|place| *place != 0)
            .peekable();
        places.peek().is_some()
            && places.all(|place| number(place).is_some_and(|process| !is_alive(process)))
    }

    /// One holder less, if there is one; returns how many there were.
    fn count_down(&self) -> u32 {
        let mut count = self.holders.load(Ordering::Acquire);
        while let Some(less) = count.checked_sub(1) {
            let counted =
                self.holders
                    .compare_exchange(count, less, Ordering::AcqRel, Ordering::Acquire);
            match counted {
                Ok(_) => break,
                Err(now) => count = now,
            }
        }
        count
    }

    /// Counts the dead out. True: one of them was the last.
    fn count_out(&self, is_alive: impl Fn(u32) -> bool) -> bool {
        let mut was_last = false;
        for place in &self.processes {
            let holder = place.load(Ordering::Acquire);
            if number(holder).is_none_or(&is_alive) {
                continue;
            }
            if holder & STRANGER != 0 {
                self.flags.fetch_or(flags::HEIRS, Ordering::Release);
            }
            if place
                .compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                // Zero: it had let go, the last of all, since somebody looked.
                was_last = self.count_down() <= 1;
                if was_last {
                    self.replace(0, holder);
                }
            }
        }
        was_last
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_named_once_by_whoever_is_first() {
        let end = Identity::default();
        end.hold_alone(10);
        end.join(token(10, 1));
        end.name(token(10, 1), 11);
        end.name(token(10, 1), 11);
        assert_eq!(end.forget_dead(|_| true), 2);
        assert!(!end.leave(10));
        assert!(end.leave(11));
        assert!(
            !end.is_held_by(10) && end.is_held_by(11),
            "the last one's number stays"
        );
    }

    #[test]
    fn a_child_that_begins_late_is_nobody_else() {
        let end = Identity::default();
        end.hold_alone(10);
        let tokens = [token(10, 1), token(10, 2)];
        end.join(tokens[0]);
        end.name(tokens[0], 11);
        end.join(tokens[1]);
        end.name(tokens[0], 11);
        end.name(tokens[1], 12);
        assert!(end.is_held_by(12));
        assert_eq!(end.forget_dead(|process| process != 11), 2);
    }

    #[test]
    fn those_that_became_other_programs_are_known_and_count_until_they_die() {
        let end = Identity::default();
        end.hold_alone(10);
        end.join(token(10, 1));
        end.become_stranger(10, false);
        assert!(!end.are_strangers());
        end.name(token(10, 1), 11);
        end.become_stranger(11, false);
        assert!(end.are_strangers());
        end.become_stranger(11, true);
        assert!(!end.are_strangers() && end.is_held_by(11));
        assert!(!end.has_heirs());
        assert_eq!(end.forget_dead(|process| process != 10), 1);
        assert!(end.has_heirs() && !end.is_held_alone());
        end.become_stranger(11, false);
        assert!(end.leave(11));
        assert_eq!(end.forget_dead(|_| false), 0);
    }

    #[test]
    fn what_a_program_leaves_that_has_ended_is_not_known() {
        let end = Identity::default();
        end.hold_alone(10);
        end.join(token(10, 1));
        assert!(!end.take_back(token(10, 1), false));
        assert!(end.is_held_alone(), "it was not started");
        let again = token(10, 1);
        assert!(!end.take_back(again, false) && !end.leave_to_heirs(again, false));
        assert!(end.is_held_alone(), "it is another's record by now");
        end.join_unnamed();
        assert!(!end.take_back(again, true));
        assert!(end.is_held_alone(), "it had found no place");
        end.join(token(10, 2));
        assert!(!end.leave_to_heirs(token(10, 2), true));
        assert!(!end.is_held_alone());
        assert!(end.leave(10), "its record is nobody's");
    }

    #[test]
    fn the_dead_are_counted_out_once() {
        let end = Identity::default();
        end.hold_alone(10);
        for child in [11, 12, 13] {
            end.join(token(10, 1));
            end.name(token(10, 1), child);
        }
        assert_eq!(end.forget_dead(|process| process != 12), 3);
        assert_eq!(end.forget_dead(|process| process != 12), 3);
        assert_eq!(end.forget_dead(|process| process == 10), 1);
        assert!(end.leave(10));
    }

    #[test]
    fn who_has_no_name_is_never_counted_out() {
        let end = Identity::default();
        end.hold_alone(10);
        // Killed before it could say its number, and its parent did not see it.
        end.join(token(10, 1));
        end.join(UNKNOWN);
        assert_eq!(end.forget_dead(|process| process == 10), 3);
        assert!(!end.leave(UNKNOWN));
        end.join_unnamed();
        assert_eq!(end.forget_dead(|process| process == 10), 3);

        let crowd = Identity::default();
        crowd.hold_alone(1);
        for process in 2..20 {
            crowd.join(process);
        }
        assert!(!crowd.has_place());
        assert_eq!(crowd.forget_dead(|process| process == 1), 12);
        assert!(crowd.has_place());
        assert!(!crowd.leave(15), "one without a place lets go all the same");
        assert_eq!(crowd.forget_dead(|_| true), 11);
    }

    #[test]
    fn one_of_another_namespace_that_its_parent_named_goes_by_its_death() {
        let end = Identity::default();
        end.hold_alone(10);
        end.join(token(10, 1));
        end.name(token(10, 1), 5000);
        end.name(token(10, 1), UNKNOWN);
        assert!(!end.leave(UNKNOWN));
        assert_eq!(end.forget_dead(|_| true), 2);
        assert_eq!(end.forget_dead(|process| process == 10), 1);
    }

    #[test]
    fn of_two_that_end_at_once_one_stays_the_holder_until_it_is_dead() {
        let end = Identity::default();
        end.hold_alone(10);
        end.join(11);
        // Each has found that there is another.
        assert!(!end.is_held_alone());
        assert!(end.leave_to_others(10));
        assert!(!end.leave_to_others(11) && end.is_held_by(11));
        assert!(!end.is_left(|_| true));
        assert!(end.is_left(|process| process != 11));
    }

    #[test]
    fn the_last_one_may_be_killed_before_it_says_that_the_record_is_free() {
        let end = Identity::default();
        end.hold_alone(10);
        end.join(11);
        assert!(!end.leave(10) && end.leave(11));
        assert!(!end.is_left(|_| true), "it is about to say so");
        assert!(end.is_left(|process| process == 10));
        assert!(!end.leave(11), "nobody has it any more");
        end.hold_alone(12);
        assert!(!end.is_left(|_| true) && !end.is_held_by(11));
    }

    #[test]
    fn who_lets_go_is_counted_once_though_it_dies_meanwhile() {
        let end = Identity::default();
        end.hold_alone(10);
        assert!(end.leave(10));
        // Somebody had looked at the count before.
        end.forget_dead(|_| false);
        assert_eq!(end.holders.load(Ordering::Relaxed), 0);
        assert!(end.is_left(|_| false));
    }

    #[test]
    fn whoever_is_counted_out_last_is_found_by_the_next_too() {
        let end = Identity::default();
        end.hold_alone(10);
        assert_eq!(end.forget_dead(|_| false), 0);
        assert!(end.is_left(|_| false) && !end.is_left(|_| true));
    }

    #[test]
    fn a_fork_that_failed_leaves_nothing() {
        let end = Identity::default();
        end.hold_alone(10);
        end.join(token(10, 1));
        assert!(!end.leave(token(10, 1)));
        assert_eq!(end.forget_dead(|_| true), 1);
    }
}
