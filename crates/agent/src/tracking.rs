//! What connection tracking does with a connection between two sockets of the agent's network namespace: whether it translates addresses
//! on the way (NAT), and whether a helper reads what passes.
//!
//! Two sockets whose addresses mirror each other are the ends of one connection, unless addresses are translated: a connection to a
//! service's address that is led to a local program has the same source as one straight to that program may have, and the kernel gives the
//! second one another source on its way. Then the first one's server mirrors the second one's client.
//!
//! | the kernel | then |
//! |---|---|
//! | knows the connection, and its answers come from where it went | it is as it seems |
//! | knows it, and they do not | it is not |
//! | does not know it | nobody translates it |
//! | does not tell (no CAP_NET_ADMIN), and tracks nothing | the same |
//! | does not tell, and tracks some | another socket with the same source address makes it unproved |
//!
//! What a BPF program does with addresses of packets is not seen.

use std::io;

use millrace_wire::{Address, End, Offer};
use nix::libc;
use nix::sys::socket::SockProtocol;
use tracing::debug;

use crate::netlink::{Netlink, attribute, find_attribute, nested};

// `linux/netfilter/nfnetlink_conntrack.h`.
const GET: u16 = 1 << 8 | 1;
const NEW: u16 = 1 << 8;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IPV4_SOURCE: u16 = 1;
const IPV6_SOURCE: u16 = 3;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const TARGET_PORT: u16 = 3;
const HELPER: u16 = 5;
/// `struct nfgenmsg`.
const FAMILY_HEADER_BYTES: usize = 4;

/// How many connections the namespace tracks; no such file: none.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// The namespace's sockets: `proc_net(5)`.
const SOCKETS: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// TCP_LISTEN, as these have it.
const LISTENS: &str = "0A";

/// Asks the kernel. What a kernel does not have, it does not do with packets.
#[derive(Debug, Default)]
pub(crate) struct Tracking(Option<Netlink>);

impl Tracking {
    pub(crate) fn new() -> Tracking {
        Tracking(Netlink::open(SockProtocol::NetlinkNetFilter).ok())
    }

    /// Whether a helper reads what was connected from one address to the other.
    pub(crate) fn has_helper(&self, from: &Address, to: &Address) -> bool {
        let entry = self.entry(from, to);
        let entry = entry.inspect_err(|error| debug!("connection tracking: {error}"));
        let entry = entry.ok().flatten();
        entry.is_some_and(|entry| find_attribute(&entry, HELPER).is_some())
    }

    /// Whether the packets of one of two ends, whose addresses mirror each other, may come to another socket than the other end. Which of
    /// them has connected is only what they say themselves: both are asked for.
    pub(crate) fn may_translate(&self, ends: [&Offer; 2]) -> bool {
        let mut is_told = true;
        for Offer { local, remote, .. } in ends {
            match self.entry(local, remote) {
                Ok(Some(entry)) if is_direct(&entry) != Some(true) => {
                    return true;
                }
                Ok(_) => {}
                Err(_) => is_told = false,
            }
        }
        if is_told || !tracks_anything() {
            return false;
        }
        let has_connected = |offer: &&Offer| offer.end == End::Active;
        let nobody_has = !ends.iter().any(has_connected);
        let mut connected = ends
            .into_iter()
            .filter(|offer| nobody_has || has_connected(offer));
        connected.any(|offer| has_another_from(&offer.local, &offer.remote))
    }

