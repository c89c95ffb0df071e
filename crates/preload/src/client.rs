//! The library's side of the control protocol: one connection to the agent, made when the process has its first TCP connection.
//!
//! Nothing here waits for the agent (but in the eager modes, which tests use). Whatever fails leaves connections on the kernel's road.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::{AcqRel, Acquire, Relaxed}};

use libc::c_int;
use millrace_shm::board::{Board, Row, address_words, state};
use millrace_shm::segment::Segment;
use millrace_stream::Chaos;
use millrace_wire::{End, Family, Hello, MAX_BYTES, Mode, Offer, Reason, SEGMENT_VERSION, ToAgent, ToClient, VERSION_MAX, VERSION_MIN, Welcome, Withdraw};

use crate::guarded::Guarded;
use crate::kernel::{self, kernel};
use crate::socket::{Socket, phase};
use crate::{process, spin, table};

/// After a failed attempt to reach the agent, nanoseconds until the next.
const RETRY_NS: u64 = 1_000_000_000;
/// In the eager modes, milliseconds that a first call waits for its connection's introduction.
const EAGER_WAIT_MS: u64 = 20;
/// Descriptors of ours are at or above this number where the limit allows.
const HIGH_DESCRIPTOR: c_int = 900;

/// Switched on by `MILLRACE_MODE=chaos:SEED`.
pub(crate) static CHAOS: Chaos = Chaos::new(0);

static MODE: AtomicU8 = AtomicU8::new(Mode::Default as u8);
static OFFER_AFTER_CALLS: AtomicU32 = AtomicU32::new(u32::MAX);
static OFFER_AFTER_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
static BOARD: AtomicPtr<Board> = AtomicPtr::new(std::ptr::null_mut());
static MAIL_SEEN: AtomicU32 = AtomicU32::new(0);
/// The agent's descriptor, or -1.
static DESCRIPTOR: AtomicU32 = AtomicU32::new(u32::MAX);
/// No connection of this process may be offered any more.
static STOPPED: AtomicBool = AtomicBool::new(false);

static CLIENT: Guarded<Option<Client>> = Guarded::new(None);

/// What only the holder of the lock touches.
#[derive(Debug)]
struct Client {
    path: CString,
    fd: Option<OwnedFd>,
    retry_at_ns: u64,
    next_offer: u32,
    /// Offers on their way: which descriptor each was made for.
    offers: HashMap<u64, c_int>,
    rows_free: Vec<u32>,
    rows_used: u32,
}

/// Says where the agent is and how eager to be.
pub(crate) fn configure(path: CString, mode: Mode, chaos_seed: u64) {
    MODE.store(mode as u8, Relaxed);
    CHAOS.reseed(if mode == Mode::Chaos { chaos_seed.max(1) } else { 0 });
    if let Some(mut client) = CLIENT.lock() {
        *client = Some(Client {
            path,
            fd: None,
            retry_at_ns: 0,
            next_offer: 1,
            offers: HashMap::new(),
            rows_free: Vec::new(),
            rows_used: 0,
        });
    }
}

fn is_eager() -> bool {
    MODE.load(Relaxed) != Mode::Default as u8
}

/// Offers nothing more from this process.
pub(crate) fn stop() {
    STOPPED.store(true, Relaxed);
}

/// The program is about to put a descriptor of its own on `target`: ours makes way.
pub(crate) fn move_away(target: c_int) {
    if descriptor() == Some(target)
        && !process::is_borrowed()
        && let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        let moved = kernel!(libc::SYS_fcntl, target, libc::F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
        match c_int::try_from(moved) {
            Ok(moved) if moved >= 0 => {
                DESCRIPTOR.store(moved.cast_unsigned(), Relaxed);
                // SAFETY: the kernel has just made it for us. The old one is closed by what the program does next.
                let old = client.fd.replace(unsafe { OwnedFd::from_raw_fd(moved) });
                std::mem::forget(old);
            }
            _ => client.lose_agent(),
        }
    }
}

fn board() -> Option<&'static Board> {
    // SAFETY: boards are leaked, never unmapped.
    unsafe { BOARD.load(Acquire).as_ref() }
}

/// The agent's descriptor, for hooks that must not let the program close it.
pub(crate) fn descriptor() -> Option<RawFd> {
    RawFd::try_from(DESCRIPTOR.load(Relaxed)).ok()
}

/// Reaches for the agent, if that has not been done: a listening program will have connections.
pub(crate) fn prepare() {
    if board().is_none()
        && let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        client.reach();
        client.read_mail();
    }
}

