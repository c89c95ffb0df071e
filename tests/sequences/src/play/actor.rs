//! A process of the sequence: carries out orders until it is told to exit.

use super::wire::{self, News, Order, Report, Seat};
use crate::board::Board;
use crate::perform::{Context, pause};
use crate::plan::{Call, Thread};
use crate::sys::{self, ExecBy, SIGNALS, borrow};
use anyhow::{Context as _, Result, anyhow};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// The index of `SIGUSR1` in [`SIGNALS`].
const USR1: usize = 1;
/// A helper thread makes one call; this is plenty.
const STACK_BYTES: usize = 256 * 1024;

/// Starts from the argument of a fresh image.
pub(crate) fn run_actor(argument: &str) -> Result<()> {
    let seat = serde_json::from_str(argument).context("reading the seat")?;
    sit(seat)
}

/// Takes the seat: carries out orders until the end.
pub(super) fn sit(seat: Seat) -> Result<()> {
    let board =
        sys::map_board(seat.board).map_err(|errno| anyhow!("mapping the board: {errno}"))?;
    let mut actor = Actor {
        context: Context {
            board,
            process: seat.process,
            mail: Arc::new(seat.mail.clone()),
            address: seat.address,
            patience: Duration::from_millis(seat.patience_ms.into()),
        },
        seat,
        signals: SIGNALS.map(|_| 0),
    };
    for (signal, name) in SIGNALS {
        sys::install(signal, true).map_err(|errno| anyhow!("SIG{name}: {errno}"))?;
    }
    actor.drop_closed_slots();
    actor.introduce()?;
    actor.serve()
}

struct Actor {
    context: Context,
    seat: Seat,
    /// How many of each signal had been told about.
    signals: [u32; SIGNALS.len()],
}

impl Actor {
    fn board(&self) -> &'static Board {
        self.context.board
    }

    /// Tells the controller that this process is there.
    fn introduce(&mut self) -> Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL)).context("binding to the parent")?;
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        self.board().pids[usize::from(self.seat.process)].store(pid, SeqCst);
        self.signals = std::array::from_fn(sys::handled);
        self.report(News::Born, String::new())
    }

    fn report(&self, news: News, text: String) -> Result<()> {
        let report = Report::new(self.seat.process, news, text);
        wire::send(self.seat.reports, &report)
    }

    /// After an exec, descriptors that were close-on-exec are gone.
    fn drop_closed_slots(&self) {
        let process = self.seat.process;
        for (slot, fd) in self.board().open(process) {
            if rustix::io::fcntl_getfd(borrow(fd)).is_err() {
                self.board().set_descriptor(process, slot, -1);
            }
        }
    }

    fn serve(&mut self) -> Result<()> {
        loop {
            let orders = self.seat.orders[usize::from(self.seat.process)];
            let Some(order) = wire::receive(orders)? else {
                return Ok(());
            };
            match order {
                Order::Perform(call) => {
                    let text = self.context.perform(&call);
                    let at_rest = matches!(call, Call::Await { .. });
                    let signals = self.new_signals(at_rest);
                    self.report(News::Done, text + &signals)?;
                }
                Order::Start(thread, call) => self.start(thread, call)?,
                Order::Interrupt { thread, restart } => {
                    let text = self.interrupt(thread, restart);
                    let signals = self.new_signals(false);
                    self.report(News::Done, text + &signals)?;
                }
                Order::Fork { child } => self.fork(child)?,
                Order::Exec { by, stranger } => self.exec(by, stranger)?,
                Order::Bind(bound) => {
                    set_parent_process_death_signal(bound.then_some(Signal::KILL))?;
                    self.report(News::Done, String::new())?;
                }
                Order::Exit { now: true } => sys::exit_now(0),
                Order::Exit { now: false } => return Ok(()),
            }
        }
    }

    /// Names the signals that came since this was asked last. Those that the other end causes are only named
    /// when the connection is known to be at rest.
    fn new_signals(&mut self, at_rest: bool) -> String {
        let mut text = String::new();
        for (index, (_, name)) in SIGNALS.iter().enumerate() {
            let others = matches!(*name, "IO" | "URG");
            if others && !at_rest {
                continue;
            }
            let now = sys::handled(index);
            let new = now - self.signals[index];
            self.signals[index] = now;
            match new {
                0 => {}
                // Several of these merge into one, or do not, as time has it.
                _ if others => text.push_str(&format!(" !{name}")),
                1 => text.push_str(&format!(" !{name}")),
                _ => text.push_str(&format!(" !{name}x{new}")),
            }
        }
        text
    }

    /// Makes a call in a thread of its own, which reports for itself.
    fn start(&self, thread: Thread, call: Call) -> Result<()> {
        let (context, seat) = (self.context.clone(), self.seat.clone());
        let process = seat.process;
        let body = move || -> Result<()> {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            context.board.tids[usize::from(thread)].store(tid, SeqCst);
            let tell =
                |news, text| wire::send(seat.reports, &Report::new(seat.process, news, text));
            tell(News::Started(thread), String::new())?;
            let text = context.perform(&call);
            tell(News::Finished(thread), text)
        };
        std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || {
                if let Err(error) = body() {
                    // The others would wait for a report that never comes.
                    eprintln!("a thread of process {process}: {error:#}");
                    sys::exit_now(1);
                }
            })
            .context("starting a thread")?;
        Ok(())
    }

    fn interrupt(&self, thread: Thread, restart: bool) -> String {
        let tid = self.board().tids[usize::from(thread)].load(SeqCst);
        let before = sys::handled(USR1);
        let sent = sys::install(libc::SIGUSR1, restart)
            .and_then(|_| sys::signal_thread(tid, libc::SIGUSR1));
        if let Err(errno) = sent {
            return format!("no such thread ({errno})");
        }
        for _ in 0..2000 {
            if sys::handled(USR1) != before {
                return "handled".into();
            }
            pause(Duration::from_micros(500));
        }
        "never handled".into()
    }

    fn fork(&mut self, child: u8) -> Result<()> {
        match sys::fork() {
            Ok(0) => {
                self.board().inherit(self.seat.process, child);
                self.seat.process = child;
                self.context.process = child;
                self.introduce()
            }
            Ok(_) => self.report(News::Done, String::new()),
            Err(errno) => self.report(News::Done, errno.to_string()),
        }
    }

    /// Replaces the image by a fresh one of the same program, which introduces itself.
    fn exec(&self, by: ExecBy, stranger: bool) -> Result<()> {
        let errno = exec_seat(&self.seat, by, stranger)?;
        self.report(News::Done, errno.to_string())
    }
}

/// Starts this program anew in this process, to go on in `seat`; returns only when that failed.
pub(super) fn exec_seat(seat: &Seat, by: ExecBy, stranger: bool) -> Result<sys::Errno> {
    let file = CString::new("/proc/self/exe")?;
    let seat = CString::new(serde_json::to_string(seat)?)?;
    let arguments = [CString::new("sequences")?, CString::new("actor")?, seat];
    let environment = stranger.then(stranger_environment);
    Ok(sys::exec(by, &file, &arguments, environment.as_deref()))
}

/// The environment without what a preloaded library is found by.
fn stranger_environment() -> Vec<CString> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name != "LD_PRELOAD" && !name.starts_with("MILLRACE"))
        .chain([("MILLRACE".into(), "off".into())])
        .filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok())
        .collect()
}
