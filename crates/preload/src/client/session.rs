//! One session with the agent: what is said, and what comes back.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use libc::c_int;
use millrace_shm::board::{Board, Row, address_words, state};
use millrace_shm::segment::Segment;
use millrace_wire::{
    End, Family, Hello, MAX_BYTES, Mode, Offer, Reason, Recall, SEGMENT_VERSION, Take, ToAgent,
    ToClient, VERSION_MAX, VERSION_MIN, Welcome, Withdraw,
};

use super::boards::Boards;
use super::link::{connect, passed_descriptor, wait_for_mail};
use super::{
    BOARD, DESCRIPTOR, LEAVING, MAIL_SEEN, MODE, OFFER_AFTER_BYTES, OFFER_AFTER_CALLS, RETRY_NS,
    WELCOME_WAIT_MS, board, is_eager, keeps_away, row_index, stop_for_good,
};
use crate::kernel::{self, kernel};
use crate::socket::{Socket, phase};
use crate::{process, spin, table};

/// What only the holder of the lock touches.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) path: CString,
    pub(super) fd: Option<OwnedFd>,
    /// When a recall was asked for that is not answered yet; there is one at a time.
    pub(super) asked_at_ns: Option<u64>,
    pub(super) retry_at_ns: u64,
    /// Of the protocol that the agent and we speak: the lowest, until it has said which it chose.
    pub(super) version: u16,
    pub(super) next_offer: u32,
    pub(super) boards: Boards,
    /// Offers on their way.
    pub(super) offers: HashMap<u64, Offered>,
    /// Withdrawals that an agent which was busy has not been told of yet.
    pub(super) withdrawals: Vec<u64>,
    pub(super) rows_free: Vec<u32>,
    /// Free rows in which a thread that was in a call when its connection was closed has to count itself out yet.
    pub(super) rows_in_use: Vec<u32>,
    pub(super) rows_used: u32,
    /// Where the search for rows that forked children gave up goes on.
    pub(super) rows_searched: u32,
}

/// An offer on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    /// The descriptor that it was made for.
    pub(super) fd: c_int,
    /// When we said that we want the segment, which may come at any time; zero: not yet.
    pub(super) taken_at_ns: u64,
}

impl Client {
    /// A free row in which nobody counts any more.
    pub(super) fn free_row(&mut self, board: &Board) -> Option<u32> {
        let is_quiet = |index: &u32| board.row(*index).is_some_and(Row::is_quiet);
        if let Some(place) = self.rows_in_use.iter().position(is_quiet) {
            return Some(self.rows_in_use.swap_remove(place));
        }
        while let Some(index) = self.rows_free.pop() {
            if is_quiet(&index) {
                return Some(index);
            }
            self.rows_in_use.push(index);
        }
        None
    }

    /// A row that forked children, its last holders, have given up, or with which they were killed: only we may use it again. Looks at a
    /// few rows at a time.
    pub(super) fn find_left_row(&mut self, board: &Board) -> Option<u32> {
        for _ in 0..self.rows_used.min(4) {
            self.rows_searched = (self.rows_searched + 1) % self.rows_used;
            let row = board.row(self.rows_searched)?;
            let is_last_resort = self.rows_used == board.row_count();
            if !self.rows_in_use.contains(&self.rows_searched) && is_left(row, is_last_resort) {
                // Acquire: whoever emptied it has announced that before. What our own threads leave comes to the list of free ones.
                if LEAVING.load(Acquire) != 0 {
                    return None;
                }
                row.forget_calls();
                return Some(self.rows_searched);
            }
        }
        None
    }

