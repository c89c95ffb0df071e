//! The controller: gives orders step by step, watches over the processes, and writes the trace.

use super::HANG;
use super::actor::{exec_seat, sit};
use super::watch::{self, Watched};
use super::wire::{self, News, Order, Report, Seat};
use crate::board::{Board, PROCESSES};
use crate::perform::OWN_DESCRIPTORS;
use crate::plan::{Call, ExitBy, Plan, Process, Step, Thread};
use crate::sys::{self, ExecBy, Fd, borrow};
use anyhow::{Context as _, Result, anyhow, bail};
use rustix::fs::MemfdFlags;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long processes may take to exit when all is over.
const EXIT_LIMIT: Duration = Duration::from_millis(2500);

/// Plays `plan`, and writes what happens to the standard output, one line per step.
pub(crate) fn play(plan: &Plan) -> Result<()> {
    let mut controller = Controller::new(plan)?;
    let ended = controller.play_steps(plan);
    if let Err(error) = ended {
        controller.say(&format!("{error:#}"));
        controller.kill_all();
        return Ok(());
    }
    controller.dismiss(plan.killed);
    Ok(())
}

struct Controller {
    board: &'static Board,
    /// By process, where its orders go.
    orders: Vec<Fd>,
    reports: Fd,
    processes: BTreeMap<Process, Watched>,
    /// Which process a thread is in.
    threads: BTreeMap<Thread, Process>,
    /// Reports that nobody has asked for yet.
    inbox: Vec<Report>,
    deadline: Instant,
    /// How long threads are waited for.
    patience: Duration,
}

/// The ends of all pipes: the processes' seat, and the controller's part.
struct Wiring {
    seat: Seat,
    orders: Vec<Fd>,
    reports: Fd,
}

fn wire_up(plan: &Plan) -> Result<Wiring> {
    let highest = plan.steps.iter().map(|step| match step {
        Step::Fork { child, .. } => child + 1,
        _ => 0,
    });
    let count = usize::from(highest.max().unwrap_or(0).max(plan.processes)).min(PROCESSES);
    let lowest = OWN_DESCRIPTORS;
    let memory =
        rustix::fs::memfd_create("board", MemfdFlags::empty()).context("making the board")?;
    rustix::fs::ftruncate(&memory, size_of::<Board>() as u64)?;
    let mut seat = Seat {
        process: 0,
        board: wire::lift(&memory, lowest)?,
        orders: Vec::new(),
        reports: -1,
        mail: Vec::new(),
        address: plan.address,
        patience_ms: plan.patience_ms,
    };
    let mut orders = Vec::new();
    for _ in 0..count {
        let (read, write) = wire::packet_pipe(lowest)?;
        seat.orders.push(read);
        orders.push(write);
    }
    let passes = plan.steps.iter().any(|step| {
        matches!(
            step,
            Step::Do {
                call: Call::PassTo { .. } | Call::Take { .. },
                ..
            }
        )
    });
    for _ in 0..if passes { count } else { 0 } {
        let made = sys::mail_box(lowest);
        seat.mail
            .push(made.map_err(|errno| anyhow!("making a mail box: {errno}"))?);
    }
    let (reports, write) = wire::packet_pipe(lowest)?;
    seat.reports = write;
    Ok(Wiring {
        seat,
        orders,
        reports,
    })
}

impl Controller {
    /// Starts the first processes.
    fn new(plan: &Plan) -> Result<Self> {
        watch::become_guardian()?;
        let mut wiring = wire_up(plan)?;
        let board = sys::map_board(wiring.seat.board);
        let board = board.map_err(|errno| anyhow!("mapping the board: {errno}"))?;
        let mut pids = Vec::new();
        for process in 0..plan.processes {
            wiring.seat.process = process;
            match sys::fork() {
                Ok(0) => be_actor(&wiring, plan.fresh_images),
                Ok(pid) => pids.push(i32::try_from(pid)?),
                Err(errno) => bail!("fork: {errno}"),
            }
        }
        let mut controller = Controller {
            board,
            orders: wiring.orders,
            reports: wiring.reports,
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            inbox: Vec::new(),
            deadline: Instant::now() + Duration::from_millis(plan.limit_ms.into()),
            patience: Duration::from_millis(plan.patience_ms.into()),
        };
        for (process, pid) in (0..).zip(pids) {
            controller
                .processes
                .insert(process, Watched::new(pid, None)?);
        }
        for process in 0..plan.processes {
            controller.expect(process, &[News::Born])?;
        }
        Ok(controller)
    }

    /// Writes one line of the trace.
    fn say(&self, line: &str) {
        let line = format!("{line}\n");
        // Nobody is left to be told when the standard output is gone.
        let _ = rustix::io::write(rustix::stdio::stdout(), line.as_bytes());
    }

