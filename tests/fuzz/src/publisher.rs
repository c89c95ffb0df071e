//! A publisher whose subscribers write what they like over their links: the others get what was sent, and all memory comes back.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use millrace_channel::{
    Channel, DetachedLoan, DetachedMessage, Error, MESSAGE_BYTES_MAX, Publisher, Subscriber,
    WhenFull,
};
use millrace_shm::Mapping;
use millrace_shm::link::{HEADER_BYTES, SubscribeEnd};
use nix::sys::socket::{Shutdown, shutdown};

use crate::messages::{Expected, Log, fill};
use crate::site::{Fresh, POOL_BYTES, Participant, Site, site};
use crate::{Choices, sys};

/// The words of a direction begin here in a link's memory; see `docs/shm-abi.md`.
const WORDS: usize = 512;
const PUBLISHER_ASLEEP: usize = WORDS + 128;
const TAKEN: usize = WORDS + 256;
const SUBSCRIBER_ASLEEP: usize = WORDS + 384;
/// Of either kind, at any one time.
const SUBSCRIBERS_MAX: usize = 4;
/// So often a hostile one rings its bell.
const RINGS_MAX: usize = 32;
/// Of these each gets every message, or else one of each group.
const GROUPS: [u64; 4] = [0, 0, 7, 8];

/// Memory for a message, its mark, and where it lies.
struct Kept {
    loan: DetachedLoan,
    mark: u64,
    place: std::ops::Range<usize>,
}

/// A subscriber that does as it should.
struct Honest {
    subscriber: Subscriber,
    /// The agent's end of its connection.
    _side: Participant,
    held: Vec<DetachedMessage>,
    group: u64,
    /// Of one outside of the groups.
    expected: Option<Expected>,
    /// Its end of the bell, by which the publisher says that it goes on without it. The publisher sees its end when this is closed, too.
    bell: OwnedFd,
    is_parted: bool,
}

/// One that does not.
struct Hostile {
    memory: Mapping,
    slots: u32,
    end: SubscribeEnd,
    tickets: Vec<u16>,
    bell: Option<OwnedFd>,
    rings: usize,
}

struct World {
    site: &'static Site,
    publisher: Publisher,
    side: Participant,
    when_full: WhenFull,
    /// What waits for a member of a group that has none is given up, and not waited for, in the end.
    deserts: bool,
    slots: u32,
    log: Log,
    marks: u64,
    kept: Vec<Kept>,
    honest: Vec<Honest>,
    hostile: Vec<Hostile>,
}

/// What the publisher and its subscribers do, as `bytes` say.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut world = World::new(&mut choices);
    world.join_honest(0, false);
    world.join_hostile(0);
    while !choices.is_empty() {
        world.step(&mut choices);
    }
    world.finish();
}

impl World {
    fn new(choices: &mut Choices<'_>) -> World {
        let site = site();
        let what = choices.byte();
        let when_full = [
            WhenFull::Block,
            WhenFull::Fail,
            WhenFull::DropOldest,
            WhenFull::DropNewest,
        ][usize::from(what & 3)];
        let channel = Channel::new("news")
            .when_full(when_full)
            .timeout(Duration::ZERO)
            .patience((what & 4 == 0).then_some(Duration::ZERO))
            .redeliver(what & 8 == 0);
        let (publisher, side) = site.publisher(channel);
        World {
            site,
            publisher,
            side,
            when_full,
            deserts: what & 0x44 == 0x40,
            slots: 2 << (what >> 4 & 3),
            log: Log::default(),
            marks: 0,
            kept: Vec::new(),
            honest: Vec::new(),
            hostile: Vec::new(),
        }
    }