    /// Connects and says hello, if that has not been done and did not just fail.
    pub(super) fn reach(&mut self) -> bool {
        if self.fd.is_some() {
            return true;
        }
        let now = kernel::monotonic_ns();
        if now < self.retry_at_ns || keeps_away() {
            return false;
        }
        self.retry_at_ns = now + RETRY_NS;
        let Some(fd) = connect(&self.path) else {
            return false;
        };
        DESCRIPTOR.store(fd.as_raw_fd().cast_unsigned(), Relaxed);
        self.fd = Some(fd);
        self.version = VERSION_MIN;
        let mode = Mode::from_u8(MODE.load(Relaxed)).unwrap_or_default();
        self.send(&ToAgent::Hello(Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            segment_version: SEGMENT_VERSION,
            mode,
        }));
        if is_eager() {
            self.wait_for_welcome();
        }
        true
    }

    pub(super) fn wait_for_welcome(&mut self) {
        let deadline = kernel::monotonic_ns() + WELCOME_WAIT_MS * 1_000_000;
        while board().is_none() && kernel::monotonic_ns() < deadline {
            let Some(fd) = &self.fd else {
                return;
            };
            wait_for_mail(fd.as_raw_fd());
            self.read_mail();
        }
    }

    pub(super) fn lose_agent(&mut self) {
        DESCRIPTOR.store(u32::MAX, Relaxed);
        self.fd = None;
        self.asked_at_ns = None;
        // Connections that have their end records on the board go on. Rows of a new agent's board are new.
        BOARD.store(std::ptr::null_mut(), Relaxed);
        self.boards.vacate_unused(None);
        self.rows_free.clear();
        self.rows_in_use.clear();
        self.rows_used = 0;
        self.retry_at_ns = kernel::monotonic_ns() + RETRY_NS;
        for (offer_id, offered) in std::mem::take(&mut self.offers) {
            if let Some(socket) =
                table::socket(offered.fd).filter(|socket| socket.offer_id.load(Relaxed) == offer_id)
            {
                socket
                    .row()
                    .identity
                    .reason
                    .store(Reason::AgentLost as u8, Relaxed);
                pass(socket, phase::OFFERED, phase::KERNEL);
            }
        }
    }

    /// Sends a message if it goes at once.
    pub(super) fn send(&mut self, message: &ToAgent) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut buffer = [0; MAX_BYTES];
        let bytes = message.encode(self.version, &mut buffer);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let number = fd.as_raw_fd();
        let sent = kernel!(
            libc::SYS_sendto,
            number,
            buffer.as_ptr(),
            bytes,
            flags,
            0usize,
            0usize
        );
        if sent < 0 && sent != -(libc::EAGAIN as isize) {
            self.lose_agent();
        }
        sent == bytes as isize
    }

    pub(super) fn offer(&mut self, fd: c_int, socket: &'static Socket) -> Result<(), Reason> {
        if !self.reach() {
            return Err(Reason::NoAgent);
        }
        self.send_withdrawals();
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
            netns_cookie: kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE)
                .unwrap_or(0),
        };
        show(row, fd, &offer);
        socket.offer_id.store(offer_id, Relaxed);
        socket.matched.store(false, Relaxed);
        if !pass(socket, phase::FRESH, phase::OFFERED) {
            // It has been pinned meanwhile.
            socket.offer_id.store(0, Relaxed);
            return Ok(());
        }
        self.offers.insert(offer_id, Offered { fd, taken_at_ns: 0 });
        if self.send(&ToAgent::Offer(offer)) {
            return Ok(());
        }
        self.offers.remove(&offer_id);
        pass(socket, phase::OFFERED, phase::FRESH);
        // An agent that is only busy is asked again at the next call.
        Err(if self.fd.is_some() {
            Reason::TooShort
        } else {
            Reason::NoAgent
        })
    }

    /// Asks for the segment of a connection of which the agent knows the other end, if we could use it now.
    pub(super) fn take(&mut self, socket: &'static Socket) {
        let offer_id = socket.offer_id.load(Relaxed);
        let Some(offered) = self
            .offers
            .get(&offer_id)
            .filter(|offered| offered.taken_at_ns == 0)
        else {
            return;
        };
        let fd = offered.fd;
        if socket.is_held_alone() && self.send(&ToAgent::Take(Take { offer_id })) {
            let taken_at_ns = kernel::monotonic_ns();
            self.offers.insert(offer_id, Offered { fd, taken_at_ns });
            socket.matched.store(false, Relaxed);
        }
    }

    /// When the segment of a connection was asked for that has not come yet; zero: it was not.
    pub(super) fn taken_at_ns(&self, socket: &Socket) -> u64 {
        let offered = self.offers.get(&socket.offer_id.load(Relaxed));
        offered.map_or(0, |offered| offered.taken_at_ns)
    }

    /// Takes back what was asked for and has not come: the connections may be offered again.
    pub(super) fn untake_all(&mut self) {
        let taken = self.offers.iter().filter(|(_, it)| it.taken_at_ns != 0);
        let taken: Vec<(u64, c_int)> = taken.map(|(id, it)| (*id, it.fd)).collect();
        for (offer_id, fd) in taken {
            let Some(socket) = offered(fd, offer_id) else {
                continue;
            };
            if pass(socket, phase::OFFERED, phase::FRESH) {
                socket.offer_id.store(0, Relaxed);
                self.withdraw(offer_id);
            }
        }
    }

    /// Takes an offer back. Nobody waits for the answer: should its segment be on its way, whoever reads the mail next lets go of that.
    pub(super) fn withdraw(&mut self, offer_id: u64) {
        self.offers.remove(&offer_id);
        self.withdrawals.push(offer_id);
        self.send_withdrawals();
    }

    /// An agent that was not told would keep the segment for as long as this process is there. One that is only busy is told later.
    fn send_withdrawals(&mut self) {
        while let Some(&offer_id) = self.withdrawals.last()
            && self.send(&ToAgent::Withdraw(Withdraw { offer_id }))
        {
            self.withdrawals.pop();
        }
        if self.fd.is_none() {
            self.withdrawals.clear();
        }
    }

    /// Asks for a recall. While an older one is not answered, nothing is asked: false.
    pub(super) fn recall(&mut self, recall: Recall) -> bool {
        self.read_mail();
        let is_asked =
            self.asked_at_ns.is_none() && self.reach() && self.send(&ToAgent::Recall(recall));
        if is_asked {
            self.asked_at_ns = Some(kernel::monotonic_ns());
        }
        is_asked
    }

    /// Whether the agent owes an answer still, after its mail has been read: the descriptor on which it comes, and when it was asked.
    pub(super) fn owing(&mut self) -> Option<(RawFd, u64)> {
        self.read_mail();
        Some((self.fd.as_ref()?.as_raw_fd(), self.asked_at_ns?))
    }

    /// Whether there is an agent that does not stand still, as far as is known.
    pub(super) fn has_answered(&self) -> bool {
        self.fd.is_some() && self.asked_at_ns.is_none()
    }

    pub(super) fn read_mail(&mut self) {
        while let Some((message, fd)) = self.receive() {
            match message {
                ToClient::Welcome(welcome) => self.welcome_in(&welcome, fd),
                ToClient::Matched(matched) => {
                    if let Some(Offered { fd, .. }) = self.offers.get(&matched.offer_id)
                        && let Some(socket) = offered(*fd, matched.offer_id)
                    {
                        socket.matched.store(true, Relaxed);
                        self.take(socket);
                    }
                }
                ToClient::Paired(paired) => {
                    let (Some(Offered { fd: number, .. }), Some(fd)) =
                        (self.offers.remove(&paired.offer_id), fd)
                    else {
                        continue;
                    };
                    let segment = Segment::attach(fd.as_fd(), paired.ring_bytes).ok();
                    if let Some(socket) = offered(number, paired.offer_id) {
                        socket
                            .row()
                            .identity
                            .connection_id
                            .store(paired.connection_id, Relaxed);
                        socket.pair(segment);
                    }
                }
                ToClient::Declined(declined) => {
                    let Some(Offered { fd, .. }) = self.offers.remove(&declined.offer_id) else {
                        continue;
                    };
                    if let Some(socket) = offered(fd, declined.offer_id) {
                        socket
                            .row()
                            .identity
                            .reason
                            .store(declined.reason as u8, Relaxed);
                        socket.offer_id.store(0, Relaxed);
                        pass(socket, phase::OFFERED, phase::KERNEL);
                    }
                }
                ToClient::Recalled(_) => self.asked_at_ns = None,
                ToClient::Unsupported(_) => stop_for_good(Reason::NoAgent),
                // Of questions, and of channels: not for a program with connections.
                ToClient::Answer(_)
                | ToClient::Opened(_)
                | ToClient::Refused(_)
                | ToClient::Linked(_) => {}
            }
        }
    }

    fn welcome_in(&mut self, welcome: &Welcome, fd: Option<OwnedFd>) {
        let Some(board) = fd.and_then(|fd| self.boards.map(fd.as_fd(), welcome.rows)) else {
            return;
        };
        self.version = welcome.version;
        MAIL_SEEN.store(0, Relaxed);
        BOARD.store(
            std::ptr::from_ref(board).cast_mut(),
            std::sync::atomic::Ordering::Release,
        );
        OFFER_AFTER_CALLS.store(
            if is_eager() {
                0
            } else {
                welcome.offer_after_calls
            },
            Relaxed,
        );
        OFFER_AFTER_BYTES.store(u64::from(welcome.offer_after_bytes), Relaxed);
        if MODE.load(Relaxed) == Mode::EagerNospin as u8 {
            spin::set_budget_us(0);
        } else if !process::spin_is_overridden() {
            spin::set_budget_us(welcome.spin_us);
        }
    }

    /// One message, if one waits.
    pub(super) fn receive(&mut self) -> Option<(ToClient, Option<OwnedFd>)> {
        let number = self.fd.as_ref()?.as_raw_fd();
        let mut buffer = [0u8; MAX_BYTES];
        let mut control = [0u64; 8];
        let mut vector = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        // SAFETY: pointers and integers, for which zero is a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        let bytes = kernel!(
            libc::SYS_recvmsg,
            number,
            &raw mut header,
            libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC
        );
        let Ok(bytes) = usize::try_from(bytes) else {
            return None;
        };
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

