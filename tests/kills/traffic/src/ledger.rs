//! A file, mapped by both programs and by the runner: what each end did so far. `../../ledger.py` reads the same words.

use std::fs::OpenOptions;
use std::io::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::sys;

/// Connections that the file has room for.
pub(crate) const SLOTS: usize = 1024;

/// How a direction of an end ended. Zero: it goes on.
pub(crate) mod code {
    /// The reader saw the end of the stream, or the writer shut its direction down when it was told to finish.
    pub(crate) const DONE: u64 = 1;
    /// The writer had nothing to say any more, because the reader had ended.
    pub(crate) const GAVE_UP: u64 = 2;
    /// The reader got bytes that do not belong there.
    pub(crate) const WRONG: u64 = 3;
    /// To this, an error number is added.
    const ERROR: u64 = 1000;

    pub(crate) fn of(error: &std::io::Error) -> u64 {
        ERROR + u64::from(error.raw_os_error().unwrap_or(0).unsigned_abs())
    }
}

/// A word that several processes see.
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(SeqCst)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, SeqCst);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client = 0,
    Server = 1,
}

/// What one end did.
#[repr(C)]
pub(crate) struct SideWords {
    pub(crate) sent: Word,
    pub(crate) received: Word,
    pub(crate) read_end: Word,
    pub(crate) write_end: Word,
    /// One more than the position of the first wrong byte.
    pub(crate) wrong_at: Word,
    /// One more than how far ahead the wrong bytes were; zero when they are no part of the stream.
    pub(crate) wrong_ahead: Word,
    /// The process that connected or was forked for the connection.
    pub(crate) main: Word,
    /// The second process of a shared connection.
    pub(crate) worker: Word,
}

/// One connection.
#[repr(C)]
pub(crate) struct Slot {
    /// The runner's word: the client is to send nothing more.
    pub(crate) finish: Word,
    spare: [Word; 7],
    sides: [SideWords; 2],
    rest: [Word; 8],
}

const _: () = assert!(size_of::<Slot>() == 256);

impl Slot {
    pub(crate) fn side(&self, side: Side) -> &SideWords {
        &self.sides[side as usize]
    }
}

/// The mapped file.
#[repr(transparent)]
pub(crate) struct Ledger([Slot; SLOTS]);

impl Ledger {
    /// Maps the file, for good.
    pub(crate) fn open(path: &str) -> Result<&'static Ledger> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < size_of::<Ledger>() as u64 {
            return Err(Error::other("the ledger is too short"));
        }
        sys::map(&file)
    }

    pub(crate) fn slot(&self, number: u32) -> &Slot {
        &self.0[number as usize % SLOTS]
    }
}
