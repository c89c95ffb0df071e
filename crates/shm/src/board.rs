//! The board: what the processes that hold one end share with each other and with the agent.
//!
//! The agent makes one per client process. A header page carries the mail count; then come rows, one per
//! tracked connection: the **end record** with the end's authoritative cursors. A child that forks inherits the mapping,
//! so that both processes work on the same record. The agent reads rows to show them, and believes nothing.

mod asks;
mod calls;
mod grant;
pub mod holders;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
/// Of what nothing depends on: no model needs to see it.
use std::sync::atomic::AtomicU64 as Counter;

use crate::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use crate::gate::SeenGate;
use crate::lock::OwnerLock;
use crate::segment::Stamps;
use crate::{Mapping, sys};

pub use grant::Grant;

/// Bytes before the first row.
pub const HEADER_BYTES: usize = 4096;
/// Most rows that a board may have: 64 Ki connections of one process.
pub const ROWS_MAX: u32 = 1 << 16;

/// Life of a row, in [`Identity::state`].
pub mod state {
    /// The row is free.
    pub const FREE: u8 = 0;
    /// The connection is listed and takes the kernel's road.
    pub const KERNEL: u8 = 1;
    /// The end has attached a segment.
    pub const ATTACHED: u8 = 2;
}

/// The header page of a board.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Header {
    /// Count of messages that the agent has sent, modulo 2^32: hooks see mail without a system call.
    pub inbox: AtomicU32,
    /// Number of rows.
    pub rows: AtomicU32,
    /// Client: rows from this one on have never been used.
    pub rows_used: AtomicU32,
}

/// Who a connection is; read by humans through the agent.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Identity {
    /// How many processes hold this end; see [`holders`]. Zero: the row is free.
    pub holders: AtomicU32,
    /// See [`state`].
    pub state: AtomicU8,
    /// `wire::Reason` of being on the kernel's road.
    pub reason: AtomicU8,
    /// 4 or 6.
    pub family: AtomicU8,
    /// 1 when this end connected, 0 when it accepted.
    pub active: AtomicU8,
    /// Descriptor number at the time of the listing.
    pub fd: AtomicU32,
    /// Ports, in host order.
    pub local_port: AtomicU16,
    /// See `local_port`.
    pub remote_port: AtomicU16,
    /// Address, IPv4 as v4-mapped, two halves in network order.
    pub local: [AtomicU64; 2],
    /// See `local`.
    pub remote: [AtomicU64; 2],
    /// `SO_COOKIE`.
    pub cookie: AtomicU64,
    /// The agent's number of the connection, once paired.
    pub connection_id: AtomicU64,
    /// CLOCK_MONOTONIC when it was listed.
    pub since_ns: AtomicU64,
    /// Bits of [`flags`], shared by every holder.
    pub flags: AtomicU32,
    /// The process that uses this end. Another holder that uses it too pins it to the kernel's road.
    pub owner: AtomicU32,
    /// Numbers of holders; see [`holders`].
    pub processes: [AtomicU32; holders::PLACES],
    /// The error that some holder knows of, and none has told its program: the kernel told of it where there was something else to return,
    /// or the peer was found killed. Who takes it tells of it.
    pub error: AtomicU32,
}

/// Bits of [`Identity::flags`].
pub mod flags {
    /// O_NONBLOCK is set on the open file description.
    pub const NONBLOCK: u32 = 1;
    /// This end sends by the kernel from now on.
    pub const SEND_PINNED: u32 = 2;
    /// This end does not open its gate any more.
    pub const RECEIVE_PINNED: u32 = 4;
    /// The peer broke the rules; the connection is over.
    pub const CORRUPT: u32 = 8;
    /// TCP_NODELAY is set by us: for the program it is off.
    pub const HIDDEN_NO_DELAY: u32 = 16;
    /// Both directions are pinned because two processes use the end, and for no other cause: it ends when one is left.
    pub const FORKED: u32 = 32;
    /// The peer was found killed with unread bytes: an error that is told once.
    pub const PEER_KILLED: u32 = 64;
    /// This end asks for a recall, and cannot go on to read the ring: what is left there is lost to it.
    pub const LEAVES: u32 = 128;
    /// What this end sent by the kernel is not acknowledged: all goes by the kernel until it is.
    pub const UNHEARD: u32 = 256;
    /// TCP_INQ is set: receiving calls say how many bytes they leave.
    pub const TELLS_LEFT: u32 = 512;
    /// Bytes came, and the gate stayed closed, as the program was not seen to wait for the connection. For humans.
    pub const UNSEEN: u32 = 1024;
    /// Who asked for a recall of what this end has sent does not wait for it any more.
    pub const ASK_OVER: u32 = 2048;
    /// Agent: it is at work on such a recall, and whoever asked does nothing until it is done.
    pub const AT_WORK: u32 = 4096;
    /// A holder that had become another program has ended, and may have left the end to programs that it had started: nobody knows.
    pub const HEIRS: u32 = 8192;
}

