//! What is found of the packets that come.

use hdrhistogram::Histogram;
use millrace_port::Packet;

use super::outcome::Faults;
use super::pattern::Made;
use super::stamp::Stamp;

/// A packet that comes more than so many others later than it was sent, or would have been had there been room, is not told from one that
/// comes twice. That is more than half a second at 30 million packets a second: a device that stands still for so long has a full ring.
const WINDOW: u64 = 1 << 24;

/// What of a packet has to be as it was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checks {
    /// Not its MAC addresses.
    pub skips_macs: bool,
    /// Every byte, not only the first ones, which takes time.
    pub whole: bool,
    /// Source and destination have changed places, as in the answer of a server.
    pub is_turned: bool,
}

/// The low bits of a run's number count the runs of a generator; the others are the generator's own.
pub(super) const RUN_BITS: u32 = 12;

/// Keeps account of one run.
pub(super) struct Sink {
    run: u32,
    /// How many packets of the generator's earlier runs have not come: they were lost there, and may come late.
    owed: u64,
    pub(super) late: u64,
    checks: Checks,
    /// A bit for each of the last packets that were sent: it has come.
    came: Vec<u64>,
    /// Of each flow, the number of the last packet that came, and one more.
    next: Vec<u64>,
    pub(super) received: u64,
    pub(super) bytes: u64,
    pub(super) faults: Faults,
    pub(super) latency: Option<Histogram<u64>>,
    /// Of packets that were due before that, no latency is kept.
    pub(super) timed_from_ns: u64,
    /// Who has asked for a station.
    pub(super) questions: Vec<Vec<u8>>,
    /// Room for a packet that is looked at as a whole.
    room: Vec<u8>,
}

impl Sink {
    pub(super) fn new(
        (run, owed): (u32, u64),
        flows: usize,
        checks: Checks,
        latency: Option<Histogram<u64>>,
    ) -> Sink {
        Sink {
            run,
            owed,
            late: 0,
            checks,
            came: vec![0; (WINDOW / 64) as usize],
            next: vec![0; flows],
            received: 0,
            bytes: 0,
            faults: Faults::default(),
            latency,
            timed_from_ns: 0,
            questions: Vec::new(),
            room: Vec::new(),
        }
    }

    /// Packets with these numbers are sent now: none of them has come.
    #[inline]
    pub(super) fn expect(&mut self, first: u64, count: u64) {
        for number in first..first + count {
            let (word, bit) = place(number);
            self.came[word] &= !bit;
        }
    }

    /// A packet has come, after `sent` were sent.
    #[inline]
    pub(super) fn take(&mut self, made: &Made, packet: Packet<'_>, sent: u64, now_ns: u64) {
        let stamp = made.stamp(&packet, sent);
        let Some(stamp) = stamp.filter(|stamp| stamp.run == self.run && stamp.number < sent) else {
            self.take_other(made, packet.head(), stamp);
            return;
        };
        let index = (stamp.number % made.len() as u64) as usize;
        let flow = made.flow(index, stamp.number);
        let is_like = made.is_like((index, flow), &stamp, &packet, self.checks);
        if !is_like || self.checks.whole && !self.is_whole(made, index, packet) {
            self.faults.changed += 1;
            return;
        }
        let (word, bit) = place(stamp.number);
        if sent - stamp.number > WINDOW || self.came[word] & bit != 0 {
            self.faults.doubled += 1;
            return;
        }
        self.came[word] |= bit;
        self.received += 1;
        self.bytes += packet.len() as u64;
        let next = &mut self.next[flow];
        if stamp.number < *next {
            self.faults.overtaken += 1;
        } else {
            *next = stamp.number + 1;
        }
        if let Some(latency) = &mut self.latency
            && stamp.time_ns >= self.timed_from_ns
        {
            latency.saturating_record(now_ns.saturating_sub(stamp.time_ns).max(1));
        }
    }
}

impl Sink {
    /// A packet that is none of this run's.
    #[cold]
    fn take_other(&mut self, made: &Made, head: &[u8], stamp: Option<Stamp>) {
        if made.is_question(head) {
            self.questions.push(head.to_vec());
            return;
        }
        let is_earlier = stamp.is_some_and(|stamp| {
            stamp.run >> RUN_BITS == self.run >> RUN_BITS && stamp.run < self.run
        });
        if is_earlier && self.late < self.owed {
            self.late += 1;
        } else {
            self.faults.strange += 1;
        }
    }

    /// Whether all bytes behind the head are as they were sent.
    fn is_whole(&mut self, made: &Made, index: usize, packet: Packet<'_>) -> bool {
        self.room.clear();
        packet.append_to(&mut self.room);
        made.is_filled(index, &self.room)
    }
}

#[inline]
fn place(number: u64) -> (usize, u64) {
    let number = number % WINDOW;
    ((number / 64) as usize, 1 << (number % 64))
}
