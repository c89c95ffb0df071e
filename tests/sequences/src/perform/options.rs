//! Socket options, and calls that make no sense on a socket.

use super::{Context, show};
use crate::plan::{Call, OddCall, Opt, Slot};
use crate::sys::{self, Answer, Area, Fd};
use libc::c_int;
use std::net::{Ipv4Addr, SocketAddr};

/// How an option's value is laid out.
enum Layout {
    Int,
    /// Milliseconds as a `timeval`.
    Time,
    /// Seconds as a `linger`; negative for off.
    Linger,
}

/// Level, number and layout of an option.
fn number(option: Opt) -> (c_int, c_int, Layout) {
    let (socket, tcp) = (libc::SOL_SOCKET, libc::IPPROTO_TCP);
    match option {
        Opt::ReceiveTimeout => (socket, libc::SO_RCVTIMEO, Layout::Time),
        Opt::SendTimeout => (socket, libc::SO_SNDTIMEO, Layout::Time),
        Opt::ReceiveLow => (socket, libc::SO_RCVLOWAT, Layout::Int),
        Opt::SendBuffer => (socket, libc::SO_SNDBUF, Layout::Int),
        Opt::ReceiveBuffer => (socket, libc::SO_RCVBUF, Layout::Int),
        Opt::Error => (socket, libc::SO_ERROR, Layout::Int),
        Opt::Type => (socket, libc::SO_TYPE, Layout::Int),
        Opt::Domain => (socket, libc::SO_DOMAIN, Layout::Int),
        Opt::Protocol => (socket, libc::SO_PROTOCOL, Layout::Int),
        Opt::AcceptConn => (socket, libc::SO_ACCEPTCONN, Layout::Int),
        Opt::ReuseAddr => (socket, libc::SO_REUSEADDR, Layout::Int),
        Opt::KeepAlive => (socket, libc::SO_KEEPALIVE, Layout::Int),
        Opt::Linger => (socket, libc::SO_LINGER, Layout::Linger),
        Opt::OobInline => (socket, libc::SO_OOBINLINE, Layout::Int),
        Opt::PeekOffset => (socket, libc::SO_PEEK_OFF, Layout::Int),
        Opt::NoDelay => (tcp, libc::TCP_NODELAY, Layout::Int),
        Opt::Cork => (tcp, libc::TCP_CORK, Layout::Int),
        Opt::KeepIdle => (tcp, libc::TCP_KEEPIDLE, Layout::Int),
        Opt::UserTimeout => (tcp, libc::TCP_USER_TIMEOUT, Layout::Int),
        Opt::QuickAck => (tcp, libc::TCP_QUICKACK, Layout::Int),
        Opt::ZeroCopy => (socket, libc::SO_ZEROCOPY, Layout::Int),
        Opt::Inq => (tcp, libc::TCP_INQ, Layout::Int),
        Opt::Unknown => (tcp, 9999, Layout::Int),
    }
}

impl Context {
    pub(super) fn perform_options(&self, call: &Call) -> String {
        match call {
            Call::SetOption {
                slot,
                option,
                value,
            } => show(set(self.fd(*slot), *option, *value)),
            Call::GetOption { slot, option } => get(self.fd(*slot), *option),
            Call::Odd { slot, call } => self.odd(*slot, *call),
            other => unreachable!("{other} is no call on options"),
        }
    }

    fn odd(&self, slot: Slot, call: OddCall) -> String {
        let fd = self.fd(slot);
        let mut memory = [b'x'; 16];
        let areas = [Area::of(&mut memory)];
        let [area] = &areas;
        show(match call {
            OddCall::Pread => sys::pread(fd, area),
            OddCall::Pwrite => sys::pwrite(fd, area),
            OddCall::PreadvAt => sys::preadv2(fd, &areas, 3, 0),
            OddCall::PwritevAt => sys::pwritev2(fd, &areas, 3, 0),
            OddCall::Lseek => sys::lseek(fd),
            OddCall::FileType => sys::file_type(fd),
            OddCall::Tee => tee_from(fd),
            OddCall::CopyFileRange => sys::copy_file_range(fd, fd, 16),
            OddCall::Fsync => sys::fsync(fd),
            OddCall::Ftruncate => sys::ftruncate(fd),
            OddCall::Map => sys::try_map(fd),
            OddCall::Listen => sys::listen(fd, 1),
            OddCall::ConnectAgain => {
                sys::connect(fd, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1))
            }
            OddCall::Accept => sys::accept(fd, false).0,
            OddCall::Bind => sys::bind(fd, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)),
        })
    }
}

fn set(fd: Fd, option: Opt, value: i32) -> Answer {
    let (level, name, layout) = number(option);
    match layout {
        Layout::Int => sys::set_option(fd, level, name, &value),
        Layout::Time => sys::set_option(fd, level, name, &sys::timeval(value)),
        Layout::Linger => {
            let linger = libc::linger {
                l_onoff: i32::from(value >= 0),
                l_linger: value.max(0),
            };
            sys::set_option(fd, level, name, &linger)
        }
    }
}

/// The option's value: an int as a number, anything longer as its bytes.
fn get(fd: Fd, option: Opt) -> String {
    let (level, name, layout) = number(option);
    let value = match layout {
        Layout::Int => sys::get_int(fd, level, name).map(|value| {
            if option == Opt::Error && value != 0 {
                sys::Errno(value).to_string()
            } else {
                value.to_string()
            }
        }),
        Layout::Time | Layout::Linger => {
            sys::get_option(fd, level, name, 64).map(|value| format!("{value:?}"))
        }
    };
    value.unwrap_or_else(|errno| errno.to_string())
}

fn tee_from(fd: Fd) -> Answer {
    let [out, into] = sys::pipe(false)?;
    let result = sys::tee(fd, into, 16);
    // Two plain pipe ends: closing them cannot fail.
    let _ = (sys::close(out), sys::close(into));
    result
}
