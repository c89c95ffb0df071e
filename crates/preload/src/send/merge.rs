//! Nagle's merging of small messages (RFC 896) on the kernel's road, where it was not the program that set TCP_NODELAY.
//!
//! Each small message would be a packet of its own, with the memory of one: a send buffer would be full long before plain TCP's, and who
//! does not wait would get EAGAIN where plain TCP takes its bytes. Nagle's algorithm holds one back while another one is unacknowledged;
//! here that may take 40 ms, as answers that take the ring carry no acknowledgement. But of two that are unacknowledged the receiver's
//! kernel tells as soon as all is read (`tcp_cleanup_rbuf`, ICSK_ACK_PUSHED2), whatever carries the answers. So from the third on they are
//! merged (MSG_MORE), and the kernel sends them at the next acknowledgement, or its probe for a lost tail some milliseconds later.
//!
//! Where many go by the kernel one after the other, and neither ring is used meanwhile, the acknowledgements are those of plain TCP: the
//! program's own choice of TCP_NODELAY holds until a ring is used again.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use libc::c_int;
use millrace_shm::board::{ReceiveState, flags};

use super::Call;
use super::rest::{send_list, send_one};
use crate::socket::Socket;
use crate::vectors::Vectors;
use crate::{kernel, table};

/// So many packets may be unacknowledged before messages are merged.
const APART: u8 = 2;
/// And so many more, if each was answered by the ring: one who answers and leaves a part unread acknowledges nothing.
const ANSWERED: u8 = 8;
/// Of longer ones the memory of a packet is a small part.
const SMALL_BYTES: usize = 4096;

/// So many messages make a connection one on which the kernel alone is used.
const ALONE_MIN: u8 = 64;

/// What is known without asking the kernel, which costs a sixth of what a small message does.
#[derive(Debug, Default)]
pub(crate) struct Merging {
    /// So many further packets may be sent before more than [`APART`] are unacknowledged; and so many of answered ones.
    apart: AtomicU8,
    answered: AtomicU8,
    /// What had come by the kernel then, which acknowledges what was sent before, and by the ring.
    by_kernel: AtomicU64,
    by_ring: AtomicU64,
    /// Messages by the kernel since a ring was used, at most [`ALONE_MIN`], and how many had come by the ring then.
    alone: AtomicU8,
    before_alone: AtomicU64,
    /// TCP_NODELAY is not hidden for that reason.
    is_given_back: AtomicBool,
}

impl Merging {
    fn may_send_apart(&self, received: &ReceiveState) -> bool {
        if has_grown(&self.by_kernel, &received.kernel_position) {
            self.allow(APART);
        }
        let is_answered = has_grown(&self.by_ring, &received.ring_messages);
        take_one(&self.apart) || is_answered && take_one(&self.answered)
    }

    /// One more goes by the kernel. Whether the kernel alone has been used for long.
    fn is_alone(&self, received: &ReceiveState) -> bool {
        if has_grown(&self.before_alone, &received.ring_messages) {
            self.use_ring();
        }
        let alone = self.alone.load(Relaxed).saturating_add(1).min(ALONE_MIN);
        self.alone.store(alone, Relaxed);
        alone == ALONE_MIN
    }

    /// Something goes to the ring, or has come by it.
    pub(super) fn use_ring(&self) {
        self.alone.store(0, Relaxed);
    }

    fn allow(&self, apart: u8) {
        self.apart.store(apart, Relaxed);
        self.answered.store(ANSWERED, Relaxed);
    }

    /// Asks the kernel whether one more may be sent apart.
    fn asks_for_one(&self, fd: c_int) -> bool {
        let under_way = kernel::packets_under_way(fd);
        let apart = u32::from(APART).saturating_sub(under_way) as u8;
        if apart > 0 {
            self.allow(apart - 1);
        }
        apart > 0
    }
}

/// Whether a count has grown since it was looked at last.
fn has_grown(before: &AtomicU64, now: &AtomicU64) -> bool {
    let now = now.load(Relaxed);
    before.swap(now, Relaxed) != now
}

