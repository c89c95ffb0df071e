//! Nagle's merging of small messages (RFC 896) on the kernel's road, where it was not the program that set TCP_NODELAY.
//!
//! Each small message would be a packet of its own, with the memory of one: a send buffer would be full long before plain TCP's, and who
//! does not wait would get EAGAIN where plain TCP takes its bytes. Nagle's algorithm holds one back while another one is unacknowledged;
//! here that may take 40 ms, as answers that take the ring carry no acknowledgement. But of two that are unacknowledged the receiver's
//! kernel tells as soon as all is read (`tcp_cleanup_rbuf`, ICSK_ACK_PUSHED2), whatever carries the answers. So from the third on they are
//! merged (MSG_MORE), and the kernel sends them at the next acknowledgement.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use millrace_shm::board::flags;

use super::Call;
use super::rest::send_list;
use crate::socket::Socket;
use crate::vectors::Vectors;
use crate::{kernel, table};

/// So many packets may be unacknowledged before messages are merged.
const APART: u8 = 2;
/// Of longer ones the memory of a packet is a small part.
const SMALL_BYTES: usize = 4096;

/// What is known without asking the kernel, which costs a twelfth of what a small message does.
#[derive(Debug, Default)]
pub(crate) struct Merging {
    /// So many further packets may be sent before more than [`APART`] are unacknowledged.
    apart: AtomicU8,
    /// What the kernel had brought then: what it brings acknowledges what was sent before.
    received: AtomicU64,
}

impl Merging {
    fn may_send_apart(&self, socket: &Socket) -> bool {
        let received = socket.row().receive.kernel_position.load(Relaxed);
        if self.received.swap(received, Relaxed) != received {
            self.apart.store(APART, Relaxed);
        }
        let takes_one = |apart: u8| apart.checked_sub(1);
        self.apart.fetch_update(Relaxed, Relaxed, takes_one).is_ok()
    }
}

/// Sends a small message together with what follows, if it is to be: as the program's own call does, a count or -1 with the error.
pub(super) fn send_merged(
    socket: &'static Socket,
    call: &Call<'_>,
    vectors: &Vectors<'_>,
) -> Option<isize> {
    let chosen = socket.row().identity.flags.load(Relaxed);
    let is_ours = chosen & (flags::HIDDEN_NO_DELAY | flags::SEND_PINNED) == flags::HIDDEN_NO_DELAY;
    if !is_ours
        || vectors.remaining() > SMALL_BYTES
        || socket.merging.may_send_apart(socket)
        || has_room_for_one(socket, call)
    {
        return None;
    }
    let result = send_list(call, vectors, libc::MSG_MORE);
    if result > 0 && table::is(call.fd, socket) && kernel::packets_under_way(call.fd) < APART.into()
    {
        // The acknowledgement came before it.
        kernel::set_no_delay(call.fd, true);
    }
    Some(result)
}

/// Asks the kernel whether one more may be sent apart.
fn has_room_for_one(socket: &Socket, call: &Call<'_>) -> bool {
    let under_way = kernel::packets_under_way(call.fd);
    let apart = u32::from(APART).saturating_sub(under_way) as u8;
    socket.merging.apart.store(apart.saturating_sub(1), Relaxed);
    apart > 0
}
