//! A worker: a thread that serves the ports it has, burst by burst, and sleeps when there is nothing to do.
//!
//! In a turn it reads what others have sent it, looks at each of its ports once, and takes what is there to where it belongs
//! (`forward.rs`). A turn makes no system call unless a peer sleeps, takes no lock and allocates nothing; once in a millisecond it asks
//! which of its ports want to be polled. When nothing has come for a while it arms its ports and waits for them, for a deadline of theirs,
//! and for its bell. How long that while is depends on whether looking was worth it before.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use millrace_port::{Burst, Counters, Port, State};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::BURST;
use crate::bucket::{Bucket, Rate};
use crate::config::VxlanConfig;
use crate::counters::{Cause, Hits, Tally, Work};
use crate::forward::Fate;
use crate::lane::{self, Bell, Inlet, Lane, Mail};
use crate::plan::Plan;
use crate::table::{Station, Table};
use crate::vxlan::{Endpoint, Received};

mod mail;
mod obey;
mod path;
#[cfg(test)]
mod tests;

/// How often a busy worker asks which ports want to be polled.
const TICK: Duration = Duration::from_millis(1);
/// A worker looks for packets so long at least before it sleeps, unless it is told to look less: or it would never find out that looking is
/// worth it.
const SPIN_MIN: Duration = Duration::from_micros(5);
/// Answers to what was too long, in a second and for each port.
const ANSWERS: Rate = Rate {
    per_second: 100,
    burst: 100,
};
/// Tokens of the epoll set: numbers of ports, of endpoints after those, and the bell's.
const BELL: u64 = u64::MAX;
const ENDPOINTS: u64 = 1 << 32;

/// A port that this worker has.
pub(crate) enum Attached {
    /// A port as any.
    Port {
        port: Box<dyn Port + Send>,
        /// It is a file, which wants to know the time.
        is_file: bool,
        is_connected: bool,
    },
    /// A tunnel of this endpoint.
    Tunnel(usize),
}

/// What a worker is told by whoever configures. Each is answered when it is done.
pub(crate) enum Command {
    /// Go by this from now on.
    Plan(Arc<Plan>, Sender<()>),
    /// Take a port.
    Add(u16, Box<dyn Port + Send>, bool, Sender<()>),
    /// Take a tunnel, and its endpoint unless there is one.
    AddTunnel(u16, VxlanConfig, Option<Box<Endpoint>>, Sender<()>),
    /// Give a port up.
    Remove(u16, Sender<()>),
    /// Say what was counted.
    Report(Sender<Report>),
    /// Say which stations are known, where, and for how long nothing was heard of them.
    Stations(Sender<Vec<(Station, u16, u64)>>),
    /// Forget all stations.
    Forget(Sender<()>),
    /// End.
    Stop,
}

/// What a worker has counted.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Of its own ports: what passed, and how they are.
    pub(crate) ports: Vec<(u16, Counters, String)>,
    /// Of its own tunnels: what fits now.
    pub(crate) mtus: Vec<(u16, u16)>,
    /// By number of port, of what this worker did.
    pub(crate) tallies: Vec<Tally>,
    pub(crate) hits: Vec<Hits>,
    pub(crate) work: Work,
}

/// Of a port, what changes with each packet.
#[derive(Debug)]
pub(crate) struct PortState {
    pub(crate) police: [Option<Bucket>; 2],
    pub(crate) storm: [Option<Bucket>; 3],
    pub(crate) answers: Bucket,
    /// Bytes of a packet of the Internet that leave by it, at most.
    pub(crate) mtu: usize,
    /// All other workers were told it.
    is_mtu_told: bool,
    version: Option<u64>,
}

