//! What goes from one worker to another: bursts of packets, and whatever else workers tell each other.
//!
//! A port is used by one worker. A packet that is another one's to deal with is copied into a burst that goes to that worker, and whose
//! memory comes back: there are so many bursts and no more, made at the start. Queues are the standard library's of a fixed size, with one
//! sender and one receiver each; neither waits, and none allocates. A worker that sleeps is rung.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use millrace_port::Burst;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::BURST;
use crate::table::Station;

/// Bursts that may be under way from one worker to another.
const BURSTS: usize = 64;
/// Other messages besides. What does not fit is told again later.
const NEWS: usize = 1024;
/// Messages that may be under way.
pub(crate) const MESSAGES: usize = BURSTS + NEWS;
/// Bursts of a lane that are read before anything else has its turn: a burst that is read comes back, and a sender that is faster than
/// whoever reads has it full again at once, without end.
pub(crate) const TURN: usize = 8;
/// Whoever has read so many has read all that were under way when it began.
pub(crate) const ALL: usize = BURSTS + 1;

/// What one worker of a switch says to another.
#[derive(Debug)]
pub(crate) enum Mail {
    /// For a port.
    Packets(u16, Burst),
    /// A station was heard at a port.
    Learnt(Station, u16),
    /// Stations at a port are to be forgotten.
    Forget(u16),
    /// A port takes packets of so many bytes at most from now on.
    Mtu(u16, usize),
}

impl Mail {
    /// The packets that it has, if it is about any.
    fn into_burst(self) -> Option<Burst> {
        match self {
            Mail::Packets(_, burst) => Some(burst),
            Mail::Learnt(..) | Mail::Forget(_) | Mail::Mtu(..) => None,
        }
    }
}

/// Wakes a thread that sleeps in an epoll set, and says that there is something for it. It has one listener.
#[derive(Debug)]
pub struct Bell {
    is_asleep: AtomicBool,
    has_news: AtomicBool,
    event: EventFd,
}

impl Bell {
    /// One that nobody has rung.
    ///
    /// # Errors
    /// When the kernel has no more descriptors.
    pub fn new() -> nix::Result<Bell> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Bell {
            is_asleep: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
            event: EventFd::from_value_and_flags(0, flags)?,
        })
    }

    /// Readable when it was rung while its listener slept.
    #[must_use]
    pub fn event(&self) -> &EventFd {
        &self.event
    }

    /// Says that there is something to be read.
    pub fn ring(&self) {
        // Both SeqCst, and in `is_to_sleep` the other way round: of two that write one word each and then read the other's, one sees what
        // the other wrote. So a worker that goes to sleep is rung, or sees the news.
        self.has_news.store(true, Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            // It can only fail when it has been rung 2^64 times.
            let _ = self.event.write(1);
        }
    }

    /// Whether there is something to be read, which is about to be.
    #[inline]
    #[must_use]
    pub fn take_news(&self) -> bool {
        // Acquire by the exchange: pairs with the store in `ring`; what was sent before is then there.
        self.has_news.load(Ordering::Relaxed) && self.has_news.swap(false, Ordering::AcqRel)
    }

    /// The worker has not read all: there still is news.
    pub(crate) fn keep_news(&self) {
        // Acquire by the exchange, as in `take_news`: what a ring that is overwritten here has announced is there when the next is taken.
        self.has_news.swap(true, Ordering::AcqRel);
    }

    /// The worker wants to sleep. False: there is news.
    #[must_use]
    pub fn is_to_sleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        if self.has_news.load(Ordering::SeqCst) {
            self.wake();
            return false;
        }
        true
    }

    /// The worker is awake.
    pub fn wake(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }

    /// Lets the next ring be heard.
    pub fn silence(&self) {
        let _ = self.event.read();
    }
}

