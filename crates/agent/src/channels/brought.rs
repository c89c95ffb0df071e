//! The pool that a participant has from an earlier agent. It says by which number, and the agent opens it by that.
//!
//! It may name anything: a socket that lingers when it is closed, a file of a file system that does not answer. So nothing is opened before
//! it is known to be memory, and nobody's file system is asked for that.

use std::fs::{File, Permissions, set_permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use millrace_shm::pool;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use nix::unistd::geteuid;

use crate::proof::Process;
use crate::sys;

/// The memory that a process has by that number; none: it has none there, or the agent may not look.
pub(super) fn open(process: &Process, number: u32) -> Option<OwnedFd> {
    let place = process.place_of(number)?;
    let device = sys::identity_of(place.as_fd(), c"").ok()?.device;
    let is_memory = [MFdFlags::empty(), MFdFlags::MFD_HUGETLB]
        .into_iter()
        .filter_map(|kind| memfd_create(c"millrace-none", kind | MFdFlags::MFD_CLOEXEC).ok())
        .filter_map(|memory| sys::identity_of(memory.as_fd(), c"").ok())
        .any(|memory| memory.device == device);
    if !is_memory || !process.is_unchanged() {
        return None;
    }
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    let opened = File::open(&path).or_else(|error| {
        let found = fstat(&place)?;
        let is_closed = found.st_uid == geteuid().as_raw() && found.st_mode & 0o777 == 0;
        if error.kind() != io::ErrorKind::PermissionDenied || !is_closed {
            return Err(error);
        }
        // Nobody can open a pool by its name, its owner neither; but that owner is who the agent is, and can change it.
        set_permissions(&path, Permissions::from_mode(0o400))?;
        let opened = File::open(&path);
        set_permissions(&path, Permissions::from_mode(0o0))?;
        opened
    });
    opened.ok().map(OwnedFd::from)
}

/// Whether a pool of this size that somebody brought is one. `Some`: it is, and whether it is of huge pages.
pub(super) fn checked(pool: &OwnedFd, bytes: u64) -> Option<bool> {
    is_whole(pool, bytes).then_some(fstatfs(pool).ok()?.filesystem_type() == HUGETLBFS_MAGIC)
}

/// Whether nobody can change the size of a pool, map it for writing or make holes in it any more, and all of it is there, so that no reader
/// has to allocate any of it.
pub(super) fn is_whole(pool: &OwnedFd, bytes: u64) -> bool {
    // In this order: sealed, it can only become more.
    pool::is_sealed(pool.as_fd(), bytes)
        && fstat(pool).is_ok_and(|found| {
            u64::try_from(found.st_blocks).is_ok_and(|blocks| blocks.saturating_mul(512) >= bytes)
        })
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FallocateFlags, fallocate};

    use super::*;

    #[test]
    fn a_pool_with_a_hole_is_none() {
        let (whole, _) = pool::create(1 << 21).unwrap();
        let (holed, _) = pool::create(1 << 21).unwrap();
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&holed, hole, 0, 1 << 21).unwrap();
        for pool in [&whole, &holed] {
            assert!(!is_whole(pool, 1 << 21), "not sealed");
            pool::seal(pool.as_fd()).unwrap();
            assert!(fallocate(pool, hole, 0, 1 << 21).is_err());
        }
        assert!(is_whole(&whole, 1 << 21) && !is_whole(&holed, 1 << 21));
    }
}
