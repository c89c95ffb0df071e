//! What the kernel has in a set, where our records may be wrong.
//!
//! In a set that other processes change, too, what they ask for no more is not reported from a ring either. And what is no connection goes
//! without a word.

use libc::{c_int, epoll_event};

use super::rings::{Inner, Member};
use super::{EpollSet, WRITE_EVENTS};
use crate::kernel::kernel;

/// A registration, as the kernel has it: by this descriptor of whoever made it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Registration {
    fd: c_int,
    events: u32,
    data: u64,
}

impl Registration {
    /// A line of `/proc/PID/fdinfo/FD` (proc(5)). None: it is about something else.
    fn parse(line: &[u8]) -> Option<Registration> {
        let line = std::str::from_utf8(line).ok()?.strip_prefix("tfd:")?;
        let mut words = line.split_ascii_whitespace();
        let fd = words.next()?.parse().ok()?;
        let mut value = |name| {
            let is_named = words.next()? == name;
            let value = words.next().filter(|_| is_named)?;
            u64::from_str_radix(value, 16).ok()
        };
        let events = value("events:")? as u32;
        let data = value("data:")?;
        Some(Registration { fd, events, data })
    }
}

/// All that the kernel has in the set. None: it does not say.
fn registrations(epoll: c_int) -> Option<Vec<Registration>> {
    let path = format!("/proc/thread-self/fdinfo/{epoll}\0");
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let file = kernel!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
    if file < 0 {
        return None;
    }
    let mut text = Vec::new();
    let read = loop {
        let start = text.len();
        text.resize(start + 4096, 0u8);
        let read = kernel!(libc::SYS_read, file, text[start..].as_mut_ptr(), 4096);
        text.truncate(start + usize::try_from(read).unwrap_or(0));
        if read <= 0 {
            break read;
        }
    };
    kernel!(libc::SYS_close, file);
    let lines = text.split(|byte| *byte == b'\n');
    (read == 0).then(|| lines.filter_map(Registration::parse).collect())
}

impl EpollSet {
    /// Before a look at rings of a set whose records may be wrong: asks the kernel for those that still have something unread.
    pub(super) fn look_what_is_registered(&self, epoll: c_int) {
        if !self.are_records_given_up() {
            return;
        }
        // The set is not locked: what another process changes comes before this question or after it.
        if let Some(registered) = registrations(epoll)
            && let Some(mut inner) = self.inner.lock()
        {
            inner.heed(&registered);
        }
    }
}

impl Inner {
    /// Which member other than `fd` carries its data word, as `other` seems to. Nobody tells the set when what is no connection is closed:
    /// where such a member has the word, the kernel is asked whether it is one still.
    pub(super) fn sharer_that_is_there(
        &mut self,
        epoll: c_int,
        fd: c_int,
        other: c_int,
    ) -> Option<c_int> {
        let data = self.members.get(&fd)?.data;
        let is_connection = |member: &Member| member.socket.is_some();
        if self.members.get(&other).is_some_and(is_connection) {
            return Some(other);
        }
        let Some(registered) = registrations(epoll) else {
            return Some(other);
        };
        let is_there = |number| {
            registered
                .iter()
                .any(|it| (it.fd, it.data) == (number, data))
        };
        let others = self.members.iter().filter(|(name, _)| **name != fd);
        let others = others.filter(|(_, member)| member.data == data);
        let (there, gone): (Vec<_>, Vec<_>) = others
            .map(|(name, member)| (*name, is_connection(member) || is_there(member.number)))
            .partition(|(_, is_there)| *is_there);
        for (name, _) in gone {
            self.remove(name);
        }
        there.first().map(|(name, _)| *name)
    }

    fn heed(&mut self, registered: &[Registration]) {
        for active in &mut self.active {
            let number = self.members.get(&active.fd).map(|member| member.number);
            let epoll_event { u64: data, .. } = active.report(0);
            let is_its = |it: &&Registration| Some(it.fd) == number && it.data == data;
            let events = registered.iter().find(is_its).map_or(0, |it| it.events);
            active.events = events & !WRITE_EVENTS;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::*;

    #[test]
    fn what_is_registered_is_read_back() {
        // SAFETY: plain arguments; a new descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let mut watched = Vec::new();
        for count in 0..200u64 {
            // SAFETY: as above.
            let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
            let registration = Registration {
                fd: event.as_raw_fd(),
                events: (libc::EPOLLIN | libc::EPOLLET) as u32,
                data: u64::MAX - count,
            };
            let Registration { fd, events, data } = registration;
            super::super::rings::register(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, events, data);
            watched.push((event, registration));
        }
        let found = registrations(epoll.as_raw_fd()).unwrap();
        assert_eq!(found.len(), watched.len());
        for (_, registration) in &watched {
            // The kernel always tells of errors and endings.
            let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            let its = found.iter().find(|it| it.fd == registration.fd).unwrap();
            assert_eq!(its.events & !always, registration.events);
            assert_eq!(its.data, registration.data);
        }
        assert!(registrations(-1).is_none());
    }
}