/// Whether nobody has the row any more. In one that was closed under a thread's call, that thread counts itself out when it wakes up; or a
/// holder was killed in a call, and does not: such a row is used again when there is no other.
fn is_left(row: &Row, is_last_resort: bool) -> bool {
    let identity = &row.identity;
    // Acquire: whoever says that it is free has had the last of it.
    if identity.state.load(Acquire) == state::FREE && identity.holders.load(Acquire) == 0 {
        return is_last_resort || row.is_quiet();
    }
    if process::is_held_here(row) || !process::is_left(row) {
        return false;
    }
    identity.state.store(state::FREE, Relaxed);
    true
}

/// From one phase to the next. False: another thread has pinned or closed the connection meanwhile.
pub(super) fn pass(socket: &Socket, from: u8, to: u8) -> bool {
    // Release: whoever finds it paired finds the segment.
    let passed = socket.phase.compare_exchange(from, to, AcqRel, Relaxed);
    passed.is_ok()
}

fn offered(fd: c_int, offer_id: u64) -> Option<&'static Socket> {
    let socket = table::socket(fd)?;
    let waits =
        socket.phase.load(Acquire) == phase::OFFERED && socket.offer_id.load(Relaxed) == offer_id;
    waits.then_some(socket)
}

/// Lists a connection that begins, without its addresses: the agent finds them when somebody asks.
pub(crate) fn list(row: &Row, fd: c_int, family: c_int, active: bool) {
    let identity = &row.identity;
    identity.fd.store(fd.cast_unsigned(), Relaxed);
    let family = if family == libc::AF_INET { 4 } else { 6 };
    identity.family.store(family, Relaxed);
    identity.active.store(u8::from(active), Relaxed);
    identity.local_port.store(0, Relaxed);
    identity.remote_port.store(0, Relaxed);
    identity.since_ns.store(kernel::monotonic_ns(), Relaxed);
    identity.state.store(state::KERNEL, Relaxed);
}

