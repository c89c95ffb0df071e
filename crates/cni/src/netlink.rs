//! Interfaces, addresses and routes of the calling thread's network namespace, by netlink (rtnetlink(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    socket,
};

use crate::addresses::{Address, Prefix, Route};

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// The kernel's own answers are no longer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

/// `struct ifinfomsg`, its flags, and attributes.
const LINK_BYTES: usize = 16;
const IFF_UP: u32 = 1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_NET_NS_FD: u16 = 28;
/// `struct ifaddrmsg`, its flags, and attributes.
const ADDRESS_BYTES: usize = 8;
/// Whoever gives addresses sees to it that no two are alike.
const IFA_F_NODAD: u8 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
/// `struct rtmsg`, and attributes.
const ROUTE_BYTES: usize = 12;
/// The table of routes that say none.
pub(crate) const RT_TABLE_MAIN: u32 = 254;
/// For tables whose number does not fit into the field.
const RT_TABLE_COMPAT: u8 = 252;
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Vec<u8>,
    pub(crate) mtu: u32,
    pub(crate) is_up: bool,
}

/// A route that there is, of the main table unless it says another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) to: Prefix,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) table: u32,
}

/// A socket to the kernel.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Netlink> {
        let (flags, protocol) = (SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute);
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        // To the kernel, port 0: nobody else can answer in its place.
        connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Netlink {
            socket,
            sequence: 0,
        })
    }

    /// Interfaces.
    pub(crate) fn links(&mut self) -> io::Result<Vec<Link>> {
        let answers = self.exchange(RTM_GETLINK, NLM_F_DUMP, &[0; LINK_BYTES])?;
        Ok(answers.iter().filter_map(|body| parse_link(body)).collect())
    }

    /// Addresses of an interface.
    pub(crate) fn addresses(&mut self, link: u32) -> io::Result<Vec<Prefix>> {
        let answers = self.exchange(RTM_GETADDR, NLM_F_DUMP, &[0; ADDRESS_BYTES])?;
        let of = answers.iter().filter(|body| word(body, 4) == Some(link));
        Ok(of.filter_map(|body| parse_address(body)).collect())
    }

    /// Routes.
    pub(crate) fn routes(&mut self) -> io::Result<Vec<Way>> {
        let answers = self.exchange(RTM_GETROUTE, NLM_F_DUMP, &[0; ROUTE_BYTES])?;
        Ok(answers
            .iter()
            .filter_map(|body| parse_route(body))
            .collect())
    }

    /// Puts an interface into another network namespace.
    pub(crate) fn move_to(&mut self, link: u32, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let mut body = link_body(link, 0);
        let namespace = namespace.as_raw_fd();
        put(&mut body, IFLA_NET_NS_FD, &namespace.to_ne_bytes());
        self.exchange(RTM_NEWLINK, NLM_F_ACK, &body).map(drop)
    }

    /// Sets an interface's name, address and MTU, and has it up.
    pub(crate) fn set_up(
        &mut self,
        link: u32,
        name: &str,
        mac: &[u8],
        mtu: Option<u32>,
    ) -> io::Result<()> {
        let mut body = link_body(link, IFF_UP);
        put(&mut body, IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        put(&mut body, IFLA_ADDRESS, mac);
        if let Some(mtu) = mtu {
            put(&mut body, IFLA_MTU, &mtu.to_ne_bytes());
        }
        self.exchange(RTM_NEWLINK, NLM_F_ACK, &body).map(drop)
    }

    /// Adds an address.
    pub(crate) fn add_address(&mut self, link: u32, address: &Address) -> io::Result<()> {
        let body = address_body(link, address.prefix);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.exchange(RTM_NEWADDR, flags, &body).map(drop)
    }

    /// Adds a route.
    pub(crate) fn add_route(&mut self, link: u32, route: &Route) -> io::Result<()> {
        let body = route_body(link, route);
        // Another interface may have one to the same place.
        let flags = NLM_F_ACK | NLM_F_CREATE;
        self.exchange(RTM_NEWROUTE, flags, &body).map(drop)
    }

    /// Asks, and returns what stands behind the answers' headers.
    fn exchange(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let length = (HEADER_BYTES + body.len()) as u32;
        let flags = NLM_F_REQUEST | flags;
        let mut question = Vec::new();
        question.extend(length.to_ne_bytes());
        question.extend(kind.to_ne_bytes());
        question.extend(flags.to_ne_bytes());
        question.extend(self.sequence.to_ne_bytes());
        question.extend([0; 4]);
        question.extend(body);
        send(self.socket.as_raw_fd(), &question, MsgFlags::empty())?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; ANSWER_BYTES_MAX];
        loop {
            // What it answers is there when `send` returns, and further parts when one is read: nothing is waited for.
            let length = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?;
            if take(&buffer[..length], self.sequence, &mut answers)? {
                return Ok(answers);
            }
        }
    }
}

