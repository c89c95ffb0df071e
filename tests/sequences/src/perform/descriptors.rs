//! Ending, duplicating, passing and marking descriptors.

use super::{Context, HIGH_DESCRIPTORS, OWN_DESCRIPTORS, show};
use crate::board::Identity;
use crate::plan::{Call, DuplicateBy, Half, Process, Slot};
use crate::sys::{self, Answer, Area, Fd};

/// `dup2` and `dup3` to a fresh slot use this number plus the slot's.
const DUP2_NUMBERS: Fd = 200;

impl Context {
    pub(super) fn perform_on_descriptor(&self, call: &Call) -> String {
        match call {
            Call::Shutdown { slot, half } => {
                let how = match half {
                    Half::Read => libc::SHUT_RD,
                    Half::Write => libc::SHUT_WR,
                    Half::Both => libc::SHUT_RDWR,
                };
                show(sys::shutdown(self.fd(*slot), how))
            }
            Call::Close { slot } => {
                let fd = self.fd(*slot);
                self.forget(*slot);
                show(sys::close(fd))
            }
            Call::CloseRange { slot, cloexec } => self.close_range(*slot, *cloexec),
            Call::CloseAll => self.close_all(),
            Call::Duplicate { slot, to, by, over } => self.duplicate(*slot, *to, *by, *over),
            Call::DuplicateSelf { slot, dup3 } => {
                let fd = self.fd(*slot);
                show(if *dup3 {
                    sys::dup3(fd, fd, 0)
                } else {
                    sys::dup2(fd, fd)
                })
            }
            Call::Nonblock { slot, on, ioctl } => self.set_nonblock(*slot, *on, *ioctl),
            Call::Async { slot, on } => self.set_async(*slot, *on),
            Call::CloseOnExec { slot, on } => {
                let flag = if *on { libc::FD_CLOEXEC } else { 0 };
                show(sys::fcntl(self.fd(*slot), libc::F_SETFD, flag))
            }
            Call::Flags { slot } => {
                let fd = self.fd(*slot);
                let status = show(sys::fcntl(fd, libc::F_GETFL, 0));
                format!("{status} {}", show(sys::fcntl(fd, libc::F_GETFD, 0)))
            }
            Call::OpenPipe { slot } => self.open_pipe(*slot),
            Call::PassTo { slot, to } => self.pass(*slot, *to),
            Call::Take { slot, cloexec } => self.take(*slot, *cloexec),
            other => unreachable!("{other} is no call on a descriptor"),
        }
    }

    /// Notes that `slot` is closed.
    fn forget(&self, slot: Slot) {
        if slot != super::NEVER_OPEN {
            self.board.set_descriptor(self.process, slot, -1);
        }
    }

    fn close_range(&self, slot: Slot, cloexec: bool) -> String {
        let fd = self.fd(slot);
        if fd < 0 {
            return "closed already".into();
        }
        if cloexec {
            return show(sys::close_range(fd, fd, CLOSE_RANGE_CLOEXEC));
        }
        self.forget(slot);
        show(sys::close_range(fd, fd, 0))
    }

    fn close_all(&self) -> String {
        let open = self.board.open(self.process);
        let text = show(sys::close_range(3, OWN_DESCRIPTORS - 1, 0));
        for (slot, fd) in open {
            self.forget(slot);
            if fd >= OWN_DESCRIPTORS {
                // A number above the tester's own; it is open, so this does not fail.
                let _ = sys::close(fd);
            }
        }
        text
    }

    fn duplicate(&self, slot: Slot, to: Slot, by: DuplicateBy, over: bool) -> String {
        let fd = self.fd(slot);
        let target = if over {
            self.fd(to)
        } else {
            DUP2_NUMBERS + Fd::from(to)
        };
        let result = match by {
            DuplicateBy::Dup => sys::dup(fd),
            DuplicateBy::Dup2 => sys::dup2(fd, target),
            DuplicateBy::Dup3 => sys::dup3(fd, target, 0),
            DuplicateBy::Dup3CloseOnExec => sys::dup3(fd, target, libc::O_CLOEXEC),
            DuplicateBy::Fcntl => sys::fcntl(fd, libc::F_DUPFD, 0),
            DuplicateBy::FcntlCloseOnExec => sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0),
            DuplicateBy::FcntlHigh => sys::fcntl(fd, libc::F_DUPFD, HIGH_DESCRIPTORS),
        };
        self.opened(to, result, self.end(slot))
    }

    fn set_nonblock(&self, slot: Slot, on: bool, ioctl: bool) -> String {
        let fd = self.fd(slot);
        if ioctl {
            return show(sys::ioctl_set(fd, libc::FIONBIO, i32::from(on)));
        }
        show(set_flag(fd, libc::O_NONBLOCK, on))
    }

    fn set_async(&self, slot: Slot, on: bool) -> String {
        let fd = self.fd(slot);
        let process = i32::try_from(std::process::id()).unwrap_or(0);
        let owned = sys::fcntl(fd, libc::F_SETOWN, process);
        show(owned.and_then(|_| set_flag(fd, libc::O_ASYNC, on)))
    }

    fn open_pipe(&self, slot: Slot) -> String {
        match sys::pipe(true) {
            // The write end stays open below any slot's name, so that the read end never ends.
            Ok([out, _]) => self.opened(slot, Ok(usize::try_from(out).unwrap_or(0)), None),
            Err(errno) => errno.to_string(),
        }
    }

    fn pass(&self, slot: Slot, to: Process) -> String {
        let end = self.end(slot);
        let mut note = end.map_or([255, 255], |end| [end.conn, end.side]);
        let Some((mail, _)) = self.mail.get(usize::from(to)) else {
            return "no such process".into();
        };
        show(sys::send_rights(*mail, &mut note, self.fd(slot)))
    }

    fn take(&self, slot: Slot, cloexec: bool) -> String {
        let mut note = [255, 255];
        let Some((_, mail)) = self.mail.get(usize::from(self.process)) else {
            return "no such process".into();
        };
        let flags = libc::MSG_DONTWAIT | if cloexec { libc::MSG_CMSG_CLOEXEC } else { 0 };
        let (result, received) = sys::recvmsg(*mail, &[Area::of(&mut note)], flags);
        let [conn, side] = note;
        let end = (conn != 255).then_some(Identity { conn, side });
        match (result, received.descriptor) {
            (Ok(_), Some(fd)) => self.opened(slot, Ok(usize::try_from(fd).unwrap_or(0)), end),
            (result, _) => format!("{} without a descriptor", show(result)),
        }
    }
}

/// Sets or clears one of the flags of the open file.
fn set_flag(fd: Fd, flag: libc::c_int, on: bool) -> Answer {
    let flags = i32::try_from(sys::fcntl(fd, libc::F_GETFL, 0)?).unwrap_or_default();
    let wanted = if on { flags | flag } else { flags & !flag };
    sys::fcntl(fd, libc::F_SETFL, wanted)
}

/// `CLOSE_RANGE_CLOEXEC` as the C library's int.
const CLOSE_RANGE_CLOEXEC: libc::c_int = 4;
