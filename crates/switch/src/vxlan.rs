//! Tunnels to other hosts: VXLAN (RFC 7348).
//!
//! An endpoint is a UDP socket at one address and port of this host, and has a tunnel for each remote host and set of networks. Frames go
//! as datagrams of the kernel's: it finds the way and the next station, and no right is needed. Datagrams come and go in bursts by one
//! call.
//!
//! *Whose a datagram is* is told by the address that it is from and its network. *Source ports* are chosen by the flow (RFC 7348, section
//! 5), from several sockets, since a socket has one. *Checksums* are 0 in IPv4, and full in IPv6, where 0 is for those only that both ends
//! agree with (RFC 6935): a datagram without one is then dropped by the kernel. *ECN* is as RFC 6040 has it. *What is too long* for the
//! path is neither cut nor sent in fragments: outer packets must not be fragmented, and the switch tells senders before.
//!
//! In reading order: `header`, `ecn`, `sys` (bursts of datagrams), and here an endpoint.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use millrace_port::{Burst, Cause as PortCause, Counters};
use nix::sys::socket::{setsockopt, sockopt};

use crate::config::VxlanConfig;
use crate::counters::Cause;
use crate::flow::Key;
use crate::parse::{Frame, TAG_AT, TAG_BYTES, TYPE_VLAN, VLAN_MASK};
use crate::table::Seed;
pub(crate) use header::overhead;
use sys::{BATCH, Batch};

mod ecn;
mod header;
mod sys;

/// The kernel keeps so many bytes of datagrams until they are taken, if it may.
const SOCKET_BYTES: usize = 4 << 20;
/// How often it is asked how long a packet may be on the way to a host. What the kernel has learnt of a narrow path it forgets (after ten
/// minutes by default), and nobody tells.
pub(crate) const ASK_PATH: Duration = Duration::from_secs(5);

/// Where datagrams go to and come from.
#[derive(Debug)]
struct Tunnel {
    /// The switch's port.
    port: u16,
    remote: SocketAddr,
    /// The network of all frames, or of each VLAN.
    vni: Option<u32>,
    networks: Vec<(u16, u32)>,
    counters: Counters,
    /// The path has become narrower.
    is_too_long: bool,
    /// When the path was asked for last.
    asked_at: Option<Instant>,
}

/// What the sockets of an endpoint are at.
pub(crate) type Place = (IpAddr, u16);

/// What came by an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// Frames of this port's tunnel.
    Frames(u16),
    /// Datagrams of no tunnel, and no others.
    Refused,
    Nothing,
}

/// Sockets of one address, and its tunnels.
#[derive(Debug)]
pub(crate) struct Endpoint {
    place: Place,
    receiver: UdpSocket,
    senders: Vec<UdpSocket>,
    /// Datagrams that the kernel has dropped, as far as they are counted; its own number begins anew after 2^32.
    overflown: u32,
    tunnels: Vec<Tunnel>,
    /// A tunnel's place, and the VLAN that its frames get a tag of.
    by_source: HashMap<(IpAddr, u32), (usize, Option<u16>)>,
    received: Batch,
    /// The next of them, and how many there are.
    next: usize,
    count: usize,
    sent: Batch,
}

impl VxlanConfig {
    /// Where its endpoint is.
    pub(crate) fn place(&self) -> Place {
        (self.local, self.port)
    }

    /// Bytes of the Internet's packets that fit on the way to the other host now.
    pub(crate) fn path_mtu(&self) -> io::Result<u16> {
        let socket = UdpSocket::bind((self.local, 0))?;
        socket.connect((self.remote, self.port))?;
        let outer = sys::path_mtu(&socket, self.local.is_ipv4())?;
        // Where frames have tags in the tunnel, these are not counted in the MTU, as nowhere in Ethernet: they are found too long when
        // sent.
        let inner = outer.saturating_sub(overhead(self.local.is_ipv4()));
        Ok(u16::try_from(inner).unwrap_or(u16::MAX))
    }
}

impl Endpoint {
    /// Listens, and has a socket for each source port.
    pub(crate) fn open(config: &VxlanConfig) -> io::Result<Endpoint> {
        let local = config.local;
        let receiver = UdpSocket::bind((local, config.port))?;
        receiver.set_nonblocking(true)?;
        sys::want_class(&receiver, local.is_ipv4())?;
        // As much as the machine's limit lets have.
        let _ = setsockopt(&receiver, sockopt::RcvBuf, &SOCKET_BYTES);
        let sender = || {
            let socket = UdpSocket::bind((local, 0))?;
            socket.set_nonblocking(true)?;
            sys::never_fragment(&socket, local.is_ipv4())?;
            let _ = setsockopt(&socket, sockopt::SndBuf, &SOCKET_BYTES);
            Ok(socket)
        };
        let senders = (0..config.source_ports).map(|_| sender());
        Ok(Endpoint {
            place: config.place(),
            receiver,
            senders: senders.collect::<io::Result<_>>()?,
            overflown: 0,
            tunnels: Vec::new(),
            by_source: HashMap::new(),
            received: Batch::new(),
            next: 0,
            count: 0,
            sent: Batch::new(),
        })
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.tunnels.is_empty()
    }

