//! System calls for the sockmap: `bpf(2)`, and a mount of cgroup2 that is nowhere.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Lines of counters; a power of two.
pub(super) const COUNTER_LINES: u32 = 64;
/// As long as a line of a processor's cache.
const COUNTER_BYTES: usize = 64;

const MAP_CREATE: u32 = 0;
const MAP_LOOKUP_ELEM: u32 = 1;
const PROG_LOAD: u32 = 5;
const PROG_ATTACH: u32 = 8;
const BTF_LOAD: u32 = 18;
const LINK_CREATE: u32 = 28;

const MAP_ARRAY: u32 = 2;

// linux/mount.h
const FSOPEN_CLOEXEC: usize = 1;
const FSCONFIG_CMD_CREATE: usize = 6;
const FSMOUNT_CLOEXEC: usize = 1;

/// `union bpf_attr`, as far as it is used.
struct Attributes([u8; 128]);

impl Attributes {
    /// Each word with its offset.
    fn new(words: &[(usize, u32)]) -> Attributes {
        let mut attributes = Attributes([0; 128]);
        for (at, word) in words {
            attributes.0[*at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        attributes
    }

    fn pointer<T>(mut self, at: usize, pointer: *const T) -> Attributes {
        self.0[at..at + 8].copy_from_slice(&(pointer as u64).to_ne_bytes());
        self
    }

    /// Calls `bpf(2)`.
    ///
    /// # Safety
    /// The kernel may write to what the attributes point to as the command says; that must be memory of ours, and long enough.
    unsafe fn call(&self, command: u32) -> io::Result<usize> {
        // SAFETY: the attributes live across the call, and have the length that is told; the rest is the caller's.
        unsafe {
            call(
                libc::SYS_bpf,
                [
                    command as usize,
                    self.0.as_ptr() as usize,
                    self.0.len(),
                    0,
                    0,
                ],
            )
        }
    }

    /// A command that makes a descriptor.
    ///
    /// # Safety
    /// As of `call`.
    unsafe fn make(&self, command: u32) -> io::Result<OwnedFd> {
        // SAFETY: the caller's.
        let made = unsafe { self.call(command) }?;
        // SAFETY: the kernel has just made this descriptor, and nothing else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(made as RawFd) })
    }
}

/// # Safety
/// The arguments are right for the call.
unsafe fn call(number: libc::c_long, arguments: [usize; 5]) -> io::Result<usize> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: the caller's.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// What a map is.
pub(super) struct Map<'a> {
    pub(super) kind: u32,
    pub(super) key_bytes: u32,
    pub(super) value_bytes: u32,
    pub(super) entries: u32,
    pub(super) flags: u32,
    /// Types, of which key and value have number 1.
    pub(super) types: Option<BorrowedFd<'a>>,
}

/// Makes a map.
pub(super) fn create_map(map: &Map<'_>) -> io::Result<OwnedFd> {
    let mut words = vec![
        (0, map.kind),
        (4, map.key_bytes),
        (8, map.value_bytes),
        (12, map.entries),
        (16, map.flags),
    ];
    if let Some(types) = map.types {
        words.extend([(48, number(types)), (52, 1), (56, 1)]);
    }
    // SAFETY: nothing is pointed to.
    unsafe { Attributes::new(&words).make(MAP_CREATE) }
}

/// Loads types ("BPF Type Format" in the kernel's documentation).
pub(super) fn load_types(bytes: &[u8]) -> io::Result<OwnedFd> {
    let attributes = Attributes::new(&[(16, bytes.len() as u32)]).pointer(0, bytes.as_ptr());
    // SAFETY: the bytes live across the call, and are only read.
    unsafe { attributes.make(BTF_LOAD) }
}

/// Loads a program; a refusal has what the kernel's verifier says.
pub(super) fn load_program(kind: u32, attach: u32, code: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    let words = [(0, kind), (4, code.len() as u32), (68, attach)];
    let attributes = |words: &[(usize, u32)]| {
        Attributes::new(words)
            .pointer(8, code.as_ptr())
            .pointer(16, license.as_ptr())
    };
    // SAFETY: code and licence live across the call, and are only read.
    let error = match unsafe { attributes(&words).make(PROG_LOAD) } {
        Err(error) if error.raw_os_error() != Some(libc::EPERM) => error,
        done => return done,
    };
    let mut log = vec![0_u8; 1 << 16];
    let told = attributes(&[&words[..], &[(24, 1), (28, log.len() as u32)]].concat());
    // SAFETY: as above; the log lives, may be written to, and has the length that is told. The outcome is known.
    let _ = unsafe { told.pointer(32, log.as_mut_ptr()).make(PROG_LOAD) };
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
    Err(io::Error::new(
        error.kind(),
        format!("{error}: {}", log.to_string_lossy().trim()),
    ))
}

/// From now on a program is asked about the messages of the sockets in a map.
pub(super) fn attach(map: BorrowedFd<'_>, program: BorrowedFd<'_>, kind: u32) -> io::Result<()> {
    let attributes = Attributes::new(&[(0, number(map)), (4, number(program)), (8, kind)]);
    // SAFETY: nothing is pointed to.
    unsafe { attributes.call(PROG_ATTACH) }.map(drop)
}

/// As long as the descriptor lives, a program is called for the sockets of a cgroup.
pub(super) fn link(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    kind: u32,
) -> io::Result<OwnedFd> {
    let attributes = Attributes::new(&[(0, number(program)), (4, number(cgroup)), (8, kind)]);
    // SAFETY: nothing is pointed to.
    unsafe { attributes.make(LINK_CREATE) }
}

/// Counters of the programs, in lines.
pub(super) struct Counters(OwnedFd);

impl Counters {
    pub(super) fn new() -> io::Result<Counters> {
        let map = create_map(&Map {
            kind: MAP_ARRAY,
            key_bytes: 4,
            value_bytes: COUNTER_BYTES as u32,
            entries: COUNTER_LINES,
            flags: 0,
            types: None,
        });
        map.map(Counters)
    }

