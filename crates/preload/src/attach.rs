//! Joining: a paired connection's end takes its segment into use.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use libc::c_int;
use millrace_shm::board::{Row, flags, state};
use millrace_shm::segment::Segment;
use millrace_wire::Reason;

use crate::kernel::{self, kernel};
use crate::socket::{Socket, phase, reset_row};
use crate::thread::Busy;
use crate::{client, process, table};

/// A socket option under which only the kernel serves the program right; it may have been set before the connection began.
struct KernelOption {
    level: c_int,
    name: c_int,
    /// What it is when nobody set it.
    unset: RangeInclusive<c_int>,
    reason: Reason,
}

impl KernelOption {
    const fn new(
        level: c_int,
        name: c_int,
        unset: RangeInclusive<c_int>,
        reason: Reason,
    ) -> KernelOption {
        KernelOption {
            level,
            name,
            unset,
            reason,
        }
    }

    fn is_set(&self, fd: c_int) -> bool {
        // An option that this kernel does not know cannot have been set.
        kernel::option::<c_int>(fd, self.level, self.name)
            .is_some_and(|value| !self.unset.contains(&value))
    }
}

/// Of `asm-generic/socket.h`.
const SO_TIMESTAMP_NEW: c_int = 63;
/// Missing from the libc crate; Linux 4.20.
pub(crate) const TCP_TX_DELAY: c_int = 37;

const KERNEL_OPTIONS: [KernelOption; 8] = [
    // Zero: the socket was MPTCP's, and has become one of TCP; to the kernel that is one.
    KernelOption::new(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 0..=1, Reason::LowWater),
    KernelOption::new(
        libc::SOL_SOCKET,
        libc::SO_PEEK_OFF,
        -1..=-1,
        Reason::Unsupported,
    ),
    KernelOption::new(
        libc::SOL_SOCKET,
        libc::SO_TIMESTAMP,
        0..=0,
        Reason::Unsupported,
    ),
    KernelOption::new(
        libc::SOL_SOCKET,
        libc::SO_TIMESTAMPNS,
        0..=0,
        Reason::Unsupported,
    ),
    // With times of 64 bits everywhere, also of SO_TIMESTAMPNS_NEW: the other names do not tell of these.
    KernelOption::new(
        libc::SOL_SOCKET,
        SO_TIMESTAMP_NEW,
        0..=0,
        Reason::Unsupported,
    ),
    KernelOption::new(
        libc::SOL_SOCKET,
        libc::SO_TIMESTAMPING,
        0..=0,
        Reason::Unsupported,
    ),
    KernelOption::new(
        libc::SOL_SOCKET,
        libc::SO_MAX_PACING_RATE,
        -1..=-1,
        Reason::Shaped,
    ),
    KernelOption::new(libc::IPPROTO_TCP, TCP_TX_DELAY, 0..=0, Reason::Shaped),
];

/// Whether packets are filtered before their bytes come to the program (SO_ATTACH_FILTER, SO_ATTACH_BPF).
fn has_filter(fd: c_int) -> bool {
    let level = libc::SOL_SOCKET;
    let name = libc::SO_GET_FILTER;
    let nowhere = 0usize;
    // Without room for the filter the kernel says how long it is. One of BPF's own kind it shows to nobody.
    let mut length: libc::socklen_t = 0;
    let result = kernel!(
        libc::SYS_getsockopt,
        fd,
        level,
        name,
        nowhere,
        &raw mut length
    );
    length != 0 || result == -(libc::EACCES as isize)
}

impl Socket {
    /// The segment of an offered connection has come; none: it cannot be mapped. Introductions stand still, but another thread may pin or
    /// close the connection. Who has the locks before it is attached waits for nothing.
    pub(crate) fn pair(&'static self, segment: Option<Segment>) {
        let row = self.row();
        let (receive_held, _receiving) = Busy::lock(&row.receive.lock);
        let (send_held, _sending) = Busy::lock(&row.send.lock);
        let next = if segment.is_some() {
            phase::PAIRED
        } else {
            phase::KERNEL
        };
        if self.phase.load(Acquire) == phase::OFFERED {
            self.set_segment(segment);
            let paired = self
                .phase
                .compare_exchange(phase::OFFERED, next, SeqCst, Relaxed);
            if paired.is_err() {
                self.set_segment(None);
            }
        }
        row.send.lock.unlock(send_held);
        row.receive.lock.unlock(receive_held);
    }

