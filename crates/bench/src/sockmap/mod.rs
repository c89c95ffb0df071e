//! The road `sockmap`: two local TCP sockets are spliced by BPF programs, as service meshes do it between a program and its sidecar.
//!
//! A `sock_ops` program puts each socket of one network namespace, when its connection is established, into a map (`SOCKHASH`) under its
//! addresses and ports; an `sk_msg` program redirects each message to the receive queue of the peer (`bpf_msg_redirect_hash` with
//! `BPF_F_INGRESS`), past TCP.
//!
//! The programs are instructions that this crate writes, as the agent's are: with about seventy of them that is less than a compiler of
//! C at run time or a crate such as `aya`, which would bring an object file and its own way of building.
//!
//! Nothing has to be undone, also after SIGKILL. Programs, maps and the link to the cgroup are held by descriptors of this process only;
//! nothing is pinned. The cgroup is the one that the run is in: making another would leave a directory behind. The program tells the
//! road's sockets from all others by the cookie of their network namespace, so that programs need not be put anywhere.
//!
//! What is known of spliced sockets:
//! - A message whose peer is not in the map takes TCP, and so do all later ones of the same sender, or the peer would read them first. On
//!   loopback that needs a listener with `TCP_DEFER_ACCEPT`, or a busy machine: the final acknowledgement of the handshake is otherwise
//!   processed within `connect`. The side that accepts cannot be early: `accept` waits until its socket is in the map, and the other's
//!   was before. Messages that took TCP are counted, and told.
//! - Nothing slows a sender down: messages are charged to the reader's side, which has no limit but the one on all TCP of the machine.
//! - Ends of connections (FIN and RST) take TCP; a reader gets what is in its queue first. `poll` and `epoll` know that queue.
//! - `splice(2)` from such a socket, and `FIONREAD` before Linux 7.0, see TCP's queue only.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::fcntl::{OFlag, openat};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;

mod program;
#[allow(unsafe_code, reason = "system calls that nobody else offers")]
mod sys;

use sys::{Counters, Map};

const MAP_SOCKHASH: u32 = 18;
const MAP_SK_STORAGE: u32 = 24;
const PROGRAM_SOCK_OPS: u32 = 13;
const PROGRAM_SK_MSG: u32 = 16;
const ATTACH_SOCK_OPS: u32 = 3;
const ATTACH_SK_MSG: u32 = 7;
/// `BPF_F_NO_PREALLOC`, which storage of sockets has to say.
const NO_PREALLOC: u32 = 1;
/// Two for each connection; there are 28 000 ports for those of one client.
const SOCKETS_MAX: u32 = 1 << 16;
/// No network namespace has this cookie.
const NOWHERE: u64 = 0;
/// What is set up, in the words of the kernel's documentation.
pub const SETTING: &str = "BPF: sock_ops puts established sockets into a SOCKHASH; sk_msg redirects each message with \
    bpf_msg_redirect_hash and BPF_F_INGRESS";
/// A type, "int" of 32 bits, as the storage of sockets needs it to be described: header, one record, two names.
const INT: [u32; 12] = [
    u32::from_ne_bytes(BTF_START),
    24, // bytes of the header
    0,
    16, // bytes of types
    16,
    5, // bytes of names
    1, // the name is at 1
    1 << 24,
    4,            // bytes
    1 << 24 | 32, // signed, bits
    u32::from_ne_bytes(*b"\0int"),
    0,
];
/// The magic number, version 1, no flags.
const BTF_START: [u8; 4] = if cfg!(target_endian = "little") {
    [0x9f, 0xeb, 1, 0]
} else {
    [0xeb, 0x9f, 1, 0]
};

/// The splice, as long as it lives.
pub(crate) struct Sockmap {
    counters: Counters,
    /// The link to the cgroup, and the map: when its last descriptor is closed, its program is, too.
    _held: [OwnedFd; 2],
}

/// Messages that sockets in the map have sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Messages {
    /// To the peer's receive queue.
    pub(crate) spliced: u64,
    /// Through TCP.
    pub(crate) ordinary: u64,
}

/// Why there can be no such road here.
///
/// # Errors
/// That is what it returns.
pub fn check() -> Result<()> {
    Sockmap::open(NOWHERE).map(drop)
}

