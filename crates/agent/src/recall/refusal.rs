//! Why a recall fails: for the log.

use std::{fmt, io};

/// Why bytes are left in the ring.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No pairing: it was withdrawn, or its other end has gone.
    Unpaired,
    /// The sender's process is out of reach, or has become another program.
    Process,
    /// The kernel does not give its descriptor out.
    Descriptor(io::Error),
    /// The descriptor's number now means something else.
    OtherSocket,
    /// The other half stayed locked.
    Locked,
    /// The sender that asked waits for it no more.
    TooLate,
    /// The reader's gate is open.
    Open,
    /// A send by the kernel is under way.
    Sending,
    /// Bytes have gone by the kernel after those in the ring.
    Overtaken,
    /// Some of those came from somebody who does not count with us.
    Uncounted,
    /// Somebody sleeps until there is something to read.
    Read,
    /// They have not arrived yet.
    UnderWay,
    /// Rows and segment do not fit together.
    Corrupt,
    /// The kernel took only a part, or nothing; or it would not take all.
    Full,
    /// Nobody is left who could read them, and that is for the sender to tell.
    Killed,
    /// Nobody can send them, and the reader can read them in the ring.
    Stays,
    /// Nobody who asks has the segment mapped, or the agent may not look.
    Unmapped,
    /// The sender has not closed.
    Connected,
    /// A protocol above TCP has one of the sockets: it would change the bytes.
    Upper,
    /// The kernel does not let us put bytes into a queue.
    Repair(io::Error),
    /// The worker was killed.
    Interrupted,
    /// The worker is stuck.
    Stuck,
    /// One whose socket it is had a worker stuck lately.
    Stopped,
    /// The worker has said why.
    Told,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Unpaired => "there is no other end",
            Refusal::TooLate => "who asked waits no more",
            Refusal::Process => "the agent cannot vouch for the sender's process",
            Refusal::Descriptor(error) => {
                return write!(f, "no descriptor of the sender's: {error}");
            }
            Refusal::OtherSocket => "the sender's descriptor is another socket",
            Refusal::Locked => "the other half is locked",
            Refusal::Open => "the gate is open",
            Refusal::Sending => "the sender is in the kernel",
            Refusal::Overtaken => "bytes have gone by the kernel since",
            Refusal::Uncounted => "bytes have passed the library by",
            Refusal::Read => "another call of the reader's is under way",
            Refusal::UnderWay => "bytes are on their way to the reader",
            Refusal::Corrupt => "rows and segment do not fit together",
            Refusal::Full => "the kernel did not take all",
            Refusal::Killed => "the reader was killed",
            Refusal::Stays => "nobody can send, and the reader stays",
            Refusal::Unmapped => "the reader's mapping of the ring is out of reach",
            Refusal::Connected => "the sender has not closed",
            Refusal::Upper => "a protocol above TCP has the socket",
            Refusal::Repair(error) => {
                return write!(f, "bytes cannot be put into a queue: {error}");
            }
            Refusal::Interrupted => "the worker was killed",
            Refusal::Stuck => "the worker is stuck",
            Refusal::Stopped => "a worker was stuck on a socket of one of these",
            Refusal::Told => "as told above",
        })
    }
}
