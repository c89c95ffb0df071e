//! A subscriber some of whose publishers write what they like over their links and pools: it reads nothing outside of a pool, and gets
//! what the honest one sends.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use millrace_channel::{
    Channel, DetachedMessage, Error, MESSAGE_BYTES_MAX, Message, Publisher, Subscriber, WhenFull,
};
use millrace_shm::link::{Descriptor, HEADER_BYTES, LINE_BYTES, PublishEnd};
use millrace_shm::{Mapping, pool};
use nix::sys::socket::{Shutdown, shutdown};

use crate::messages::{Expected, Log, fill};
use crate::site::{Fresh, POOL_BYTES, Participant, Site, site};
use crate::{Choices, sys};

/// Words of a link's memory; see `docs/shm-abi.md`.
const WORDS: usize = 512;
const SKIPPED: usize = WORDS + 32;
const PUBLISHER_ASLEEP: usize = WORDS + 128;
const TAKEN: usize = WORDS + 256;
const SUBSCRIBER_ASLEEP: usize = WORDS + 384;
/// In one run.
const HOSTILE_MAX: usize = 6;
const LINES: usize = POOL_BYTES / LINE_BYTES;

/// A publisher that does as it should.
struct Honest {
    publisher: Publisher,
    side: Participant,
    drops: bool,
    log: Log,
    expected: Expected,
}

/// One that does not.
struct Hostile {
    id: u64,
    memory: Mapping,
    slots: u32,
    pool: Mapping,
    end: PublishEnd,
    sequence: u64,
    bell: Option<OwnedFd>,
    /// Where the subscriber has the pool.
    base: usize,
}

struct World {
    site: &'static Site,
    subscriber: Subscriber,
    side: Participant,
    slots: u32,
    held: Vec<DetachedMessage>,
    honest: Honest,
    hostile: Vec<Hostile>,
}

/// What the subscriber and its publishers do, as `bytes` say.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut world = World::new(&mut choices);
    while !choices.is_empty() {
        world.step(&mut choices);
    }
    world.finish();
}

impl World {
    fn new(choices: &mut Choices<'_>) -> World {
        let site = site();
        let what = choices.byte();
        let slots = 2 << (what >> 4 & 3);
        let (subscriber, side) = site.subscriber();
        let mut world = World {
            site,
            slots,
            held: Vec::new(),
            honest: Honest::new(site, &side, what & 3, slots),
            hostile: Vec::new(),
            subscriber,
            side,
        };
        world.join_hostile(what & 4 == 0);
        if what & 8 == 0 {
            let _ = world.subscriber.as_fd();
        }
        world
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 16 {
            0 | 1 => self.honest.send(choices),
            2 => self.honest.publisher.publish(),
            3..=5 => drop(self.read()),
            6 | 7 => {
                if !self.held.is_empty() {
                    let index = choices.below(self.held.len());
                    let message = self.held.swap_remove(index);
                    let message = self.subscriber.attach(message);
                    check(&message, &self.honest, &self.hostile);
                }
            }
            8 => match choices.byte() {
                what @ 0..32 if self.hostile.len() < HOSTILE_MAX => {
                    self.join_hostile(what & 1 == 0)
                }
                32..48 => {
                    let _ = self.subscriber.as_fd();
                }
                48..64 => drop(self.subscriber.publishers()),
                _ => self.wait(),
            },
            _ => {
                let index = choices.below(self.hostile.len());
                self.hostile[index].act(choices);
            }
        }
        // So that there is always room for more of them.
        self.side.hear_out();
    }

    /// The next message is what it should be, and is kept. False: there is none.
    fn read(&mut self) -> bool {
        let Some(message) = self.subscriber.pop() else {
            return false;
        };
        self.honest.hear(&message);
        check(&message, &self.honest, &self.hostile);
        self.held.push(message.detach());
        true
    }

    fn wait(&mut self) {
        match self.subscriber.receive_until(Some(Instant::now())) {
            Ok(message) => {
                self.honest.hear(&message);
                check(&message, &self.honest, &self.hostile);
            }
            Err(error) => assert!(matches!(error, Error::TimedOut)),
        }
    }

