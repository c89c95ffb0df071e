//! Orders from the controller to the processes, and their reports: one packet each in a pipe that keeps
//! packets apart. They are read and written past the C library, so that a preloaded library neither sees nor delays them.

use crate::plan::{Call, Process, Thread};
use crate::sys::{ExecBy, Fd, borrow};
use anyhow::{Context as _, Result, bail};
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The largest packet that a pipe takes whole.
const PACKET_BYTES: usize = 4096;
/// The longest text of a report, so that it fits a packet even when every character is escaped.
const TEXT_BYTES: usize = 1500;

/// What a process is told to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Perform(Call),
    Start(Thread, Call),
    Interrupt {
        thread: Thread,
        restart: bool,
    },
    Fork {
        child: Process,
    },
    Exec {
        by: ExecBy,
        stranger: bool,
    },
    /// Whether to die with the parent.
    Bind(bool),
    Exit {
        now: bool,
    },
}

/// What a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum News {
    /// A process, or a new image of it, is there.
    Born,
    /// The order has been carried out.
    Done,
    /// The thread is about to make its call.
    Started(Thread),
    /// The thread's call has returned.
    Finished(Thread),
}

/// What a process tells the controller.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) process: Process,
    pub(super) news: News,
    pub(super) text: String,
}

impl Report {
    pub(super) fn new(process: Process, news: News, mut text: String) -> Self {
        let end = (0..=TEXT_BYTES.min(text.len()))
            .rev()
            .find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        Report {
            process,
            news,
            text,
        }
    }
}

/// Everything that a process needs to take part; passed to a new image as its argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seat {
    /// Which process this is.
    pub(super) process: Process,
    /// The board's memory file.
    pub(super) board: Fd,
    /// By process, where its orders come from.
    pub(super) orders: Vec<Fd>,
    /// Where reports go.
    pub(super) reports: Fd,
    /// By process, its mail box: the ends to send to and to receive from.
    pub(super) mail: Vec<(Fd, Fd)>,
    /// The plan's address.
    pub(super) address: [u8; 3],
    /// The plan's patience.
    pub(super) patience_ms: u32,
}

/// A pipe that keeps packets apart: the ends to read and to write, moved out of the sequence's way. They stay
/// open over exec.
pub(super) fn packet_pipe(lowest: Fd) -> Result<(Fd, Fd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::DIRECT).context("making a pipe")?;
    Ok((lift(&read, lowest)?, lift(&write, lowest)?))
}

/// A duplicate at `lowest` or above, which stays open over exec.
pub(super) fn lift(fd: &impl std::os::fd::AsFd, lowest: Fd) -> Result<Fd> {
    use std::os::fd::IntoRawFd;
    let lifted = rustix::io::fcntl_dupfd_cloexec(fd, lowest).context("duplicating a descriptor")?;
    rustix::io::fcntl_setfd(&lifted, rustix::io::FdFlags::empty())?;
    Ok(lifted.into_raw_fd())
}

/// Writes one packet.
pub(super) fn send(fd: Fd, message: &impl Serialize) -> Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > PACKET_BYTES {
        bail!("a message of {} bytes does not fit a packet", bytes.len());
    }
    loop {
        match rustix::io::write(borrow(fd), &bytes) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map(drop).context("writing to a pipe"),
        }
    }
}

/// Reads one packet; `None` when all writers are gone.
pub(super) fn receive<T: DeserializeOwned>(fd: Fd) -> Result<Option<T>> {
    let mut bytes = [0; PACKET_BYTES];
    let length = loop {
        match rustix::io::read(borrow(fd), &mut bytes) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result.context("reading from a pipe")?,
        }
    };
    if length == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&bytes[..length])?))
}
