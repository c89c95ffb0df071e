//! What only the kernel knows about a process's TCP sockets: their sequence numbers, the network namespace that they are in, and whether
//! an interface shapes what they send. A small program of the kind `iter/task` reads it (`bpf(2)`, "BPF iterators" in the kernel's
//! documentation): it runs while this agent reads from it, is told a few descriptors of one process, changes nothing, and holds nothing.
//! Its cost is that of the descriptors it is told, however many the process has. Needs Linux 6.1 with BTF, and root.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

mod btf;
mod program;
pub mod text;

use crate::packet_rules::shapes;
use crate::sys;
use btf::Btf;
use program::{LIST_BYTES, LIST_MAX, Layout, RECORD_BYTES};

const BPF_MAP_CREATE: usize = 0;
const BPF_MAP_UPDATE_ELEM: usize = 2;
const BPF_PROG_LOAD: usize = 5;
const BPF_LINK_CREATE: usize = 28;
const BPF_ITER_CREATE: usize = 33;
const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_ITER: u32 = 28;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
/// `TCP_ESTABLISHED`.
const ESTABLISHED: u32 = 1;

/// One TCP socket of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpSocket {
    pub(crate) fd: i32,
    /// Both directions are open.
    pub(crate) established: bool,
    /// `SO_COOKIE`.
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
    /// What it sends or receives is shaped, on its own interface or on the other half of that.
    pub(crate) shaped: bool,
}

