//! Proof that two offers are the two ends of one connection, from facts that only the kernel can state.
//!
//! What is checked, and which lie it catches:
//!
//! | fact | from | the lie |
//! |---|---|---|
//! | who connected to the agent also sent the offer | `SCM_CREDENTIALS` of the message | an inherited or passed-on socket to the agent |
//! | it still is that process and program | `/proc/PID`, open since it connected | a number used again; a set-user-id program |
//! | it is in the agent's network namespace | `/proc/PID/ns/net` | somebody's addresses in a namespace of one's own |
//! | its descriptor is that socket | `/proc/PID/fd/FD` and the inode that sock_diag states | somebody else's connection |
//! | the connection has these addresses, this cookie, and is established | sock_diag | forged or stale addresses |
//! | nobody translates its addresses on the way | connection tracking (`tracking`) | another connection to the same program |
//!
//! The first end is asked for again after the second, so that both existed at one moment: its cookie is never used twice.
//!
//! Sockets of other network namespaces than the agent's are proved in another way, in `distant`. A limit of the proof: inode numbers have
//! 32 bits, and a process that makes four thousand million sockets could hold one, in another namespace, with a chosen number; the
//! namespace check makes it need the privilege to hold a socket of a namespace that it is not in.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use millrace_wire::Offer;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{Mode, fstat, major, minor};
use serde::{Deserialize, Serialize};

use crate::offers::Reach;
use crate::sock_diag::SockDiag;
use crate::sys::{self, FileIdentity};
use crate::text::printable;

/// A process, as `/proc` shows it: a descriptor of its directory, which never comes to mean another process.
#[derive(Debug)]
pub(crate) struct Process {
    directory: OwnedFd,
    identity: Identity,
    /// It could give itself any user's rights when it was opened: who it is says no more of it than that.
    can_be_anybody: bool,
    shares_pid_namespace: bool,
}

/// What changes when a process becomes another program or gets other rights. A daemon that gives up root's changes its owner, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    program: FileIdentity,
    /// Its effective user.
    owner: u32,
}

/// The capability to become any user: `include/uapi/linux/capability.h`.
const CAP_SETUID: u32 = 7;

impl Process {
    /// Opens the process that a socket's peer is. `None` when it is gone, or this agent may not look at it.
    ///
    /// `pidfd` (`SO_PEERPIDFD`) shows that the number still means that process after the directory is open.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub(crate) fn open(pid: i32, pidfd: Option<BorrowedFd<'_>>) -> nix::Result<Option<Process>> {
        // 0: it is in a PID namespace that this process does not see.
        if pid <= 0 {
            return Ok(None);
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let path = format!("/proc/{pid}");
        let directory = match nix::fcntl::open(path.as_str(), flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(errno @ (Errno::EMFILE | Errno::ENFILE)) => return Err(errno),
            Err(_) => return Ok(None),
        };
        if pidfd.is_some_and(is_dead) {
            return Ok(None);
        }
        let Some(identity) = Identity::of(&directory) else {
            return Ok(None);
        };
        let mut process = Process {
            directory,
            identity,
            can_be_anybody: false,
            shares_pid_namespace: false,
        };
        process.can_be_anybody = process.has_capability(CAP_SETUID);
        process.shares_pid_namespace = process.is_in_our_pid_namespace() == Some(true);
        Ok(Some(process))
    }

