//! What no safe wrapper does.

use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use millrace_shm::link::{Descriptor, Link, PublishEnd};
use millrace_shm::pool::Pool;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mprotect, munmap};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::ftruncate;

/// `F_SEAL_FUTURE_WRITE` (`include/uapi/linux/fcntl.h`).
const FUTURE_WRITE: SealFlag = SealFlag::from_bits_retain(0x10);

fn can_map(fd: &impl AsFd, bytes: u64, protection: ProtFlags) -> bool {
    let bytes = NonZeroUsize::new(bytes as usize).unwrap();
    // SAFETY: a new mapping, which is used for nothing.
    let Ok(place) = (unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, fd, 0) }) else {
        return false;
    };
    let is_readable_only = !protection.contains(ProtFlags::PROT_WRITE);
    if is_readable_only {
        // SAFETY: the mapping was made above.
        let widened = unsafe {
            mprotect(
                place,
                bytes.get(),
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            )
        };
        assert!(
            widened.is_err(),
            "a mapping for reading becomes one for writing"
        );
    }
    // SAFETY: the mapping was made above, and nobody uses it.
    unsafe { munmap(place, bytes.get()) }.unwrap();
    true
}

/// Whoever has this descriptor of a pool can read it, and change neither its bytes nor its size, by whatever way.
pub(super) fn assert_read_only(pool: &OwnedFd, bytes: u64) {
    let write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    assert!(can_map(pool, bytes, ProtFlags::PROT_READ));
    assert!(!can_map(pool, bytes, write));
    // This process is of the user who made it, so it may change its mode, and open it again.
    fchmod(pool, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let path = format!("/proc/self/fd/{}", pool.as_raw_fd());
    let again = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    fchmod(pool, Mode::empty()).unwrap();
    assert!(!can_map(&again, bytes, write));
    assert!(again.write_at(b"x", 0).is_err());
    assert!(again.set_len(0).is_err() && again.set_len(bytes * 2).is_err());
    for flags in [
        FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE,
        FallocateFlags::FALLOC_FL_ZERO_RANGE,
        FallocateFlags::empty(),
    ] {
        let end = if flags.is_empty() { bytes as i64 } else { 0 };
        assert!(fallocate(&again, flags, end, 4096).is_err(), "{flags:?}");
    }
    assert!(fcntl(&again, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
}

/// A memfd that is no pool of the agent's making.
pub(super) fn memory(bytes: u64, allocated: bool, seals: SealFlag) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("own", flags).unwrap();
    ftruncate(&fd, bytes as i64).unwrap();
    if allocated {
        fallocate(&fd, FallocateFlags::empty(), 0, bytes as i64).unwrap();
    }
    if !seals.is_empty() {
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    }
    fd
}

/// The seals of a pool.
pub(super) fn all_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL | FUTURE_WRITE
}

/// Puts messages of these lengths on a link, as a publisher does.
pub(super) fn publish(link: Link, pool: &mut Pool, lengths: &[usize]) -> PublishEnd {
    let mut end = PublishEnd::new(Arc::new(link), 0);
    for (length, ticket) in lengths.iter().zip(0u16..) {
        let buffer = pool.take(*length).unwrap();
        end.push(&Descriptor {
            line: buffer.line(),
            bytes: buffer.bytes(),
            flags: 0,
            ticket,
            sequence: u32::from(ticket) as _,
        });
    }
    end.publish();
    end
}
