//! Edges that a set has told of, and that the kernel reports once more: of a reset, and of bytes from a ring that it has sent again.

use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, epoll_event};

use super::rings::Inner;
use super::{EDGE, EpollSet, READ_EVENTS, WRITE_EVENTS};
use crate::kernel;
use crate::socket::Socket;

/// Reports of the member `fd` that its program has had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeat {
    pub(super) fd: c_int,
    /// Those of bytes, while the kernel has received so many in all at most. None: the next one, whatever it is of.
    pub(super) received: Option<u64>,
    /// That there is room is no news, either, while the kernel has been given so much to send and nothing more.
    pub(super) sent: Option<u64>,
}

/// A ring's bytes that the kernel has sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resent {
    /// The ring's, behind them.
    pub(crate) tail: u32,
    /// What the kernel has received when it has these and nothing more.
    pub(crate) received: u64,
    /// What it had received before, if some of that came after the ring's bytes: it was sent once more, behind them.
    pub(crate) overtaken_by: Option<u64>,
}

impl Inner {
    /// Before the kernel is asked: its answer, or an earlier one, tells of all that it has received by now.
    pub(super) fn note_received(&mut self) {
        for active in &mut self.active {
            let half = active.socket.peek_receive();
            // What comes by the kernel can overtake the ring's only while its gate is shut.
            if active.events & EDGE != 0
                && half.is_some_and(|half| half.arrived().is_some() && !half.is_open())
            {
                active.received = kernel::received(active.by).unwrap_or(0);
            }
        }
    }

    /// Takes repeats out of the kernel's `events`. Returns how many are left.
    pub(super) fn drop_repeats(&mut self, events: &mut [epoll_event]) -> usize {
        if self.repeats.is_empty() {
            return events.len();
        }
        let mut kept = 0;
        for index in 0..events.len() {
            let event = events[index];
            if !self.is_repeat(event) {
                events[kept] = event;
                kept += 1;
            }
        }
        kept
    }

    fn is_repeat(&mut self, event: epoll_event) -> bool {
        let Some((fd, member)) = self.only_one_of(event.u64) else {
            return false;
        };
        let mut repeats = self.repeats.iter();
        let Some(place) = repeats.position(|repeat| repeat.fd == fd) else {
            return false;
        };
        let Repeat { received, sent, .. } = self.repeats[place];
        let by = member.by;
        let socket = member.socket.filter(|_| sent.is_some());
        let had_room = socket.is_some_and(|socket| sent == Some(socket.given_to_kernel()));
        let known = READ_EVENTS | if had_room { WRITE_EVENTS } else { 0 };
        let of_bytes = event.events & !known == 0;
        let says_nothing = received.is_some_and(|total| {
            of_bytes && kernel::received(by).is_some_and(|received| received <= total)
        });
        if !says_nothing {
            self.repeats.swap_remove(place);
        }
        says_nothing || received.is_none()
    }
}

impl Socket {
    /// Bytes that the kernel has been given to send, by the program or again. While there are no more, room that there was is still there.
    pub(super) fn given_to_kernel(&self) -> u64 {
        let send = &self.row().send;
        let again = send.resent_bytes.load(Relaxed);
        send.kernel_position.load(Relaxed).wrapping_add(again)
    }
}

impl EpollSet {
    /// Bytes of a member's ring come by the kernel now. Where all of them have been reported, and what overtook them, too, its edge is no
    /// news.
    pub(crate) fn note_resent(&self, socket: &'static Socket, resent: Resent) {
        let Some(mut inner) = self.inner.lock() else {
            return;
        };
        let told = inner.active.iter().filter(|active| {
            std::ptr::eq(active.socket, socket)
                && active.events & EDGE != 0
                && active.reported == Some(resent.tail)
                && resent
                    .overtaken_by
                    .is_none_or(|received| received <= active.received)
        });
        let repeats: Vec<Repeat> = told
            .map(|active| Repeat {
                fd: active.fd,
                received: Some(resent.received),
                sent: active.sent,
            })
            .collect();
        inner.repeats.extend(repeats);
    }
}