/// Whether the connection that `fd` is has the addresses of one that was offered.
pub(crate) fn has_addresses(row: &Row, fd: c_int) -> bool {
    let identity = &row.identity;
    let ends = [
        (&identity.local, &identity.local_port),
        (&identity.remote, &identity.remote_port),
    ];
    kernel::addresses(fd).is_some_and(|(local, remote)| {
        ends.iter()
            .zip([local, remote])
            .all(|((words, port), address)| {
                let known = [0, 1].map(|half| words[half].load(Relaxed));
                known == address_words(address.ip) && port.load(Relaxed) == address.port
            })
    })
}

/// Fills in what humans see of a connection that is offered.
fn show(row: &Row, fd: c_int, offer: &Offer) {
    let identity = &row.identity;
    identity.fd.store(fd.cast_unsigned(), Relaxed);
    identity.family.store(offer.family as u8, Relaxed);
    identity
        .active
        .store(u8::from(offer.end == End::Active), Relaxed);
    identity.local_port.store(offer.local.port, Relaxed);
    identity.remote_port.store(offer.remote.port, Relaxed);
    for (words, address) in [
        (&identity.local, offer.local),
        (&identity.remote, offer.remote),
    ] {
        for (word, half) in words.iter().zip(address_words(address.ip)) {
            word.store(half, Relaxed);
        }
    }
    identity.cookie.store(offer.cookie, Relaxed);
    identity.state.store(state::KERNEL, Relaxed);
}