    /// A hostile publisher comes, and sends one message that is sound: by that it is known where its pool was mapped.
    fn join_hostile(&mut self, overwrites: bool) {
        let fresh = Fresh::new(self.slots);
        let (memory, _) = pool::create(POOL_BYTES as u64).expect("memory for a pool");
        let mapping = Mapping::new(memory.as_fd(), POOL_BYTES).expect("a mapping");
        pool::seal(memory.as_fd()).expect("a pool");
        let id = self.site.stranger();
        fresh.give_subscriber(&self.side, id, &memory, overwrites);
        let mut hostile = Hostile {
            id,
            memory: fresh.map(),
            slots: fresh.slots,
            pool: mapping,
            end: PublishEnd::new(fresh.attach(), 0),
            sequence: 0,
            bell: None,
            base: 0,
        };
        hostile.push(0, 64, 0);
        hostile.end.publish();
        hostile.bell = fresh.bells.into_iter().next();
        if !self.hostile.is_empty() {
            let _ = self.subscriber.as_fd();
        }
        self.give_all_back();
        let place = self.hostile.len();
        self.hostile.push(hostile);
        while self.hostile[place].base == 0 {
            let message = self.subscriber.pop().expect("a newcomer is heard");
            self.honest.hear(&message);
            if message.publisher() == id {
                self.hostile[place].base = message.as_ptr().addr();
            }
            check(&message, &self.honest, &self.hostile);
        }
    }

    fn give_all_back(&mut self) {
        for message in self.held.drain(..) {
            check(
                &self.subscriber.attach(message),
                &self.honest,
                &self.hostile,
            );
        }
    }

    /// Reads all there is, and gives it back.
    fn read_all(&mut self) {
        self.give_all_back();
        let mut left = 4 * HOSTILE_MAX * 16 + 16;
        while self.read() {
            self.give_all_back();
            left -= 1;
            assert_ne!(left, 0, "nobody publishes so much");
        }
    }

    /// The honest publisher's messages are all there, and so is the next one; and when the subscriber has gone its pool is empty.
    fn finish(mut self) {
        self.honest.publisher.publish();
        self.read_all();
        let sent = self.honest.log.count();
        self.honest.send(&mut Choices(&[8, 65, 1]));
        assert_eq!(self.honest.log.count(), sent + 1, "there is room");
        self.read_all();
        assert!(self.honest.expected.is_empty(), "the last message comes");
        self.honest.expected.finish();
        drop(self.subscriber);
        self.honest.look();
        let all = self.honest.publisher.try_loan(POOL_BYTES);
        assert!(all.is_ok(), "all memory has come back");
    }
}

/// A message is what its publisher has at that place in its pool, and nothing from elsewhere; an honest one's is what it sent.
fn check(message: &Message<'_>, honest: &Honest, hostile: &[Hostile]) {
    if message.publisher() == honest.side.id {
        return honest.log.check(message);
    }
    let of_it = |hostile: &&Hostile| hostile.id == message.publisher();
    let hostile = hostile.iter().find(of_it).expect("its publisher");
    let start = message.as_ptr().addr().wrapping_sub(hostile.base);
    let is_inside = start <= POOL_BYTES && message.len() <= POOL_BYTES - start;
    assert!(is_inside, "{} bytes at {start:#x}", message.len());
    let there = sys::copy_out(&hostile.pool, start, message.len());
    assert!(message.to_vec() == there, "it is in the pool");
}

impl Honest {
    fn new(site: &Site, subscriber: &Participant, when_full: u8, slots: u32) -> Honest {
        let when_full = [
            WhenFull::Fail,
            WhenFull::DropNewest,
            WhenFull::DropOldest,
            WhenFull::Fail,
        ][usize::from(when_full)];
        let drops = when_full != WhenFull::Fail;
        let (publisher, own) = site.publisher(Channel::new("news").when_full(when_full));
        let fresh = Fresh::new(slots);
        fresh.give_publisher(&own, subscriber.id, 0);
        let overwrites = when_full == WhenFull::DropOldest;
        fresh.give_subscriber(subscriber, own.id, &own.pool(), overwrites);
        let honest = Honest {
            publisher,
            side: own,
            drops,
            log: Log::default(),
            expected: Expected::new(drops),
        };
        honest.look();
        honest
    }

    /// The subscriber has a message: if it is from here, it is the next one.
    fn hear(&mut self, message: &Message<'_>) {
        if message.publisher() == self.side.id {
            self.expected.check(message);
        }
    }