/// The sending half of an end. Guarded by `lock`, except where said.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct SendState {
    /// Guards the rest.
    pub lock: OwnerLock,
    /// The authoritative tail: bytes published in the ring, modulo 2^32.
    pub tail: AtomicU32,
    /// The tail that a publish under way will have: what to believe when its maker died in it.
    pub pending: AtomicU32,
    /// Epoch for which the switch position has been written.
    pub epoch: AtomicU32,
    /// The receiver's head when last looked at.
    pub head_seen: AtomicU32,
    /// Kernel sends under way, in any thread or process: while above zero nobody uses the ring. Not guarded.
    pub raw: AtomicU32,
    /// Bytes sent through the kernel since the connection began.
    pub kernel_position: AtomicU64,
    /// Bytes and messages that went through the ring; for humans.
    pub ring_bytes: AtomicU64,
    /// See `ring_bytes`.
    pub ring_messages: AtomicU64,
    /// Messages that went through the kernel since the end was listed.
    pub kernel_messages: AtomicU64,
    /// Agent: how much of the large ring may be used. Not guarded.
    pub grant: Grant,
    /// When, of the processor's counter, the receiver's head was last looked at for the sake of the stamps.
    pub looked_at: AtomicU64,
    /// The thread that has sent a part of its message and has not ended it, or zero: others do not come between.
    pub in_parts: AtomicU32,
    /// As [`crate::segment::DirectionWords::sender_cpu`] was last written.
    pub told_cpu: AtomicU32,
    /// Agent: bytes that the kernel has sent besides those of the program's calls: what lay in the ring, and what had overtaken that.
    pub resent_bytes: Counter,
    /// The gate after the last publish; zero: it is not known.
    pub seen_gate: SeenGate,
    /// As the receiver was last told.
    pub told_stamps: Stamps,
}

/// The receiving half of an end. Guarded by `lock`, except where said.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct ReceiveState {
    /// Guards the rest.
    pub lock: OwnerLock,
    /// The authoritative head: bytes taken from the ring, modulo 2^32. Advanced by compare-and-swap, so that an
    /// operation that a signal handler's nested one overtook starts again.
    pub head: AtomicU32,
    /// The gate's tail when the ring was last opened: whether anything came through since.
    pub opened_at: AtomicU32,
    /// Waiters asleep in, or operations under way by, the kernel: while above zero the gate stays closed. Not guarded.
    pub sleepers: AtomicU32,
    /// Bytes taken from the kernel since the connection began.
    pub kernel_position: AtomicU64,
    /// Bytes and messages that came through the ring; for humans.
    pub ring_bytes: AtomicU64,
    /// See `ring_bytes`.
    pub ring_messages: AtomicU64,
    /// Messages that came through the kernel since the end was listed.
    pub kernel_messages: AtomicU64,
    /// Agent: as in [`SendState`]; granted to the sender first.
    pub grant: Grant,
    /// Agent: bytes that the kernel has received twice, since they had overtaken what lay in the ring.
    pub doubled_bytes: Counter,
    padding: [u32; 16],
}

/// One row: the end record of one connection.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Row {
    /// Who it is.
    pub identity: Identity,
    /// What it sends.
    pub send: SendState,
    /// What it receives.
    pub receive: ReceiveState,
}

impl Row {
    /// Allows both directions so much of their large rings, as the agent does.
    pub fn grant(&self, window_log2: u32) {
        let connection = self.identity.connection_id.load(Ordering::Relaxed);
        self.send.grant.give(connection, window_log2);
        self.receive.grant.give(connection, window_log2);
    }

    /// Binary logarithm of the part of the large ring, in bytes, that this end may send in; zero: only the small ring.
    #[inline]
    pub fn granted_to_send(&self) -> u32 {
        let connection = self.identity.connection_id.load(Ordering::Relaxed);
        self.send.grant.log2(connection)
    }

    /// As [`Row::granted_to_send`], to receive in.
    #[inline]
    pub fn granted_to_receive(&self) -> u32 {
        let connection = self.identity.connection_id.load(Ordering::Relaxed);
        self.receive.grant.log2(connection)
    }
}