    fn play_steps(&mut self, plan: &Plan) -> Result<()> {
        for (index, step) in plan.steps.iter().enumerate() {
            // Each step has its own: a slow machine is no hang.
            self.deadline = Instant::now() + Duration::from_millis(plan.limit_ms.into());
            let outcome = self
                .take_step(step)
                .with_context(|| format!("{index} {step}"))?;
            self.say(&format!("{index} {step} -> {outcome}"));
        }
        Ok(())
    }

    fn take_step(&mut self, step: &Step) -> Result<String> {
        match step {
            Step::Do { at, call } => self.order(*at, &Order::Perform(call.clone())),
            Step::Start { at, thread, call } => self.start(*at, *thread, call),
            Step::Join { any } => self.join(any),
            Step::Probe { thread } => self.probe(*thread),
            Step::Interrupt {
                at,
                thread,
                restart,
            } => {
                let (thread, restart) = (*thread, *restart);
                self.order(*at, &Order::Interrupt { thread, restart })
            }
            Step::Fork { at, child } => self.fork(*at, *child),
            Step::Exec { at, by, stranger } => self.exec(*at, *by, *stranger),
            Step::Exit { at, by } => self.exit(*at, *by),
            Step::Stop { at } => self.stop(*at),
            Step::Continue { at } => {
                let Some(watched) = self.processes.get(at) else {
                    return Ok("no such process".into());
                };
                watched.signal(Signal::CONT)?;
                Ok("0".into())
            }
        }
    }

    /// Gives an order and waits until it has been carried out.
    fn order(&mut self, at: Process, order: &Order) -> Result<String> {
        if !self.processes.contains_key(&at) {
            return Ok("no such process".into());
        }
        wire::send(self.orders[usize::from(at)], order)?;
        self.expect(at, &[News::Done]).map(|report| report.text)
    }

    /// Waits for a report, and tells its text; fails when a process dies or time is over.
    fn expect(&mut self, process: Process, news: &[News]) -> Result<Report> {
        let wanted = |report: &Report| report.process == process && news.contains(&report.news);
        let mut found = self.find(self.deadline, wanted)?;
        if found.is_none() {
            // A machine that stood still is no hang: what was on its way is here soon after it goes on.
            found = self.find(Instant::now() + self.patience, wanted)?;
        }
        found.ok_or_else(|| self.hang())
    }

    /// The first report that is wanted; `None` when there was none until the deadline. Others stay for later.
    fn find(
        &mut self,
        deadline: Instant,
        wanted: impl Fn(&Report) -> bool,
    ) -> Result<Option<Report>> {
        loop {
            if let Some(index) = self.inbox.iter().position(&wanted) {
                return Ok(Some(self.inbox.remove(index)));
            }
            if !watch::readable(self.reports, &self.processes, deadline)? {
                return Ok(None);
            }
            self.inbox.extend(wire::receive(self.reports)?);
        }
    }

    /// Where everybody is, as an error.
    fn hang(&self) -> anyhow::Error {
        let everybody = watch::describe(&self.processes, &self.threads, self.board);
        anyhow!("{HANG}: {everybody}")
    }

    fn start(&mut self, at: Process, thread: Thread, call: &Call) -> Result<String> {
        if !self.processes.contains_key(&at) {
            return Ok("no such process".into());
        }
        self.threads.insert(thread, at);
        wire::send(
            self.orders[usize::from(at)],
            &Order::Start(thread, call.clone()),
        )?;
        self.expect(at, &[News::Started(thread)])?;
        match call {
            // Whether these block depends on how fast the other end is, or on when the kernel makes room.
            Call::SendAll { .. } | Call::ReceiveAll { .. } | Call::Stream(_) => {
                Ok("started".into())
            }
            Call::Poll { items, .. } if items.iter().all(|item| item.1 == libc::POLLOUT) => {
                Ok("started".into())
            }
            _ => self.probe(thread),
        }
    }

    /// Whether the thread's call has returned, or sleeps.
    fn probe(&mut self, thread: Thread) -> Result<String> {
        let Some(watched) = self
            .threads
            .get(&thread)
            .and_then(|at| self.processes.get(at))
        else {
            return Ok("no such thread".into());
        };
        let (pid, tid) = (
            watched.pid,
            self.board.tids[usize::from(thread)].load(SeqCst),
        );
        let limit = Instant::now() + self.patience;
        loop {
            // Every report that is there goes to the inbox.
            self.find(Instant::now(), |_| false)?;
            let returned = News::Finished(thread);
            if self.inbox.iter().any(|report| report.news == returned) {
                return Ok("returned".into());
            }
            if watch::sleeps(pid, tid) {
                return Ok("asleep".into());
            }
            if Instant::now() > limit {
                return Ok("busy".into());
            }
        }
    }