/// A free end record on the board.
pub(crate) fn take_row() -> Option<&'static Row> {
    prepare();
    let board = board()?;
    let mut guard = CLIENT.lock()?;
    let client = guard.as_mut()?;
    let index = match client.rows_free.pop() {
        Some(index) => index,
        None if client.rows_used < board.row_count() => {
            client.rows_used += 1;
            board.header().rows_used.store(client.rows_used, Relaxed);
            client.rows_used - 1
        }
        None => return None,
    };
    board.row(index)
}

/// Gives an end record back, if it is one of ours; rows of a parent's board are the parent's to reuse.
pub(crate) fn give_row(row: &'static Row) {
    if let Some(index) = row_index(row)
        && let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        client.rows_free.push(index);
    }
}

fn row_index(row: &Row) -> Option<u32> {
    let first = board()?.row(0)?;
    let distance = std::ptr::from_ref(row) as usize - (std::ptr::from_ref(first) as usize).min(std::ptr::from_ref(row) as usize);
    let index = u32::try_from(distance / size_of::<Row>()).ok()?;
    board()?.row(index).filter(|found| std::ptr::eq(*found, row)).map(|_| index)
}

/// A connection begins. In the eager modes it is offered at once.
pub(crate) fn tracked(fd: c_int, socket: &'static Socket) {
    if is_eager() {
        offer(fd, socket);
    }
}

/// Counts a call on a connection that is not attached, and offers it when it has proved long enough.
#[inline]
pub(crate) fn count(fd: c_int, socket: &'static Socket, bytes: usize) {
    let calls = socket.calls.load(Relaxed).saturating_add(1);
    let bytes = socket.bytes.load(Relaxed).saturating_add(bytes as u64);
    socket.calls.store(calls, Relaxed);
    socket.bytes.store(bytes, Relaxed);
    let long = calls >= OFFER_AFTER_CALLS.load(Relaxed) || bytes >= OFFER_AFTER_BYTES.load(Relaxed);
    if socket.phase.load(Relaxed) == phase::FRESH {
        if long {
            offer(fd, socket);
        } else if calls % 64 == 4 {
            prepare();
        }
    }
}

#[cold]
fn offer(fd: c_int, socket: &'static Socket) {
    if STOPPED.load(Relaxed) || !socket.has_board_row() && !adopt_row(socket) {
        return;
    }
    let Some(mut guard) = CLIENT.lock() else { return };
    let Some(client) = guard.as_mut() else { return };
    if let Err(reason) = client.offer(fd, socket) {
        socket.row().identity.reason.store(reason as u8, Relaxed);
        if reason != Reason::NoAgent {
            socket.phase.store(phase::KERNEL, Relaxed);
        }
    }
}

/// Moves a connection that began before there was a board to a row of it.
fn adopt_row(socket: &'static Socket) -> bool {
    match take_row() {
        Some(row) => socket.move_to(row),
        None => false,
    }
}

/// Tells the agent that a connection's end has gone.
pub(crate) fn withdraw(offer_id: u64) {
    if let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        client.offers.remove(&offer_id);
        client.send(&ToAgent::Withdraw(Withdraw { offer_id }));
    }
}

/// Looks whether the agent has sent anything, at the cost of a load when it has not.
#[inline]
pub(crate) fn glance() {
    if let Some(board) = board()
        && board.mail() != MAIL_SEEN.load(Relaxed)
    {
        read_mail(board);
    }
}

#[cold]
fn read_mail(board: &Board) {
    if let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        MAIL_SEEN.store(board.mail(), Relaxed);
        client.read_mail();
    }
}

/// In the eager modes: waits a little for the introduction of a connection whose first call this is.
#[cold]
pub(crate) fn wait_eagerly(socket: &'static Socket) {
    if !is_eager() || socket.calls.fetch_add(1, AcqRel) != 0 {
        return;
    }
    let deadline = kernel::monotonic_ns() + EAGER_WAIT_MS * 1_000_000;
    while socket.phase.load(Acquire) == phase::OFFERED && kernel::monotonic_ns() < deadline {
        glance();
        millrace_shm::sys::yield_now();
    }
}

/// For a forked child: the parent's connection to the agent is the parent's; a new one is made when needed.
pub(crate) fn forget_parent() {
    CLIENT.force_unlock();
    DESCRIPTOR.store(u32::MAX, Relaxed);
    BOARD.store(std::ptr::null_mut(), Relaxed);
    if let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        client.fd = None;
        client.retry_at_ns = 0;
        client.offers.clear();
        client.rows_free.clear();
        client.rows_used = 0;
    }
}

/// Keeps introductions away while a closure forks.
pub(crate) fn hold_still<T>(work: impl FnOnce() -> T) -> T {
    let _guard = CLIENT.lock();
    work()
}

