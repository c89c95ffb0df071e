//! What only the kernel knows about a process's TCP sockets: their sequence numbers, and the network namespace that they are in. A small
//! program of the kind `iter/task_file` reads it (`bpf(2)`, "BPF iterators" in the kernel's documentation): it runs while this agent reads
//! from it, sees the descriptors of one process, changes nothing, and holds nothing. Needs Linux 6.1 with BTF, and root.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

mod btf;
mod program;

use crate::sys;
use btf::Btf;
use program::{Layout, RECORD_BYTES};

const BPF_PROG_LOAD: usize = 5;
const BPF_LINK_CREATE: usize = 28;
const BPF_ITER_CREATE: usize = 33;
const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_ITER: u32 = 28;
/// `TCP_ESTABLISHED`.
const ESTABLISHED: u32 = 1;

/// One TCP socket of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpSocket {
    pub(crate) fd: i32,
    /// Both directions are open.
    pub(crate) established: bool,
    /// `SO_COOKIE`; zero when nobody has asked for it yet.
    pub(crate) cookie: u64,
    /// `SO_NETNS_COOKIE`.
    pub(crate) netns_cookie: u64,
    /// The number of the user namespace that owns its network namespace, as `/proc/PID/ns/user` shows it.
    pub(crate) owner: u32,
    /// The next sequence number to be sent.
    pub(crate) send_next: u32,
    /// The oldest sequence number that was not acknowledged.
    pub(crate) send_unacknowledged: u32,
    /// The next sequence number to be received.
    pub(crate) receive_next: u32,
}

/// The loaded program.
#[derive(Debug)]
pub(crate) struct TcpSockets {
    program: OwnedFd,
}

impl TcpSockets {
    /// Loads the program.
    ///
    /// # Errors
    /// `Unsupported` when this kernel does not describe its types, or not as expected; else what `bpf(2)` says (`EPERM`…).
    pub(crate) fn load() -> io::Result<TcpSockets> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let table =
            Btf::parse(std::fs::read("/sys/kernel/btf/vmlinux")?).ok_or_else(unsupported)?;
        let layout = Layout::find(&table).ok_or_else(unsupported)?;
        let code = program::assemble(&layout);
        let license = c"Dual MIT/GPL";
        let mut attributes = Attributes::default();
        attributes.set_u32(0, BPF_PROG_TYPE_TRACING);
        attributes.set_u32(4, code.len() as u32);
        attributes.set_u64(8, code.as_ptr() as u64);
        attributes.set_u64(16, license.as_ptr() as u64);
        attributes.0[48..60].copy_from_slice(b"millrace_tcp");
        attributes.set_u32(68, BPF_TRACE_ITER);
        attributes.set_u32(108, layout.attach_function);
        let program = attributes.make(BPF_PROG_LOAD)?;
        Ok(TcpSockets { program })
    }

    /// The TCP sockets that a process has descriptors of, now.
    ///
    /// # Errors
    /// What the kernel says: `ESRCH` when it is gone, `EMFILE`…
    pub(crate) fn of(&self, pidfd: BorrowedFd<'_>) -> io::Result<Vec<TcpSocket>> {
        // union bpf_iter_link_info, its member `task`: tid, pid, pid_fd.
        let task = [0, 0, pidfd.as_raw_fd().cast_unsigned(), 0];
        let mut attributes = Attributes::default();
        attributes.set_u32(0, self.program.as_raw_fd().cast_unsigned());
        attributes.set_u32(8, BPF_TRACE_ITER);
        attributes.set_u64(16, task.as_ptr() as u64);
        attributes.set_u32(24, size_of_val(&task) as u32);
        let link = attributes.make(BPF_LINK_CREATE)?;
        let mut attributes = Attributes::default();
        attributes.set_u32(0, link.as_raw_fd().cast_unsigned());
        let mut records = Vec::new();
        File::from(attributes.make(BPF_ITER_CREATE)?).read_to_end(&mut records)?;
        Ok(records
            .chunks_exact(RECORD_BYTES)
            .map(parse_record)
            .collect())
    }
}

fn parse_record(bytes: &[u8]) -> TcpSocket {
    let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
    let long = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
    TcpSocket {
        fd: word(program::FD).cast_signed(),
        established: word(program::STATE) == ESTABLISHED,
        cookie: long(program::COOKIE),
        netns_cookie: long(program::NETNS_COOKIE),
        owner: word(program::OWNER),
        send_next: word(program::SEND_NEXT),
        send_unacknowledged: word(program::SEND_UNACKNOWLEDGED),
        receive_next: word(program::RECEIVE_NEXT),
    }
}

/// `union bpf_attr`, as far as it is used.
struct Attributes([u8; 128]);

impl Default for Attributes {
    fn default() -> Self {
        Attributes([0; 128])
    }
}

impl Attributes {
    fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn set_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// A command that makes a descriptor. What the attributes point to lives in the caller.
    fn make(&self, command: usize) -> io::Result<OwnedFd> {
        sys::bpf(command, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    /// None, and a line that says why, where this test may not do it.
    fn load() -> Option<TcpSockets> {
        match TcpSockets::load() {
            Ok(sockets) => Some(sockets),
            Err(error) => {
                // A program that the kernel's verifier refuses is our fault; no permission, or no BTF, is the machine's.
                let is_machine_s = [libc::EPERM, libc::ENOENT, libc::ENOSYS];
                let cause = error.raw_os_error().unwrap_or(0);
                assert!(is_machine_s.contains(&cause), "{error}");
                eprintln!("skipped: no BPF iterator here: {error}");
                None
            }
        }
    }

    #[test]
    fn both_ends_of_a_connection_agree() {
        let Some(sockets) = load() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.write_all(b"hello").unwrap();
        let cookies =
            [&near, &far].map(|stream| crate::sys::socket_cookie(stream.as_fd()).unwrap());
        let own = crate::sys::pidfd_open(std::process::id().cast_signed()).unwrap();
        let found = sockets.of(own.as_fd()).unwrap();
        let [near_end, far_end] =
            cookies.map(|cookie| *found.iter().find(|socket| socket.cookie == cookie).unwrap());
        assert_eq!(
            (near_end.fd, far_end.fd),
            (near.as_raw_fd(), far.as_raw_fd())
        );
        assert!(near_end.established && far_end.established);
        assert_eq!(near_end.send_next, far_end.receive_next);
        assert_eq!(far_end.send_next, near_end.receive_next);
        let netns_cookie = crate::sys::netns_cookie(near.as_fd()).unwrap();
        assert_eq!(near_end.netns_cookie, netns_cookie);
        let user = std::fs::read_link("/proc/self/ns/user").unwrap();
        assert_eq!(user.to_str().unwrap(), format!("user:[{}]", near_end.owner));
    }
}
