//! Sockets that a set has before they are connected, as nginx does it with its upstreams: a member learns of its connection when that
//! begins.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, SeqCst},
    fence,
};

use libc::c_int;
use millrace_wire::Reason;

use super::rings::Inner;
use super::{EpollSet, ONE_SHOT};
use crate::socket::Socket;
use crate::table::{self, Entry};

/// Whether this process ever registered such a socket.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether `fd` is a socket that has no connection yet.
pub(super) fn is_early(fd: c_int) -> bool {
    matches!(table::get(fd), Entry::Unconnected(_))
}

/// Notes whether the member `fd`, just registered with `set`, had no connection then. Another thread may have connected it meanwhile: it
/// learns of that when it is looked at again.
pub(super) fn note(set: &EpollSet, inner: &mut Inner, fd: c_int) {
    if matches!(table::get(fd), Entry::Unconnected(_) | Entry::Socket(_))
        && let Some(member) = inner.members.get_mut(&fd)
        && member.socket.is_none()
    {
        member.is_early = true;
        set.has_early.store(true, Relaxed);
        ANY.store(true, Relaxed);
    }
}

/// The sets that may have such members.
fn sets() -> impl Iterator<Item = &'static EpollSet> {
    // SeqCst, here and below, after a change of the table that is so, too: pairs with the fence in `look_again`. One of us sees the other.
    let are_there = ANY.load(SeqCst);
    let all = are_there.then(EpollSet::all);
    all.into_iter()
        .flatten()
        .filter(|set| set.has_early.load(SeqCst))
}

/// The socket `fd` is a connection from now on: sets that have it know that. Must be called after the change in the table.
pub(crate) fn adopt(fd: c_int, socket: &'static Socket) {
    for set in sets() {
        set.adopt(fd, socket);
    }
}

/// After a registration: another thread may have connected the socket meanwhile.
pub(super) fn look_again(fd: c_int) {
    // Pairs with what `adopt` asks after its change of the table.
    fence(SeqCst);
    if let Some(socket) = table::socket(fd) {
        adopt(fd, socket);
    }
}

/// The socket `fd` has another meaning from now on, and was never connected.
pub(crate) fn disown(fd: c_int) {
    for set in sets() {
        if let Some(mut inner) = set.inner.lock()
            && let Some(member) = inner.members.get_mut(&fd)
        {
            member.is_early = false;
        }
    }
}

impl EpollSet {
    fn adopt(&'static self, fd: c_int, socket: &'static Socket) {
        let Some(mut sets) = socket.sets.lock() else {
            return;
        };
        if !table::is(fd, socket) {
            // Another thread has closed it, and looks for its sets no more.
            return;
        }
        let Some(mut inner) = self.inner.lock() else {
            return;
        };
        let Some(member) = inner.members.get_mut(&fd).filter(|member| member.is_early) else {
            return;
        };
        member.is_early = false;
        member.socket = Some(socket);
        let is_one_shot = member.told & ONE_SHOT != 0;
        let ambiguous = inner.is_ambiguous(fd);
        sets.push(self);
        drop(inner);
        drop(sets);
        if ambiguous || is_one_shot || self.kernel_only.load(Acquire) {
            socket.pin(Reason::EpollAmbiguous);
        }
    }
}