    /// The sum of the counters at an offset in all lines.
    pub(super) fn sum(&self, at: usize) -> io::Result<u64> {
        let mut sum = 0;
        for line in 0..COUNTER_LINES {
            let mut value = [0_u64; COUNTER_BYTES / 8];
            let attributes = Attributes::new(&[(0, number(self.0.as_fd()))])
                .pointer(8, &raw const line)
                .pointer(16, value.as_mut_ptr());
            // SAFETY: key and value live across the call, and have the lengths that this map was made with.
            unsafe { attributes.call(MAP_LOOKUP_ELEM) }?;
            sum += value[at / 8];
        }
        Ok(sum)
    }
}

impl AsFd for Counters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The root of the hierarchy of control groups that this process sees, mounted nowhere: it goes with the descriptor.
pub(super) fn cgroup_root() -> io::Result<OwnedFd> {
    let kind = c"cgroup2".as_ptr() as usize;
    // SAFETY: the name is a string that lives for ever; the result is a new descriptor.
    let context = unsafe { make(libc::SYS_fsopen, [kind, FSOPEN_CLOEXEC, 0, 0, 0]) }?;
    let context_number = context.as_raw_fd() as usize;
    // SAFETY: this command takes nothing else.
    unsafe {
        call(
            libc::SYS_fsconfig,
            [context_number, FSCONFIG_CMD_CREATE, 0, 0, 0],
        )
    }?;
    // SAFETY: plain numbers; the result is a new descriptor.
    unsafe {
        make(
            libc::SYS_fsmount,
            [context_number, FSMOUNT_CLOEXEC, 0, 0, 0],
        )
    }
}

/// # Safety
/// The arguments are right for the call, which makes a descriptor.
unsafe fn make(number: libc::c_long, arguments: [usize; 5]) -> io::Result<OwnedFd> {
    // SAFETY: the caller's.
    let made = unsafe { call(number, arguments) }?;
    // SAFETY: the kernel has just made this descriptor, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(made as RawFd) })
}

/// The number of the network namespace of a socket, which no other has ever had.
pub(super) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: both pointers are to live variables, and the length is that of the first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Connections of a listener are established with the first bytes only.
#[cfg(test)]
pub(super) fn defer_accept(listener: BorrowedFd<'_>) {
    let seconds: libc::c_int = 5;
    // SAFETY: the pointer is to a live variable, and the length is its length.
    let result = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of_val(&seconds) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}
