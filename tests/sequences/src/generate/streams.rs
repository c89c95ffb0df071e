//! Traffic at full speed, with both ends at work at the same time, and traffic that is just long enough for a connection to come to the
//! ring, so that it comes there in the middle of something.

use super::Generator;
use super::model::{EndId, Thing};
use super::transfer::WHOLE_SEND_FORMS;
use crate::plan::{
    Call, DuplicateBy, Flag, Manner, Opt, Process, ReceiveBy, Slot, Step, Stream, Thread, Until,
};

/// How a stream ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It does not: the direction stays open.
    Open,
    /// The sending thread shuts its direction down.
    Shutdown,
    /// The end is closed while the other still reads.
    Close,
    /// The process that sent ends while the other still reads.
    Exit,
}

impl Generator {
    /// What comes first on a new connection: anything from nothing to what brings it to the ring.
    pub(super) fn approach(&mut self, conn: u8) {
        let id = EndId { conn, side: 0 };
        let fresh = self.model.fresh().contains(&id);
        match self.random.weighted(&[10, 45, 20, 25]) {
            0 => {}
            1 => {
                let rounds = self.random.between(4, 18);
                self.chat(id, rounds);
            }
            2 if fresh => drop(self.converse_on(id)),
            _ if fresh => drop(self.stream_on(id)),
            _ => {}
        }
    }

    /// A connection where nothing is under way.
    fn fresh_end(&mut self) -> Option<EndId> {
        let fresh = self.model.fresh();
        let id = self.random.pick_any(&fresh)?;
        // Where peeks have an offset, those of a stream would not see what comes next.
        let fit = |id| !self.model.end(id).frozen && !self.model.end(id).peek_offset;
        (fit(id) && fit(id.peer())).then_some(id)
    }

    /// Small messages, one after the other.
    pub(super) fn chatter(&mut self) -> bool {
        let Some(id) = self.fresh_end() else {
            return false;
        };
        let rounds = self.random.between(2, 10);
        self.chat(id, rounds);
        true
    }

    fn chat(&mut self, id: EndId, rounds: u32) {
        for _ in 0..rounds {
            let from = if self.random.chance(50) {
                id
            } else {
                id.peer()
            };
            let bytes = self.random.between(1, 300);
            let receives = self.model.end(from.peer()).low_water == 1;
            if !receives || self.random.chance(20) {
                self.exchange(from, bytes);
            } else {
                self.tell(from, bytes);
            }
        }
    }

    /// One message and its reception, without looking in between.
    fn tell(&mut self, from: EndId, bytes: u32) {
        let (Some((at, slot)), Some((far, to))) = (self.holder(from), self.holder(from.peer()))
        else {
            return;
        };
        let by = self.random.pick(&WHOLE_SEND_FORMS);
        let (flags, parts, bad) = (Vec::<Flag>::new(), 1, false);
        self.call(
            at,
            Call::Send {
                slot,
                by,
                bytes,
                parts,
                flags,
                bad,
            },
        );
        let by = self
            .random
            .pick(&[ReceiveBy::Read, ReceiveBy::Recv, ReceiveBy::Recvmsg]);
        let (slot, chunk, until) = (to, 65_536, Until::Sent);
        self.await_for_signals(far, slot);
        self.call(
            far,
            Call::ReceiveAll {
                slot,
                by,
                chunk,
                until,
            },
        );
        let end = self.model.end_mut(from.peer());
        end.queued = 0;
        end.unsettled = false;
    }

    /// How the calls of a stream are made.
    fn manner(&mut self, slot: Slot, piece: u32, opens: bool) -> Manner {
        let seed = self.random.between(0, u32::MAX - 1);
        Manner {
            slot,
            seed,
            piece,
            opens,
        }
    }

    /// Starts threads in any order.
    fn start_all(&mut self, mut calls: Vec<(Process, Stream)>) -> Vec<(Process, Thread)> {
        let mut started = Vec::new();
        while !calls.is_empty() {
            let index = self.random.between(0, calls.len() as u32 - 1) as usize;
            let (at, stream) = calls.remove(index);
            started.push((at, self.start(at, Call::Stream(stream))));
        }
        started
    }