    /// The attributes of what is tracked with these addresses. `None`: nothing is.
    fn entry(&self, from: &Address, to: &Address) -> io::Result<Option<Vec<u8>>> {
        let tracking = self.0.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        match tracking.ask(GET, NEW, &question(from, to)) {
            Ok(answer) => Ok(answer.get(FAMILY_HEADER_BYTES..).map(<[u8]>::to_vec)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether answers come from where the connection went, and go where it came from.
fn is_direct(entry: &[u8]) -> Option<bool> {
    let [source, target] = ends(find_attribute(entry, TUPLE_ORIGINAL)?)?;
    let reply = ends(find_attribute(entry, TUPLE_REPLY)?)?;
    Some(reply == [target, source])
}

/// Source and target of a tuple.
fn ends(tuple: &[u8]) -> Option<[Address; 2]> {
    let (ip, protocol) = (
        find_attribute(tuple, TUPLE_IP)?,
        find_attribute(tuple, TUPLE_PROTOCOL)?,
    );
    let end = |index: u16, port: u16| {
        let v4 = find_attribute(ip, IPV4_SOURCE + index);
        let v4 = v4.and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        let v4 = v4.map(|bytes| std::net::Ipv4Addr::from(bytes).to_ipv6_mapped().octets());
        let v6 = || find_attribute(ip, IPV6_SOURCE + index)?.try_into().ok();
        let port = find_attribute(protocol, port)?.try_into().ok()?;
        Some(Address {
            ip: v4.or_else(v6)?,
            port: u16::from_be_bytes(port),
        })
    };
    Some([end(0, SOURCE_PORT)?, end(1, TARGET_PORT)?])
}

fn question(from: &Address, to: &Address) -> Vec<u8> {
    let is_v4 = from.is_v4() && to.is_v4();
    let (family, first_kind, skipped) = if is_v4 {
        (libc::AF_INET, IPV4_SOURCE, 12)
    } else {
        (libc::AF_INET6, IPV6_SOURCE, 0)
    };
    let addresses = [
        attribute(first_kind, &from.ip[skipped..]),
        attribute(first_kind + 1, &to.ip[skipped..]),
    ];
    let protocol = [
        attribute(PROTOCOL_NUMBER, &[libc::IPPROTO_TCP as u8]),
        attribute(SOURCE_PORT, &from.port.to_be_bytes()),
        attribute(TARGET_PORT, &to.port.to_be_bytes()),
    ];
    let tuple = [
        nested(TUPLE_IP, &addresses),
        nested(TUPLE_PROTOCOL, &protocol),
    ];
    [vec![family as u8, 0, 0, 0], nested(TUPLE_ORIGINAL, &tuple)].concat()
}

/// Whether the namespace tracks any connection, as far as that is told.
fn tracks_anything() -> bool {
    let count = std::fs::read_to_string(COUNT);
    count.is_ok_and(|count| count.trim() != "0")
}

/// Whether another connection than this one has its source; where that cannot be read it may have.
fn has_another_from(from: &Address, to: &Address) -> bool {
    let is_another = |text: &str| {
        let mut sockets = text.lines().filter_map(socket);
        sockets.any(|[local, remote]| local == *from && remote != *to)
    };
    SOCKETS
        .iter()
        .any(|path| match std::fs::read_to_string(path) {
            Ok(text) => is_another(&text),
            // There is no IPv6.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        })
}

/// Both addresses of a connection, from its line.
fn socket(line: &str) -> Option<[Address; 2]> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let ends = [words.next()?, words.next()?];
    let state = words.next()?;
    let [local, remote] = ends.map(address);
    (state != LISTENS).then_some([local?, remote?])
}

/// An address as hexadecimal words of 32 bits in the processor's order, a colon, and the port.
fn address(text: &str) -> Option<Address> {
    let (words, port) = text.split_once(':')?;
    let mut ip = [0; 16];
    let place = match words.len() {
        8 => {
            ip[10..12].fill(0xff);
            12
        }
        32 => 0,
        _ => return None,
    };
    for (index, bytes) in ip[place..].chunks_exact_mut(4).enumerate() {
        let word = words.get(8 * index..8 * index + 8)?;
        bytes.copy_from_slice(&u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(Address { ip, port })
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use millrace_wire::Family;
    use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage};

    use super::*;

    fn end(text: &str) -> Address {
        text.parse::<SocketAddr>().unwrap().into()
    }

    /// What the kernel answers, of a connection whose answers come so.
    fn entry(original: [&str; 2], reply: [&str; 2]) -> Vec<u8> {
        let tuple = |kind, [from, to]: [&str; 2]| {
            let question = question(&end(from), &end(to));
            let tuple = find_attribute(&question[FAMILY_HEADER_BYTES..], TUPLE_ORIGINAL);
            attribute(kind, tuple.unwrap())
        };
        [tuple(TUPLE_ORIGINAL, original), tuple(TUPLE_REPLY, reply)].concat()
    }

    #[test]
    fn a_connection_is_direct_whose_answers_come_from_where_it_went() {
        let (client, server) = ("10.0.0.1:5000", "10.0.0.1:8080");
        let seen = |original, reply| is_direct(&entry(original, reply));
        assert_eq!(seen([client, server], [server, client]), Some(true));
        let elsewhere = ["10.9.9.9:80", "10.0.0.1:55899", "10.0.0.1:8081"];
        for other in elsewhere {
            assert_eq!(seen([client, server], [server, other]), Some(false));
            assert_eq!(seen([client, other], [server, client]), Some(false));
        }
        let (client, server) = ("[fd00::1]:5000", "[fd00::2]:80");
        assert_eq!(seen([client, server], [server, client]), Some(true));
        assert_eq!(
            seen([client, "[fd00::3]:80"], [server, client]),
            Some(false)
        );
        let cut = entry([client, server], [server, client]);
        assert_eq!(is_direct(&cut[..cut.len() - 1]), None);
    }

    /// Nobody else has its source: the kernel gives a port that was asked for to no second socket, nor one that an ended connection has.
    fn connected_from(source: SocketAddr, target: SocketAddr) -> TcpStream {
        let family = match source {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_CLOEXEC;
        let client = socket::socket(family, SockType::Stream, flags, None).unwrap();
        socket::bind(client.as_raw_fd(), &SockaddrStorage::from(source)).unwrap();
        socket::connect(client.as_raw_fd(), &SockaddrStorage::from(target)).unwrap();
        client.into()
    }

    #[test]
    fn sockets_are_read_as_the_kernel_lists_them() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(ip).unwrap();
            let server = listener.local_addr().unwrap();
            let client = connected_from(ip.parse().unwrap(), server);
            let (from, to) = (client.local_addr().unwrap().into(), server.into());
            assert!(!has_another_from(&from, &to));
            let other = Address { port: 1, ..to };
            assert!(has_another_from(&from, &other));
            // Of the listener nothing is said.
            assert!(!has_another_from(&Address { port: 2, ..to }, &from));
        }
    }

    #[test]
    fn connections_that_nobody_translates_are_as_they_seem() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let client = TcpStream::connect(server).unwrap();
        let (from, to) = (client.local_addr().unwrap().into(), server.into());
        let tracking = Tracking::new();
        let offer = |end, local, remote| Offer {
            end,
            local,
            remote,
            offer_id: 1,
            fd: 1,
            row: 0,
            family: Family::V4,
            cookie: 1,
            netns_cookie: 0,
        };
        let ends = [offer(End::Active, from, to), offer(End::Passive, to, from)];
        assert!(!tracking.may_translate(ends.each_ref()));
        assert!(!tracking.has_helper(&from, &to));
    }
}
