//! What takes capabilities: sockets, a program, and its place at an interface.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::net::if_::if_nametoindex;
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use super::program::assemble;
use super::sys::{self, Attributes};
use super::{Config, Mode, invalid, patiently};

const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
/// Where the program runs: on packets as the driver has them, or on those that the kernel has made of them.
const XDP_FLAGS_SKB_MODE: u32 = 2;
const XDP_FLAGS_DRV_MODE: u32 = 4;
/// The program knows that it may see only the beginning of a packet.
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// What one process has opened, for itself or another, whose port is made of it ([`super::AfXdp::from_opened`]).
#[derive(Debug)]
pub struct Opened {
    /// A socket for each queue, which the program takes packets to once they are bound. Before, they are lost.
    pub sockets: Vec<OwnedFd>,
    /// The program's place at the interface. It is taken away with the last copy of this descriptor: whoever has it last, until its end.
    pub link: Option<OwnedFd>,
    /// The interface's number.
    pub ifindex: u32,
    /// The queue of the first socket; those of the others follow.
    pub first_queue: u32,
}

impl Opened {
    /// Whether the descriptors are what they should be, whoever has sent them.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.sockets.is_empty() {
            return Err(invalid("a port of AF_XDP has at least one queue"));
        }
        let is_fit = |socket: &OwnedFd| {
            socket_domain(socket).is_ok_and(|domain| domain == AddressFamily::XDP)
        };
        if !self.sockets.iter().all(is_fit) {
            return Err(invalid("a descriptor is no socket of AF_XDP"));
        }
        let Some(link) = &self.link else {
            return Ok(());
        };
        match place_of(link.as_fd())? {
            Some(0) => Err(invalid("the program's interface is gone")),
            Some(place) if place == self.ifindex => Ok(()),
            Some(place) => Err(invalid(format!(
                "the program is at interface number {place}, and the sockets are for number {}",
                self.ifindex
            ))),
            None => Err(invalid("a descriptor is no program at an interface")),
        }
    }
}

/// The number of the interface that a link has its program at, which is 0 when that is gone. None: it is no such link.
fn place_of(link: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let path = format!("/proc/self/fdinfo/{}", link.as_raw_fd());
    let about = fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    let said = |name: &str| {
        let mut pairs = about.lines().filter_map(|line| line.split_once(":\t"));
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    };
    if said("link_type") != Some("xdp") {
        return Ok(None);
    }
    Ok(said("ifindex").and_then(|number| number.parse().ok()))
}

/// Opens sockets, and has a program take what was asked for to them: with `CAP_NET_RAW`, `CAP_BPF` and `CAP_NET_ADMIN`. Without
/// `take`, nothing is taken, and the port can only send.
///
/// # Errors
/// `InvalidInput` for a configuration that cannot be; `ResourceBusy` when the interface has a program already; else what the kernel says.
pub fn open(config: &Config) -> io::Result<Opened> {
    config.check()?;
    let ifindex = if_nametoindex(config.interface.as_str())?;
    let sockets: io::Result<Vec<OwnedFd>> = (0..config.queues).map(|_| sys::socket()).collect();
    let sockets = sockets?;
    let mut link = None;
    if !config.take.is_empty() {
        let map = make_map(config.first_queue + config.queues)?;
        for (queue, socket) in (config.first_queue..).zip(&sockets) {
            insert(map.as_fd(), queue, socket.as_fd())?;
        }
        let code = assemble(&config.take, map.as_raw_fd());
        let program = load(&code, config.several_frames)?;
        let until = Instant::now() + config.patience;
        let attached = patiently(until, || attach(program.as_fd(), ifindex, config.mode));
        link = Some(attached.map_err(taken)?);
    }
    Ok(Opened {
        sockets,
        link,
        ifindex,
        first_queue: config.first_queue,
    })
}

fn make_map(entries: u32) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::new();
    attributes.set_u32(0, BPF_MAP_TYPE_XSKMAP);
    attributes.set_u32(4, size_of::<u32>() as u32);
    attributes.set_u32(8, size_of::<u32>() as u32);
    attributes.set_u32(12, entries);
    attributes.set_text(28, b"millrace_xsk");
    attributes.make(BPF_MAP_CREATE)
}

fn insert(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd();
    let mut attributes = Attributes::new();
    attributes.set_u32(0, map.as_raw_fd().cast_unsigned());
    attributes.set_u64(8, &raw const queue as u64);
    attributes.set_u64(16, &raw const value as u64);
    attributes.run(BPF_MAP_UPDATE_ELEM).map(drop)
}

fn load(code: &[u64], several_frames: bool) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    let mut attributes = Attributes::new();
    attributes.set_u32(0, BPF_PROG_TYPE_XDP);
    attributes.set_u32(4, code.len() as u32);
    attributes.set_u64(8, code.as_ptr() as u64);
    attributes.set_u64(16, license.as_ptr() as u64);
    attributes.set_u32(
        44,
        if several_frames {
            BPF_F_XDP_HAS_FRAGS
        } else {
            0
        },
    );
    attributes.set_text(48, b"millrace_xdp");
    attributes.set_u32(68, BPF_XDP);
    attributes.make(BPF_PROG_LOAD)
}

fn taken(error: io::Error) -> io::Error {
    let what = "the interface has a program (XDP) already, and can have one";
    match error.kind() {
        io::ErrorKind::ResourceBusy => io::Error::new(error.kind(), what),
        _ => error,
    }
}

fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: Mode) -> io::Result<OwnedFd> {
    let attach = |flags| {
        let mut attributes = Attributes::new();
        attributes.set_u32(0, program.as_raw_fd().cast_unsigned());
        attributes.set_u32(4, ifindex);
        attributes.set_u32(8, BPF_XDP);
        attributes.set_u32(12, flags);
        attributes.make(BPF_LINK_CREATE)
    };
    match attach(XDP_FLAGS_DRV_MODE) {
        // Not every driver runs programs.
        Err(error) if mode != Mode::ZeroCopy && error.kind() != io::ErrorKind::ResourceBusy => {
            attach(XDP_FLAGS_SKB_MODE)
        }
        other => other,
    }
}
