//! System calls of the load generators and servers: sockets, epoll with a timer, signals, processor time.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::socket::{
    self, AddressFamily, Backlog, MsgFlags, SockFlag, SockType, SockaddrStorage, sockopt,
};
use nix::sys::time::{TimeSpec, TimeVal, TimeValLike};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use super::address::Address;

/// Events that are taken at once.
const EVENTS: usize = 512;
/// The token of a poller's timer.
const TIMER: u64 = u64::MAX;

/// A stream socket, and whether its connection is established already.
///
/// One that does not block is established later, which the poller tells as that it can be written to. The connection to a Unix
/// socket is waited for in any case: there the kernel has no event for it.
pub(super) fn connect(address: &Address, blocking: bool) -> io::Result<(OwnedFd, bool)> {
    let path = match address {
        Address::Tcp(address) => return connect_tcp(SockaddrStorage::from(*address), blocking),
        Address::Unix(path) => path,
    };
    let socket = OwnedFd::from(UnixStream::connect(path)?);
    if !blocking {
        set_nonblocking(&socket)?;
    }
    Ok((socket, true))
}

fn connect_tcp(address: SockaddrStorage, blocking: bool) -> io::Result<(OwnedFd, bool)> {
    let mut flags = SockFlag::SOCK_CLOEXEC;
    flags.set(SockFlag::SOCK_NONBLOCK, !blocking);
    let family = if address.as_sockaddr_in().is_some() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let socket = socket::socket(family, SockType::Stream, flags, None)?;
    socket::setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    match socket::connect(socket.as_raw_fd(), &address) {
        Ok(()) => Ok((socket, true)),
        Err(Errno::EINPROGRESS) => Ok((socket, false)),
        Err(error) => Err(error.into()),
    }
}

/// What became of a connection that was being established.
pub(super) fn connect_result(socket: &OwnedFd) -> io::Result<()> {
    match socket::getsockopt(socket, sockopt::SocketError)? {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// From now on nothing that is done with the socket waits.
pub(super) fn set_nonblocking(socket: &OwnedFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(socket, FcntlArg::F_GETFL)?);
    fcntl(socket, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// A blocking receive fails with `WouldBlock` after so long.
pub(super) fn set_receive_timeout(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let timeout = TimeVal::milliseconds(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX));
    Ok(socket::setsockopt(
        socket,
        sockopt::ReceiveTimeout,
        &timeout,
    )?)
}

/// From now on its end is a reset, after which no port is kept; a Unix socket has none.
pub(super) fn end_by_reset(socket: &OwnedFd) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    Ok(socket::setsockopt(socket, sockopt::Linger, &linger)?)
}

#[inline]
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(socket::recv(socket.as_raw_fd(), buffer, MsgFlags::empty())?)
}

#[inline]
pub(super) fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(socket::send(
        socket.as_raw_fd(),
        bytes,
        MsgFlags::MSG_NOSIGNAL,
    )?)
}

/// A socket that connections come to.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// A path where no server listens any more is taken over.
    pub(super) fn bind(address: &Address) -> io::Result<Listener> {
        let listener = match address {
            Address::Tcp(address) => Listener::Tcp(listen_tcp((*address).into())?),
            Address::Unix(path) => {
                let gone = |path| {
                    UnixStream::connect(path)
                        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
                };
                if gone(path) {
                    std::fs::remove_file(path)?;
                }
                Listener::Unix(UnixListener::bind(path)?)
            }
        };
        match &listener {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener) => listener.set_nonblocking(true)?,
        }
        Ok(listener)
    }

    /// A connection that does not block.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let connection = listener.accept()?.0;
                connection.set_nonblocking(true)?;
                connection.set_nodelay(true)?;
                connection.into()
            }
            Listener::Unix(listener) => {
                let connection = listener.accept()?.0;
                connection.set_nonblocking(true)?;
                connection.into()
            }
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// The standard library's queue of connections to be accepted is too short for a thousand that come at once.
fn listen_tcp(address: SockaddrStorage) -> io::Result<TcpListener> {
    let family = if address.as_sockaddr_in().is_some() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let socket = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    socket::setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    socket::bind(socket.as_raw_fd(), &address)?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

/// What a descriptor is watched for. Its end is told in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// Something to receive.
    Read,
    /// Room to send.
    Write,
    /// Either.
    Both,
}

