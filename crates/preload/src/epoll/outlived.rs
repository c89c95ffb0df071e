//! Registrations that outlive the descriptor by which they were made, for the connection has others.
//!
//! The kernel goes on to report them, and no call can change them: the number means nothing any more, or something else, which may be in
//! the same set, too. Here they get names that are no numbers, until the number is the same connection's again.

use libc::c_int;
use millrace_wire::Reason;

use super::rings::Inner;
use crate::socket::Socket;
use crate::{kernel, table};

/// The first of their names.
const FIRST_NAME: c_int = -2;

impl Inner {
    /// The descriptor `fd` of `socket` is closed; the kernel is asked by another. True: it is by this one that the set has the connection.
    fn outlive(&mut self, fd: c_int, other: c_int, socket: &'static Socket) -> bool {
        let is_member = self.has_by(fd, socket);
        if is_member {
            let name = FIRST_NAME.wrapping_sub(self.outlived);
            self.outlived = self.outlived.wrapping_add(1);
            self.has_doubles = true;
            self.rename(fd, name);
        }
        if self.outlived != 0 {
            self.ask_by(fd, other, socket);
        }
        is_member
    }

    /// `fd` is the connection again: so are those registrations that were made by it.
    fn regain(&mut self, fd: c_int, socket: &'static Socket) {
        let mut members = self.members.iter();
        let found = members.find(|(_, it)| it.number == fd && it.is_of(socket));
        let name = found.map(|(name, _)| *name).filter(|name| *name != fd);
        if let Some(name) = name {
            self.remove(fd);
            self.rename(name, fd);
        }
    }

    /// The kernel has changed a registration by `fd`, of which no member is known: the number is the connection's again, which has come
    /// back from another process, say.
    pub(super) fn regain_by_number(&mut self, fd: c_int) {
        if self.outlived == 0 || self.members.contains_key(&fd) {
            return;
        }
        let cookie = |fd| kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
        let changed = cookie(fd);
        let mut members = self.members.iter();
        let found = members.find(|(_, it)| it.number == fd && cookie(it.by) == changed);
        if let Some((name, _)) = found.filter(|_| changed.is_some()) {
            self.rename(*name, fd);
        }
    }

    fn rename(&mut self, from: c_int, to: c_int) {
        let Some(member) = self.members.remove(&from) else {
            return;
        };
        if let Some(sharers) = self.by_data.get_mut(&member.data)
            && sharers.fd == from
        {
            sharers.fd = to;
        }
        let slot = member.slot.map(|slot| slot as usize);
        if let Some(active) = slot.and_then(|slot| self.active.get_mut(slot)) {
            active.fd = to;
        }
        let repeats = self.repeats.iter_mut().map(|repeat| &mut repeat.fd);
        let names = repeats.chain(&mut self.nudged).chain(&mut self.untold);
        for name in names.filter(|name| **name == from) {
            *name = to;
        }
        self.members.insert(to, member);
    }

    fn ask_by(&mut self, from: c_int, to: c_int, socket: &'static Socket) {
        for member in self.members.values_mut() {
            if member.by == from && member.is_of(socket) {
                member.by = to;
            }
        }
        for active in &mut self.active {
            if active.by == from && std::ptr::eq(active.socket, socket) {
                active.by = to;
            }
        }
    }
}

impl Socket {
    /// A descriptor of the connection is about to be closed, and others stay: what a set reports of it by that one is the kernel's to
    /// report from now on.
    pub(crate) fn outlive_registrations(&'static self, fd: c_int) {
        let Some(other) = table::all().find(|other| table::is(*other, self)) else {
            return;
        };
        let mut is_member = false;
        self.in_sets(|inner| is_member |= inner.outlive(fd, other, self));
        if is_member {
            self.pin(Reason::EpollAmbiguous);
            self.draw_back(other);
        }
    }

    /// The connection has got a descriptor, by whose number it may have been in a set before.
    pub(crate) fn regain_registrations(&'static self, fd: c_int) {
        self.in_sets(|inner| {
            if inner.outlived != 0 {
                inner.regain(fd, self);
            }
        });
    }

    fn in_sets(&self, mut each: impl FnMut(&mut Inner)) {
        let Some(sets) = self.sets.lock() else {
            return;
        };
        for set in sets.iter() {
            if let Some(mut inner) = set.inner.lock() {
                each(&mut inner);
            }
        }
    }
}