    /// Takes a paired connection's segment into use, if no call of this end is under way. True: it is attached.
    #[cold]
    pub(crate) fn try_attach(&'static self, fd: c_int) -> bool {
        client::hold_still(|| self.attach(fd))
    }

    /// Introductions stand still, so nobody else joins it. The locks of its halves may be waited for only before it is attached: after
    /// that, their holders may wait for the introductions.
    fn attach(&'static self, fd: c_int) -> bool {
        if self.phase.load(Acquire) != phase::PAIRED {
            return self.is_attached();
        }
        let row = self.row();
        if !self.is_held_alone() {
            return false;
        }
        let (receive_held, _receiving) = Busy::lock(&row.receive.lock);
        let (send_held, _sending) = Busy::lock(&row.send.lock);
        let attached = self.attach_locked(fd, row);
        row.send.lock.unlock(send_held);
        row.receive.lock.unlock(receive_held);
        attached
    }

    /// Raw calls announce themselves before they look at the phase; we set the phase before we look for raw calls.
    /// One of us sees the other. Nobody else changes the phase while it is *joining*: that takes one of the locks that we hold.
    fn attach_locked(&'static self, fd: c_int, row: &Row) -> bool {
        if self
            .phase
            .compare_exchange(phase::PAIRED, phase::JOINING, SeqCst, Relaxed)
            .is_err()
        {
            return self.is_attached();
        }
        let next = self.join(fd, row);
        self.phase.store(next, SeqCst);
        next == phase::ATTACHED
    }

    /// The phase that comes after *joining*.
    fn join(&'static self, fd: c_int, row: &Row) -> u8 {
        // Another thread may have closed the descriptor. Whoever does says so in the table, and then waits for the locks.
        if !row.is_quiet() || !table::is(fd, self) {
            return phase::PAIRED;
        }
        match self.facts(fd) {
            Ok((sent, taken, status)) => {
                row.send.kernel_position.store(sent, Relaxed);
                row.receive.kernel_position.store(taken, Relaxed);
                if let Err(reason) = self.note_status(fd, status) {
                    return self.refuse(row, reason);
                }
                self.hide_no_delay(fd);
                self.look_whether_left_is_told(fd);
                row.identity.reason.store(Reason::None as u8, Relaxed);
                row.identity.state.store(state::ATTACHED, Relaxed);
                phase::ATTACHED
            }
            Err(reason) => self.refuse(row, reason),
        }
    }

    fn refuse(&self, row: &Row, reason: Reason) -> u8 {
        row.identity.reason.store(reason as u8, Relaxed);
        self.set_segment(None);
        phase::KERNEL
    }

    /// Bytes sent and taken by the kernel so far, and the file status flags.
    fn facts(&self, fd: c_int) -> Result<(u64, u64, c_int), Reason> {
        if !kernel::is_established(fd) || self.is_deaf.load(Relaxed) {
            return Err(Reason::NotEstablished);
        }
        let sent = kernel::sent(fd, self.active.load(Relaxed)).ok_or(Reason::NotEstablished)?;
        let taken = kernel::taken(fd).ok_or(Reason::NotEstablished)?;
        Ok((sent, taken, self.status(fd)?))
    }