    fn drops(&self) -> bool {
        matches!(self.when_full, WhenFull::DropOldest | WhenFull::DropNewest)
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 24 {
            0..=3 => self.send(choices),
            4 => self.loan(choices),
            5 => {
                if let Some(kept) = self.choose_kept(choices) {
                    self.push(kept, choices);
                }
            }
            6 => {
                if let Some(kept) = self.choose_kept(choices) {
                    drop(self.publisher.attach(kept.loan));
                }
            }
            7 | 8 => self.publisher.publish(),
            9 => self.look(),
            10 => self.come_and_go(choices.byte()),
            what @ 11..=15 => {
                let index = choices.below(self.honest.len().max(1));
                if let Some(honest) = self.honest.get_mut(index) {
                    if what < 14 {
                        honest.read(&self.log);
                    } else {
                        honest.give_back(&self.log, choices.byte().into());
                    }
                }
            }
            _ => {
                let index = choices.below(self.hostile.len().max(1));
                if let Some(hostile) = self.hostile.get_mut(index) {
                    hostile.act(choices);
                }
            }
        }
        self.note_parted();
    }

    fn choose_kept(&mut self, choices: &mut Choices<'_>) -> Option<Kept> {
        let index = choices.below(self.kept.len().max(1));
        (index < self.kept.len()).then(|| self.kept.swap_remove(index))
    }

    fn come_and_go(&mut self, what: u8) {
        let group = GROUPS[usize::from(what & 3)];
        match what >> 2 {
            how @ 0..8 if self.honest.len() < SUBSCRIBERS_MAX => {
                self.join_honest(group, how & 1 == 1);
            }
            8..32 => {
                if self.hostile.len() == SUBSCRIBERS_MAX {
                    self.hostile.remove(0);
                    self.look_well();
                }
                self.join_hostile(group);
            }
            how @ 32..40 if !self.honest.is_empty() => {
                let index = usize::from(how) % self.honest.len();
                self.honest.swap_remove(index);
            }
            _ => {
                // Whether it had to wait for somebody does not matter.
                let _ = self.publisher.drain(Duration::ZERO);
            }
        }
    }

    /// The publisher takes its news. It does so when it cannot do what it is asked.
    fn look(&self) {
        let asked = self.publisher.try_loan(MESSAGE_BYTES_MAX + 1);
        assert!(matches!(asked, Err(Error::TooLong { .. })));
    }

    /// Takes all of its news: of a bell that was rung often, one look hears one ring.
    fn look_well(&self) {
        (0..RINGS_MAX + 16).for_each(|_| self.look());
    }

    fn loan(&mut self, choices: &mut Choices<'_>) {
        let (bytes, waits) = (choices.size() - 1, choices.byte() & 7 == 0);
        let loan = if waits {
            self.publisher.loan(bytes)
        } else {
            self.publisher.try_loan(bytes)
        };
        match loan {
            Ok(mut loan) => {
                self.marks += 1;
                fill(self.marks, &mut loan);
                let start = loan.as_ptr().addr();
                let kept = Kept {
                    place: start..start + bytes,
                    loan: loan.detach(),
                    mark: self.marks,
                };
                let is_other = |other: &Kept| {
                    other.place.end <= kept.place.start || kept.place.end <= other.place.start
                };
                assert!(self.kept.iter().all(is_other), "lent twice");
                self.kept.push(kept);
            }
            Err(error) => assert!(matches!(error, Error::Full | Error::TimedOut)),
        }
    }

    fn send(&mut self, choices: &mut Choices<'_>) {
        let count = self.kept.len();
        self.loan(choices);
        if self.kept.len() > count
            && let Some(kept) = self.kept.pop()
        {
            self.push(kept, choices);
        }
    }