// Loom's words are of other sizes.
const _: () = assert!(cfg!(loom) || size_of::<Row>() == 384);
const _: () = assert!(cfg!(loom) || size_of::<Header>() <= HEADER_BYTES);

/// A plain copy of a row's public part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "each field is the row's field of the same name"
)]
pub struct RowView {
    pub state: u8,
    pub reason: u8,
    pub family: u8,
    pub active: bool,
    pub holders: u32,
    pub processes: [u32; holders::PLACES],
    pub fd: i32,
    pub local: ([u8; 16], u16),
    pub remote: ([u8; 16], u16),
    pub cookie: u64,
    pub connection_id: u64,
    pub since_ns: u64,
    pub flags: u32,
    pub sleepers: u32,
    pub sent_ring_bytes: u64,
    pub sent_ring_messages: u64,
    pub sent_kernel_bytes: u64,
    pub sent_kernel_messages: u64,
    pub received_ring_bytes: u64,
    pub received_ring_messages: u64,
    pub received_kernel_bytes: u64,
    pub received_kernel_messages: u64,
}

/// Splits an address into the two words of [`Identity`].
#[must_use]
pub fn address_words(address: [u8; 16]) -> [u64; 2] {
    let word = u128::from_be_bytes(address);
    [(word >> 64) as u64, word as u64]
}

fn address_bytes(words: &[AtomicU64; 2]) -> [u8; 16] {
    let [high, low] = words
        .each_ref()
        .map(|word| u128::from(word.load(Ordering::Relaxed)));
    (high << 64 | low).to_be_bytes()
}

impl RowView {
    /// Whether the processes that are said to hold the end, or to have let go of it just now, are all known by number, and none of them is
    /// alive.
    #[must_use]
    pub fn is_left(&self, is_alive: impl Fn(u32) -> bool) -> bool {
        let known = || self.processes.iter().filter(|process| **process != 0);
        known().next().is_some()
            && known().count() >= self.holders as usize
            && known()
                .all(|place| holders::number(*place).is_some_and(|process| !is_alive(process)))
    }
}

impl Row {
    /// Copies what humans are shown. Every word may be wrong: it is the client's.
    #[must_use]
    pub fn view(&self) -> RowView {
        let Row {
            identity,
            send,
            receive,
        } = self;
        let word = |atomic: &AtomicU64| atomic.load(Ordering::Relaxed);
        RowView {
            state: identity.state.load(Ordering::Relaxed),
            reason: identity.reason.load(Ordering::Relaxed),
            family: identity.family.load(Ordering::Relaxed),
            active: identity.active.load(Ordering::Relaxed) != 0,
            holders: identity.holders.load(Ordering::Relaxed),
            processes: identity
                .processes
                .each_ref()
                .map(|place| place.load(Ordering::Relaxed)),
            fd: identity.fd.load(Ordering::Relaxed).cast_signed(),
            local: (
                address_bytes(&identity.local),
                identity.local_port.load(Ordering::Relaxed),
            ),
            remote: (
                address_bytes(&identity.remote),
                identity.remote_port.load(Ordering::Relaxed),
            ),
            cookie: word(&identity.cookie),
            connection_id: word(&identity.connection_id),
            since_ns: word(&identity.since_ns),
            flags: identity.flags.load(Ordering::Relaxed),
            sleepers: receive.sleepers.load(Ordering::Relaxed),
            sent_ring_bytes: word(&send.ring_bytes),
            sent_ring_messages: word(&send.ring_messages),
            sent_kernel_bytes: word(&send.kernel_position),
            sent_kernel_messages: word(&send.kernel_messages),
            received_ring_bytes: word(&receive.ring_bytes),
            received_ring_messages: word(&receive.ring_messages),
            received_kernel_bytes: word(&receive.kernel_position),
            received_kernel_messages: word(&receive.kernel_messages),
        }
    }
}

fn board_bytes(rows: u32) -> usize {
    HEADER_BYTES + rows as usize * size_of::<Row>()
}

/// Agent: makes a board of `rows` rows. Its pages cost nothing until a row is used.
///
/// # Errors
/// `InvalidInput` when `rows` is zero or above [`ROWS_MAX`]; else what the kernel says.
pub fn create(rows: u32) -> io::Result<OwnedFd> {
    if rows == 0 || rows > ROWS_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let fd = sys::create_sealed(c"millrace-board", board_bytes(rows), 0)?;
    let board = Board::map(std::os::fd::AsFd::as_fd(&fd), rows)?;
    board.header().rows.store(rows, Ordering::Relaxed);
    Ok(fd)
}