impl Client {
    /// Connects and says hello, if that has not been done and did not just fail.
    fn reach(&mut self) -> bool {
        if self.fd.is_some() {
            return true;
        }
        let now = kernel::monotonic_ns();
        if now < self.retry_at_ns || STOPPED.load(Relaxed) {
            return false;
        }
        self.retry_at_ns = now + RETRY_NS;
        let Some(fd) = connect(&self.path) else { return false };
        DESCRIPTOR.store(std::os::fd::AsRawFd::as_raw_fd(&fd).cast_unsigned(), Relaxed);
        self.fd = Some(fd);
        let mode = Mode::from_u8(MODE.load(Relaxed)).unwrap_or_default();
        self.send(&ToAgent::Hello(Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, segment_version: SEGMENT_VERSION, mode }));
        if is_eager() {
            self.wait_for_welcome();
        }
        true
    }

    fn wait_for_welcome(&mut self) {
        for _ in 0..50 {
            let Some(fd) = &self.fd else { return };
            let mut entry = libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(fd), events: libc::POLLIN, revents: 0 };
            let patience = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            kernel!(libc::SYS_ppoll, &raw mut entry, 1usize, &raw const patience, 0usize, 0usize);
            self.read_mail();
            if board().is_some() {
                return;
            }
        }
    }

    fn lose_agent(&mut self) {
        DESCRIPTOR.store(u32::MAX, Relaxed);
        self.fd = None;
        // The board stays mapped: connections go on. Rows of a new agent's board are new.
        BOARD.store(std::ptr::null_mut(), Relaxed);
        self.rows_free.clear();
        self.rows_used = 0;
        self.retry_at_ns = kernel::monotonic_ns() + RETRY_NS;
        for (offer_id, fd) in std::mem::take(&mut self.offers) {
            if let Some(socket) = table::socket(fd).filter(|socket| socket.offer_id.load(Relaxed) == offer_id) {
                socket.row().identity.reason.store(Reason::AgentLost as u8, Relaxed);
                let _ = socket.phase.compare_exchange(phase::OFFERED, phase::KERNEL, AcqRel, Relaxed);
            }
        }
    }

    /// Sends a message if it goes at once.
    fn send(&mut self, message: &ToAgent) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut buffer = [0; MAX_BYTES];
        let bytes = message.encode(&mut buffer);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let number = std::os::fd::AsRawFd::as_raw_fd(fd);
        let sent = kernel!(libc::SYS_sendto, number, buffer.as_ptr(), bytes, flags, 0usize, 0usize);
        if sent < 0 && sent != -(libc::EAGAIN as isize) {
            self.lose_agent();
        }
        sent == bytes as isize
    }

    fn offer(&mut self, fd: c_int, socket: &'static Socket) -> Result<(), Reason> {
        if !self.reach() {
            return Err(Reason::NoAgent);
        }
        let row = socket.row();
        let index = row_index(row).ok_or(Reason::NoAgent)?;
        let (local, remote) = kernel::addresses(fd).ok_or(Reason::NotEstablished)?;
        let active = socket.active.load(Relaxed);
        let offer_id = u64::from(fd.cast_unsigned()) << 32 | u64::from(self.next_offer);
        self.next_offer = self.next_offer.wrapping_add(1);
        let family = socket.family.load(Relaxed);
        let offer = Offer {
            offer_id,
            fd,
            row: index,
            family: if family == 4 { Family::V4 } else { Family::V6 },
            end: if active { End::Active } else { End::Passive },
            local,
            remote,
            cookie: kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).unwrap_or(0),
            netns_cookie: kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE).unwrap_or(0),
        };
        show(row, fd, &offer);
        socket.offer_id.store(offer_id, Relaxed);
        socket.phase.store(phase::OFFERED, Relaxed);
        self.offers.insert(offer_id, fd);
        if self.send(&ToAgent::Offer(offer)) {
            return Ok(());
        }
        self.offers.remove(&offer_id);
        socket.phase.store(phase::FRESH, Relaxed);
        Err(Reason::NoAgent)
    }

    fn read_mail(&mut self) {
        while let Some((message, fd)) = self.receive() {
            match message {
                ToClient::Welcome(welcome) => welcome_in(&welcome, fd),
                ToClient::Paired(paired) => {
                    let (Some(number), Some(fd)) = (self.offers.remove(&paired.offer_id), fd) else { continue };
                    let segment = Segment::attach(fd.as_fd(), paired.ring_bytes).ok();
                    if let Some(socket) = offered(number, paired.offer_id) {
                        socket.row().identity.connection_id.store(paired.connection_id, Relaxed);
                        let next = if segment.is_some() { phase::PAIRED } else { phase::KERNEL };
                        socket.set_segment(segment);
                        socket.phase.store(next, std::sync::atomic::Ordering::Release);
                    }
                }
                ToClient::Declined(declined) => {
                    let Some(number) = self.offers.remove(&declined.offer_id) else { continue };
                    if let Some(socket) = offered(number, declined.offer_id) {
                        socket.row().identity.reason.store(declined.reason as u8, Relaxed);
                        socket.phase.store(phase::KERNEL, Relaxed);
                    }
                }
                ToClient::Unsupported(_) => stop(),
                ToClient::Answer(_) => {}
            }
        }
    }

    /// One message, if one waits.
    fn receive(&mut self) -> Option<(ToClient, Option<OwnedFd>)> {
        let number = std::os::fd::AsRawFd::as_raw_fd(self.fd.as_ref()?);
        let mut buffer = [0u8; MAX_BYTES];
        let mut control = [0u64; 8];
        let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: pointers and integers, for which zero is a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        let bytes = kernel!(libc::SYS_recvmsg, number, &raw mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
        let Ok(bytes) = usize::try_from(bytes) else { return None };
        let fd = passed_descriptor(&header);
        match ToClient::parse(&buffer[..bytes]) {
            Ok(message) if bytes != 0 => Some((message, fd)),
            _ => {
                self.lose_agent();
                None
            }
        }
    }
}