/// The loaded program.
#[derive(Debug)]
pub(crate) struct TcpSockets {
    program: OwnedFd,
    /// Its one value is the list of descriptors that the program looks at.
    list: OwnedFd,
    /// Where the kernel has the operations of files that are sockets.
    operations: u64,
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
        let mut attributes = Attributes::default();
        attributes.set_u32(0, BPF_MAP_TYPE_ARRAY);
        attributes.set_u32(4, size_of::<u32>() as u32);
        attributes.set_u32(8, LIST_BYTES as u32);
        attributes.set_u32(12, 1);
        attributes.0[28..41].copy_from_slice(b"millrace_list");
        let list = attributes.make(BPF_MAP_CREATE)?;
        let code = program::assemble(&layout, list.as_raw_fd());
        let license = c"Dual MIT/GPL";
        let mut attributes = Attributes::default();
        attributes.set_u32(0, BPF_PROG_TYPE_TRACING);
        attributes.set_u32(4, code.len() as u32);
        attributes.set_u64(8, code.as_ptr() as u64);
        attributes.set_u64(16, license.as_ptr() as u64);
        attributes.0[48..60].copy_from_slice(b"millrace_tcp");
        attributes.set_u32(68, BPF_TRACE_ITER);
        attributes.set_u32(108, layout.attach_function);
        let mut sockets = TcpSockets {
            program: attributes.make(BPF_PROG_LOAD)?,
            list,
            operations: 0,
        };
        // A socket of our own shows the operations of all, and whether the program finds what it should.
        let probe = UnixDatagram::unbound()?;
        let own = std::process::id().cast_signed();
        let record = sockets.read(own, &[probe.as_raw_fd()])?;
        let cookie = sys::socket_cookie(probe.as_fd())?;
        let again = sockets.read(own, &[probe.as_raw_fd()])?;
        if record.len() != RECORD_BYTES || long(&again, program::COOKIE) != cookie {
            return Err(unsupported());
        }
        sockets.operations = long(&again, program::OPERATIONS);
        Ok(sockets)
    }

    /// Those of a process's descriptors that are TCP sockets, now. The number of the process is its main thread's; whether it still
    /// means that process the caller has to see afterwards.
    ///
    /// # Errors
    /// What the kernel says: `EMFILE`…
    pub(crate) fn of(&self, process: i32, descriptors: &[i32]) -> io::Result<Vec<TcpSocket>> {
        let mut found = Vec::with_capacity(descriptors.len());
        for part in descriptors.chunks(LIST_MAX) {
            let records = self.read(process, part)?;
            let records = records.chunks_exact(RECORD_BYTES);
            found.extend(records.filter_map(|bytes| self.parse_record(bytes)));
        }
        Ok(found)
    }

    /// One run of the program, for as many descriptors as its list has room for.
    fn read(&self, process: i32, descriptors: &[i32]) -> io::Result<Vec<u8>> {
        let mut value = [0; LIST_BYTES];
        let count = descriptors.len() as i32;
        for (place, number) in value
            .chunks_exact_mut(4)
            .zip(std::iter::once(&count).chain(descriptors))
        {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        let key = 0u32;
        let mut attributes = Attributes::default();
        attributes.set_u32(0, self.list.as_raw_fd().cast_unsigned());
        attributes.set_u64(8, &raw const key as u64);
        attributes.set_u64(16, value.as_ptr() as u64);
        sys::bpf(BPF_MAP_UPDATE_ELEM, &attributes.0)?;
        // union bpf_iter_link_info, its member `task`: tid, pid, pid_fd.
        let task = [process.cast_unsigned(), 0, 0, 0];
        let mut attributes = Attributes::default();
        attributes.set_u32(0, self.program.as_raw_fd().cast_unsigned());
        attributes.set_u32(8, BPF_TRACE_ITER);
        attributes.set_u64(16, task.as_ptr() as u64);
        attributes.set_u32(24, size_of_val(&task) as u32);
        let link = attributes.make(BPF_LINK_CREATE)?;
        let mut attributes = Attributes::default();
        attributes.set_u32(0, link.as_raw_fd().cast_unsigned());
        let mut records = Vec::with_capacity(descriptors.len() * RECORD_BYTES + RECORD_BYTES);
        File::from(attributes.make(BPF_ITER_CREATE)?).read_to_end(&mut records)?;
        Ok(records)
    }

    /// `None`: it is no TCP socket, or has become another one while it was read, or nobody has asked for its cookie, which is zero then.
    fn parse_record(&self, bytes: &[u8]) -> Option<TcpSocket> {
        let half = |at: usize| i32::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        let is_socket = long(bytes, program::OPERATIONS) == self.operations;
        let is_tcp = matches!(half(program::FAMILY), libc::AF_INET | libc::AF_INET6)
            && half(program::KIND) == libc::SOCK_STREAM
            && half(program::PROTOCOL) == libc::IPPROTO_TCP;
        let cookie = long(bytes, program::COOKIE);
        let is_one = cookie != 0 && cookie == long(bytes, program::COOKIE_AFTER);
        (is_socket && is_tcp && is_one).then(|| TcpSocket {
            fd: word(program::FD).cast_signed(),
            established: u32::from(bytes[program::STATE]) == ESTABLISHED,
            cookie,
            netns_cookie: long(bytes, program::NETNS_COOKIE),
            owner: word(program::OWNER),
            send_next: word(program::SEND_NEXT),
            send_unacknowledged: word(program::SEND_UNACKNOWLEDGED),
            receive_next: word(program::RECEIVE_NEXT),
            shaped: bytes[program::DISCIPLINES..]
                .chunks_exact(program::DISCIPLINE_BYTES)
                .any(shapes),
        })
    }
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let field = bytes
        .get(at..at + 8)
        .and_then(|field| field.try_into().ok());
    field.map_or(0, u64::from_ne_bytes)
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
        sys::bpf_descriptor(command, &self.0)
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
        let own = std::process::id().cast_signed();
        let descriptors = [&near, &far].map(AsRawFd::as_raw_fd);
        let found = sockets.of(own, &descriptors).unwrap();
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

    #[test]
    fn only_what_was_asked_for_and_is_a_tcp_socket_is_told() {
        let Some(sockets) = load() else { return };
        let own = std::process::id().cast_signed();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        let ends: Vec<[TcpStream; 2]> = (0..LIST_MAX)
            .map(|_| {
                [
                    TcpStream::connect(place).unwrap(),
                    listener.accept().unwrap().0,
                ]
            })
            .collect();
        let ends: Vec<TcpStream> = ends.into_iter().flatten().collect();
        let numbers: Vec<i32> = ends.iter().map(AsRawFd::as_raw_fd).collect();
        // Nobody has asked for their cookies yet.
        assert_eq!(sockets.of(own, &numbers).unwrap(), []);
        let cookies: Vec<u64> = ends
            .iter()
            .map(|end| crate::sys::socket_cookie(end.as_fd()).unwrap())
            .collect();
        let found = sockets.of(own, &numbers).unwrap();
        let shape = |found: &[TcpSocket]| -> Vec<(i32, u64)> {
            found
                .iter()
                .map(|socket| (socket.fd, socket.cookie))
                .collect()
        };
        let all: Vec<(i32, u64)> = numbers.iter().copied().zip(cookies).collect();
        assert_eq!(shape(&found), all);
        assert_eq!(shape(&sockets.of(own, &numbers[7..8]).unwrap()), [all[7]]);

        let file = File::open("/proc/self/stat").unwrap();
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for other in [
            file.as_fd(),
            datagrams.as_fd(),
            stream.as_fd(),
            sockets.list.as_fd(),
        ] {
            let _ = crate::sys::socket_cookie(other);
            assert_eq!(sockets.of(own, &[other.as_raw_fd()]).unwrap(), []);
        }
        for nothing in [-1, i32::MIN, i32::MAX, 1 << 20] {
            assert_eq!(sockets.of(own, &[nothing]).unwrap(), [], "{nothing}");
        }
        assert_eq!(sockets.of(own, &[]).unwrap(), []);
        assert_eq!(
            sockets.of(i32::MAX, &numbers).unwrap(),
            [],
            "no such process"
        );
    }
}
