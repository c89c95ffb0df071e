//! `millrace dump`: what passes by the ring, as packets, for Wireshark and tcpdump.
//!
//! In reading order: `follow` (the bytes of one connection), `memory` (where they are read), `packet` and `pcapng` (what becomes
//! of them), `output` (where they go), and here the list of connections and the loop.

mod follow;
mod memory;
mod output;
mod packet;
mod pcapng;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use millrace_agent::{ConnectionReport, EndReport};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;

use crate::listing::{Filter, Line, who};
use crate::locate::Found;
use crate::ps::{self, FILTERS};
use follow::{Follower, Piece};
use memory::{Memory, OpenError};
use output::Output;

/// How long the agent may take to answer, between two looks.
const PATIENCE: Duration = Duration::from_secs(2);
/// New connections are looked for so often; more often while there is none.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
const FIRST_LIST_INTERVAL: Duration = Duration::from_millis(100);
/// A look that found nothing is followed by a sleep, at first short.
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Write what passes on accelerated connections as packets, for Wireshark and tcpdump.
///
/// The bytes are read from the memory of one of the two programs, which notices nothing, and get TCP headers with the sequence
/// numbers that they have in their stream. You need the right to trace that program: the kernel decides. Only bytes that take
/// shared memory are seen. A gap in the sequence numbers is bytes that went by the kernel (tcpdump shows those), or that were
/// overwritten before they could be copied; a comment on the next packet says which and how many. While bytes pass, this
/// program uses a processor; a connection that is faster than it is shown with gaps.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DumpArguments {
    /// The file to write, in the pcapng format; - is the standard output.
    ///
    /// Without it, packets go to the standard output, as pcapng, or in lines where that is a terminal.
    #[arg(long, short, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after so many packets.
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds.
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Which connections: an ID of `millrace ps`, or words that all must fit; those that come later, too.
    #[arg(value_name = "CONNECTION|FILTER", required = true, long_help = FILTERS)]
    filter: Vec<String>,
}

const EXAMPLES: &str = "Examples:
  millrace dump 17 -w busy.pcapng           connection 17, until it ends or Ctrl-C
  millrace dump redis :6379 --seconds 10 -w redis.pcapng
  millrace dump redis | tshark -r -         (or: wireshark -k -i -)

Exit status: 0; 1 when no agent answers, no connection has this ID, or the kernel does not let you trace its programs.";

/// Follows connections until it is told to stop.
pub(crate) fn run(arguments: &DumpArguments) -> anyhow::Result<u8> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect();
    let mut dump = Dump::new(arguments)?;
    dump.list()?;
    if dump.followed.is_empty() {
        dump.check_that_it_can_begin()?;
        complain!("millrace: no connection on the ring fits yet; waiting for one");
    }
    // From here on a signal ends the file properly.
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    dump.output.begin(arguments.write.as_deref())?;
    dump.follow(&signals)?;
    let untold: u64 = dump.followed.values().map(|it| it.follower.untold()).sum();
    dump.output.finish(dump.untold + untold)?;
    Ok(0)
}

/// One connection that is followed.
struct Followed {
    follower: Follower,
    memory: Memory,
    /// The address of the end that connected, and of the other.
    addresses: [SocketAddr; 2],
    connection: ConnectionReport,
}

struct Dump {
    found: Found,
    filter: Filter,
    /// The filter is one connection's number.
    single: Option<u64>,
    count: u64,
    deadline: Option<Instant>,
    followed: HashMap<u64, Followed>,
    /// Connections that cannot be followed, which has been said.
    refused: HashSet<u64>,
    /// Lost bytes that no packet came after.
    untold: u64,
    output: Output,
}

impl Dump {
    fn new(arguments: &DumpArguments) -> anyhow::Result<Dump> {
        let found = ps::find_agent()?;
        let single = match arguments.filter.as_slice() {
            [word] => word.parse().ok(),
            _ => None,
        };
        let limit = arguments.seconds.map(Duration::from_secs);
        Ok(Dump {
            found,
            filter: Filter::new(&arguments.filter),
            single,
            count: arguments.count.unwrap_or(u64::MAX),
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            followed: HashMap::new(),
            refused: HashSet::new(),
            untold: 0,
            output: Output::new(),
        })
    }

    /// Takes up connections that fit and are not followed yet.
    fn list(&mut self) -> anyhow::Result<()> {
        let report = millrace_agent::connections(&self.found.socket, PATIENCE)?;
        for connection in report.connections {
            let Some(id) = connection.id else { continue };
            let is_meant = match self.single {
                Some(number) if id == number => true,
                _ => self.filter.fits(&connection),
            };
            if is_meant && !self.followed.contains_key(&id) && !self.refused.contains(&id) {
                self.take_up(id, connection);
            }
        }
        Ok(())
    }