    fn look_whether_left_is_told(&self, fd: c_int) {
        let tells_left = kernel::option::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_INQ);
        self.set_tells_left(tells_left == Some(1));
    }

    /// The file status flags, where neither they nor an option leave the program to the kernel.
    fn status(&self, fd: c_int) -> Result<c_int, Reason> {
        let status = kernel::status_flags(fd).ok_or(Reason::NotEstablished)?;
        if status & libc::O_ASYNC != 0 {
            return Err(Reason::AsyncIo);
        }
        if status & libc::O_APPEND != 0 || has_filter(fd) {
            return Err(Reason::Unsupported);
        }
        match KERNEL_OPTIONS.iter().find(|option| option.is_set(fd)) {
            Some(option) => Err(option.reason),
            None => Ok(status),
        }
    }

    /// A connection that a program had, too, may not be as it was: all that it has in common with us is learnt anew. Both halves are
    /// locked, and it is pinned still.
    pub(crate) fn learn_again(&self, fd: c_int) -> Result<(), Reason> {
        self.note_status(fd, self.status(fd)?)?;
        self.look_whether_left_is_told(fd);
        Ok(())
    }

    /// Whoever has the connection, too, may have changed it.
    fn note_status(&self, fd: c_int, mut status: c_int) -> Result<(), Reason> {
        let word = &self.row().identity.flags;
        loop {
            match status & libc::O_NONBLOCK {
                0 => word.fetch_and(!flags::NONBLOCK, AcqRel),
                _ => word.fetch_or(flags::NONBLOCK, AcqRel),
            };
            let before = std::mem::replace(&mut status, self.status(fd)?);
            // Another thread may have set it, and said so, just before we wrote down how it was.
            if (before ^ status) & libc::O_NONBLOCK == 0 {
                return Ok(());
            }
        }
    }

    /// Moves a connection that is not offered, and that nobody else holds, to another end record. False: a call is under way. Raw calls
    /// announce themselves before they look at the phase, and wait for what comes of it.
    pub(crate) fn move_to(&'static self, row: &'static Row) -> bool {
        reset_row(row);
        let old = self.row();
        let moves = self
            .phase
            .compare_exchange(phase::FRESH, phase::JOINING, SeqCst, Relaxed)
            .is_ok();
        let moved = moves && old.is_quiet();
        if moved {
            keep_history(old, row);
            self.use_row(row);
        }
        if moves {
            self.phase.store(phase::FRESH, SeqCst);
        }
        let left = if moved { old } else { row };
        client::LEAVING.fetch_add(1, AcqRel);
        left.identity.state.store(state::FREE, Relaxed);
        // It releases the state to whoever looks for rows to use again.
        left.identity.leave(process::holder());
        client::leave_row(left, !moved);
        client::LEAVING.fetch_sub(1, AcqRel);
        moved
    }

    /// A connection that is about to be closed is not moved any more. True: it was new.
    pub(crate) fn stay(&self) -> bool {
        loop {
            let stays = self
                .phase
                .compare_exchange(phase::FRESH, phase::KERNEL, SeqCst, SeqCst);
            match stays {
                Ok(_) => return true,
                Err(phase::JOINING) => self.await_join(),
                Err(_) => return false,
            };
        }
    }
}

/// What is listed and was counted on the kernel's road so far goes along.
fn keep_history(old: &Row, new: &Row) {
    let (from, to) = (&old.identity, &new.identity);
    to.flags.store(from.flags.load(Relaxed), Relaxed);
    to.fd.store(from.fd.load(Relaxed), Relaxed);
    to.family.store(from.family.load(Relaxed), Relaxed);
    to.active.store(from.active.load(Relaxed), Relaxed);
    to.local_port.store(0, Relaxed);
    to.remote_port.store(0, Relaxed);
    let words = [
        (&from.since_ns, &to.since_ns),
        (&old.send.kernel_position, &new.send.kernel_position),
        (&old.send.kernel_messages, &new.send.kernel_messages),
        (&old.receive.kernel_position, &new.receive.kernel_position),
        (&old.receive.kernel_messages, &new.receive.kernel_messages),
    ];
    for (from, to) in words {
        to.store(from.load(Relaxed), Relaxed);
    }
    to.state.store(state::KERNEL, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever holds the lock may be waiting for the introductions, which stand still here.
    #[test]
    fn one_that_has_joined_meanwhile_is_not_waited_for() {
        let socket = Socket::allocate();
        socket.phase.store(phase::ATTACHED, SeqCst);
        let (held, _busy) = Busy::lock(&socket.row().send.lock);
        let joins = std::thread::spawn(|| socket.try_attach(-1));
        assert!(joins.join().unwrap());
        socket.row().send.lock.unlock(held);
    }
}