impl Sockmap {
    /// Splices the connections that are made from now on in a network namespace, both ends of which are in it.
    pub(crate) fn of_namespace(name: &Path) -> Result<Sockmap> {
        let namespace = File::open(name).with_context(|| format!("{}", name.display()))?;
        // A thread of its own, because it stays in that namespace.
        let cookie = thread::spawn(move || -> Result<u64> {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            own_cookie()
        });
        let cookie = cookie.join().map_err(|_| anyhow!("a thread panicked"))?;
        Sockmap::open(cookie.context("the number of a network namespace is not to be had")?)
    }

    fn open(netns_cookie: u64) -> Result<Sockmap> {
        let map = sys::create_map(&Map {
            kind: MAP_SOCKHASH,
            key_bytes: program::KEY_BYTES,
            value_bytes: 4,
            entries: SOCKETS_MAX,
            flags: 0,
            types: None,
        });
        let map = map.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => anyhow!("it is BPF, which is for root"),
            _ => anyhow!("this kernel has none (CONFIG_NET_SOCK_MSG): {error}"),
        })?;
        let types: Vec<u8> = INT.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let types = sys::load_types(&types[..45]).context("types for BPF")?;
        let begun = sys::create_map(&Map {
            kind: MAP_SK_STORAGE,
            key_bytes: 4,
            value_bytes: 4,
            entries: 0,
            flags: NO_PREALLOC,
            types: Some(types.as_fd()),
        });
        let begun = begun.context("storage of sockets for BPF")?;
        let counters = Counters::new().context("an array for BPF")?;
        let redirect = program::redirect(map.as_fd(), begun.as_fd(), counters.as_fd());
        let redirect = sys::load_program(PROGRAM_SK_MSG, ATTACH_SK_MSG, &redirect)
            .context("the sk_msg program")?;
        sys::attach(map.as_fd(), redirect.as_fd(), ATTACH_SK_MSG)
            .context("the sk_msg program, at its map")?;
        let join = program::join(map.as_fd(), netns_cookie);
        let join = sys::load_program(PROGRAM_SOCK_OPS, ATTACH_SOCK_OPS, &join)
            .context("the sock_ops program")?;
        let cgroup = own_cgroup()?;
        let link = sys::link(cgroup.as_fd(), join.as_fd(), ATTACH_SOCK_OPS)
            .context("the sock_ops program, at our cgroup")?;
        Ok(Sockmap {
            counters,
            _held: [link, map],
        })
    }

    /// What has been sent so far.
    pub(crate) fn messages(&self) -> Result<Messages> {
        Ok(Messages {
            spliced: self.counters.sum(program::SPLICED)?,
            ordinary: self.counters.sum(program::ORDINARY)?,
        })
    }
}

impl Messages {
    pub(crate) fn since(self, earlier: Messages) -> Messages {
        Messages {
            spliced: self.spliced - earlier.spliced,
            ordinary: self.ordinary - earlier.ordinary,
        }
    }

    /// What a reader of the figures has to know.
    pub(crate) fn note(self) -> Option<String> {
        match self {
            Messages { spliced: 0, .. } => Some("no message took the sockmap".to_owned()),
            Messages { ordinary: 0, .. } => None,
            Messages { spliced, ordinary } => {
                let share = ordinary as f64 / (spliced + ordinary) as f64;
                if share < 1e-3 {
                    return Some("a few messages took TCP and not the sockmap".to_owned());
                }
                Some(format!(
                    "{:.1} % of the messages took TCP and not the sockmap",
                    share * 100.0
                ))
            }
        }
    }
}

/// The cookie of the network namespace of this thread.
fn own_cookie() -> Result<u64> {
    Ok(sys::netns_cookie(UdpSocket::bind("0.0.0.0:0")?.as_fd())?)
}

/// The control group that we are in, as `cgroups(7)` has it: on the line of hierarchy 0, below the root that we see.
fn own_cgroup() -> Result<OwnedFd> {
    let lines = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = lines.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = path.context("this kernel has no cgroup2")?;
    let root = sys::cgroup_root().context("cgroup2 cannot be mounted")?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(
        root,
        Path::new(".").join(path).as_path(),
        flags,
        Mode::empty(),
    )
    .with_context(|| format!("our own cgroup, /{path}"))
}

#[cfg(test)]
mod tests;