    /// Its name as `ps -o comm` shows it, escaped.
    pub(crate) fn name(&self) -> Option<String> {
        let file = openat(
            &self.directory,
            "comm",
            OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .ok()?;
        let mut buffer = [0; 64];
        let length = nix::unistd::read(&file, &mut buffer).ok()?;
        Some(printable(buffer[..length].trim_ascii_end()))
    }

    /// The last part of the path of its executable file, escaped.
    pub(crate) fn program(&self) -> Option<String> {
        let path = readlinkat(&self.directory, "exe").ok()?;
        let name = std::path::Path::new(&path).file_name()?;
        Some(printable(name.as_encoded_bytes()))
    }

    /// Whether it is alive, the same program, and has no rights that it could not give itself when it was opened.
    pub(crate) fn is_unchanged(&self) -> bool {
        Identity::of(&self.directory).is_some_and(|now| {
            now.program == self.identity.program
                && (now.owner == self.identity.owner || self.can_be_anybody)
        })
    }

    /// Whether it may have it whenever it wants: capabilities(7), the permitted set.
    fn has_capability(&self, capability: u32) -> bool {
        let status = self.read("status").unwrap_or_default();
        let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
        let permitted = permitted.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        permitted.unwrap_or(0) >> capability & 1 != 0
    }

    /// Whether the agent and it know threads by the same numbers, which no process changes; also of one that has ended.
    pub(crate) fn shares_pid_namespace(&self) -> bool {
        self.shares_pid_namespace
    }

    /// The same as it can be seen now; `None`: the agent may not look, or it has ended.
    pub(crate) fn is_in_our_pid_namespace(&self) -> Option<bool> {
        let own = std::fs::read_link("/proc/self/ns/pid").ok()?;
        Some(own == std::path::Path::new(&self.link("ns/pid")?))
    }

    /// The inode of the socket that it has at `fd`.
    pub(crate) fn socket_inode(&self, fd: i32) -> Option<u64> {
        let link = self.link(&format!("fd/{fd}"))?;
        let digits = link.strip_prefix("socket:[")?.strip_suffix(']')?;
        digits.parse().ok()
    }

    /// The memory with that device and inode that it has mapped. Takes the right to trace it, and CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
    pub(crate) fn open_mapped(&self, device: u64, inode: u64) -> Option<OwnedFd> {
        let maps = self.read("maps")?;
        // A file of another kind may have the number, too, and be opened by somebody who does not answer.
        let device = format!("{:02x}:{:02x}", major(device), minor(device));
        let number = inode.to_string();
        // Addresses, rights, offset, device, inode, name: proc_pid_maps(5).
        let range = maps.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let range = words.next()?;
            let is_its = words.nth(2)? == device && words.next()? == number;
            is_its.then_some(range)
        })?;
        let path = format!("map_files/{range}");
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let memory = openat(&self.directory, path.as_str(), flags, Mode::empty()).ok()?;
        (fstat(&memory).ok()?.st_ino == inode).then_some(memory)
    }

    /// What it has at `fd`, not opened: by this the file can be named, and nobody hears of it.
    pub(crate) fn place_of(&self, fd: u32) -> Option<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let path = format!("fd/{fd}");
        openat(&self.directory, path.as_str(), flags, Mode::empty()).ok()
    }

    /// Its network namespace, as `/proc/PID/ns/net` names it.
    pub(crate) fn network_namespace(&self) -> Option<String> {
        self.link("ns/net")
    }

    /// The text of a file in its directory.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        self.read_beginning(name, u64::MAX)
    }

    /// The same, up to so many bytes.
    pub(crate) fn read_beginning(&self, name: &str, bytes_max: u64) -> Option<String> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let file = openat(&self.directory, name, flags, Mode::empty()).ok()?;
        // Names in it may be any bytes.
        let mut bytes = Vec::new();
        let mut beginning = std::io::Read::take(std::fs::File::from(file), bytes_max);
        std::io::Read::read_to_end(&mut beginning, &mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn link(&self, name: &str) -> Option<String> {
        readlinkat(&self.directory, name).ok()?.into_string().ok()
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Identity {
    fn of(directory: &OwnedFd) -> Option<Identity> {
        Some(Identity {
            program: sys::identity_of(directory.as_fd(), c"exe").ok()?,
            owner: fstat(directory).ok()?.st_uid,
        })
    }
}

/// A flag of a process that is about to end: `include/linux/sched.h`.
const PF_EXITING: u64 = 4;

/// Whether there is a process of this number that has not ended.
pub(crate) fn exists(pid: u32) -> bool {
    state_of(pid).is_some_and(|(state, _)| !matches!(state, b'Z' | b'X'))
}

/// Whether a process is about to end. One that has ended has closed everything.
pub(crate) fn is_ending(pid: u32) -> bool {
    state_of(pid)
        .is_some_and(|(state, flags)| !matches!(state, b'Z' | b'X') && flags & PF_EXITING != 0)
}

/// Whether there is a process of this number that is not about to end.
pub(crate) fn is_alive(pid: u32) -> bool {
    exists(pid) && !is_ending(pid)
}

/// Whether all threads of a process stand still, by a signal or a tracer, before or behind whatever call they are at: what one had the
/// kernel do has ended, or begins anew when it goes on.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let mut states = threads.map(|thread| state_in(&thread.ok()?.path()).map(|(state, _)| state));
    states.all(|state| matches!(state, Some(b'T' | b't')))
}

/// The letter of a process's state, and its flags.
fn state_of(pid: u32) -> Option<(u8, u64)> {
    state_in(Path::new(&format!("/proc/{pid}")))
}

/// The same of a process or thread whose directory this is: `proc_pid_stat(5)`.
fn state_in(directory: &Path) -> Option<(u8, u64)> {
    let text = std::fs::read(directory.join("stat")).ok()?;
    // The state stands behind the name, which may have any bytes.
    let rest = text.rsplit(|byte| *byte == b')').next()?;
    let mut words = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
    let state = *words.next()?.as_bytes().first()?;
    // Behind the state: parent, group, session, terminal, its group, flags.
    Some((state, words.nth(5)?.parse().ok()?))
}

/// A pidfd is readable once its process has ended.
pub(crate) fn is_dead(pidfd: BorrowedFd<'_>) -> bool {
    let mut descriptors = [PollFd::new(pidfd, PollFlags::POLLIN)];
    poll(&mut descriptors, PollTimeout::ZERO) != Ok(0)
}

/// Which of the two offers does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    First,
    Second,
}

