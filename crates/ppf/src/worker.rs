//! A worker: a thread that serves the ports it has, burst by burst, with a node of its own, and sleeps when there is nothing to do.
//!
//! A turn makes no system call unless a peer sleeps, takes no lock and allocates nothing for a packet; once in a millisecond it asks which
//! of its ports want to be polled. Of what it is told it does one thing in a turn, so that no packet waits for thousands of bearers. When
//! nothing has come for a while it arms its ports and waits for them, for a deadline, and for its bell. How long that while is depends on
//! whether looking was worth it before.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use millrace_port::{Counters, Port};
use millrace_switch::{Bell, Inlet, Lane};
use millrace_wire::pcap::Direction;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::DropReport;
use crate::bearer::{Bearer, BearerId, MeterId};
use crate::hold::HeldCounts;
use crate::lane::Mail;
use crate::link::LinkCounts;
use crate::meter::Limit;
use crate::node::{BURST, Node, Outs};
use crate::observed::PathCounts;
use crate::paths::PathState;
use crate::report::{NeighbourReport, Passed};
use crate::told::EventLog;
use crate::trace::{self, Tap};

mod tell;

/// How often a busy worker asks which ports want to be polled.
const TICK: Duration = Duration::from_millis(1);
/// A worker looks for packets so long at least before it sleeps, unless it is told to look less: or it would never find out that looking is
/// worth it.
const SPIN_MIN: Duration = Duration::from_micros(5);
/// Bursts of another worker that are dealt with in a turn.
const MAILS: usize = 8;
/// The bell's token in the epoll set; others are numbers of ports.
const BELL: u64 = u64::MAX;

/// What a worker is told.
pub(crate) enum Command {
    /// Have these bearers, or have them be so.
    Put(Vec<(BearerId, Bearer)>),
    /// Have one be otherwise than it was, and send so many end markers to where its tunnels led.
    Change(BearerId, Box<(Bearer, Bearer)>, u32),
    /// Limit all bearers of a user equipment together, or no more.
    Ue(MeterId, Option<[Limit; 2]>),
    /// Have these no more, and say what passed by those that were here.
    Remove(Vec<(BearerId, Bearer)>, Sender<Vec<(BearerId, Passed)>>),
    /// Say what passed by these, as far as they are here.
    Usage(Vec<BearerId>, Sender<Vec<(BearerId, Passed)>>),
    /// Say what was counted.
    Report(Sender<Report>),
    /// Say which paths it asks by, from a number on, so many at most.
    Paths(usize, usize, Sender<Vec<(usize, usize, PathState)>>),
    /// Show a bearer's frames to somebody.
    Trace(Box<Tap>),
    /// End.
    Stop,
}

/// What a worker has counted.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) worker: usize,
    /// Of its own ports: what passed, and how they are.
    pub(crate) ports: Vec<(u16, Counters, String)>,
    /// By number of port, of what this worker did.
    pub(crate) counts: Vec<LinkCounts>,
    /// By side.
    pub(crate) drops: [Vec<DropReport>; 2],
    pub(crate) neighbours: Vec<NeighbourReport>,
    pub(crate) lost: u64,
    pub(crate) alive: u64,
    pub(crate) work: Work,
    pub(crate) paths: PathCounts,
    pub(crate) held: HeldCounts,
    /// Events that there was no room for, and messages of the function's own.
    pub(crate) overflows: (u64, u64),
}

/// What a worker did with its time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) turns: u64,
    pub(crate) busy_turns: u64,
    pub(crate) sleeps: u64,
    /// What its thread has used of processors.
    pub(crate) processor_ns: u64,
}

/// A port that a worker has.
pub(crate) struct Attached {
    pub(crate) number: u16,
    pub(crate) port: Box<dyn Port + Send>,
    /// It is a file, which wants to know the time.
    pub(crate) is_file: bool,
}

/// What a worker is made of.
pub(crate) struct Parts {
    pub(crate) node: Node,
    pub(crate) number: usize,
    pub(crate) workers: usize,
    pub(crate) epoch: Instant,
    pub(crate) spin: Duration,
    pub(crate) commands: Receiver<Command>,
    pub(crate) bell: Arc<Bell>,
    /// By number of worker; none to itself.
    pub(crate) lanes: Vec<Option<Lane<Mail>>>,
    pub(crate) inlets: Vec<Inlet<Mail>>,
    pub(crate) ports: Vec<Attached>,
    /// By number of port, who has it.
    pub(crate) owners: Vec<usize>,
    pub(crate) events: Arc<EventLog>,
}

