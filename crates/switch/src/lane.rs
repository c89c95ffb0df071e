//! What goes from one worker to another: packets for its ports, and news of stations.
//!
//! A port is used by one worker. A packet for a port of another one is copied into a burst that goes to that worker, and whose memory comes
//! back: there are so many bursts and no more, made at the start. Queues are the standard library's of a fixed size, with one sender and
//! one receiver each; neither waits, and none allocates. A worker that sleeps is rung.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use millrace_port::Burst;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::BURST;
use crate::table::Station;

/// Bursts that may be under way from one worker to another.
const LANE_BURSTS: usize = 64;
/// News of stations that may be under way besides. What does not fit is told again later.
const LANE_NEWS: usize = 1024;

/// What one worker says to another.
#[derive(Debug)]
pub(crate) enum Mail {
    /// For a port.
    Packets(u16, Burst),
    /// A station was heard at a port.
    Learnt(Station, u16),
    /// Stations at a port are to be forgotten.
    Forget(u16),
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

/// A lane to the worker with this bell.
pub(crate) fn lane(bell: &Arc<Bell>) -> (Lane, Inlet) {
    let (mail, received) = sync_channel(LANE_BURSTS + LANE_NEWS);
    let (back, returned) = sync_channel(LANE_BURSTS);
    let lane = Lane {
        mail,
        back: returned,
        spare: (0..LANE_BURSTS).map(|_| Burst::new(BURST)).collect(),
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
        if self.spare.len() < LANE_BURSTS * 3 / 4 {
            self.spare.extend(self.back.try_iter());
        }
        self.spare.len() < LANE_BURSTS * 3 / 4
    }

    /// Gives a burst back that was not needed.
    pub(crate) fn put_back(&mut self, burst: Burst) {
        self.spare.push(burst);
    }

    /// Sends packets. There is room for them, as there is for every burst.
    pub(crate) fn send(&mut self, port: u16, burst: Burst) -> Result<(), usize> {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        match self.mail.try_send(Mail::Packets(port, burst)) {
            Ok(()) => {
                self.is_rung = true;
                Ok(())
            }
            // Full of news, or the worker has gone.
            Err(Full(Mail::Packets(_, burst)) | Disconnected(Mail::Packets(_, burst))) => {
                let lost = burst.len();
                self.spare.push(burst);
                Err(lost)
            }
            Err(_) => Ok(()),
        }
    }

    /// Tells of a station, if there is room.
    pub(crate) fn tell(&mut self, mail: Mail) {
        self.is_rung |= self.mail.try_send(mail).is_ok();
    }

    /// Wakes the other worker, if something was sent.
    pub(crate) fn ring(&mut self) {
        if std::mem::take(&mut self.is_rung) {
            self.bell.ring();
        }
    }
}

impl Inlet {
    pub(crate) fn next(&self) -> Option<Mail> {
        self.mail.try_recv().ok()
    }

    /// Returns a burst. There is room for all.
    pub(crate) fn give_back(&self, burst: Burst) {
        let _ = self.back.try_send(burst);
    }
}