/// A worker.
pub(crate) struct Worker {
    pub(crate) number: usize,
    epoch: Instant,
    pub(crate) now_ns: u64,
    tick_at: Instant,
    spin: Duration,
    spin_max: Duration,
    commands: Receiver<Command>,
    bell: Arc<Bell>,
    /// By number of worker; none to itself.
    pub(crate) lanes: Vec<Option<Lane>>,
    inlets: Vec<Inlet>,
    epoll: Epoll,
    /// Not there only while packets are on their way.
    pub(crate) plan: Option<Arc<Plan>>,
    pub(crate) ports: Vec<Option<Attached>>,
    own: Vec<u16>,
    /// A place in `own`: whose turn it is to be polled.
    next_poll: usize,
    pub(crate) endpoints: Vec<Option<Endpoint>>,
    pub(crate) states: Vec<PortState>,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) hits: Vec<Hits>,
    flow_versions: Vec<Option<u64>>,
    pub(crate) table: Table,
    pub(crate) fates: Vec<Fate>,
    burst: Option<Burst>,
    /// By number of port: packets that are about to go there.
    pub(crate) outs: Vec<Option<Burst>>,
    pub(crate) touched: Vec<u16>,
    /// Ports of others whose packets wait until there are more of them.
    pub(crate) held: Vec<u16>,
    pub(crate) is_final: bool,
    pub(crate) scratch: Option<Burst>,
    pub(crate) small: Option<Burst>,
    work: Work,
    is_stopped: bool,
}

/// What a worker is made of.
pub(crate) struct Parts {
    pub(crate) number: usize,
    pub(crate) epoch: Instant,
    pub(crate) spin: Duration,
    pub(crate) commands: Receiver<Command>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) lanes: Vec<Option<Lane>>,
    pub(crate) inlets: Vec<Inlet>,
    pub(crate) plan: Arc<Plan>,
}

