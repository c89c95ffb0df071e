//! Members whose peer was killed with bytes of ours unread in its ring: the kernel reports a FIN, where TCP would have had a reset.
//!
//! Whatever the kernel reports is looked at, for the FIN is among it. Where our ring is drained, that costs two loads. *Limit*: of a
//! member that is registered for neither reading nor writing the kernel reports nothing when a FIN comes.

use libc::{c_int, epoll_event};
use smallvec::SmallVec;

use super::repeats::Repeat;
use super::rings::Inner;
use super::{EDGE, EpollSet};
use crate::kernel;
use crate::socket::Socket;

/// What `poll` knows, too.
const COMMON_EVENTS: u32 = 0x3fff;

/// A member of which the kernel reports something, behind which there may be a reset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    /// Its name as a member.
    key: c_int,
    fd: c_int,
    socket: &'static Socket,
    registered: u32,
    data: u64,
}

pub(super) type Suspects = SmallVec<[Suspect; 4]>;

impl Inner {
    /// Those of which the kernel reports `events`. Members that share a data word cannot be told apart.
    pub(super) fn suspects(&self, events: &[epoll_event]) -> Suspects {
        let members = events.iter().filter_map(|event| {
            let (key, member) = self.only_one_of(event.u64)?;
            let (socket, registered) = (member.socket?, member.wanted?);
            socket.may_be_reset().then_some(Suspect {
                key,
                fd: member.by,
                socket,
                registered,
                data: event.u64,
            })
        });
        members.collect()
    }
}

impl EpollSet {
    /// Adds to `events`, which the program gets, what TCP would have reported of those `suspects` whose connections are reset. The set is
    /// not locked.
    pub(super) fn show_kills(&self, suspects: &[Suspect], events: &mut [epoll_event]) {
        for suspect in suspects {
            let Suspect {
                key, fd, socket, ..
            } = *suspect;
            let is_new = socket.look_for_kill(fd);
            let mut told = 0;
            if is_new || socket.error() != 0 {
                told |= libc::EPOLLERR as u32;
            }
            if socket.was_peer_killed() {
                told |= libc::EPOLLHUP as u32;
            }
            if told == 0 {
                continue;
            }
            // What was known before, the kernel has reported with the rest. What another process registered we do not know.
            let added = if !is_new {
                0
            } else if self.changes.are_known() {
                let wanted = i16::try_from(suspect.registered & COMMON_EVENTS).unwrap_or(0);
                kernel::events_now(fd, wanted)
            } else {
                kernel::events_now(fd, 0)
            };
            let added = u32::from(added.cast_unsigned()) | told;
            let its = events.iter_mut().find(|event| event.u64 == suspect.data);
            if let Some(event) = its {
                event.events |= added;
            }
            if is_new
                && suspect.registered & EDGE != 0
                && let Some(mut inner) = self.inner.lock()
            {
                inner.repeats.push(Repeat {
                    fd: key,
                    received: None,
                    sent: None,
                });
            }
        }
    }
}