fn take_one(count: &AtomicU8) -> bool {
    let less = |count: u8| count.checked_sub(1);
    count.fetch_update(Relaxed, Relaxed, less).is_ok()
}

impl Socket {
    /// Before something is sent by the kernel, with the sending half locked: where the kernel alone is used, the program's own choice of
    /// TCP_NODELAY holds. On a connection that has left the ring that is so once everything that was sent is acknowledged: what went to the
    /// ring carried no acknowledgement, and the next message would wait for that of the last one.
    pub(crate) fn settle_no_delay(&self, fd: c_int) {
        let row = self.row();
        let word = row.identity.flags.load(Relaxed);
        let is_alone = self.merging.is_alone(&row.receive);
        if word & flags::HIDDEN_NO_DELAY == 0 {
            if !is_alone {
                self.hide_no_delay_again(fd);
            }
            return;
        }
        let is_pinned = word & flags::SEND_PINNED != 0;
        if is_alone || is_pinned && !kernel::has_unacknowledged(fd) {
            self.show_no_delay(fd);
            self.merging.is_given_back.store(!is_pinned, Relaxed);
        }
    }

    /// Something goes to the ring, behind what was sent by the kernel, or has come by it; with the sending half locked.
    pub(super) fn hide_no_delay_again(&self, fd: c_int) {
        let merging = &self.merging;
        if merging.is_given_back.load(Relaxed) {
            merging.is_given_back.store(false, Relaxed);
            if self.row().identity.flags.load(Relaxed) & flags::SEND_PINNED == 0 {
                self.hide_no_delay(fd);
            }
        }
    }
}

/// Sends a small message together with what follows, if it is to be: as the program's own call does, a count or -1 with the error.
pub(super) fn send_merged(
    socket: &'static Socket,
    call: &Call<'_>,
    vectors: &Vectors<'_>,
) -> Option<isize> {
    let row = socket.row();
    let chosen = row.identity.flags.load(Relaxed);
    let is_ours = chosen & (flags::HIDDEN_NO_DELAY | flags::SEND_PINNED) == flags::HIDDEN_NO_DELAY;
    if !is_ours
        || vectors.remaining() > SMALL_BYTES
        || call.flags & libc::MSG_MORE != 0
        || socket.merging.may_send_apart(&row.receive)
        || socket.merging.asks_for_one(call.fd)
        || !table::is(call.fd, socket)
    {
        return None;
    }
    let more = libc::MSG_MORE;
    let mut send = || send_list(call, vectors, more);
    let result = send_one((socket, row), call, vectors, (more, &mut send));
    if result > 0 && table::is(call.fd, socket) && kernel::packets_under_way(call.fd) < APART.into()
    {
        // The acknowledgement came before it.
        socket.send_held(call.fd);
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_messages_in_a_row_go_alone_until_one_is_answered_by_the_ring() {
        let (merging, received) = (Merging::default(), ReceiveState::default());
        let count_until_alone = || (1..).find(|_| merging.is_alone(&received)).unwrap_or(0);
        assert_eq!(count_until_alone(), ALONE_MIN);
        received.kernel_position.fetch_add(10, Relaxed);
        assert!(merging.is_alone(&received));
        received.ring_messages.fetch_add(1, Relaxed);
        assert_eq!(count_until_alone(), ALONE_MIN);
    }

    #[test]
    fn what_is_received_lets_further_ones_be_sent_apart() {
        let (merging, received) = (Merging::default(), ReceiveState::default());
        let sends_apart = || merging.may_send_apart(&received);
        assert!(!sends_apart());
        received.kernel_position.fetch_add(10, Relaxed);
        for _ in 0..APART {
            assert!(sends_apart());
        }
        assert!(!sends_apart());
        for _ in 0..ANSWERED {
            received.ring_messages.fetch_add(1, Relaxed);
            assert!(sends_apart() && !sends_apart());
        }
        received.ring_messages.fetch_add(1, Relaxed);
        assert!(!sends_apart());
        received.kernel_position.fetch_add(10, Relaxed);
        assert!(sends_apart());
    }
}