/// Takes the messages of a datagram. Whether the last one was among them.
fn take(mut bytes: &[u8], sequence: u32, answers: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    while !bytes.is_empty() {
        let length = word(bytes, 0).ok_or_else(malformed)? as usize;
        let body = bytes.get(HEADER_BYTES..length).ok_or_else(malformed)?;
        let kind = half(bytes, 4).ok_or_else(malformed)?;
        if word(bytes, 8) == Some(sequence) {
            match kind {
                NLMSG_ERROR => {
                    let error = word(body, 0).ok_or_else(malformed)?.cast_signed();
                    return match error {
                        0 => Ok(true),
                        error => Err(Errno::from_raw(error.wrapping_neg()).into()),
                    };
                }
                NLMSG_DONE => return Ok(true),
                _ => answers.push(body.to_vec()),
            }
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet as u8,
        IpAddr::V6(_) => AddressFamily::Inet6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Family and kind are any; flags are set, and no other is changed.
fn link_body(link: u32, flags: u32) -> Vec<u8> {
    let words = [0, link, flags, flags];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn address_body(link: u32, prefix: Prefix) -> Vec<u8> {
    let flags = if prefix.address.is_ipv6() {
        IFA_F_NODAD
    } else {
        0
    };
    let scope = RT_SCOPE_UNIVERSE;
    let mut body = vec![family(prefix.address), prefix.bits, flags, scope];
    body.extend(link.to_ne_bytes());
    let own = octets(prefix.address);
    put(&mut body, IFA_LOCAL, &own);
    put(&mut body, IFA_ADDRESS, &own);
    if let IpAddr::V4(address) = prefix.address
        && prefix.bits < 31
    {
        let hosts = u32::MAX.checked_shr(prefix.bits.into()).unwrap_or(0);
        let everybody = Ipv4Addr::from(u32::from(address) | hosts);
        put(&mut body, IFA_BROADCAST, &everybody.octets());
    }
    body
}

fn route_body(link: u32, route: &Route) -> Vec<u8> {
    let to = route.to;
    let table = route.table.unwrap_or(RT_TABLE_MAIN);
    let short_table = u8::try_from(table).unwrap_or(RT_TABLE_COMPAT);
    // Without a gateway, in IPv4, who is there is beside us.
    let usual = if route.gateway.is_none() && to.address.is_ipv4() {
        RT_SCOPE_LINK
    } else {
        RT_SCOPE_UNIVERSE
    };
    let scope = route.scope.unwrap_or(usual);
    let mut body = vec![family(to.address), to.bits, 0, 0];
    body.extend([short_table, RTPROT_BOOT, scope, RTN_UNICAST]);
    body.extend([0; 4]);
    if to.bits > 0 {
        put(&mut body, RTA_DST, &octets(to.address));
    }
    put(&mut body, RTA_OIF, &link.to_ne_bytes());
    put(&mut body, RTA_TABLE, &table.to_ne_bytes());
    if let Some(gateway) = route.gateway {
        put(&mut body, RTA_GATEWAY, &octets(gateway));
    }
    if let Some(priority) = route.priority {
        put(&mut body, RTA_PRIORITY, &priority.to_ne_bytes());
    }
    let mut metrics = Vec::new();
    for (kind, value) in [(RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advmss)] {
        if let Some(value) = value {
            put(&mut metrics, kind, &value.to_ne_bytes());
        }
    }
    if !metrics.is_empty() {
        put(&mut body, RTA_METRICS, &metrics);
    }
    body
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let attributes = body.get(LINK_BYTES..)?;
    let name = find(attributes, IFLA_IFNAME)?
        .split(|byte| *byte == 0)
        .next()?;
    Some(Link {
        index: word(body, 4)?,
        name: String::from_utf8_lossy(name).into_owned(),
        mac: find(attributes, IFLA_ADDRESS).unwrap_or_default().to_vec(),
        mtu: word(find(attributes, IFLA_MTU)?, 0)?,
        is_up: word(body, 8)? & IFF_UP != 0,
    })
}

fn parse_address(body: &[u8]) -> Option<Prefix> {
    let attributes = body.get(ADDRESS_BYTES..)?;
    let own = find(attributes, IFA_LOCAL).or_else(|| find(attributes, IFA_ADDRESS))?;
    Some(Prefix {
        address: parse_octets(own)?,
        bits: *body.get(1)?,
    })
}

fn parse_route(body: &[u8]) -> Option<Way> {
    let attributes = body.get(ROUTE_BYTES..)?;
    let to = match find(attributes, RTA_DST) {
        Some(to) => parse_octets(to)?,
        None if *body.first()? == AddressFamily::Inet as u8 => [0; 4].into(),
        None => [0_u16; 8].into(),
    };
    let number = |kind| word(find(attributes, kind)?, 0);
    Some(Way {
        to: Prefix {
            address: to,
            bits: *body.get(1)?,
        },
        gateway: find(attributes, RTA_GATEWAY).and_then(parse_octets),
        table: number(RTA_TABLE).unwrap_or_else(|| body[4].into()),
    })
}

fn parse_octets(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    four.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

/// Adds an attribute (`struct nlattr`).
fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = (ATTRIBUTE_HEADER_BYTES + value.len()) as u16;
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The value of the first attribute of a kind.
fn find(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(half(bytes, 0)?);
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        if half(bytes, 2)? == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    bytes.try_into().ok().map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_loopback() {
        let mut netlink = Netlink::open().unwrap();
        let links = netlink.links().unwrap();
        let loopback = links.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!(
            (loopback.mac.as_slice(), loopback.mtu > 0),
            (&[0; 6][..], true)
        );
        let addresses = netlink.addresses(loopback.index).unwrap();
        // It need not be up.
        assert!(addresses.iter().all(|one| one.address.is_loopback()));
        netlink.routes().unwrap();
        let nobody = netlink.set_up(u32::MAX >> 1, "x", &[2, 0, 0, 0, 0, 1], None);
        assert!(nobody.is_err());
    }

    #[test]
    fn an_address_and_a_route_are_read_as_they_are_written() {
        let prefix: Prefix = "10.9.0.2/24".parse().unwrap();
        let body = address_body(7, prefix);
        assert_eq!(
            (word(&body, 4), parse_address(&body)),
            (Some(7), Some(prefix))
        );
        let everybody = find(&body[ADDRESS_BYTES..], IFA_BROADCAST).unwrap();
        assert_eq!(parse_octets(everybody), Some([10, 9, 0, 255].into()));
        let route = Route {
            gateway: Some("fd00::1".parse().unwrap()),
            mtu: Some(1400),
            table: Some(1000),
            ..Route::to("::/0".parse().unwrap())
        };
        let way = parse_route(&route_body(7, &route)).unwrap();
        assert_eq!(
            (way.to, way.gateway, way.table),
            (route.to, route.gateway, 1000)
        );
        let direct = route_body(7, &Route::to("10.8.0.0/16".parse().unwrap()));
        assert_eq!(direct[6], RT_SCOPE_LINK);
    }

    #[test]
    fn answers_that_are_cut_short_are_told() {
        let message = |kind: u16, body: &[u8]| {
            let length = (HEADER_BYTES + body.len()) as u32;
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 2]);
            bytes.extend(9_u32.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(body);
            bytes
        };
        let both = [message(RTM_NEWLINK, &[1; 20]), message(NLMSG_DONE, &[0; 4])].concat();
        let mut answers = Vec::new();
        assert!(take(&both, 9, &mut answers).unwrap());
        assert_eq!(answers, [vec![1; 20]]);
        assert!(!take(&both, 8, &mut answers).unwrap());
        for length in 1..36 {
            assert!(take(&both[..length], 9, &mut answers).is_err(), "{length}");
        }
        let refused = message(NLMSG_ERROR, &(-2_i32).to_ne_bytes());
        let error = take(&refused, 9, &mut answers).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
