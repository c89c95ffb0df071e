//! What the rings of a set have to report, and in which order.
//!
//! The kernel reports connections in the order in which they became ready. Those that it has just reported and that are level-triggered
//! stay in its list, before what comes later. Rings are put in that order by the times that their senders leave in them; so are the
//! kernel's own reports, as far as their senders have told when.

use libc::{c_int, epoll_event};
use millrace_stream::ReceiveHalf;

use super::rings::{Active, Inner};
use super::{EDGE, ONE_SHOT, READ_EVENTS, SPECIAL, WRITE_EVENTS};
use crate::spin;

/// An event, when it came, and the active member that it is of, where that has it in its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    event: epoll_event,
    came: u64,
    slot: Option<usize>,
    by_kernel: bool,
    /// It is of bytes in the ring.
    reads: bool,
    /// Among those that came at the same time.
    place: usize,
}

/// A set keeps them from look to look: the stack of a thread may have no room for many.
pub(super) type Reports = Vec<Report>;

impl Inner {
    /// How many of the rings, to which the kernel's reports have left no room, have something to report: it is their turn.
    pub(super) fn refused_rings(&mut self) -> usize {
        if !std::mem::take(&mut self.rings_refused) {
            return 0;
        }
        let mut active = self.active.iter();
        let ready = active.by_ref().filter(|it| it.event_alone().is_some());
        ready.count()
    }

    /// Looks at every active ring and adds what it finds to the first `from_kernel` of `events`, which the kernel reports now and did not
    /// when last asked, at `asked`; None: it was not asked, though it has more to say. What both have to say of one registration is one
    /// event. Returns how many there are now.
    pub(super) fn collect(
        &mut self,
        epoll: c_int,
        events: &mut [epoll_event],
        from_kernel: usize,
        (asked, now): (Option<u64>, u64),
    ) -> usize {
        self.note_told_by_kernel(&events[..from_kernel]);
        let (mut rings, one_shots) = self.ready_rings(asked.is_none(), now);
        let asked = asked.unwrap_or(now);
        let mut count = from_kernel;
        if rings.is_empty() {
            self.spare[0] = rings;
            self.kernel_reports = from_kernel > 0;
            if one_shots {
                self.disarm(epoll, &events[..count], |_| (true, None));
            }
        } else {
            self.date(&mut rings, from_kernel, now);
            let room = events.len() - from_kernel;
            let mut reports = self.date_kernel(&events[..from_kernel], asked, now);
            self.merge(&mut reports, &mut rings);
            self.rings_refused = from_kernel > 0 && rings.len() > room;
            rings.truncate(room);
            count = from_kernel + rings.len();
            reports.append(&mut rings);
            if from_kernel > 0 {
                // Of those that came at the same time the kernel's are the first, in its order.
                (0..)
                    .zip(&mut reports)
                    .for_each(|(place, report)| report.place = place);
                reports.sort_unstable_by_key(|report| (report.came, report.place));
            }
            for (index, report) in reports.iter().enumerate() {
                events[index] = report.event;
                if let Some(slot) = report.slot {
                    let told = (report.reads, report.event.events & WRITE_EVENTS != 0);
                    self.active[slot].note_reported(now + index as u64, told);
                }
            }
            if one_shots {
                let source = |place: usize| (reports[place].by_kernel, reports[place].slot);
                self.disarm(epoll, &events[..count], source);
            }
            self.spare = [rings, reports];
        }
        if count > 0 {
            self.reported_at = now;
        }
        count
    }

    /// Adds to `events`, of which the kernel told one who slept, what the rings have of the same members, that were registered meanwhile.
    pub(super) fn add_rings(&mut self, events: &mut [epoll_event]) {
        let now = spin::clock();
        for active in &mut self.active {
            if let Some(ring) = active.event()
                && let Some(event) = events.iter_mut().find(|event| event.u64 == ring.u64)
            {
                event.events |= ring.events;
                if active.events & ONE_SHOT != 0 {
                    active.events &= SPECIAL;
                }
                let told = (
                    ring.events & READ_EVENTS != 0,
                    ring.events & WRITE_EVENTS != 0,
                );
                active.note_reported(now, told);
                self.reported_at = now;
            }
        }
    }

    /// Of members of which the kernel reports `events`: what had come by the ring and has been read is told with that. The kernel, too, has
    /// one edge for all that comes between two looks.
    fn note_told_by_kernel(&mut self, events: &[epoll_event]) {
        for event in events {
            let Some((_, member)) = self.only_one_of(event.u64) else {
                continue;
            };
            let active = member.slot.map(|slot| &mut self.active[slot as usize]);
            if let Some(active) = active
                && let Some(half) = active.socket.peek_receive()
                && half.is_drained()
            {
                // What comes just now is behind it.
                active.reported = Some(half.head());
            }
        }
    }