    fn push(&mut self, kept: Kept, choices: &mut Choices<'_>) {
        let what = choices.byte();
        let key = (what & 1 == 1).then_some(u64::from(what >> 4));
        let loan = self.publisher.attach(kept.loan);
        let pushed = match key {
            key if what & 6 != 0 => self.publisher.try_push(loan, key),
            None => self.publisher.push(loan),
            Some(key) => self.publisher.push_keyed(loan, key),
        };
        let pushed = pushed.map_err(|failed| failed.error);
        if what & 8 == 0 {
            self.publisher.publish();
        }
        self.note_parted();
        match pushed {
            Ok(sequence) => {
                self.log.note(sequence, kept.mark, kept.place.len());
                let singles = self.honest.iter_mut().filter(|honest| !honest.is_parted);
                let expected = singles.filter_map(|honest| honest.expected.as_mut());
                expected.for_each(|expected| expected.push(sequence));
            }
            Err(error) => {
                assert!(!self.drops(), "{error}");
                let is_alone = self.honest.iter().all(|honest| honest.is_parted);
                let is_known = matches!(error, Error::Full | Error::TimedOut);
                assert!(
                    is_known || is_alone && matches!(error, Error::NoReceiver),
                    "{error}"
                );
            }
        }
    }

    /// Whom the publisher has left: that is for those that had no room, where it does not bear that.
    fn note_parted(&mut self) {
        self.side.hear_out();
        for honest in &mut self.honest {
            honest.is_parted |= sys::is_left(&honest.bell);
        }
    }

    fn join_honest(&mut self, group: u64, is_watched: bool) {
        let (subscriber, side) = self.site.subscriber();
        let fresh = Fresh::new(self.slots);
        fresh.give_publisher(&self.side, side.id, group);
        let overwrites = self.when_full == WhenFull::DropOldest;
        fresh.give_subscriber(&side, self.side.id, &self.side.pool(), overwrites);
        let bell = fresh.bells.into_iter().nth(1).expect("two of them");
        self.look();
        if is_watched {
            let _ = subscriber.as_fd();
        }
        let mut honest = Honest {
            subscriber,
            _side: side,
            held: Vec::new(),
            group,
            expected: (group == 0).then(|| Expected::new(self.drops())),
            bell,
            is_parted: false,
        };
        honest.read(&self.log);
        self.honest.push(honest);
    }

    fn join_hostile(&mut self, group: u64) {
        let fresh = Fresh::new(self.slots);
        fresh.give_publisher(&self.side, self.site.stranger(), group);
        let overwrites = self.when_full == WhenFull::DropOldest;
        self.hostile.push(Hostile {
            memory: fresh.map(),
            slots: fresh.slots,
            end: SubscribeEnd::new(fresh.attach(), 0, overwrites),
            tickets: Vec::new(),
            bell: fresh.bells.into_iter().nth(1),
            rings: 0,
        });
    }

    /// The honest ones read all there is and give it back. Returns how many messages that were.
    fn read_all(&mut self) -> usize {
        let mut count = 0;
        loop {
            self.look();
            let before = count;
            for honest in &mut self.honest {
                while honest.read(&self.log) {
                    count += 1;
                }
                while honest.give_back(&self.log, 0) {}
            }
            if count == before {
                return count;
            }
        }
    }

    /// The hostile ones go. Then the honest ones read all there is, and get what comes next; when they have gone, too, the pool is empty.
    fn finish(mut self) {
        self.hostile.clear();
        for kept in std::mem::take(&mut self.kept) {
            drop(self.publisher.attach(kept.loan));
        }
        self.publisher.publish();
        self.look_well();
        if !self.deserts {
            // What dead members of the groups had waits for others.
            self.join_honest(GROUPS[2], false);
            self.join_honest(GROUPS[3], false);
        }
        self.read_all();
        self.note_parted();
        if self.deserts {
            // One that was not left by now gets what comes next.
            self.join_honest(0, false);
        }
        let sent = self.log.count();
        self.send(&mut Choices(&[8, 65, 1, 2]));
        assert_eq!(self.log.count(), sent + 1, "there is room");
        let gets_it = |honest: &&Honest| honest.expected.is_some() && !honest.is_parted;
        let singles = self.honest.iter().filter(gets_it).count();
        let has_member = |group: &&u64| {
            let mut members = self.honest.iter().filter(|honest| !honest.is_parted);
            members.any(|honest| honest.group == **group)
        };
        let groups = GROUPS[2..].iter().filter(has_member).count();
        assert_eq!(self.read_all(), singles + groups, "so many get it");
        for honest in &self.honest {
            honest.expected.iter().for_each(Expected::finish);
        }
        self.honest.clear();
        self.look();
        let is_drained = self.publisher.drain(Duration::ZERO);
        assert!(is_drained || self.deserts, "nothing is out");
        let all = self.publisher.try_loan(POOL_BYTES);
        assert!(all.is_ok(), "all memory has come back");
    }
}