    fn take_up(&mut self, id: u64, connection: ConnectionReport) {
        let ring_bytes = self.found.status.bulk_ring_bytes;
        let Some(addresses) = addresses(&connection) else {
            return;
        };
        let begun = open(&connection).and_then(|memory| {
            let mut fetch = |at: usize, bytes: &mut [u8]| memory.fetch(at, bytes);
            let follower =
                Follower::new(id, ring_bytes, &mut fetch).map_err(|_| OpenError::Gone)?;
            Ok((memory, follower))
        });
        match begun {
            Ok((memory, follower)) => {
                let followed = Followed {
                    follower,
                    memory,
                    addresses,
                    connection,
                };
                self.followed.insert(id, followed);
            }
            // It has not joined yet, or is leaving.
            Err(OpenError::Gone) => {}
            Err(error) => {
                let line = Line::of(&connection);
                let ends = line.map(|line| format!("{} to {}", who(line.client), who(line.server)));
                let ends = ends.unwrap_or_default();
                complain!("millrace: connection {id} ({ends}) cannot be followed: {error}");
                self.refused.insert(id);
            }
        }
    }

    /// Nothing is followed at the start: whether it makes sense to wait.
    fn check_that_it_can_begin(&self) -> anyhow::Result<()> {
        if !self.refused.is_empty() {
            bail!(
                "be the programs' user, or root, to trace them (and see kernel.yama.ptrace_scope)"
            );
        }
        if let Some(number) = self.single {
            bail!(
                "{number} is no connection on the ring, and no process that has one (see: millrace ps)"
            );
        }
        Ok(())
    }

    fn follow(&mut self, signals: &SignalFd) -> anyhow::Result<()> {
        let mut list_at = Instant::now();
        let mut sleep = SLEEP_MIN;
        loop {
            let now = Instant::now();
            if self.deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(());
            }
            if list_at <= now {
                // An agent that is gone leaves what is followed.
                let _ = self.list();
                list_at = now
                    + if self.followed.is_empty() {
                        FIRST_LIST_INTERVAL
                    } else {
                        LIST_INTERVAL
                    };
            }
            let busy = self.look_at_all()?;
            if self.output.packets() >= self.count {
                return Ok(());
            }
            if self.single.is_some() && self.followed.is_empty() {
                return Ok(());
            }
            sleep = if busy {
                Duration::ZERO
            } else {
                (sleep * 2).clamp(SLEEP_MIN, SLEEP_MAX)
            };
            if wait(signals, sleep)? {
                return Ok(());
            }
        }
    }

    /// One look at every connection. True: there was something.
    fn look_at_all(&mut self) -> anyhow::Result<bool> {
        let mut busy = false;
        let mut ended = Vec::new();
        for (id, followed) in &mut self.followed {
            let Some(pieces) = followed.look() else {
                ended.push(*id);
                continue;
            };
            for piece in pieces {
                busy = true;
                let left = self.count.saturating_sub(self.output.packets());
                self.output.write(&piece, &followed.addresses, left)?;
            }
        }
        for id in ended {
            if let Some(followed) = self.followed.remove(&id) {
                self.untold += followed.follower.untold();
            }
        }
        if busy {
            self.output.flush()?;
        }
        Ok(busy)
    }
}

impl Followed {
    /// `None`: the connection has left the ring, in both programs.
    fn look(&mut self) -> Option<Vec<Piece>> {
        let memory = &self.memory;
        let mut fetch = |at: usize, bytes: &mut [u8]| memory.fetch(at, bytes);
        if let Ok(pieces) = self.follower.look(false, &mut fetch) {
            return Some(pieces);
        }
        // One end has closed and the other may still have bytes; or the ring in use is one that only the other has mapped yet.
        self.memory = open(&self.connection).ok()?;
        let memory = &self.memory;
        let mut fetch = |at: usize, bytes: &mut [u8]| memory.fetch(at, bytes);
        self.follower.look(true, &mut fetch).ok()
    }
}

/// The connection's segment, in the process that has most of it mapped.
fn open(connection: &ConnectionReport) -> Result<Memory, OpenError> {
    let inode = connection.segment.ok_or(OpenError::Gone)?;
    let mut found: Option<Memory> = None;
    let mut worst = OpenError::Gone;
    for end in &connection.ends {
        match Memory::open(end.pid, inode) {
            Ok(memory) if found.as_ref().is_none_or(|it| it.bytes() < memory.bytes()) => {
                found = Some(memory);
            }
            Ok(_) | Err(OpenError::Gone) => {}
            Err(error) => worst = error,
        }
    }
    found.ok_or(worst)
}

/// By the direction of the segment: whoever connected comes first; if both say so, the lower address.
fn addresses(connection: &ConnectionReport) -> Option<[SocketAddr; 2]> {
    let first = connection.ends.first()?;
    let alike = |end: &EndReport| end.active == first.active;
    let simultaneous = connection.ends.len() > 1 && connection.ends.iter().all(alike);
    let is_first = if simultaneous {
        millrace_wire::Address::from(first.local) <= millrace_wire::Address::from(first.remote)
    } else {
        first.active
    };
    Some(if is_first {
        [first.local, first.remote]
    } else {
        [first.remote, first.local]
    })
}

/// Sleeps. True: a signal says that it is enough.
fn wait(signals: &SignalFd, sleep: Duration) -> anyhow::Result<bool> {
    let mut ready = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    match ppoll(&mut ready, Some(TimeSpec::from_duration(sleep)), None) {
        Ok(0) | Err(nix::errno::Errno::EINTR) => Ok(false),
        Ok(_) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}