    /// Adds a port's tunnel. No other one to that host has its networks: whoever adds it has seen to that.
    pub(crate) fn add(&mut self, port: u16, config: &VxlanConfig) {
        self.tunnels.push(Tunnel {
            port,
            remote: SocketAddr::new(config.remote, config.port),
            vni: config.vni,
            networks: config.networks(),
            counters: Counters {
                connections: 1,
                ..Counters::default()
            },
            is_too_long: false,
            asked_at: None,
        });
        self.index();
    }

    /// Takes a port's tunnel away; returns what it counted.
    pub(crate) fn remove(&mut self, port: u16) -> Option<Counters> {
        let at = self.tunnels.iter().position(|tunnel| tunnel.port == port)?;
        let tunnel = self.tunnels.remove(at);
        self.index();
        Some(tunnel.counters)
    }

    fn index(&mut self) {
        self.by_source.clear();
        for (place, tunnel) in self.tunnels.iter().enumerate() {
            let from = tunnel.remote.ip();
            if let Some(vni) = tunnel.vni {
                self.by_source.insert((from, vni), (place, None));
            }
            for (vlan, vni) in &tunnel.networks {
                self.by_source.insert((from, *vni), (place, Some(*vlan)));
            }
        }
    }

    /// Counts what the kernel had no room for in the receiving socket since this was asked last: whose it was is not known, and it is the
    /// first tunnel's.
    pub(crate) fn count_overflow(&mut self) {
        let Ok(overflown) = sys::overflown(self.receiver.as_fd()) else {
            return;
        };
        if let Some(first) = self.tunnels.first_mut() {
            let more = overflown.wrapping_sub(self.overflown);
            first.counters.received.drop(PortCause::Full, more.into());
            self.overflown = overflown;
        }
    }

    pub(crate) fn counters(&self, port: u16) -> Option<Counters> {
        let tunnel = self.tunnels.iter().find(|tunnel| tunnel.port == port)?;
        Some(tunnel.counters)
    }

    /// Ports whose path has become narrower since this was asked last.
    pub(crate) fn take_narrower(&mut self) -> impl Iterator<Item = u16> {
        let narrower = self.tunnels.iter_mut();
        narrower.filter_map(|tunnel| std::mem::take(&mut tunnel.is_too_long).then_some(tunnel.port))
    }

    /// A port whose path was not asked for for a while, if there is one. It is asked for now.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<u16> {
        self.tunnels.iter_mut().find_map(|tunnel| {
            // Whoever added the tunnel has asked.
            let asked_at = tunnel.asked_at.get_or_insert(now);
            let is_due = now.saturating_duration_since(*asked_at) >= ASK_PATH;
            is_due.then(|| {
                *asked_at = now;
                tunnel.port
            })
        })
    }

    /// Puts frames of one tunnel into an empty burst. Others that came with them are next. What is none of a tunnel is said by `refuse`,
    /// with the port of the first tunnel. The kernel is called at most once, since others may send faster than is refused.
    pub(crate) fn receive(
        &mut self,
        burst: &mut Burst,
        mut refuse: impl FnMut(u16, Cause),
    ) -> Received {
        burst.clear();
        if !self.has_more() {
            self.next = 0;
            // Errors of sockets are of datagrams that were sent.
            self.count = sys::receive(self.receiver.as_fd(), &mut self.received).unwrap_or(0);
            if self.count == 0 {
                return Received::Nothing;
            }
        }
        let mut from: Option<usize> = None;
        while self.has_more() {
            match self.open_next(from, burst) {
                Ok(Some(place)) => from = Some(place),
                Ok(None) => break,
                Err(cause) => {
                    self.next += 1;
                    if let Some(first) = self.tunnels.first() {
                        refuse(first.port, cause);
                    }
                }
            }
        }
        from.map_or(Received::Refused, |place| {
            Received::Frames(self.tunnels[place].port)
        })
    }

    /// Moves the next datagram's frame into the burst; returns its tunnel. None: it is not of tunnel `from`, or there is no room, and it
    /// stays the next.
    fn open_next(
        &mut self,
        from: Option<usize>,
        burst: &mut Burst,
    ) -> Result<Option<usize>, Cause> {
        let datagram = self.received.get_mut(self.next);
        let vni = header::parse(datagram.bytes).ok_or(Cause::TunnelMalformed)?;
        let known = self.by_source.get(&(datagram.from, vni));
        let (place, vlan) = *known.ok_or(Cause::TunnelUnknown)?;
        if from.is_some_and(|from| from != place) || burst.is_full() {
            return Ok(None);
        }
        let bytes = &mut datagram.bytes[header::BYTES..];
        Frame::parse(bytes).ok_or(Cause::TunnelMalformed)?;
        if !datagram.is_whole {
            return Err(Cause::TunnelMalformed);
        }
        if !ecn::decapsulate(bytes, datagram.class) {
            return Err(Cause::TunnelCongestion);
        }
        burst.push(bytes);
        if let Some(vlan) = vlan {
            let [a, b] = TYPE_VLAN.to_be_bytes();
            let [c, d] = vlan.to_be_bytes();
            burst.insert(burst.len() - 1, TAG_AT, &[a, b, c, d]);
        }
        let length = burst.get(burst.len() - 1).map_or(0, |packet| packet.len());
        self.tunnels[place].counters.received.pass(1, length as u64);
        self.next += 1;
        Ok(Some(place))
    }

    /// Whether datagrams are there that were taken from the kernel.
    pub(crate) fn has_more(&self) -> bool {
        self.next < self.count
    }

    /// Sends the frames of a burst by a port's tunnel: all are sent, or counted as dropped.
    pub(crate) fn transmit(&mut self, port: u16, burst: &Burst) {
        let place = self.tunnels.iter().position(|tunnel| tunnel.port == port);
        let Some(place) = place else { return };
        let mut first = 0;
        while first < burst.len() {
            first += self.transmit_some(place, burst, first);
        }
    }

    /// Returns how many were done with.
    fn transmit_some(&mut self, place: usize, burst: &Burst, first: usize) -> usize {
        let mut by_sender = [(0u16, 0u8); BATCH];
        let (mut taken, mut ready) = (0, 0);
        for packet in burst.iter().skip(first).take(BATCH) {
            taken += 1;
            let tunnel = &mut self.tunnels[place];
            match self.sent.seal(ready, packet, tunnel) {
                Err(cause) => tunnel.counters.transmitted.drop(cause, 1),
                Ok(flow) => {
                    let sender = flow % self.senders.len() as u64;
                    // Both are less than 256.
                    by_sender[ready] = (sender as u16, ready as u8);
                    ready += 1;
                }
            }
        }
        let by_sender = &mut by_sender[..ready];
        by_sender.sort_unstable();
        let mut rest = &by_sender[..];
        while let Some((sender, _)) = rest.first() {
            let count = rest.iter().take_while(|one| one.0 == *sender).count();
            let (some, others) = rest.split_at(count);
            rest = others;
            let socket = self.senders[usize::from(*sender)].as_fd();
            send_all(socket, &mut self.sent, some, &mut self.tunnels[place]);
        }
        taken
    }
}

