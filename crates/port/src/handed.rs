//! Descriptors that a peer hands over: what they must be before they are used.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use millrace_shm::sys;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

/// So many descriptors come with a message at most (`SCM_MAX_FD` of Linux). Who has room for fewer is told that some are missing, and the
/// others are open, under numbers that nobody learns.
pub(crate) const DESCRIPTORS_MAX: usize = 253;

/// What a thread needs that closes something.
const CLOSER_STACK_BYTES: usize = 64 << 10;
/// So many descriptors of a port's may be on their way out before it takes somebody else. One message brings more, once.
const DEBTS_MAX: usize = 64;

/// What of a port's peers is being closed still.
///
/// Whoever has a file in its table, or in a queue of a socket of its own, has to let go of it some day, and that may take as long as its
/// maker likes: a TCP connection with SO_LINGER and bytes that nobody takes, a file whose file system is a program. So it is closed by a
/// thread for which no worker waits; and a port takes nobody while there are many of these, or there would be any number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Debts(Arc<AtomicUsize>);

/// Some of them.
struct Debt(Debts, usize);

impl Drop for Debt {
    fn drop(&mut self) {
        // Relaxed: a count, by which no other memory is read.
        self.0.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Debts {
    pub(crate) fn are_many(&self) -> bool {
        // Relaxed: as above.
        self.0.load(Ordering::Relaxed) >= DEBTS_MAX
    }

    /// Closes what may take its time: so many descriptors.
    pub(crate) fn close(&self, count: usize, fds: impl Send + 'static) {
        self.0.fetch_add(count, Ordering::Relaxed);
        let debt = Debt(self.clone(), count);
        let closer = thread::Builder::new().name("port-closer".to_owned());
        // Where there can be no thread, its closure is dropped here, and with it what it has.
        let _ = closer.stack_size(CLOSER_STACK_BYTES).spawn(move || {
            drop(fds);
            drop(debt);
        });
    }
}

/// Descriptors that came with a message. What is not taken is closed, and nobody waits for that.
#[derive(Debug, Default)]
pub(crate) struct Gifts {
    fds: Vec<OwnedFd>,
    debts: Debts,
}

impl Gifts {
    /// None so far.
    pub(crate) fn new(debts: &Debts) -> Gifts {
        Gifts {
            fds: Vec::new(),
            debts: debts.clone(),
        }
    }

    pub(crate) fn push(&mut self, fd: OwnedFd) {
        self.fds.push(fd);
    }

    pub(crate) fn len(&self) -> usize {
        self.fds.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd)
    }

    pub(crate) fn first(&self) -> Option<BorrowedFd<'_>> {
        self.iter().next()
    }

    /// Takes the first one, of which it is known that it is closed at once: memory, or an eventfd.
    pub(crate) fn take_first(&mut self) -> Option<OwnedFd> {
        (!self.fds.is_empty()).then(|| self.fds.remove(0))
    }

    /// Closes all but the first one.
    pub(crate) fn keep_first(&mut self) {
        let others = self.fds.split_off(self.fds.len().min(1));
        drop(Gifts {
            fds: others,
            debts: self.debts.clone(),
        });
    }

    /// Takes all of them out.
    pub(crate) fn take(&mut self) -> Gifts {
        Gifts {
            fds: mem::take(&mut self.fds),
            debts: self.debts.clone(),
        }
    }
}

impl Drop for Gifts {
    fn drop(&mut self) {
        self.fds.retain(|fd| !is_soon_closed(fd.as_fd()));
        if !self.fds.is_empty() {
            self.debts.close(self.fds.len(), mem::take(&mut self.fds));
        }
    }
}

/// Whether nobody can make closing it take long. No file system is asked for that.
fn is_soon_closed(fd: BorrowedFd<'_>) -> bool {
    fcntl(fd, FcntlArg::F_GET_SEALS).is_ok() || is_named_eventfd(fd)
}

fn is_named_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.to_string_lossy() == "anon_inode:[eventfd]")
}

/// Why memory of a peer's is not mapped.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// It could be taken away while it is read.
    NotSealed,
    /// It is smaller than it is said to be.
    Small,
    Io(io::Error),
}

/// Whether memory can be mapped, up to so many bytes.
///
/// Reading beyond the end of a file is a deadly signal, and so is reading a huge page that was given back when the machine has no other. So
/// the memory must be sealed against shrinking, and of ordinary pages, unless the peer is trusted in this. Where it may still be sealed, we
/// do it. Seals are looked at first: asking anything else of a file whose file system is the peer's could wait for the peer.
pub(crate) fn check_memory(
    fd: BorrowedFd<'_>,
    bytes: u64,
    accept_unsealed: bool,
) -> Result<(), Unfit> {
    if !accept_unsealed {
        let shrink = libc::F_SEAL_SHRINK;
        let number = fd.as_raw_fd();
        if !sys::has_seals(number, shrink) && sys::add_seals(number, shrink).is_err() {
            return Err(Unfit::NotSealed);
        }
        let filesystem = fstatfs(fd).map_err(|error| Unfit::Io(error.into()))?;
        if filesystem.filesystem_type() == HUGETLBFS_MAGIC {
            return Err(Unfit::NotSealed);
        }
    }
    let stat = fstat(fd).map_err(|error| Unfit::Io(error.into()))?;
    if u64::try_from(stat.st_size).unwrap_or(0) < bytes {
        return Err(Unfit::Small);
    }
    Ok(())
}

/// Whether a descriptor is an eventfd; then writing to it does not block from now on, unless the peer takes that back and fills it.
pub(crate) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    is_named_eventfd(fd) && fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok()
}
