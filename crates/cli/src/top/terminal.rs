//! The terminal under a screen: taken, given back on every way out, and waited on. Where there is none, text after text.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};

/// How often it is looked, and how many times.
#[derive(Debug, Clone, Args)]
pub(crate) struct Pace {
    /// Print one table, after one interval, and end.
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print so many tables and end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("use a number from 0.1 to 3600".to_owned()),
    }
}

/// What a key asks of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Only to draw again.
    Draw,
    /// Another filter or order holds.
    Arrange,
    /// To end.
    Quit,
    /// To stop until the shell says otherwise.
    Suspend,
}

/// What a key that says the same on every screen asks for. None: it is the screen's own, if it is one at all.
pub(crate) fn common(key: KeyEvent) -> Option<Wish> {
    if key.kind == KeyEventKind::Release {
        return Some(Wish::Draw);
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return Some(match key.code {
            KeyCode::Char('c' | 'd' | '\\') => Wish::Quit,
            KeyCode::Char('z') => Wish::Suspend,
            _ => Wish::Draw,
        });
    }
    None
}

/// The first line that is shown, after a key, if it is one that scrolls.
pub(crate) fn scrolled(top: usize, key: KeyCode) -> usize {
    match key {
        KeyCode::Down | KeyCode::Char('j') => top.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => top.saturating_sub(1),
        KeyCode::PageDown => top.saturating_add(10),
        KeyCode::PageUp => top.saturating_sub(10),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX,
        _ => top,
    }
}

/// What is watched.
pub(crate) trait Live {
    /// Takes a new report in.
    fn look(&mut self) -> anyhow::Result<()>;
    /// Orders what there is anew, after a look or another choice.
    fn arrange(&mut self);
    /// No newer report is wanted now.
    fn is_paused(&self) -> bool;
    /// Draws everything. `trouble`: why there is no newer report.
    fn draw(&mut self, frame: &mut Frame<'_>, trouble: Option<&str>);
    /// Does what a key says.
    fn handle_key(&mut self, key: KeyEvent) -> Wish;
    /// The next text for files and other programs.
    fn text(&mut self) -> anyhow::Result<String>;
}

/// Shows what is watched until the user has seen enough: a screen, or texts where the output is no terminal or `is_text`.
pub(crate) fn watch(live: &mut impl Live, pace: &Pace, is_text: bool) -> anyhow::Result<u8> {
    // What is not there at all is said at once, in plain text.
    live.look()?;
    let count = if pace.once { Some(1) } else { pace.count };
    let interactive = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if interactive && count.is_none() && !is_text {
        show(live, pace.interval)
    } else {
        print(live, pace.interval, count.unwrap_or(u64::MAX))
    }
}

fn print(live: &mut impl Live, interval: Duration, count: u64) -> anyhow::Result<u8> {
    let mut due = Instant::now();
    for _ in 0..count {
        due += interval;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        live.look()?;
        live.arrange();
        let text = live.text()?;
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    Ok(0)
}

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
fn show(live: &mut impl Live, interval: Duration) -> anyhow::Result<u8> {
    let signals: SigSet = SIGNALS.into_iter().collect();
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut screen = Screen::take()?;
    live.arrange();
    let mut trouble: Option<String> = None;
    // The first rates come early.
    let mut due = Instant::now() + interval.min(Duration::from_millis(250));
    loop {
        if Instant::now() >= due {
            due = Instant::now() + interval;
            trouble = refresh(live);
            live.arrange();
        }
        screen
            .terminal
            .draw(|frame| live.draw(frame, trouble.as_deref()))?;
        let wish = match wait(&signals, due)? {
            Happened::Nothing => Wish::Draw,
            Happened::Keys => take_keys(live)?,
            Happened::Signal(Signal::SIGTSTP) => Wish::Suspend,
            Happened::Signal(signal) => return Ok(128 + signal as u8),
            Happened::Gone => return Ok(0),
        };
        match wish {
            Wish::Draw => {}
            Wish::Arrange => live.arrange(),
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
fn refresh(live: &mut impl Live) -> Option<String> {
    if live.is_paused() {
        return None;
    }
    live.look().err().map(|error| format!("{error:#}"))
}

/// Everything that was typed, as one wish: the last that matters. A new size of the terminal is drawn at once.
fn take_keys(live: &mut impl Live) -> anyhow::Result<Wish> {
    let mut wish = Wish::Draw;
    while event::poll(Duration::ZERO)? {
        if let Event::Key(key) = event::read()? {
            match live.handle_key(key) {
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