/// Sends datagrams by a socket, and counts what becomes of each.
fn send_all(socket: BorrowedFd<'_>, batch: &mut Batch, wanted: &[(u16, u8)], tunnel: &mut Tunnel) {
    let mut rest = wanted;
    while !rest.is_empty() {
        match sys::send(socket, batch, rest.iter().map(|one| usize::from(one.1))) {
            Ok(count) => {
                let (done, others) = rest.split_at(count.clamp(1, rest.len()));
                for (_, slot) in done {
                    let bytes = batch.frame_bytes(usize::from(*slot)) as u64;
                    tunnel.counters.transmitted.pass(1, bytes);
                }
                rest = others;
            }
            Err(error) => {
                let cause = match error.raw_os_error() {
                    Some(libc::EMSGSIZE) => {
                        tunnel.is_too_long = true;
                        PortCause::TooLong
                    }
                    Some(libc::EAGAIN | libc::ENOBUFS) => PortCause::Full,
                    // No way there, or what ICMP said of an earlier one.
                    _ => PortCause::NoPeer,
                };
                tunnel.counters.transmitted.drop(cause, 1);
                rest = &rest[1..];
            }
        }
    }
}

impl Batch {
    /// Makes a datagram of a frame; returns a number that is its flow's.
    fn seal(
        &mut self,
        slot: usize,
        packet: millrace_port::Packet<'_>,
        tunnel: &Tunnel,
    ) -> Result<u64, PortCause> {
        let head = packet.head();
        let frame = Frame::parse(head).ok_or(PortCause::TooShort)?;
        if packet.leaves_work() {
            return Err(PortCause::Offload);
        }
        if packet.len() + header::BYTES > sys::BUFFER_BYTES {
            return Err(PortCause::TooLong);
        }
        let tagged = frame.tag.map_or(0, |tag| tag & VLAN_MASK);
        let mapped = tunnel.networks.iter().find(|pair| pair.0 == tagged);
        let (vni, is_mapped) = match (tunnel.vni, mapped) {
            (Some(vni), _) => (vni, false),
            (None, Some((_, vni))) => (*vni, true),
            (None, None) => return Err(PortCause::NoQueue),
        };
        let bytes = self.buffer(slot);
        header::emit(vni, bytes);
        let mut end = header::BYTES;
        let skip = if is_mapped { TAG_AT + TAG_BYTES } else { 0 };
        if is_mapped {
            packet.copy_to(0, &mut bytes[end..end + TAG_AT]);
            end += TAG_AT;
        }
        let rest = packet.len() - skip;
        packet.copy_to(skip, &mut bytes[end..end + rest]);
        self.address(slot, tunnel.remote, ecn::outer(head), end + rest);
        Ok(Seed::FIXED.hash_one(Key::of(head, &frame)))
    }
}
