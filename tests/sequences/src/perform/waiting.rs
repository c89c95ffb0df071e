//! Waiting for descriptors, and waiting until a connection is at rest.

use super::{Context, show};
use crate::describe::{epoll_events, poll_events};
use crate::plan::{Awaited, Call, PollBy, Slot};
use crate::sys::{self, Answer, Fd, FdSet};
use std::collections::BTreeSet;

impl Context {
    pub(super) fn perform_waiting(&self, call: &Call) -> String {
        match call {
            Call::Poll {
                by: by @ (PollBy::Select | PollBy::Pselect),
                items,
                timeout_ms,
            } => self.select(*by, items, *timeout_ms),
            Call::Poll {
                by,
                items,
                timeout_ms,
            } => self.poll(*by, items, *timeout_ms),
            Call::EpollCreate { slot, cloexec } => {
                self.opened(*slot, sys::epoll_create(*cloexec), None)
            }
            Call::EpollAdd { set, slot, events } => {
                self.control(*set, libc::EPOLL_CTL_ADD, *slot, *events)
            }
            Call::EpollModify { set, slot, events } => {
                self.control(*set, libc::EPOLL_CTL_MOD, *slot, *events)
            }
            Call::EpollDelete { set, slot } => self.control(*set, libc::EPOLL_CTL_DEL, *slot, 0),
            Call::EpollWait {
                by,
                set,
                room,
                timeout_ms,
            } => match sys::epoll_wait(*by, self.fd(*set), usize::from(*room), *timeout_ms) {
                Ok(events) => list(events),
                Err(errno) => errno.to_string(),
            },
            Call::EpollTour { set, rounds } => self.tour(*set, *rounds),
            Call::Await { slot, what } => self.wait_for_rest(*slot, *what),
            other => unreachable!("{other} is no waiting call"),
        }
    }

    fn poll(&self, by: PollBy, wanted: &[(Slot, i16)], timeout_ms: i32) -> String {
        let mut items: Vec<libc::pollfd> = wanted
            .iter()
            .map(|(slot, events)| libc::pollfd {
                fd: self.fd(*slot),
                events: *events,
                revents: 0,
            })
            .collect();
        let answer = match by {
            PollBy::PollChk => sys::poll_checked(&mut items, timeout_ms),
            PollBy::Ppoll => sys::ppoll(&mut items, timeout_ms, false),
            PollBy::PpollMasked => sys::ppoll(&mut items, timeout_ms, true),
            PollBy::PpollChk => sys::ppoll_checked(&mut items, timeout_ms),
            _ => sys::poll(&mut items, timeout_ms),
        };
        let mut text = show(answer);
        for ((slot, _), item) in wanted.iter().zip(&items) {
            if item.revents != 0 {
                text.push_str(&format!(" s{slot}:{}", poll_events(item.revents)));
            }
        }
        text
    }

    /// `select`, where `IN`, `OUT` and `PRI` stand for the three sets.
    fn select(&self, by: PollBy, wanted: &[(Slot, i16)], timeout_ms: i32) -> String {
        let open: Vec<(Slot, Fd, i16)> = wanted
            .iter()
            .map(|(slot, events)| (*slot, self.fd(*slot), *events))
            .filter(|(_, fd, _)| *fd >= 0)
            .collect();
        let limit = open.iter().map(|(_, fd, _)| fd + 1).max().unwrap_or(0);
        let limit = usize::try_from(limit).unwrap_or(0);
        let kinds = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let mut sets = kinds.map(|_| FdSet::new(limit));
        for (_, fd, events) in &open {
            for (set, kind) in sets.iter_mut().zip(kinds) {
                if events & kind != 0 {
                    set.insert(*fd);
                }
            }
        }
        let answer: Answer = match by {
            PollBy::Pselect => sys::pselect(limit, &mut sets, timeout_ms),
            _ => sys::select(limit, &mut sets, timeout_ms),
        };
        let mut text = show(answer);
        if answer.is_ok() {
            for (slot, fd, _) in &open {
                let found = sets.iter().zip(kinds).filter(|(set, _)| set.contains(*fd));
                let events = found.fold(0, |events, (_, kind)| events | kind);
                if events != 0 {
                    text.push_str(&format!(" s{slot}:{}", poll_events(events)));
                }
            }
        }
        text
    }

    fn control(&self, set: Slot, operation: libc::c_int, slot: Slot, events: u32) -> String {
        let (set, fd) = (self.fd(set), self.fd(slot));
        show(sys::epoll_ctl(set, operation, fd, events, u64::from(slot)))
    }

    /// Takes events one at a time. The kernel takes turns between those that are ready.
    fn tour(&self, set: Slot, rounds: u8) -> String {
        let mut seen = BTreeSet::new();
        for _ in 0..rounds {
            match sys::epoll_wait(sys::EpollBy::Wait, self.fd(set), 1, 0) {
                Ok(events) => seen.extend(events),
                Err(errno) => return errno.to_string(),
            }
        }
        list(seen.into_iter().collect())
    }

    fn wait_for_rest(&self, slot: Slot, what: Awaited) -> String {
        let fd = self.fd(slot);
        match what {
            Awaited::Queued => {
                let Some(end) = self.end(slot) else {
                    return "no connection".into();
                };
                let wanted = self.board.outstanding(end);
                let reached = self.wait_until(|| match sys::ioctl_get(fd, libc::FIONREAD) {
                    Ok(queued) => (i64::from(queued) == wanted.cast_signed()).then_some(Ok(())),
                    Err(errno) => Some(Err(errno)),
                });
                match reached {
                    Some(Ok(())) => format!("{wanted}"),
                    Some(Err(errno)) => errno.to_string(),
                    None => {
                        let queued = sys::ioctl_get(fd, libc::FIONREAD).unwrap_or(-1);
                        format!("{queued} where {wanted} were sent")
                    }
                }
            }
            Awaited::Drained => {
                let drained = self.wait_until(|| match sys::ioctl_get(fd, libc::TIOCOUTQ) {
                    Ok(0) => Some("drained".to_string()),
                    Ok(_) => None,
                    Err(errno) => Some(errno.to_string()),
                });
                drained.unwrap_or_else(|| "never drained".into())
            }
            _ => {
                let reached = self.wait_until(|| match tcp_state(fd) {
                    Some(state) => (state == what).then(|| format!("{what:?}")),
                    None => Some("no connection".into()),
                });
                reached.unwrap_or_else(|| match tcp_state(fd) {
                    Some(state) => format!("still {state:?}"),
                    None => "no connection".into(),
                })
            }
        }
    }
}

/// Events as a trace shows them. The kernel's order among several descriptors is no promise to a program:
/// they are sorted.
fn list(mut events: Vec<(u32, u64)>) -> String {
    events.sort_by_key(|(_, label)| *label);
    let mut text = events.len().to_string();
    for (events, label) in events {
        text.push_str(&format!(" s{label}:{}", epoll_events(events)));
    }
    text
}

/// Who has ended the connection, by `TCP_INFO`; `None` where the descriptor is no connection.
fn tcp_state(fd: Fd) -> Option<Awaited> {
    let info = sys::get_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, 8).ok()?;
    // The numbers of the kernel's tcp_states.h. FIN_WAIT1 (4) is not enough: when the acknowledgement comes,
    // up to 40 ms later, the kernel wakes those who wait for edges.
    Some(match info.first()? {
        1 => Awaited::Open,
        5 => Awaited::HalfClosed,
        8 => Awaited::PeerClosed,
        7 => Awaited::Closed,
        _ => return Some(Awaited::Drained),
    })
}
