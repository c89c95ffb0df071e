//! Making connections, and the names of their ends.

use super::{Context, show};
use crate::board::Identity;
use crate::plan::{AcceptBy, Call, Family, Slot};
use crate::sys::{self, Answer, Area, Fd};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;

/// Nobody listens on TCP port 1.
const REFUSED_PORT: u16 = 1;

impl Context {
    pub(super) fn perform_connecting(&self, call: &Call) -> String {
        match call {
            Call::Listen {
                slot,
                listener,
                family,
                any,
            } => self.listen(*slot, *listener, *family, *any),
            Call::Socket {
                slot,
                family,
                nonblock,
                cloexec,
            } => {
                let ipv6 = *family != Family::V4;
                self.opened(*slot, sys::socket(ipv6, *nonblock, *cloexec), None)
            }
            Call::Connect {
                slot,
                conn,
                listener,
                family,
            } => self.connect(*slot, *conn, *listener, *family),
            Call::FastOpen {
                slot,
                conn,
                listener,
                family,
                bytes,
            } => self.fast_open(*slot, *conn, *listener, *family, *bytes as usize),
            Call::Accept {
                from,
                slot,
                conn,
                by,
                nonblock,
                cloexec,
            } => {
                let (result, peer) = match by {
                    AcceptBy::Accept => sys::accept(self.fd(*from), true),
                    AcceptBy::AcceptNameless => sys::accept(self.fd(*from), false),
                    AcceptBy::Accept4 => sys::accept4(self.fd(*from), *nonblock, *cloexec),
                };
                self.accepted(*slot, *conn, result, peer)
            }
            Call::Refused { slot } => {
                let address = SocketAddr::new(self.ip(Family::V4), REFUSED_PORT);
                show(sys::connect(self.fd(*slot), address))
            }
            Call::Disconnect { slot } => show(sys::disconnect(self.fd(*slot))),
            Call::Name { slot, peer } => match sys::name(self.fd(*slot), *peer) {
                Ok(Some(address)) => {
                    let end = self.end(*slot);
                    let named = if *peer { end.map(Identity::peer) } else { end };
                    self.named(named, address)
                }
                Ok(None) => "no address".into(),
                Err(errno) => errno.to_string(),
            },
            other => unreachable!("{other} is no connecting call"),
        }
    }

    /// The loopback address for a family.
    fn ip(&self, family: Family) -> IpAddr {
        let [b, c, d] = self.address;
        let v4 = Ipv4Addr::new(127, b, c, d);
        match family {
            Family::V4 => v4.into(),
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
            Family::Mapped => v4.to_ipv6_mapped().into(),
        }
    }

    fn listen(&self, slot: Slot, listener: u8, family: Family, any: bool) -> String {
        let socket = sys::socket(family != Family::V4, false, false);
        let text = self.opened(slot, socket, None);
        let Ok(fd) = socket else { return text };
        let fd = Fd::try_from(fd).unwrap_or(-1);
        let ip = match (any, family) {
            (false, _) => self.ip(family),
            (true, Family::V4) => Ipv4Addr::UNSPECIFIED.into(),
            (true, _) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let made = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32)
            .and_then(|_| sys::bind(fd, SocketAddr::new(ip, 0)))
            .and_then(|_| sys::listen(fd, 16))
            .and_then(|_| sys::name(fd, false));
        match made {
            Ok(address) => {
                let port = address.map_or(0, |address| address.port());
                self.board.listener_ports[usize::from(listener)].store(port.into(), SeqCst);
                text
            }
            Err(errno) => format!("{text} {errno}"),
        }
    }

    /// Notes that `slot` is about to become the connecting end of `conn`; returns where to.
    fn aim(&self, slot: Slot, conn: u8, listener: u8, family: Family) -> SocketAddr {
        self.board.listener_of[usize::from(conn)].store(u32::from(listener) + 1, SeqCst);
        let end = Identity { conn, side: 0 };
        self.board.identify(self.process, slot, Some(end));
        let port = self.board.listener_ports[usize::from(listener)].load(SeqCst);
        SocketAddr::new(self.ip(family), u16::try_from(port).unwrap_or_default())
    }

    fn connect(&self, slot: Slot, conn: u8, listener: u8, family: Family) -> String {
        let address = self.aim(slot, conn, listener, family);
        let result = sys::connect(self.fd(slot), address);
        self.tell_port(slot, conn);
        show(result)
    }

    fn fast_open(
        &self,
        slot: Slot,
        conn: u8,
        listener: u8,
        family: Family,
        bytes: usize,
    ) -> String {
        let address = self.aim(slot, conn, listener, family);
        let mut memory = self.content(slot, bytes);
        let result = sys::fast_open(self.fd(slot), &Area::of(&mut memory), address);
        self.account_sent(slot, result.unwrap_or_default());
        self.tell_port(slot, conn);
        show(result)
    }

    /// Puts the connecting end's port on the board.
    fn tell_port(&self, slot: Slot, conn: u8) {
        if let Ok(Some(address)) = sys::name(self.fd(slot), false) {
            self.board.connector_ports[usize::from(conn)].store(address.port().into(), SeqCst);
        }
    }

    /// Notes an accepted connection, or that there was none.
    fn accepted(&self, slot: Slot, conn: u8, result: Answer, peer: Option<SocketAddr>) -> String {
        let end = Identity { conn, side: 1 };
        let text = self.opened(slot, result, Some(end));
        match (result, peer) {
            (Ok(_), Some(peer)) => {
                self.await_connector(conn);
                format!("{text} from {}", self.named(Some(end.peer()), peer))
            }
            _ => text,
        }
    }

    /// Waits until the connecting end has told its port: it may be about to.
    fn await_connector(&self, conn: u8) {
        let port = &self.board.connector_ports[usize::from(conn)];
        // Without a port, the name is told as that of another port, and the traces differ.
        let _ = self.wait_until(|| (port.load(SeqCst) != 0).then_some(()));
    }

    /// The address of an end, with its port by the name of who has it: `L0` a listener, `C0` the connecting end
    /// of a connection. A port number may belong to several; that of the end itself goes first.
    fn named(&self, end: Option<Identity>, address: SocketAddr) -> String {
        let (ip, port) = (address.ip(), u32::from(address.port()));
        let Some(end) = end else {
            return format!("{ip} no connection");
        };
        let conn = usize::from(end.conn);
        let listener = self.board.listener_of[conn].load(SeqCst);
        let listener = usize::try_from(listener).unwrap_or(0).checked_sub(1);
        let expected = match (end.side, listener) {
            (0, _) => (format!("C{conn}"), &self.board.connector_ports[conn]),
            (_, Some(number)) => (format!("L{number}"), &self.board.listener_ports[number]),
            _ => return format!("{ip} no listener"),
        };
        match port {
            0 => format!("{ip} no port"),
            _ if port == expected.1.load(SeqCst) => format!("{ip} {}", expected.0),
            _ => format!("{ip} other port"),
        }
    }
}
