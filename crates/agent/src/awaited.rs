//! Programs that have asked the agent to stay: `millrace run` asks just before it becomes one, and the program itself speaks up at its
//! first TCP socket, which may be hours later. Only an agent in the background, which would leave, keeps them in mind.
//!
//! Each is a pidfd, which the kernel makes readable when the process has ended. What becomes of it in between (another program, another
//! user) does not matter: it is not believed for anything.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use crate::proof::is_dead;

/// A process that lives, or has ended a moment ago.
#[derive(Debug)]
struct Program {
    pidfd: OwnedFd,
    /// 0: in a PID namespace that the agent does not see.
    pid: i32,
    uid: u32,
}

/// Those that live, by the numbers of their events.
#[derive(Debug, Default)]
pub(crate) struct Awaited(HashMap<u64, Program>);

impl Awaited {
    /// Keeps a process in mind until it ends. False: the user has `limit` already, or the kernel refuses.
    pub(crate) fn insert(
        &mut self,
        number: u64,
        pidfd: OwnedFd,
        (pid, uid): (i32, u32),
        limit: u32,
        epoll: &Epoll,
    ) -> bool {
        let is_same = |program: &Program| program.pid == pid && !is_dead(program.pidfd.as_fd());
        if pid > 0 && self.0.values().any(is_same) {
            return true;
        }
        let of_user = self.0.values().filter(|program| program.uid == uid).count();
        let event = EpollEvent::new(EpollFlags::EPOLLIN, number);
        if of_user >= limit as usize || epoll.add(pidfd.as_fd(), event).is_err() {
            return false;
        }
        self.0.insert(number, Program { pidfd, pid, uid });
        true
    }

    /// An event came. True: it was the end of one of these.
    pub(crate) fn remove(&mut self, number: u64, epoll: &Epoll) -> bool {
        let Some(program) = self.0.remove(&number) else {
            return false;
        };
        let _ = epoll.delete(program.pidfd.as_fd());
        true
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use nix::sys::epoll::{EpollCreateFlags, EpollTimeout};

    use super::*;

    fn child() -> (Child, OwnedFd) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = crate::sys::pidfd_open(child.id() as i32).unwrap();
        (child, pidfd)
    }

    #[test]
    fn each_process_counts_once_until_it_ends() {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let mut awaited = Awaited::default();
        let (mut first, pidfd) = child();
        let (mut second, other) = child();
        let again = pidfd.try_clone().unwrap();
        let who = |child: &Child| (child.id() as i32, 7);
        assert!(awaited.insert(1, pidfd, who(&first), 1, &epoll));
        assert!(awaited.insert(2, again, who(&first), 1, &epoll));
        assert!(!awaited.insert(3, other.try_clone().unwrap(), who(&second), 1, &epoll));
        assert!(awaited.insert(4, other, (who(&second).0, 8), 1, &epoll));
        assert_eq!(awaited.count(), 2);

        drop(first.stdin.take());
        first.wait().unwrap();
        let mut events = [EpollEvent::empty(); 4];
        assert_eq!(epoll.wait(&mut events, EpollTimeout::NONE), Ok(1));
        assert_eq!(events[0].data(), 1);
        assert!(awaited.remove(1, &epoll));
        assert!(!awaited.remove(1, &epoll));
        assert_eq!(epoll.wait(&mut events, EpollTimeout::ZERO), Ok(0));
        assert_eq!(awaited.count(), 1);
        drop(second.stdin.take());
        second.wait().unwrap();
    }
}