    /// Waits for the first of these threads to finish. Which one it is may be a matter of luck, and is not told.
    fn join(&mut self, any: &[Thread]) -> Result<String> {
        if !any.iter().any(|thread| self.threads.contains_key(thread)) {
            return Ok("no such thread".into());
        }
        let limit = self.deadline.min(Instant::now() + self.patience);
        let finished = |report: &Report| match report.news {
            News::Finished(thread) => any.contains(&thread),
            _ => false,
        };
        let Some(report) = self.find(limit, finished)? else {
            return Ok("has not returned".into());
        };
        if let News::Finished(thread) = report.news {
            self.threads.remove(&thread);
        }
        Ok(report.text)
    }

    fn fork(&mut self, at: Process, child: Process) -> Result<String> {
        if !self.processes.contains_key(&at) {
            return Ok("no such process".into());
        }
        wire::send(self.orders[usize::from(at)], &Order::Fork { child })?;
        let text = self.expect(at, &[News::Done])?.text;
        if !text.is_empty() {
            return Ok(text);
        }
        self.expect(child, &[News::Born])?;
        let pid = self.board.pids[usize::from(child)].load(SeqCst);
        self.processes.insert(child, Watched::new(pid, Some(at))?);
        Ok("born".into())
    }

    fn exec(&mut self, at: Process, by: ExecBy, stranger: bool) -> Result<String> {
        if !self.processes.contains_key(&at) {
            return Ok("no such process".into());
        }
        wire::send(self.orders[usize::from(at)], &Order::Exec { by, stranger })?;
        self.threads.retain(|_, process| *process != at);
        let report = self.expect(at, &[News::Born, News::Done])?;
        if report.news == News::Done {
            return Ok(report.text);
        }
        let slots = self
            .board
            .open(at)
            .into_iter()
            .map(|(slot, _)| format!(" s{slot}"));
        Ok(format!("back with{}", slots.collect::<String>()))
    }

    fn exit(&mut self, at: Process, by: ExitBy) -> Result<String> {
        if !self.processes.contains_key(&at) {
            return Ok("no such process".into());
        }
        // Children go on: they pass to the controller, and must die with it instead.
        let children: Vec<Process> = self
            .processes
            .iter()
            .filter(|(_, watched)| watched.parent == Some(at))
            .map(|(process, _)| *process)
            .collect();
        for child in &children {
            self.order(*child, &Order::Bind(false))?;
        }
        let Some(leaving) = self.processes.remove(&at) else {
            return Ok("no such process".into());
        };
        match by {
            ExitBy::Kill => leaving.signal(Signal::KILL)?,
            ExitBy::Exit => wire::send(self.orders[usize::from(at)], &Order::Exit { now: false })?,
            ExitBy::ExitNow => {
                wire::send(self.orders[usize::from(at)], &Order::Exit { now: true })?
            }
        }
        self.threads.retain(|_, process| *process != at);
        if !leaving.wait(self.deadline)? {
            self.processes.insert(at, leaving);
            return Err(self.hang());
        }
        for process in self.board.open(at) {
            self.board.set_descriptor(at, process.0, -1);
        }
        for child in &children {
            if let Some(watched) = self.processes.get_mut(child) {
                watched.parent = None;
            }
            self.order(*child, &Order::Bind(true))?;
        }
        Ok("gone".into())
    }

    fn stop(&mut self, at: Process) -> Result<String> {
        let Some(watched) = self.processes.get(&at) else {
            return Ok("no such process".into());
        };
        watched.signal(Signal::STOP)?;
        let pid = watched.pid.as_raw_nonzero().get();
        while watch::state(watched.pid, pid) != Some('T') {
            if Instant::now() > self.deadline {
                bail!("{HANG}: does not stop");
            }
        }
        Ok("0".into())
    }

    /// Ends all processes, and waits until they are gone.
    fn dismiss(&mut self, killed: bool) {
        if !killed {
            for process in self.processes.keys() {
                // A process that is gone already needs no order.
                let _ = wire::send(
                    self.orders[usize::from(*process)],
                    &Order::Exit { now: false },
                );
            }
            let deadline = Instant::now() + EXIT_LIMIT;
            for (process, watched) in &self.processes {
                if !matches!(watched.wait(deadline), Ok(true)) {
                    self.say(&format!("P{process} does not exit"));
                }
            }
        }
        self.kill_all();
    }

    fn kill_all(&mut self) {
        for watched in self.processes.values() {
            // It may be gone already.
            let _ = watched.signal(Signal::KILL);
        }
        self.processes.clear();
        watch::reap_all();
    }
}

/// Goes on as a process of the sequence; never returns.
fn be_actor(wiring: &Wiring, fresh_image: bool) -> ! {
    // The controller's ends are its own: when it dies, reading orders must find the end.
    for fd in wiring.orders.iter().chain([&wiring.reports]) {
        let _ = sys::close(*fd);
    }
    let result = if fresh_image {
        exec_seat(&wiring.seat, ExecBy::Execv, false).map(drop)
    } else {
        sit(wiring.seat.clone())
    };
    if let Err(error) = result {
        let _ = rustix::io::write(borrow(2), format!("{error:#}\n").as_bytes());
        std::process::exit(1);
    }
    std::process::exit(0)
}