    /// Takes its news. It does so when it cannot do what it is asked.
    fn look(&self) {
        let asked = self.publisher.try_loan(MESSAGE_BYTES_MAX + 1);
        assert!(matches!(asked, Err(Error::TooLong { .. })));
    }

    fn send(&mut self, choices: &mut Choices<'_>) {
        let (bytes, what) = (choices.size() - 1, choices.byte());
        let mut loan = match self.publisher.try_loan(bytes) {
            Ok(loan) => loan,
            Err(error) => return assert!(matches!(error, Error::Full)),
        };
        let mark = self.log.count() as u64;
        fill(mark, &mut loan);
        match self.publisher.try_push(loan, None) {
            Ok(sequence) => {
                self.log.note(sequence, mark, bytes);
                self.expected.push(sequence);
            }
            Err(failed) => assert!(!self.drops && matches!(failed.error, Error::Full)),
        }
        if what & 1 == 1 {
            self.publisher.publish();
        }
    }
}

impl Hostile {
    fn word(&self, offset: usize) -> &AtomicU32 {
        sys::word(&self.memory, offset)
    }

    /// Any word of the ring of descriptors.
    fn slot_word(&self, index: usize) -> &AtomicU32 {
        self.word(HEADER_BYTES + 4 * (index % (4 * self.slots as usize)))
    }

    fn push(&mut self, line: usize, bytes: usize, ticket: u16) {
        self.end.push(&Descriptor {
            line: line as u32,
            bytes: bytes as u32,
            flags: self.sequence as u8,
            ticket,
            sequence: self.sequence,
        });
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Plays along, or writes what it likes.
    fn act(&mut self, choices: &mut Choices<'_>) {
        let slots = self.slots as usize;
        match choices.byte() % 20 {
            0..=2 => {
                // A place that may be in the pool, and a ticket that may not be out.
                let line = choices.below(256) * LINES / 256;
                let bytes = choices.size().min(POOL_BYTES - line * LINE_BYTES);
                self.push(line, bytes, choices.below(slots) as u16);
                self.end.publish();
            }
            3 | 4 => drop(self.end.publish()),
            5 => while self.end.collect().is_some() {},
            6 => {
                // At the end of the pool, or a little beyond.
                let before_end = choices.below(256);
                let line = LINES + 16 - before_end / 8;
                self.push(
                    line,
                    choices.below(256) * 8,
                    choices.below(slots + 1) as u16,
                );
                self.end.publish();
            }
            7 => {
                let (line, bytes) = (choices.word() as usize, choices.word() as usize);
                self.sequence = choices.word();
                self.push(line, bytes, choices.word() as u16);
                self.end.publish();
            }
            8 => self
                .slot_word(choices.below(256))
                .store(choices.word() as u32, Relaxed),
            9 => {
                let word = self.slot_word(choices.below(256));
                word.fetch_xor(1 << (choices.byte() & 31), Relaxed);
            }
            10 => drop(self.end.take_back()),
            11 => {
                let by = u32::from(choices.byte()).wrapping_sub(128);
                self.word(TAKEN).fetch_add(by, Relaxed);
            }
            12 => self.word(TAKEN).store(choices.word() as u32, Relaxed),
            13 => {
                let value = [0, u64::MAX, choices.word()][choices.below(3)];
                self.word(SKIPPED).store(value as u32, Relaxed);
                self.word(SKIPPED + 4).store((value >> 32) as u32, Relaxed);
            }
            14 => {
                let which = [PUBLISHER_ASLEEP, SUBSCRIBER_ASLEEP][choices.below(2)];
                self.word(which).store(choices.byte().into(), Relaxed);
            }
            15 => {
                let place = choices.word() as usize % (self.memory.bytes() / 4);
                self.word(4 * place).store(choices.word() as u32, Relaxed);
            }
            16 => {
                let start = choices.below(256) * (POOL_BYTES / 256);
                sys::copy_in(&self.pool, start, &choices.word().to_le_bytes());
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
                while sys::transmit(bell, &packet) && how & 1 == 1 {}
            }
            18 => {
                let ways = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
                let _ = shutdown(bell.as_raw_fd(), ways[usize::from(how) % 3]);
            }
            _ => self.bell = None,
        }
    }
}
