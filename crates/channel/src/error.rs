//! What can go wrong.

use std::fmt;
use std::io;
use std::path::PathBuf;

use millrace_wire::{NameError, Refusal};

/// Why something could not be done.
#[derive(Debug)]
pub enum Error {
    /// The channel's name is none.
    Name(NameError),
    /// An option or argument has a value that makes no sense; the text says which.
    Option(String),
    /// No agent answers at this path.
    NoAgent(PathBuf, io::Error),
    /// The agent does not know channels, or not in a version that this library speaks.
    Unsupported,
    /// The agent refuses, for this reason.
    Refused(Refusal),
    /// The message is longer than any may be, or than the pool.
    TooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The longest there may be.
        limit: usize,
    },
    /// A subscriber has no room, or the pool has none, and waiting was not wanted or not long enough.
    Full,
    /// Nobody is there who could get the message.
    NoReceiver,
    /// The time to wait is over: nothing came, or there was no room, or nobody to get the message.
    TimedOut,
    /// This process is a child of the one that opened the channel.
    Forked,
    /// The client of this request has gone; or, for the client, its server has died or let the request fall.
    Gone,
    /// The kernel refuses something that cannot be done without.
    Kernel(&'static str, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Name(error) => error.fmt(f),
            Error::Option(what) => f.write_str(what),
            Error::NoAgent(path, error) => write!(
                f,
                "no agent answers at {}: {error} (start one with `millrace agent`, or name its socket in MILLRACE_AGENT)",
                path.display()
            ),
            Error::Unsupported => f.write_str(
                "the agent and this library have no version of channels in common: one of them has to be updated",
            ),
            Error::Refused(reason) => {
                let mend = match reason {
                    Refusal::NotAllowed => "; its configuration says who may: see [[channel]]",
                    Refusal::Quota => "; its configuration has the limits: see [quota]",
                    _ => "",
                };
                write!(f, "the agent refuses: {}{mend}", reason.as_str())
            }
            Error::TooLong { bytes, limit } => {
                write!(f, "a message of {bytes} bytes is too long: at most {limit} fit")
            }
            Error::Full => f.write_str("there is no room for the message now"),
            Error::NoReceiver => f.write_str("nobody is there who could get the message"),
            Error::TimedOut => f.write_str(
                "not in time: nothing came, or there was no room or nobody for what was to go",
            ),
            Error::Forked => f.write_str(
                "a forked child cannot use its parent's channel: it has to open one of its own",
            ),
            Error::Gone => f.write_str(
                "the client of this request has gone, or its server has died or let it fall",
            ),
            Error::Kernel(what, error) => write!(f, "the kernel refuses {what}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// A message could not go; it is still there, to be tried again.
#[derive(Debug)]
pub struct PushError<L> {
    /// What was to go.
    pub loan: L,
    /// Why it did not.
    pub error: Error,
}

impl<L> From<PushError<L>> for Error {
    /// Lets the message go.
    fn from(failed: PushError<L>) -> Error {
        failed.error
    }
}