/// A worker.
pub(crate) struct Worker {
    parts: Parts,
    tick_at: Instant,
    spin: Duration,
    epoll: Epoll,
    /// By number of port, its place among the own ones.
    places: Vec<Option<usize>>,
    next_poll: usize,
    burst: millrace_port::Burst,
    outs: Outs,
    has_commands: bool,
    work: Work,
    is_stopped: bool,
    /// Who looks at a bearer.
    taps: Vec<Tap>,
}

impl Worker {
    pub(crate) fn new(mut parts: Parts) -> nix::Result<Worker> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, BELL);
        epoll.add(parts.bell.event(), event)?;
        let mut places = vec![None; parts.owners.len()];
        for (place, attached) in parts.ports.iter_mut().enumerate() {
            places[usize::from(attached.number)] = Some(place);
            attached.port.poll(Instant::now());
            let event = EpollEvent::new(EpollFlags::EPOLLIN, attached.number.into());
            // Without it the port is polled when the worker is awake, which is said nowhere else.
            if let Err(error) = epoll.add(attached.port.as_fd(), event) {
                tracing::warn!(
                    port = attached.number,
                    "a port cannot wake its worker: {error}"
                );
            }
        }
        Ok(Worker {
            tick_at: parts.epoch,
            spin: parts.spin,
            epoll,
            next_poll: 0,
            burst: millrace_port::Burst::new(BURST),
            outs: Outs::new(places.len(), parts.workers),
            places,
            has_commands: false,
            work: Work::default(),
            is_stopped: false,
            taps: Vec::new(),
            parts,
        })
    }

    /// Serves until it is told to stop.
    pub(crate) fn run(mut self) {
        // Since when there is nothing, and whether it has slept since.
        let mut idle = None;
        loop {
            let now = Instant::now();
            let is_busy = self.turn(now);
            if self.is_stopped {
                break;
            }
            if is_busy {
                if let Some((_, false)) = idle.take() {
                    // Looking was worth it.
                    self.spin = (self.spin * 2).min(self.parts.spin);
                }
                continue;
            }
            let (since, has_slept) = idle.get_or_insert((now, false));
            if now - *since < self.spin {
                std::hint::spin_loop();
                continue;
            }
            if !*has_slept {
                *has_slept = true;
                self.spin = (self.spin / 2).max(SPIN_MIN).min(self.parts.spin);
            }
            self.sleep();
        }
    }

    /// Looks at everything once. False: there was nothing.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        let now_ns = (now - self.parts.epoch).as_nanos();
        let now_ns = u64::try_from(now_ns).unwrap_or(u64::MAX);
        self.parts.node.set_time(now_ns);
        self.has_commands |= self.parts.bell.take_news();
        let mut is_busy = self.has_commands && self.obey();
        if now >= self.tick_at {
            self.tick(now);
        }
        for place in 0..self.parts.inlets.len() {
            is_busy |= self.read_mail(place, now);
        }
        for place in 0..self.parts.ports.len() {
            is_busy |= self.serve(place, now);
        }
        if self.parts.node.poll_at_ns().is_some_and(|at| at <= now_ns) {
            self.parts.node.poll(&mut self.outs);
            self.flush(0, 0, now);
            // What waits goes on burst by burst, and nobody sleeps meanwhile.
            is_busy |= self.parts.node.has_more();
        }
        self.work.turns += 1;
        self.work.busy_turns += u64::from(is_busy);
        for lane in self.parts.lanes.iter_mut().flatten() {
            lane.ring();
        }
        is_busy
    }

    /// One burst from each queue of a port.
    #[inline]
    fn serve(&mut self, place: usize, now: Instant) -> bool {
        let (mut queue, mut is_busy) = (0, false);
        loop {
            let attached = &mut self.parts.ports[place];
            if queue >= attached.port.receive_queues() {
                return is_busy;
            }
            if attached.is_file {
                attached.port.poll(now);
            }
            let number = attached.number;
            let (count, mut done) = (attached.port.receive(queue, &mut self.burst), 0);
            is_busy |= count > 0;
            if !self.taps.is_empty() {
                let frames = self.burst.iter();
                trace::see(&mut self.taps, number, frames, now, Direction::In);
            }
            while done < count {
                let (node, outs) = (&mut self.parts.node, &mut self.outs);
                done = node.receive_from(done, number, &self.burst, false, outs);
                self.flush(number, queue, now);
            }
            queue += 1;
        }
    }

    /// Hands over what leaves. What does not is dropped, and counted.
    #[inline]
    fn flush(&mut self, from: u16, queue: usize, now: Instant) {
        for number in 0..self.outs.ports.len() {
            let out = &self.outs.ports[number];
            if out.is_empty() {
                continue;
            }
            // Of a configuration's 64 ports at most.
            let port = number as u16;
            match self.places[number] {
                Some(place) => {
                    let taken = transmit(&mut self.parts.ports[place], out, queue, now);
                    if !self.taps.is_empty() {
                        let frames = out.iter().take(taken);
                        trace::see(&mut self.taps, port, frames, now, Direction::Out);
                    }
                }
                None => {
                    let lane = &mut self.parts.lanes[self.parts.owners[number]];
                    let lost = lane.as_mut().map_or(out.len(), |lane| {
                        lane.send_copies(out, |burst| Mail::Frames(port, burst))
                    });
                    self.parts.node.lose(port, lost as u64);
                }
            }
            self.outs.ports[number].clear();
        }
        if self.parts.workers == 1 {
            return;
        }
        for (worker, work) in self.outs.works.iter_mut().enumerate() {
            if work.is_empty() {
                continue;
            }
            let lane = &mut self.parts.lanes[worker];
            let lost = lane.as_mut().map_or(work.len(), |lane| {
                lane.send_copies(work, |burst| Mail::Work(from, burst))
            });
            self.parts.node.lose(from, lost as u64);
            work.clear();
        }
    }

    /// Some of what another worker has handed over. It gets its bursts back meanwhile, and could fill them for ever.
    fn read_mail(&mut self, place: usize, now: Instant) -> bool {
        let mut is_busy = false;
        for _ in 0..MAILS {
            let Some(mail) = self.parts.inlets[place].next() else {
                break;
            };
            is_busy = true;
            let burst = match mail {
                Mail::Work(from, burst) => {
                    let mut done = 0;
                    while done < burst.len() {
                        let (node, outs) = (&mut self.parts.node, &mut self.outs);
                        done = node.receive_from(done, from, &burst, true, outs);
                        self.flush(from, 0, now);
                    }
                    burst
                }
                Mail::Frames(port, burst) => {
                    if let Some(place) = self.places[usize::from(port)] {
                        let taken = transmit(&mut self.parts.ports[place], &burst, 0, now);
                        if !self.taps.is_empty() {
                            let frames = burst.iter().take(taken);
                            trace::see(&mut self.taps, port, frames, now, Direction::Out);
                        }
                    }
                    burst
                }
            };
            self.parts.inlets[place].give_back(burst);
        }
        is_busy
    }

    /// Does one thing that it is told to. False: there was none.
    fn obey(&mut self) -> bool {
        let Ok(command) = self.parts.commands.try_recv() else {
            self.has_commands = false;
            return false;
        };
        let node = &mut self.parts.node;
        match command {
            Command::Put(bearers) => {
                for (id, bearer) in bearers {
                    node.put(id, bearer);
                }
            }
            Command::Change(id, change, markers) => {
                let (before, after) = *change;
                for tap in &mut self.taps {
                    tap.follow(id, &after);
                }
                node.change(id, &before, after, markers);
            }
            Command::Ue(ue, limits) => node.put_ue(ue, limits),
            Command::Remove(bearers, answer) => {
                let gone = bearers.iter().filter_map(|(id, known)| {
                    let bearer = node.remove(*id, known)?;
                    Some((*id, Passed::of(&bearer)))
                });
                // Whoever asked may have gone.
                let _ = answer.send(gone.collect());
            }
            Command::Usage(ids, answer) => {
                let bearers = &node.function.bearers;
                let usage = ids.iter();
                let usage = usage.filter_map(|id| Some((*id, Passed::of(&bearers.get(*id)?))));
                let _ = answer.send(usage.collect());
            }
            Command::Report(answer) => {
                let _ = answer.send(self.report());
            }
            Command::Paths(from, most, answer) => {
                let paths = node.function.bearers.paths.iter_from(from).take(most);
                let worker = self.parts.number;
                let paths = paths.map(|(number, path)| (number, worker, path));
                let _ = answer.send(paths.collect());
            }
            Command::Trace(tap) => self.taps.push(*tap),
            Command::Stop => self.is_stopped = true,
        }
        true
    }

    /// Lets ports do what they must.
    fn tick(&mut self, now: Instant) {
        self.tick_at = now + TICK;
        self.tell(false);
        trace::mind(&mut self.taps, now, false);
        let mut events = [EpollEvent::empty(); 32];
        let waited = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        self.attend(&events[..waited.unwrap_or(0)], now);
        // And one after another without being asked: one whose peer's ring cannot be ends its connection there, and says so nowhere else.
        self.next_poll = (self.next_poll + 1) % self.parts.ports.len().max(1);
        if let Some(attached) = self.parts.ports.get_mut(self.next_poll) {
            attached.port.poll(now);
        }
    }

    /// Polls ports that have a reason, or whose time has come.
    fn attend(&mut self, events: &[EpollEvent], now: Instant) {
        for event in events {
            if event.data() == BELL {
                self.parts.bell.silence();
                continue;
            }
            let place = self.places.get(event.data() as usize).copied().flatten();
            if let Some(place) = place {
                self.parts.ports[place].port.poll(now);
            }
        }
        for attached in &mut self.parts.ports {
            if attached.port.poll_at().is_some_and(|at| at <= now) {
                attached.port.poll(now);
            }
        }
    }

    /// Waits until there is something to do.
    fn sleep(&mut self) {
        let now = Instant::now();
        self.tell(true);
        trace::mind(&mut self.taps, now, true);
        if !self.parts.bell.is_to_sleep() {
            return;
        }
        let asks = self.parts.node.poll_at_ns();
        let mut until = asks.map(|at_ns| self.parts.epoch + Duration::from_nanos(at_ns));
        let mut is_quiet = true;
        for attached in &mut self.parts.ports {
            let port = &mut attached.port;
            if attached.is_file {
                // What was written is to be seen by whoever looks.
                port.poll(now);
            }
            if is_quiet && !port.arm() {
                is_quiet = false;
                // It has packets, or something to do that only `poll` does.
                port.poll(now);
            }
            until = [until, port.poll_at()].into_iter().flatten().min();
        }
        let mut events = [EpollEvent::empty(); 32];
        let mut count = 0;
        if is_quiet {
            self.work.sleeps += 1;
            // An interruption is a wake-up.
            let waited = self.epoll.wait(&mut events, timeout(until, now));
            count = waited.unwrap_or(0);
        }
        self.parts.bell.wake();
        self.attend(&events[..count], Instant::now());
    }
}

/// Sends a burst by a port; what the port does not take is dropped, and counted by it. Returns how many it took.
#[inline]
fn transmit(
    attached: &mut Attached,
    burst: &millrace_port::Burst,
    queue: usize,
    now: Instant,
) -> usize {
    let port = &mut attached.port;
    if attached.is_file {
        port.poll(now);
    }
    // Packets of one flow come by one queue, and so go by one.
    let queue = match port.transmit_queues() {
        0 | 1 => 0,
        queues => queue % queues,
    };
    let taken = port.transmit(queue, burst, 0);
    if taken < burst.len() {
        port.give_up(queue, burst, taken);
    }
    taken
}

/// To the deadline, rounded up so that it has passed when the wait ends.
fn timeout(until: Option<Instant>, now: Instant) -> EpollTimeout {
    match until {
        Some(until) => {
            let milliseconds = until.saturating_duration_since(now).as_millis() + 1;
            EpollTimeout::try_from(milliseconds).unwrap_or(EpollTimeout::MAX)
        }
        None => EpollTimeout::NONE,
    }
}