    /// The active members that have something to report, and whether some active one is one-shot; `alone`: only those of which the kernel
    /// has nothing to say.
    fn ready_rings(&mut self, alone: bool, now: u64) -> (Reports, bool) {
        let mut rings = std::mem::take(&mut self.spare[0]);
        rings.clear();
        let mut one_shots = false;
        for (slot, active) in self.active.iter_mut().enumerate() {
            one_shots |= active.events & ONE_SHOT != 0;
            let event = if alone {
                active.event_alone()
            } else {
                active.event()
            };
            if let Some(event) = event {
                active.quiet = 0;
                rings.push(Report {
                    event,
                    came: 0,
                    slot: Some(slot),
                    by_kernel: false,
                    reads: event.events & READ_EVENTS != 0,
                    place: 0,
                });
            } else {
                active.quiet += 1;
                active.listed = None;
                if !alone {
                    active.looked_at = now;
                }
            }
        }
        (rings, one_shots)
    }

    /// Puts `rings` in order, where there is more than one report.
    fn date(&self, rings: &mut Reports, from_kernel: usize, now: u64) {
        if rings.len() + from_kernel < 2 {
            return;
        }
        for report in &mut *rings {
            let active = report.slot.map(|slot| &self.active[slot]);
            report.came = active.map_or(now, |active| active.came(now));
        }
        rings.sort_unstable_by_key(|report| (report.came, report.slot));
    }

    /// The kernel's reports, and when each came, as far as that is known: not before the kernel was last asked, and in its own order.
    fn date_kernel(&mut self, events: &[epoll_event], asked: u64, now: u64) -> Reports {
        let mut reports = std::mem::take(&mut self.spare[1]);
        reports.clear();
        let mut latest = asked.max(self.reported_at);
        let dated = events.iter().map(|event| {
            let socket = self.socket_of(event.u64);
            let told = socket.and_then(|socket| socket.peek_receive()?.came_by_kernel(now));
            let came = told.unwrap_or(latest);
            latest = latest.max(came);
            Report {
                event: *event,
                came,
                slot: None,
                by_kernel: true,
                reads: false,
                place: 0,
            }
        });
        reports.extend(dated);
        reports
    }

    /// Takes those out of `rings` that the kernel reports, too.
    fn merge(&mut self, reports: &mut Reports, rings: &mut Reports) {
        let from_kernel = reports.len();
        // Reports of the kernel that say no more than the rings do.
        let mut covered = 0;
        if from_kernel > 0 {
            rings.retain(|ring| {
                let data = ring.event.u64;
                let mut known = reports.iter_mut();
                let Some(known) = known.find(|known| known.event.u64 == data) else {
                    return true;
                };
                covered += usize::from(known.event.events & !WRITE_EVENTS == 0);
                known.event.events |= ring.event.events;
                known.came = known.came.min(ring.came);
                known.slot = ring.slot;
                known.reads = ring.reads;
                false
            });
        }
        self.kernel_reports = covered < from_kernel;
    }
}

impl Active {
    /// The tail of what there is to read in the ring, `half`. For edges the kernel's bytes before it need not have been read: each arrival
    /// is one.
    #[inline]
    pub(super) fn unread_tail(&self, half: &ReceiveHalf<'_>) -> Option<u32> {
        if self.events & EDGE != 0 {
            half.arrived()
        } else {
            self.socket.told.is_ready(half).then(|| half.tail())
        }
    }

    /// What is to be reported, if it is of bytes in the ring, and the kernel has nothing to add.
    fn event_alone(&self) -> Option<epoll_event> {
        let half = self.socket.peek_receive()?;
        let is_readable = |event: &epoll_event| event.events & READ_EVENTS != 0;
        self.event()
            .filter(|event| is_readable(event) && !half.kernel_hinted())
    }

    /// When it became ready, which it is. A sender that says otherwise cannot put itself before those that had come by the last look.
    fn came(&self, now: u64) -> u64 {
        let by_ring = || {
            let reported = self.reported.filter(|_| self.events & EDGE != 0);
            let told = self.socket.peek_receive()?.came_by_ring(reported, now)?;
            Some(told.max(self.looked_at))
        };
        self.listed.or_else(by_ring).unwrap_or(now)
    }

    /// Takes note of a report that the program gets, in the order of `place`: of bytes, of room, or of both.
    fn note_reported(&mut self, place: u64, (reads, room): (bool, bool)) {
        if room {
            self.sent = Some(self.socket.given_to_kernel());
        }
        let half = self.socket.peek_receive();
        // Of what comes just now nobody has been told who was told of room only, and asks for bytes.
        let all = reads || self.events & READ_EVENTS == 0;
        self.reported = half.map(|half| if all { half.tail() } else { half.head() });
        self.listed = (self.events & EDGE == 0).then_some(place);
    }
}