/// The sending end of a lane.
#[derive(Debug)]
pub(crate) struct Lane {
    mail: SyncSender<Mail>,
    back: Receiver<Burst>,
    spare: Vec<Burst>,
    bell: Arc<Bell>,
    is_rung: bool,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Inlet {
    mail: Receiver<Mail>,
    back: SyncSender<Burst>,
}

/// What goes out of each worker, by the other one's number: none to itself. And what comes into each.
pub(crate) type Lanes = (Vec<Vec<Option<Lane>>>, Vec<Vec<Inlet>>);

/// Lanes from each worker to each other one. Workers have these bells.
pub(crate) fn lanes(bells: &[Arc<Bell>]) -> Lanes {
    let mut inlets: Vec<Vec<Inlet>> = bells.iter().map(|_| Vec::new()).collect();
    let mut lane_to = |from: usize, to: usize| {
        (from != to).then(|| {
            let (lane, inlet) = lane(&bells[to]);
            inlets[to].push(inlet);
            lane
        })
    };
    let numbers = 0..bells.len();
    let lanes = numbers.clone().map(|from| {
        let others = numbers.clone().map(|to| lane_to(from, to));
        others.collect()
    });
    (lanes.collect(), inlets)
}

fn lane(bell: &Arc<Bell>) -> (Lane, Inlet) {
    let (mail, received) = sync_channel(MESSAGES);
    let (back, returned) = sync_channel(BURSTS);
    let burst = |_| Burst::new(BURST);
    let lane = Lane {
        mail,
        back: returned,
        spare: (0..BURSTS).map(burst).collect(),
        bell: bell.clone(),
        is_rung: false,
    };
    let inlet = Inlet {
        mail: received,
        back,
    };
    (lane, inlet)
}

impl Lane {
    /// An empty burst, unless all are under way.
    pub(crate) fn take_burst(&mut self) -> Option<Burst> {
        if self.spare.is_empty() {
            self.spare.extend(self.back.try_iter());
        }
        self.spare.pop().map(|mut burst| {
            burst.clear();
            burst
        })
    }

    /// Whether so many bursts are under way that those to come should be full.
    pub(crate) fn is_congested(&mut self) -> bool {
        let few = BURSTS * 3 / 4;
        if self.spare.len() < few {
            self.spare.extend(self.back.try_iter());
        }
        self.spare.len() < few
    }

    /// Gives a burst back that was not needed.
    pub(crate) fn put_back(&mut self, burst: Burst) {
        self.spare.push(burst);
    }

    /// Sends a message, if there is room: for bursts of this lane there is, unless other messages have filled it.
    ///
    /// # Errors
    /// When there is none, or the other worker has gone: how many packets are lost. Their burst is this lane's again.
    pub(crate) fn send(&mut self, mail: Mail) -> Result<(), usize> {
        match self.mail.try_send(mail) {
            Ok(()) => {
                self.is_rung = true;
                Ok(())
            }
            Err(TrySendError::Full(mail) | TrySendError::Disconnected(mail)) => {
                let burst = mail.into_burst();
                let lost = burst.as_ref().map_or(0, Burst::len);
                self.spare.extend(burst);
                Err(lost)
            }
        }
    }

    /// Wakes the other worker, if something was sent.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if std::mem::take(&mut self.is_rung) {
            self.bell.ring();
        }
    }
}

impl Inlet {
    /// What came next.
    pub(crate) fn next(&self) -> Option<Mail> {
        self.mail.try_recv().ok()
    }

    /// Returns a burst. There is room for all.
    pub(crate) fn give_back(&self, burst: Burst) {
        let _ = self.back.try_send(burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_in_order_and_what_has_no_room_is_said() {
        let bells = [0, 1].map(|_| Arc::new(Bell::new().unwrap()));
        let (mut lanes, inlets) = lanes(&bells);
        assert!(lanes[0][0].is_none() && inlets[0].len() == 1);
        let lane = lanes[0][1].as_mut().unwrap();
        let mut burst = Burst::new(BURST);
        for number in 0..BURST {
            assert!(burst.push(&[number as u8; 200]));
        }
        let send = |lane: &mut Lane, port| {
            let mut copy = lane.take_burst()?;
            assert!(burst.iter().all(|packet| copy.append_copy(packet)));
            lane.send(Mail::Packets(port, copy)).ok()
        };
        for _ in 0..BURSTS {
            assert_eq!(send(lane, 3), Some(()));
        }
        assert_eq!(send(lane, 3), None, "all are under way");
        for _ in 0..NEWS {
            assert_eq!(lane.send(Mail::Forget(3)), Ok(()));
        }
        assert_eq!(lane.send(Mail::Forget(3)), Err(0));
        lane.ring();
        assert!(bells[1].take_news());
        let Some(Mail::Packets(3, came)) = inlets[1][0].next() else {
            panic!("nothing came");
        };
        let numbers: Vec<u8> = came.iter().map(|packet| packet.head()[0]).collect();
        let wanted: Vec<u8> = (0..BURST as u8).collect();
        assert_eq!(numbers, wanted);
        inlets[1][0].give_back(came);
        assert_eq!(send(lane, 4), Some(()));
    }
}
