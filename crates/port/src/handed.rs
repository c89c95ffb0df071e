//! Descriptors that a peer hands over: what they must be before they are used.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use millrace_shm::sys;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

/// So many descriptors come with a message at most (`SCM_MAX_FD` of Linux). Who has room for fewer is told that some are missing, and the
/// others are open, under numbers that nobody learns.
pub(crate) const DESCRIPTORS_MAX: usize = 253;

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
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let is_eventfd = link.is_ok_and(|link| link.to_string_lossy() == "anon_inode:[eventfd]");
    is_eventfd && fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok()
}