impl Interest {
    fn flags(self) -> EpollFlags {
        match self {
            Interest::Read => EpollFlags::EPOLLIN,
            Interest::Write => EpollFlags::EPOLLOUT,
            Interest::Both => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
        }
    }
}

/// How long [`Poller::wait`] waits when nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Not at all.
    Poll,
    /// For ever.
    Endless,
    /// Milliseconds, rounded down.
    Coarse(Duration),
    /// As exact as the kernel's timers are.
    Exact(Duration),
}

/// Waits for events of many descriptors, each known by a token, and for a time.
pub(super) struct Poller {
    epoll: Epoll,
    timer: TimerFd,
    events: Vec<EpollEvent>,
}

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(
            ClockId::CLOCK_MONOTONIC,
            TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
        )?;
        // Edge-triggered, so that an expiry is told once without being read.
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&timer, EpollEvent::new(flags, TIMER))?;
        Ok(Poller {
            epoll,
            timer,
            events: vec![EpollEvent::empty(); EVENTS],
        })
    }

    /// Watches a descriptor until it is closed.
    pub(super) fn add(
        &self,
        descriptor: impl AsFd,
        token: usize,
        interest: Interest,
    ) -> io::Result<()> {
        let event = EpollEvent::new(interest.flags(), token as u64);
        Ok(self.epoll.add(descriptor, event)?)
    }

    /// Watches it for something else.
    pub(super) fn change(
        &self,
        descriptor: impl AsFd,
        token: usize,
        interest: Interest,
    ) -> io::Result<()> {
        let mut event = EpollEvent::new(interest.flags(), token as u64);
        Ok(self.epoll.modify(descriptor, &mut event)?)
    }

    /// Finds the tokens of the descriptors that have an event. None after the time, or a signal, or sooner.
    pub(super) fn wait(&mut self, wait: Wait, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        let timeout = match wait {
            Wait::Poll => EpollTimeout::ZERO,
            Wait::Endless => EpollTimeout::NONE,
            Wait::Coarse(time) => EpollTimeout::try_from(time).unwrap_or(EpollTimeout::MAX),
            Wait::Exact(time) => {
                let expiry = Expiration::OneShot(TimeSpec::from_duration(time));
                self.timer.set(expiry, TimerSetTimeFlags::empty())?;
                EpollTimeout::NONE
            }
        };
        let count = match self.epoll.wait(&mut self.events, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let tokens = self.events[..count].iter().map(EpollEvent::data);
        let tokens = tokens.filter(|&token| token != TIMER);
        ready.extend(tokens.map(|token| token as usize));
        Ok(())
    }
}

/// The machine's monotonic clock, which no process can set; a time namespace (time_namespaces(7)) may shift it for those in it.
#[inline]
pub(super) fn monotonic_ns() -> u64 {
    // The kernel has this clock.
    let time = clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    time.map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Seconds of processor time of this thread: in programs, and in the kernel.
pub(super) fn processor_time() -> io::Result<(f64, f64)> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    Ok((seconds(usage.user_time()), seconds(usage.system_time())))
}

/// How often this thread lost its processor to another one.
pub(crate) fn preempted() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    usage.map_or(0, |usage| usage.involuntary_context_switches() as u64)
}

/// Allows as many descriptors as may be allowed. Best effort: who needs more is told so when one cannot be opened.
pub(super) fn raise_descriptor_limit() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Sets a flag at the first SIGINT or SIGTERM, and ends the process at the second. By a handler and not by a thread that waits for
/// them: in a process of one thread the C library's system calls are cheaper.
///
/// # Errors
/// The handlers cannot be set.
pub fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A shell tells the end by a signal so. The order matters: the first signal must find the flag unset.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// As [`stop_on_signals`], for a server that waits for nothing else without a limit: what is there to be read from the first signal on.
///
/// # Errors
/// The handlers cannot be set.
pub fn readable_on_signals() -> io::Result<UnixStream> {
    stop_on_signals()?;
    let (reader, writer) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader)
}

/// The address that a listener has, where the caller left the port to the kernel.
pub(super) fn address_of(listener: &Listener, asked: &Address) -> io::Result<Address> {
    Ok(match listener {
        Listener::Tcp(listener) => Address::Tcp(listener.local_addr()?),
        Listener::Unix(_) => asked.clone(),
    })
}