impl Worker {
    pub(crate) fn new(parts: Parts) -> nix::Result<Worker> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(
            parts.bell.event(),
            EpollEvent::new(EpollFlags::EPOLLIN, BELL),
        )?;
        let burst = || Some(Burst::new(BURST));
        Ok(Worker {
            number: parts.number,
            epoch: parts.epoch,
            now_ns: 0,
            tick_at: parts.epoch,
            spin: parts.spin,
            spin_max: parts.spin,
            commands: parts.commands,
            bell: parts.bell,
            lanes: parts.lanes,
            inlets: parts.inlets,
            epoll,
            table: Table::new(parts.plan.limits),
            plan: Some(parts.plan),
            ports: Vec::new(),
            own: Vec::new(),
            next_poll: 0,
            endpoints: Vec::new(),
            states: Vec::new(),
            tallies: Vec::new(),
            hits: Vec::new(),
            flow_versions: Vec::new(),
            fates: vec![Fate::Drop(Cause::NoPort); BURST],
            burst: burst(),
            outs: Vec::new(),
            touched: Vec::new(),
            held: Vec::new(),
            is_final: false,
            scratch: burst(),
            small: Some(Burst::new(1)),
            work: Work::default(),
            is_stopped: false,
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
                    self.spin = (self.spin * 2).min(self.spin_max);
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
                self.spin = (self.spin / 2).max(SPIN_MIN).min(self.spin_max);
            }
            self.sleep();
        }
    }

    /// Looks at everything once. False: there was nothing.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        self.now_ns = u64::try_from((now - self.epoch).as_nanos()).unwrap_or(u64::MAX);
        let mut is_busy = self.bell.take_news() && self.read(now);
        if now >= self.tick_at {
            self.tick(now);
        }
        for place in 0..self.own.len() {
            is_busy |= self.serve(self.own[place], now);
        }
        for place in 0..self.endpoints.len() {
            is_busy |= self.serve_endpoint(place);
        }
        if !self.held.is_empty() {
            self.flush_held(false);
            // Whoever waits for another worker does not sleep.
            is_busy |= !self.held.is_empty();
        }
        self.work.turns += 1;
        self.work.busy_turns += u64::from(is_busy);
        for lane in self.lanes.iter_mut().flatten() {
            lane.ring();
        }
        is_busy
    }

    /// One burst from each queue of a port.
    fn serve(&mut self, number: u16, now: Instant) -> bool {
        let Some(mut burst) = self.burst.take() else {
            return false;
        };
        let (mut queue, mut is_busy) = (0, false);
        while let Some(Attached::Port { port, is_file, .. }) = &mut self.ports[usize::from(number)]
        {
            if queue >= port.receive_queues() {
                break;
            }
            if *is_file {
                port.poll(now);
            }
            if port.receive(queue, &mut burst) > 0 {
                is_busy = true;
                self.process(number, queue, &burst);
            }
            queue += 1;
        }
        self.burst = Some(burst);
        is_busy
    }

    /// What has come by tunnels.
    fn serve_endpoint(&mut self, place: usize) -> bool {
        let Some(mut burst) = self.burst.take() else {
            return false;
        };
        let mut is_busy = false;
        // As much as one call to the kernel brings.
        for _ in 0..BURST {
            let Some(endpoint) = &mut self.endpoints[place] else {
                break;
            };
            let tallies = &mut self.tallies;
            let received = endpoint.receive(&mut burst, |port, cause| {
                let tally = &mut tallies[usize::from(port)];
                tally.entered += 1;
                tally.drop(cause, 1);
            });
            is_busy |= received != Received::Nothing;
            let Received::Frames(from) = received else {
                break;
            };
            self.process(from, 0, &burst);
            if !self.endpoints[place]
                .as_ref()
                .is_some_and(Endpoint::has_more)
            {
                break;
            }
        }
        self.burst = Some(burst);
        is_busy
    }

    /// What others have sent.
    fn read(&mut self, now: Instant) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            self.handle(command);
        }
        self.read_mail(now, lane::TURN)
    }

    /// Lets ports do what they must.
    fn tick(&mut self, now: Instant) {
        self.tick_at = now + TICK;
        let mut events = [EpollEvent::empty(); 32];
        let count = self
            .epoll
            .wait(&mut events, EpollTimeout::ZERO)
            .unwrap_or(0);
        self.attend(&events[..count], now);
        // And one after another without being asked: one whose peer's ring cannot be ends its connection there, and says so nowhere else.
        self.next_poll = (self.next_poll + 1) % self.own.len().max(1);
        if let Some(number) = self.own.get(self.next_poll) {
            self.poll_port(*number, now);
        }
    }

    /// Polls ports that have a reason, or whose time has come.
    fn attend(&mut self, events: &[EpollEvent], now: Instant) {
        for event in events {
            match event.data() {
                BELL => self.bell.silence(),
                token if token < ENDPOINTS => self.poll_port(token as u16, now),
                _ => {}
            }
        }
        for place in 0..self.own.len() {
            let number = self.own[place];
            if let Some(Attached::Port { port, .. }) = &self.ports[usize::from(number)]
                && port.poll_at().is_some_and(|at| at <= now)
            {
                self.poll_port(number, now);
            }
        }
        self.ask_paths(now);
    }

    fn poll_port(&mut self, number: u16, now: Instant) {
        let Some(Some(Attached::Port {
            port, is_connected, ..
        })) = self.ports.get_mut(usize::from(number))
        else {
            return;
        };
        let was_connected = *is_connected;
        *is_connected = matches!(port.poll(now), State::Connected);
        if was_connected && !*is_connected {
            self.forget_memory();
            // Whoever comes next may be somebody else.
            self.table.forget_port(number);
            for lane in self.lanes.iter_mut().flatten() {
                let _ = lane.send(Mail::Forget(number));
                lane.ring();
            }
        }
    }

    /// Lets go of memory that packets lay in: a peer's would stay mapped here until others come the same way.
    fn forget_memory(&mut self) {
        for out in self.outs.iter_mut().flatten().filter(|out| out.is_empty()) {
            out.forget();
        }
        let between = [&mut self.burst, &mut self.scratch];
        between.into_iter().flatten().for_each(Burst::forget);
    }

    /// Waits until there is something to do.
    fn sleep(&mut self) {
        let now = Instant::now();
        let mut until: Option<Instant> = None;
        if !self.bell.is_to_sleep() {
            return;
        }
        let mut is_quiet = self.endpoints.iter().flatten().all(|one| !one.has_more());
        for number in &self.own {
            if let Some(Attached::Port { port, is_file, .. }) =
                &mut self.ports[usize::from(*number)]
            {
                if *is_file {
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
        }
        let mut events = [EpollEvent::empty(); 32];
        let mut count = 0;
        if is_quiet {
            self.work.sleeps += 1;
            // An interruption is a wake-up.
            count = self
                .epoll
                .wait(&mut events, timeout(until, now))
                .unwrap_or(0);
        }
        self.bell.wake();
        self.attend(&events[..count], Instant::now());
    }
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
