//! Descriptors that a peer hands over: what they must be before they are used.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};

use millrace_shm::{Mapping, sys};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use super::error::ControlError;

/// Maps a region.
///
/// Reading beyond the end of a file is a deadly signal, and so is reading a huge page that was given back when the machine has no other. So
/// the memory must be sealed against shrinking, and of ordinary pages, unless the peer is trusted in this.
pub(super) fn map(
    fd: BorrowedFd<'_>,
    bytes: u64,
    accept_unsealed: bool,
) -> Result<Mapping, ControlError> {
    let stat = fstat(fd).map_err(|error| ControlError::Map(error.into()))?;
    if u64::try_from(stat.st_size).unwrap_or(0) < bytes {
        return Err(ControlError::RegionBytes(bytes));
    }
    if !accept_unsealed {
        let filesystem = fstatfs(fd).map_err(|error| ControlError::Map(error.into()))?;
        let is_huge = filesystem.filesystem_type() == HUGETLBFS_MAGIC;
        if is_huge || !sys::has_seals(fd.as_raw_fd(), libc::F_SEAL_SHRINK) {
            return Err(ControlError::NotSealed);
        }
    }
    let bytes = usize::try_from(bytes).map_err(|_| ControlError::RegionBytes(bytes))?;
    Mapping::new(fd, bytes).map_err(ControlError::Map)
}

/// Whether a descriptor is an eventfd; then writing to it does not block from now on, unless the peer takes that back and fills it.
pub(super) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let is_eventfd = link.is_ok_and(|link| link.to_string_lossy() == "anon_inode:[eventfd]");
    is_eventfd && fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok()
}