impl Honest {
    /// Takes the next message. False: there is none.
    fn read(&mut self, log: &Log) -> bool {
        let Some(message) = self.subscriber.pop() else {
            return false;
        };
        log.check(&message);
        if let Some(expected) = &mut self.expected {
            expected.check(&message);
        }
        self.held.push(message.detach());
        true
    }

    /// Gives one back, which is still what was sent. False: it has none.
    fn give_back(&mut self, log: &Log, index: usize) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let message = self.held.swap_remove(index % self.held.len());
        log.check(&self.subscriber.attach(message));
        true
    }
}

impl Hostile {
    fn word(&self, offset: usize) -> &AtomicU32 {
        sys::word(&self.memory, offset)
    }

    /// Any of the ring of releases.
    fn release_entry(&self, index: usize) -> &AtomicU32 {
        let slots = self.slots as usize;
        self.word(HEADER_BYTES + 16 * slots + 4 * (index % slots))
    }

    /// Plays along, or writes what it likes.
    fn act(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 20 {
            0..=2 => {
                let popped = self.end.pop();
                self.tickets
                    .extend(popped.map(|popped| popped.descriptor.ticket));
            }
            3..=5 => {
                let index = choices.below(self.tickets.len().max(1));
                if index < self.tickets.len() {
                    let ticket = self.tickets.swap_remove(index);
                    self.end.release(ticket);
                }
            }
            6 => drop(
                self.end
                    .release(choices.below(2 * self.slots as usize) as u16),
            ),
            7 => drop(self.end.release(choices.word() as u16)),
            8 => self
                .release_entry(choices.below(256))
                .store(choices.word() as u32, Relaxed),
            9 => {
                let lap = u32::from(choices.byte() & 1) << 31;
                for ticket in 0..self.slots {
                    self.release_entry(ticket as usize)
                        .store(lap | ticket, Relaxed);
                }
            }
            10 => {
                let by = u32::from(choices.byte()).wrapping_sub(128);
                self.word(TAKEN).fetch_add(by, Relaxed);
            }
            11 => self.word(TAKEN).store(choices.word() as u32, Relaxed),
            12 => self
                .word(PUBLISHER_ASLEEP)
                .store(choices.byte().into(), Relaxed),
            13 => self
                .word(SUBSCRIBER_ASLEEP)
                .store(choices.byte().into(), Relaxed),
            14 => {
                let place = choices.word() as usize % (self.memory.bytes() / 4);
                self.word(4 * place).store(choices.word() as u32, Relaxed);
            }
            15 => {
                let word = self.word(WORDS + 4 * choices.below(128));
                word.fetch_xor(1 << (choices.byte() & 31), Relaxed);
            }
            16 => {
                let word = self.word(HEADER_BYTES + 4 * choices.below(5 * self.slots as usize));
                word.fetch_xor(1 << (choices.byte() & 31), Relaxed);
            }
            what => self.disturb(what, choices),
        }
    }

    /// Does what it likes with its bell.
    fn disturb(&mut self, what: u8, choices: &mut Choices<'_>) {
        let Some(bell) = &self.bell else {
            return;
        };
        let how = choices.byte();
        match what {
            17 => {
                let packet = vec![how; choices.below(4)];
                while self.rings < RINGS_MAX && sys::transmit(bell, &packet) {
                    self.rings += 1;
                    if how & 1 == 0 {
                        break;
                    }
                }
            }
            18 => {
                let ways = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
                let _ = shutdown(bell.as_raw_fd(), ways[usize::from(how) % 3]);
            }
            _ => self.bell = None,
        }
    }
}
