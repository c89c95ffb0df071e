//! Registrations that outlive the descriptor by which they were made, for the connection has others.
//!
//! The kernel goes on to report them, and no call can change them: the number means nothing any more, or something else, which may be in
//! the same set, too. Here they get names that are no numbers.

use libc::c_int;
use millrace_wire::Reason;

use super::rings::Inner;
use crate::socket::Socket;
use crate::table;

/// The first of their names.
const FIRST_NAME: c_int = -2;

impl Inner {
    /// The descriptor `fd` of `socket` is closed; the kernel is asked by another. True: it is by this one that the set has the connection.
    fn outlive(&mut self, fd: c_int, other: c_int, socket: &'static Socket) -> bool {
        let is_member = self.has_by(fd, socket);
        if is_member && let Some(member) = self.members.remove(&fd) {
            let name = FIRST_NAME - self.outlived;
            self.outlived += 1;
            self.has_doubles = true;
            if let Some(sharers) = self.by_data.get_mut(&member.data)
                && sharers.fd == fd
            {
                sharers.fd = name;
            }
            let slot = member.slot.map(|slot| slot as usize);
            if let Some(active) = slot.and_then(|slot| self.active.get_mut(slot)) {
                active.fd = name;
            }
            for repeat in self.repeats.iter_mut().filter(|repeat| repeat.fd == fd) {
                repeat.fd = name;
            }
            self.members.insert(name, member);
        }
        if self.outlived > 0 {
            for member in self.members.values_mut() {
                if member.by == fd && member.is_of(socket) {
                    member.by = other;
                }
            }
            for active in &mut self.active {
                if active.by == fd && std::ptr::eq(active.socket, socket) {
                    active.by = other;
                }
            }
        }
        is_member
    }
}

impl Socket {
    /// A descriptor of the connection is about to be closed, and others stay: what a set reports of it by that one is the kernel's to
    /// report from now on.
    pub(crate) fn outlive_registrations(&'static self, fd: c_int) {
        let Some(sets) = self.sets.lock().filter(|sets| !sets.is_empty()) else {
            return;
        };
        let Some(other) = table::all().find(|other| table::is(*other, self)) else {
            return;
        };
        let mut is_member = false;
        for set in sets.iter() {
            let inner = set.inner.lock();
            is_member |= inner.is_some_and(|mut inner| inner.outlive(fd, other, self));
        }
        drop(sets);
        if is_member {
            self.pin(Reason::EpollAmbiguous);
            self.draw_back(other);
        }
    }
}