    /// Questions and answers between two threads.
    pub(super) fn conversation(&mut self) -> bool {
        self.fresh_end().is_some_and(|id| self.converse_on(id))
    }

    fn converse_on(&mut self, id: EndId) -> bool {
        let ends = [id, id.peer()];
        if !ends.iter().all(|id| self.fit_for_bulk(*id)) {
            return false;
        }
        let (Some(near), Some(far)) = (self.holder(id), self.holder(id.peer())) else {
            return false;
        };
        let small = ends.iter().any(|id| self.model.end(*id).small_buffers);
        let longest = if small { 1000 } else { 12_000 };
        let piece = self.random.pick(&[20, 300, 300, longest]);
        let rounds = self.random.between(3, 50) as u8;
        let opens = self.random.chance(30);
        let manner = self.manner(near.1, piece, opens);
        let mut others = manner.clone();
        others.slot = far.1;
        let converse = |manner, first| Stream::Converse {
            manner,
            first,
            rounds,
        };
        let calls = vec![
            (near.0, converse(manner, true)),
            (far.0, converse(others, false)),
        ];
        let threads = self.start_all(calls);
        self.beside(ends, opens, !opens);
        for (at, thread) in threads {
            self.join(at, thread);
        }
        true
    }

    /// One direction, or both, at full speed.
    pub(super) fn streams(&mut self) -> bool {
        self.fresh_end().is_some_and(|id| self.stream_on(id))
    }

    fn stream_on(&mut self, from: EndId) -> bool {
        let to = from.peer();
        if !self.fit_for_bulk(from) || !self.fit_for_bulk(to) {
            return false;
        }
        let both = self.random.chance(60);
        let opens = self.random.chance(40);
        let mut calls = Vec::new();
        let ending = self.add_stream(from, opens, both, &mut calls);
        let mut endings = vec![(from, ending)];
        if both {
            let ending = self.add_stream(to, opens, both, &mut calls);
            endings.push((to, ending));
        }
        let threads = self.start_all(calls);
        // Whoever copies an end that is to go keeps it.
        let stays =
            |(_, ending): &(EndId, Ending)| matches!(ending, Ending::Open | Ending::Shutdown);
        let forks = !opens && endings.iter().all(stays);
        self.beside([from, to], opens, forks);
        self.end_streams(&threads, &endings);
        true
    }

    /// Adds the two calls of one direction.
    fn add_stream(
        &mut self,
        from: EndId,
        opens: bool,
        both: bool,
        calls: &mut Vec<(Process, Stream)>,
    ) -> Ending {
        let (Some((near, slot)), Some((far, to))) = (self.holder(from), self.holder(from.peer()))
        else {
            return Ending::Open;
        };
        let small = [from, from.peer()]
            .iter()
            .any(|id| self.model.end(*id).small_buffers);
        let piece = self.random.pick(&[40, 600, 600, 5000, 60_000]);
        let limit = if small { 40_000 } else { 600_000 };
        let bytes = (piece / 2 * self.random.between(3, 100)).min(limit);
        let sole = self.model.holders(from).len() == 1;
        let ending = match self.random.weighted(&[60, 20, 10, 10]) {
            0 => Ending::Open,
            2 if !both && sole => Ending::Close,
            3 if !both && sole && near != far && self.may_end(near) => Ending::Exit,
            _ => Ending::Shutdown,
        };
        let until = if ending == Ending::Open {
            Until::Bytes(bytes)
        } else {
            Until::End
        };
        let manner = self.manner(slot, piece, opens);
        let ends = ending == Ending::Shutdown;
        calls.push((
            near,
            Stream::Pour {
                manner,
                bytes,
                ends,
            },
        ));
        let piece = self.random.pick(&[600, 5000, 60_000, piece]);
        let manner = self.manner(to, piece, opens);
        calls.push((far, Stream::Drain { manner, until }));
        ending
    }

    /// Whether the process may end when its stream has: others are left, and none of its threads is in a call.
    fn may_end(&self, at: Process) -> bool {
        let idle = self.model.processes[usize::from(at)].threads.is_empty();
        idle && self.model.running().len() > 1
    }

