//! The calls that are under test, each made by its name in the C library, so that a preloaded library
//! sees them; and the few calls of the tester's own that need `unsafe`. Everything else that the tester
//! does for itself (pipes, waiting, killing) goes through `rustix`, which enters the kernel directly.
//!
//! All `unsafe` of this program is in this folder. The wrappers are safe: they take descriptors as plain
//! numbers, wrong ones included, because wrong ones are part of what is tested.

mod descriptors;
mod process;
mod transfer;
mod waiting;

pub(crate) use descriptors::*;
pub(crate) use process::*;
pub(crate) use transfer::*;
pub(crate) use waiting::*;

use std::fmt;
use std::marker::PhantomData;

/// A descriptor number as a program has it; it need not be open.
pub(crate) type Fd = i32;

/// What a call returned: its result, or its `errno`.
pub(crate) type Answer = Result<usize, Errno>;

/// An error number of the kernel, shown by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) i32);

impl fmt::Display for Errno {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::EBADF => "EBADF",
            libc::ECHILD => "ECHILD",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EEXIST => "EEXIST",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::EMFILE => "EMFILE",
            libc::ENOTTY => "ENOTTY",
            libc::ESPIPE => "ESPIPE",
            libc::EPIPE => "EPIPE",
            libc::ELOOP => "ELOOP",
            libc::ENOTSOCK => "ENOTSOCK",
            libc::EDESTADDRREQ => "EDESTADDRREQ",
            libc::EMSGSIZE => "EMSGSIZE",
            libc::ENOPROTOOPT => "ENOPROTOOPT",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::EAFNOSUPPORT => "EAFNOSUPPORT",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
            libc::ENETUNREACH => "ENETUNREACH",
            libc::ECONNABORTED => "ECONNABORTED",
            libc::ECONNRESET => "ECONNRESET",
            libc::EISCONN => "EISCONN",
            libc::ENOTCONN => "ENOTCONN",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::ECONNREFUSED => "ECONNREFUSED",
            libc::EALREADY => "EALREADY",
            libc::EINPROGRESS => "EINPROGRESS",
            libc::ENOSYS => "ENOSYS",
            other => return write!(out, "errno {other}"),
        };
        out.write_str(name)
    }
}

/// `errno` as the last call left it.
fn last_errno() -> Errno {
    Errno(
        std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or_default(),
    )
}

/// Makes an answer of a call's result, by the convention that a negative one means `errno`.
fn answer(result: impl Into<i64>) -> Answer {
    usize::try_from(result.into()).map_err(|_| last_errno())
}

/// A piece of memory to receive into or send from, laid out as the kernel's `iovec`.
#[repr(transparent)]
pub(crate) struct Area<'a> {
    vector: libc::iovec,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Area<'a> {
    /// The program's memory `bytes`.
    pub(crate) fn of(bytes: &'a mut [u8]) -> Self {
        Area {
            vector: libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            },
            memory: PhantomData,
        }
    }

    /// `len` bytes at an address where nothing is mapped.
    pub(crate) fn bad(len: usize) -> Self {
        Area {
            vector: libc::iovec {
                iov_base: std::ptr::without_provenance_mut(64),
                iov_len: len,
            },
            memory: PhantomData,
        }
    }

    /// Cuts `bytes` into `parts` areas: all of one size but the last, which takes the rest.
    pub(crate) fn cut(bytes: &'a mut [u8], parts: usize) -> Vec<Self> {
        let size = bytes.len() / parts.max(1);
        let mut rest = bytes;
        let mut areas = Vec::with_capacity(parts);
        for _ in 1..parts {
            let (part, tail) = rest.split_at_mut(size);
            areas.push(Area::of(part));
            rest = tail;
        }
        areas.push(Area::of(rest));
        areas
    }

    fn pointer(&self) -> *mut libc::c_void {
        self.vector.iov_base
    }

    fn len(&self) -> usize {
        self.vector.iov_len
    }
}

/// The pointer to an array of areas that a vectored call takes.
fn vectors(areas: &[Area<'_>]) -> *const libc::iovec {
    areas.as_ptr().cast()
}

/// A length as the type that the C library wants it in; all lengths here are small.
fn count<T: TryFrom<usize>>(value: usize) -> T {
    T::try_from(value).unwrap_or_else(|_| unreachable!("lengths here fit every C type"))
}