/// A mapped board.
#[derive(Debug)]
pub struct Board {
    mapping: Mapping,
    rows: u32,
}

impl Board {
    /// Client: maps a board of `rows` rows that the agent handed out.
    ///
    /// # Errors
    /// `InvalidData` when the size does not fit or could still change; else what the kernel says.
    pub fn attach_rows(fd: BorrowedFd<'_>, rows: u32) -> io::Result<Board> {
        if rows == 0
            || rows > ROWS_MAX
            || !sys::is_sealed_with_size(fd.as_raw_fd(), board_bytes(rows))
        {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Board::map(fd, rows)
    }

    /// Agent: maps a board that it has just made; the number of rows follows from its sealed size.
    ///
    /// # Errors
    /// As [`Board::attach_rows`].
    pub fn attach(fd: BorrowedFd<'_>) -> io::Result<Board> {
        // SAFETY: lseek to the end of a file that nobody reads by position.
        let end = unsafe {
            sys::call(
                libc::SYS_lseek,
                [fd.as_raw_fd() as usize, 0, libc::SEEK_END as usize, 0, 0, 0],
            )
        };
        let rows = sys::check(end)?.saturating_sub(HEADER_BYTES) / size_of::<Row>();
        Board::attach_rows(fd, u32::try_from(rows).unwrap_or(0))
    }

    fn map(fd: BorrowedFd<'_>, rows: u32) -> io::Result<Board> {
        if cfg!(loom) {
            // Loom's words do not lie in mapped memory.
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        Ok(Board {
            mapping: Mapping::new(fd, board_bytes(rows))?,
            rows,
        })
    }

    /// The header page.
    #[must_use]
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with the header page; atomics only.
        unsafe { self.mapping.base().cast::<Header>().as_ref() }
    }

    /// Number of rows.
    #[must_use]
    pub fn row_count(&self) -> u32 {
        self.rows
    }

    /// The row of that number, when the board has it.
    #[must_use]
    pub fn row(&self, index: u32) -> Option<&Row> {
        if index >= self.rows {
            return None;
        }
        // SAFETY: the index is below the number of rows, which the sealed size covers.
        let place = unsafe {
            self.mapping
                .base()
                .add(HEADER_BYTES + index as usize * size_of::<Row>())
        };
        // SAFETY: 128-aligned, atomics only, mapped as long as `self`.
        Some(unsafe { place.cast::<Row>().as_ref() })
    }

    /// The number of a row, when it is one of this board's.
    #[must_use]
    pub fn index_of(&self, row: &Row) -> Option<u32> {
        let first = self.mapping.base().as_ptr() as usize + HEADER_BYTES;
        let distance = (std::ptr::from_ref(row) as usize).checked_sub(first)?;
        let index = u32::try_from(distance / size_of::<Row>()).ok()?;
        (index < self.rows).then_some(index)
    }

    /// Client: gives the memory back. The addresses stay, with zeros there, because a thread that sleeps in the kernel counts itself out
    /// of its row when it wakes up, even if the connection has gone meanwhile.
    ///
    /// # Errors
    /// What the kernel says; then the board is as it was.
    pub fn vacate(&self) -> io::Result<()> {
        self.mapping.replace(None)
    }

    /// Client: puts a board of as many rows, which the agent handed out, where this one is.
    ///
    /// # Errors
    /// As [`Board::attach_rows`]; then the board is as it was.
    pub fn refill(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if !sys::is_sealed_with_size(fd.as_raw_fd(), board_bytes(self.rows)) {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        self.mapping.replace(Some(fd))
    }

    /// Agent: says that a message waits in the client's socket.
    pub fn post_mail(&self) {
        // Release: pairs with the Acquire in `mail`; the message is in the socket before the count says so.
        self.header().inbox.fetch_add(1, Ordering::Release);
    }

    /// Client: count of messages posted so far, modulo 2^32.
    #[must_use]
    #[inline]
    pub fn mail(&self) -> u32 {
        // Acquire: pairs with the Release in `post_mail`.
        self.header().inbox.load(Ordering::Acquire)
    }

    /// Rows in use, as copies. Rows beyond the client's mark are not looked at: reading would allocate them.
    pub fn rows(&self) -> impl Iterator<Item = (u32, RowView)> + '_ {
        let used = self
            .header()
            .rows_used
            .load(Ordering::Relaxed)
            .min(self.rows);
        (0..used).filter_map(|index| {
            let row = self.row(index)?;
            (row.identity.state.load(Ordering::Relaxed) != state::FREE).then(|| (index, row.view()))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
