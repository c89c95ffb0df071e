//! What the kernel counts of a connection's bytes, and in which state it is.

use std::mem::{offset_of, size_of};

use libc::c_int;

use super::events_now;

/// TCP_ESTABLISHED of `include/net/tcp_states.h`.
const ESTABLISHED: u8 = 1;
/// TCP_FIN_WAIT2: in the states of greater numbers, but in TCP_CLOSE perhaps, the peer has sent its FIN.
const FIN_WAIT_2: u8 = 5;
/// TCP_CLOSE: nothing is left of the connection.
const CLOSE: u8 = 7;
/// TCP_CLOSE_WAIT: the peer has sent its FIN.
const CLOSE_WAIT: u8 = 8;

/// `struct tcp_info` up to the fields that we read (`include/uapi/linux/tcp.h`).
#[repr(C)]
#[derive(Clone, Copy)]
struct TcpInfo {
    state: u8,
    other: [u8; 7],
    words: [u32; 4],
    unacked: u32,
    counts: [u32; 19],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segments_out: u32,
    segments_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
}

const _: () = assert!(
    offset_of!(TcpInfo, unacked) == 24
        && offset_of!(TcpInfo, bytes_acked) == 120
        && offset_of!(TcpInfo, notsent_bytes) == 144
);

fn tcp_info(fd: c_int) -> Option<TcpInfo> {
    // SAFETY: the struct is made of integers, for which zero is a value.
    let mut info: TcpInfo = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<TcpInfo>() as libc::socklen_t;
    let result = kernel!(
        libc::SYS_getsockopt,
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_INFO,
        &raw mut info,
        &raw mut bytes
    );
    (result == 0 && bytes as usize == size_of::<TcpInfo>()).then_some(info)
}

fn queue_bytes(fd: c_int, request: libc::Ioctl) -> Option<u64> {
    let mut count: c_int = 0;
    let result = kernel!(libc::SYS_ioctl, fd, request, &raw mut count);
    if result == 0 {
        u64::try_from(count).ok()
    } else {
        None
    }
}

/// Bytes that have been sent by the kernel since the connection began, as the kernel counts them. `active`: this end connected.
/// None: this end has shut down, or the connection is gone.
///
/// The SYN of the connecting end counts as one acknowledged byte; the rest is payload until this end's FIN.
pub(crate) fn sent(fd: c_int, active: bool) -> Option<u64> {
    sent_and_held(fd, active).map(|(sent, _)| sent)
}

/// As [`sent`], and whether the kernel has not yet begun to send some of them.
pub(crate) fn sent_and_held(fd: c_int, active: bool) -> Option<(u64, bool)> {
    for _ in 0..100 {
        let before = tcp_info(fd)?;
        let queued = queue_bytes(fd, libc::TIOCOUTQ)?;
        let after = tcp_info(fd)?;
        if !matches!(after.state, ESTABLISHED | CLOSE_WAIT) {
            return None;
        }
        if before.bytes_acked == after.bytes_acked {
            let sent = (after.bytes_acked + queued).checked_sub(u64::from(active))?;
            return Some((sent, after.notsent_bytes != 0));
        }
    }
    None
}

/// Bytes that the peer's kernel has acknowledged since the connection began, its SYN counted where this end connected; and whether there
/// are others that it has not.
pub(crate) fn acknowledged(fd: c_int) -> Option<(u64, bool)> {
    let queued = queue_bytes(fd, libc::TIOCOUTQ)?;
    tcp_info(fd).map(|info| (info.bytes_acked, queued != 0))
}

/// Whether there are bytes that the peer's kernel has not acknowledged.
pub(crate) fn has_unacknowledged(fd: c_int) -> bool {
    queue_bytes(fd, libc::TIOCOUTQ).is_some_and(|queued| queued != 0)
}

/// Packets that have been sent and not acknowledged; 0, where the kernel does not say.
pub(crate) fn packets_under_way(fd: c_int) -> u32 {
    tcp_info(fd).map_or(0, |info| info.unacked)
}

/// Bytes that have been taken from the kernel since the connection began, as the kernel counts them. The peer's FIN counts as one.
pub(crate) fn taken(fd: c_int) -> Option<u64> {
    for _ in 0..100 {
        let before = tcp_info(fd)?;
        let unread = queue_bytes(fd, libc::FIONREAD)?;
        let after = tcp_info(fd)?;
        let ended = match after.state {
            ESTABLISHED => 0,
            CLOSE_WAIT => 1,
            _ => return None,
        };
        if before.bytes_received == after.bytes_received {
            return after.bytes_received.checked_sub(unread + ended);
        }
    }
    None
}

/// Bytes that have been received since the connection began. The peer's FIN counts as one.
pub(crate) fn received(fd: c_int) -> Option<u64> {
    tcp_info(fd).map(|info| info.bytes_received)
}

/// Whether both directions are open.
pub(crate) fn is_established(fd: c_int) -> bool {
    tcp_info(fd).is_some_and(|info| info.state == ESTABLISHED)
}

/// Whether the peer has sent its FIN, and we have not; and no reset has come.
pub(crate) fn is_closed_by_peer_alone(fd: c_int) -> bool {
    tcp_info(fd).is_some_and(|info| info.state == CLOSE_WAIT)
}

/// Whether both ends have sent their FIN and no reset has come, so far as what has been received tells: `taken` bytes have been taken
/// from the kernel, and the FIN counts as one more.
pub(crate) fn is_over_by_fin(fd: c_int, taken: u64) -> bool {
    tcp_info(fd).is_some_and(|info| {
        info.state == CLOSE && info.bytes_received.checked_sub(unread(fd)) == Some(taken + 1)
    })
}

/// Bytes in the kernel's receive queue.
pub(crate) fn unread(fd: c_int) -> u64 {
    queue_bytes(fd, libc::FIONREAD).unwrap_or(0)
}

/// As [`unread`], and one more for the end of the stream, once that has come. `taken` bytes have been taken from the kernel.
pub(crate) fn left(fd: c_int, taken: u64) -> c_int {
    if events_now(fd, libc::POLLIN | libc::POLLRDHUP) == 0 {
        return 0;
    }
    let unread = unread(fd);
    let has_ended = tcp_info(fd).is_some_and(|info| match info.state {
        ESTABLISHED => false,
        CLOSE => info.bytes_received.checked_sub(unread) == Some(taken + 1),
        _ => info.state > FIN_WAIT_2,
    });
    c_int::try_from(unread).map_or(c_int::MAX, |unread| {
        unread.saturating_add(c_int::from(has_ended))
    })
}