    /// Joins the threads; where the sending end goes, before the reading one is done.
    fn end_streams(&mut self, threads: &[(Process, Thread)], endings: &[(EndId, Ending)]) {
        let (from, ending) = endings[0];
        let leaving = self
            .holder(from)
            .filter(|_| ending == Ending::Close || ending == Ending::Exit);
        let (first, last): (Vec<_>, Vec<_>) = threads
            .iter()
            .copied()
            .partition(|(at, thread)| leaving.is_none() || self.pours(*at, *thread));
        for (at, thread) in first {
            self.join(at, thread);
        }
        if let Some((at, slot)) = leaving {
            match ending {
                Ending::Exit => self.end_process(at),
                _ => self.close_slot(at, slot),
            }
        }
        for (at, thread) in last {
            self.join(at, thread);
        }
        let mut shut = false;
        for (id, ending) in endings {
            self.model.end_mut(*id).finished |= *ending == Ending::Shutdown;
            shut |= *ending == Ending::Shutdown;
        }
        if shut {
            self.settle_states(from.conn);
        } else {
            endings.iter().for_each(|(id, _)| self.emptied(id.peer()));
        }
    }

    /// Whether a thread sends a stream.
    fn pours(&self, at: Process, thread: Thread) -> bool {
        let steps = self.steps.iter().rev();
        let mut own = steps.filter(
            |step| matches!(step, Step::Start { at: a, thread: t, .. } if (*a, *t) == (at, thread)),
        );
        matches!(
            own.next(),
            Some(Step::Start {
                call: Call::Stream(Stream::Pour { .. }),
                ..
            })
        )
    }

    /// Steps beside streams that change nothing about what these tell. With `opens`, none that tells of descriptors or copies them.
    fn beside(&mut self, ends: [EndId; 2], opens: bool, forks: bool) {
        for id in ends {
            self.model.end_mut(id).frozen = true;
        }
        for _ in 0..self.random.weighted(&[30, 30, 20, 15, 5]) {
            self.settle_all();
            let id = self.random.pick(&ends);
            let Some((at, slot)) = self.holder(id) else {
                continue;
            };
            match self.random.between(0, 8) {
                0 => {
                    let option = self
                        .random
                        .pick(&[Opt::Error, Opt::NoDelay, Opt::KeepAlive]);
                    self.call(at, Call::GetOption { slot, option });
                }
                1 => {
                    let (option, value) = (Opt::NoDelay, i32::from(self.random.chance(50)));
                    self.call(
                        at,
                        Call::SetOption {
                            slot,
                            option,
                            value,
                        },
                    );
                }
                2 => {
                    let (on, ioctl) = (self.random.chance(50), self.random.chance(50));
                    self.call(at, Call::Nonblock { slot, on, ioctl });
                    self.model.end_mut(id).nonblock = on;
                }
                3 if !opens => self.copy_for_a_moment(at, slot, id),
                4 if forks => self.visit(at),
                5 => drop(self.spawn()),
                6 => {
                    self.steps.push(Step::Stop { at });
                    self.steps.push(Step::Continue { at });
                }
                7 => drop(self.message()),
                _ => self.call(at, Call::Pause { ms: 1 }),
            }
        }
        self.settle_all();
        for id in ends {
            self.model.end_mut(id).frozen = false;
        }
    }

    /// The number is one that the library cannot have for a moment, when a segment comes to it.
    fn copy_for_a_moment(&mut self, at: Process, slot: Slot, id: EndId) {
        let (to, by, over) = (self.new_slot(), DuplicateBy::FcntlHigh, false);
        self.call(at, Call::Duplicate { slot, to, by, over });
        self.model.open(at, to, Thing::End(id), false);
        self.close_slot(at, to);
    }

    /// A child comes, and mostly goes again.
    fn visit(&mut self, at: Process) {
        let child = self.model.processes.len() as Process;
        if self.fork_of(at) && self.random.chance(75) {
            self.end_process(child);
        }
    }
}