fn offered(fd: c_int, offer_id: u64) -> Option<&'static Socket> {
    let socket = table::socket(fd)?;
    let waits = socket.phase.load(Acquire) == phase::OFFERED && socket.offer_id.load(Relaxed) == offer_id;
    waits.then_some(socket)
}

fn welcome_in(welcome: &Welcome, fd: Option<OwnedFd>) {
    let Some(board) = fd.and_then(|fd| Board::attach_rows(fd.as_fd(), welcome.rows).ok()) else { return };
    MAIL_SEEN.store(0, Relaxed);
    BOARD.store(Box::into_raw(Box::new(board)), std::sync::atomic::Ordering::Release);
    OFFER_AFTER_CALLS.store(if is_eager() { 0 } else { welcome.offer_after_calls }, Relaxed);
    OFFER_AFTER_BYTES.store(u64::from(welcome.offer_after_bytes), Relaxed);
    if MODE.load(Relaxed) == Mode::EagerNospin as u8 {
        spin::set_budget_us(0);
    } else if !process::spin_is_overridden() {
        spin::set_budget_us(welcome.spin_us);
    }
}

/// Fills in what humans see of a connection.
fn show(row: &Row, fd: c_int, offer: &Offer) {
    let identity = &row.identity;
    identity.fd.store(fd.cast_unsigned(), Relaxed);
    identity.family.store(offer.family as u8, Relaxed);
    identity.active.store(u8::from(offer.end == End::Active), Relaxed);
    identity.local_port.store(offer.local.port, Relaxed);
    identity.remote_port.store(offer.remote.port, Relaxed);
    for (words, address) in [(&identity.local, offer.local), (&identity.remote, offer.remote)] {
        for (word, half) in words.iter().zip(address_words(address.ip)) {
            word.store(half, Relaxed);
        }
    }
    identity.cookie.store(offer.cookie, Relaxed);
    identity.since_ns.store(kernel::monotonic_ns(), Relaxed);
    identity.state.store(state::KERNEL, Relaxed);
}

/// A connection to the agent, non-blocking, on a high descriptor.
fn connect(path: &CString) -> Option<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let number = kernel!(libc::SYS_socket, libc::AF_UNIX, kind, 0usize);
    let number = c_int::try_from(number).ok().filter(|number| *number >= 0)?;
    // SAFETY: the kernel has just made it for us.
    let low = unsafe { OwnedFd::from_raw_fd(number) };
    // SAFETY: integers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return None;
    }
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    let connected = kernel!(libc::SYS_connect, number, &raw const address, size_of::<libc::sockaddr_un>());
    if connected != 0 {
        return None;
    }
    let high = kernel!(libc::SYS_fcntl, number, libc::F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    match c_int::try_from(high) {
        // SAFETY: the kernel has just made it for us.
        Ok(high) if high >= 0 => Some(unsafe { OwnedFd::from_raw_fd(high) }),
        _ => Some(low),
    }
}

/// The descriptor that came with a message.
fn passed_descriptor(header: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel has filled header and control buffer.
    let control = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
    if control.cmsg_level != libc::SOL_SOCKET || control.cmsg_type != libc::SCM_RIGHTS {
        return None;
    }
    // SAFETY: such a message carries at least one descriptor.
    let number = unsafe { libc::CMSG_DATA(control).cast::<c_int>().read_unaligned() };
    // SAFETY: the kernel has just made it for us.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}