/// Why an offer does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The agent cannot look at the process: it is gone, or another user's, or in a PID namespace beside the agent's.
    Process,
    /// The process has become another program, or got other rights, since it connected.
    Changed,
    /// The process is in another network namespace.
    Namespace,
    /// The descriptor is not a socket, or not open.
    Descriptor,
    /// There is no established connection with these addresses and this cookie.
    Connection,
    /// There is one, but the descriptor is another socket.
    OtherSocket,
    /// What it sends may come to another socket than the one whose addresses mirror its own.
    Translated,
    /// The kernel did not answer.
    Kernel,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doubt::Process => "the agent cannot look at the process",
            Doubt::Changed => "the process has become another program since it connected",
            Doubt::Namespace => "the process is in another network namespace",
            Doubt::Descriptor => "the descriptor is no socket",
            Doubt::Connection => "the kernel has no such established connection",
            Doubt::OtherSocket => "the descriptor is another socket",
            Doubt::Translated => "its addresses may be translated on the way",
            Doubt::Kernel => "the kernel did not answer",
        })
    }
}

/// An offer, and the process that made it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim<'a> {
    pub(crate) offer: &'a Offer,
    pub(crate) process: Option<&'a Process>,
}

/// What this agent can find out on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The kernel answers sock_diag requests.
    pub sock_diag: bool,
    /// The kernel says which process is at the other end of a socket by a descriptor (`SO_PEERPIDFD`, Linux 6.5).
    pub peer_pidfd: bool,
    /// The agent may look at processes of other users.
    pub other_users: bool,
    /// The agent can prove connections of other network namespaces: a BPF iterator, for which it needs root and Linux 6.1.
    #[serde(default)]
    pub other_namespaces: bool,
}

/// Asks the kernel.
#[derive(Debug)]
pub(crate) struct Prover {
    diag: SockDiag,
    namespace: String,
    reach: Reach,
}

impl Prover {
    pub(crate) fn new() -> io::Result<Prover> {
        let namespace = std::fs::read_link("/proc/self/ns/net")?;
        // Any socket made here will do.
        let (probe, _other) = std::os::unix::net::UnixStream::pair()?;
        Ok(Prover {
            diag: SockDiag::open()?,
            namespace: namespace.to_string_lossy().into_owned(),
            reach: Reach(crate::sys::netns_cookie(probe.as_fd()).ok()),
        })
    }

    /// By which it asks.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.diag.as_fd()
    }

    /// The agent's network namespace, as `/proc/PID/ns/net` names it.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Whether an offer can be proved at all, as far as its own words go.
    pub(crate) fn is_in_reach(&self, offer: &Offer) -> bool {
        self.reach.has(offer)
    }

    /// Which offers these are.
    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// Whether no process has that end any more, while the kernel still has bytes of it to send. Not known of other network namespaces.
    pub(crate) fn is_orphaned(&self, offer: &Offer) -> bool {
        let facts = || self.diag.lookup(&offer.local, &offer.remote, offer.cookie);
        self.is_in_reach(offer) && matches!(facts(), Ok(Some(facts)) if facts.inode == 0)
    }

    /// Whether the kernel answers at all: asks for a connection that cannot be.
    pub(crate) fn can_ask(&mut self) -> bool {
        let nowhere = millrace_wire::Address {
            ip: [0; 16],
            port: 0,
        };
        self.diag.lookup(&nowhere, &nowhere, 1).is_ok()
    }

    /// Proves that the two claims are the two ends of one connection. The caller has seen to it that their addresses
    /// mirror each other and their cookies differ. Returns the inodes of their sockets.
    pub(crate) fn prove(
        &mut self,
        first: Claim<'_>,
        second: Claim<'_>,
    ) -> Result<[u64; 2], (Side, Doubt)> {
        self.prove_one(first)
            .map_err(|doubt| (Side::First, doubt))?;
        let second = self
            .prove_one(second)
            .map_err(|doubt| (Side::Second, doubt))?;
        let first = self
            .prove_one(first)
            .map_err(|doubt| (Side::First, doubt))?;
        Ok([first, second])
    }

    fn prove_one(&mut self, claim: Claim<'_>) -> Result<u64, Doubt> {
        let Claim { offer, process } = claim;
        let process = process.ok_or(Doubt::Process)?;
        let facts = match self.diag.lookup(&offer.local, &offer.remote, offer.cookie) {
            Ok(Some(facts)) if facts.established && facts.inode != 0 => facts,
            Ok(_) => return Err(Doubt::Connection),
            Err(_) => return Err(Doubt::Kernel),
        };
        if process.link("ns/net").ok_or(Doubt::Process)? != self.namespace {
            return Err(Doubt::Namespace);
        }
        let inode = process.socket_inode(offer.fd).ok_or(Doubt::Descriptor)?;
        if inode != facts.inode {
            return Err(Doubt::OtherSocket);
        }
        // Last, so that everything above was read from the process as it is known.
        if process.is_unchanged() {
            Ok(facts.inode)
        } else {
            Err(Doubt::Changed)
        }
    }
}

#[cfg(test)]
mod tests;
