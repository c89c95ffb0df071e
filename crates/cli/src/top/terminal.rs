//! The terminal under the screen: taken, given back on every way out, and waited on.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use super::Watch;
use super::screen::{Wish, draw};

/// Signals that end the program, and the one that stops it for a while.
const SIGNALS: [Signal; 5] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
];

/// The terminal in its other state. Dropped, it is as it was; a panic gives it back, too.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    fn take() -> anyhow::Result<Screen> {
        let terminal = ratatui::try_init().context("cannot use the terminal")?;
        Ok(Screen { terminal })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.terminal.show_cursor();
        // Nothing is left to be done when the terminal itself has gone.
        let _ = ratatui::try_restore();
    }
}

/// What a wait ended with.
enum Happened {
    Nothing,
    Keys,
    Signal(Signal),
    /// The terminal is gone.
    Gone,
}

/// Shows the screen until a key or a signal ends it.
pub(super) fn show(watch: &mut Watch, interval: Duration) -> anyhow::Result<u8> {
    let signals: SigSet = SIGNALS.into_iter().collect();
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut screen = Screen::take()?;
    let mut view = watch.view();
    let mut trouble: Option<String> = None;
    // The first rates come early.
    let mut due = Instant::now() + interval.min(Duration::from_millis(250));
    loop {
        if Instant::now() >= due {
            due = Instant::now() + interval;
            trouble = refresh(watch);
            view = watch.view();
        }
        let (choice, channels) = (&mut watch.choice, watch.channels.rows());
        screen
            .terminal
            .draw(|frame| draw(frame, (&view, channels), choice, trouble.as_deref()))?;
        let wish = match wait(&signals, due)? {
            Happened::Nothing => Wish::Draw,
            Happened::Keys => take_keys(watch)?,
            Happened::Signal(Signal::SIGTSTP) => Wish::Suspend,
            Happened::Signal(signal) => return Ok(128 + signal as u8),
            Happened::Gone => return Ok(0),
        };
        match wish {
            Wish::Draw => {}
            Wish::Arrange => view = watch.view(),
            Wish::Quit => return Ok(0),
            Wish::Suspend => {
                drop(screen);
                raise(Signal::SIGSTOP)?;
                screen = Screen::take()?;
            }
        }
    }
}

/// Takes a new report. Returns why there is none.
fn refresh(watch: &mut Watch) -> Option<String> {
    if watch.choice.paused {
        return None;
    }
    watch.look().err().map(|error| format!("{error:#}"))
}

/// Everything that was typed, as one wish: the last that matters. A new size of the terminal is drawn at once.
fn take_keys(watch: &mut Watch) -> anyhow::Result<Wish> {
    let mut wish = Wish::Draw;
    while event::poll(Duration::ZERO)? {
        if let Event::Key(key) = event::read()? {
            match watch.choice.handle_key(key) {
                Wish::Draw => {}
                last @ Wish::Arrange => wish = last,
                now @ (Wish::Quit | Wish::Suspend) => return Ok(now),
            }
        }
    }
    Ok(wish)
}

/// Waits for a key, a signal, or the moment when a new report is due.
fn wait(signals: &SignalFd, due: Instant) -> anyhow::Result<Happened> {
    let stdin = std::io::stdin();
    let left = due.saturating_duration_since(Instant::now()).as_millis();
    let timeout = PollTimeout::try_from(left + 1).unwrap_or(PollTimeout::MAX);
    let mut ready = [
        PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
        PollFd::new(signals.as_fd(), PollFlags::POLLIN),
    ];
    match poll(&mut ready, timeout) {
        // The size has changed: the event library has noted it.
        Err(Errno::EINTR) => return Ok(Happened::Keys),
        Ok(0) => return Ok(Happened::Nothing),
        Ok(_) => {}
        Err(errno) => return Err(errno.into()),
    }
    if let Ok(Some(info)) = signals.read_signal() {
        let number = i32::try_from(info.ssi_signo).unwrap_or(0);
        return Ok(Signal::try_from(number).map_or(Happened::Nothing, Happened::Signal));
    }
    let state = ready[0].revents().unwrap_or(PollFlags::empty());
    if state.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
        return Ok(Happened::Gone);
    }
    Ok(Happened::Keys)
}
