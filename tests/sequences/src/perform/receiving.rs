//! Receiving, in all forms.

use super::{Context, show};
use crate::plan::{Call, Flag, ReceiveBy, Slot, Until};
use crate::sys::{self, Answer, Area, Errno, Fd};
use libc::c_int;
use std::fmt::Write as _;

/// One receive call as the plan has it.
pub(super) struct Receive<'a> {
    pub(super) slot: Slot,
    pub(super) by: ReceiveBy,
    pub(super) bytes: usize,
    pub(super) parts: usize,
    pub(super) flags: &'a [Flag],
    pub(super) bad: bool,
}

/// What a receive call brought: the answer, where the bytes lie, and what else it told.
pub(super) struct Taken {
    pub(super) answer: Answer,
    note: String,
}

impl From<Answer> for Taken {
    fn from(answer: Answer) -> Self {
        Taken {
            answer,
            note: String::new(),
        }
    }
}

/// Flags as the kernel takes them.
pub(super) fn bits(flags: &[Flag]) -> c_int {
    flags.iter().fold(0, |bits, flag| {
        bits | match flag {
            Flag::Peek => libc::MSG_PEEK,
            Flag::WaitAll => libc::MSG_WAITALL,
            Flag::DontWait => libc::MSG_DONTWAIT,
            Flag::Trunc => libc::MSG_TRUNC,
            Flag::NoSignal => libc::MSG_NOSIGNAL,
            Flag::More => libc::MSG_MORE,
            Flag::ErrQueue => libc::MSG_ERRQUEUE,
            Flag::WaitForOne => libc::MSG_WAITFORONE,
            Flag::CloseOnExec => libc::MSG_CMSG_CLOEXEC,
            Flag::ZeroCopy => libc::MSG_ZEROCOPY,
        }
    })
}

impl Context {
    pub(super) fn perform_receiving(&self, call: &Call) -> String {
        match call {
            Call::Receive {
                slot,
                by,
                bytes,
                parts,
                flags,
                bad,
            } => self.receive(&Receive {
                slot: *slot,
                by: *by,
                bytes: *bytes as usize,
                parts: usize::from(*parts),
                flags,
                bad: *bad,
            }),
            Call::ReceiveAll {
                slot,
                by,
                chunk,
                until,
            } => self.receive_all(*slot, *by, *chunk as usize, *until),
            Call::ReceiveUrgent { slot, peek } => self.receive_urgent(*slot, *peek),
            Call::AtMark { slot } => show_int(sys::ioctl_get(self.fd(*slot), SIOCATMARK)),
            Call::Readable { slot } => show_int(sys::ioctl_get(self.fd(*slot), libc::FIONREAD)),
            other => unreachable!("{other} is no receiving call"),
        }
    }

    fn receive(&self, call: &Receive<'_>) -> String {
        if call.by == ReceiveBy::Recvmmsg {
            return self.receive_messages(call);
        }
        let mut memory = vec![0; call.bytes];
        let end = self.end(call.slot);
        let taken = self.receive_into(call, &mut memory);
        let mut text = show(taken.answer);
        if let Ok(bytes) = taken.answer
            && bytes > 0
        {
            let told = if call.flags.contains(&Flag::Trunc) && !call.bad {
                discarded(&memory).into()
            } else {
                self.judge(end, &memory[..bytes.min(memory.len())], 0)
            };
            let _ = write!(text, " {told}");
            if memory.iter().skip(bytes).any(|byte| *byte != 0) {
                text.push_str(" and wrote beyond");
            }
            if !call.flags.contains(&Flag::Peek) {
                self.account_received(end, bytes);
            }
        }
        text + &taken.note
    }

    /// Makes the call, for all forms but `recvmmsg`.
    pub(super) fn receive_into(&self, call: &Receive<'_>, memory: &mut [u8]) -> Taken {
        let (fd, flags) = (self.fd(call.slot), bits(call.flags));
        match call.by {
            ReceiveBy::Splice => return splice_out(fd, memory).into(),
            ReceiveBy::Stdio => {
                return sys::dup(fd)
                    .and_then(|copy| sys::stdio_read(Fd::try_from(copy).unwrap_or(-1), memory))
                    .into();
            }
            _ => {}
        }
        let areas = if call.bad {
            vec![Area::bad(call.bytes)]
        } else if vectored(call.by) {
            Area::cut(memory, call.parts)
        } else {
            vec![Area::of(memory)]
        };
        let area = &areas[0];
        match call.by {
            ReceiveBy::Read => sys::read(fd, area).into(),
            ReceiveBy::ReadChk => sys::read_checked(fd, area).into(),
            ReceiveBy::Readv => sys::readv(fd, &areas).into(),
            ReceiveBy::Preadv2 => sys::preadv2(fd, &areas, -1, 0).into(),
            ReceiveBy::Preadv2NoWait => sys::preadv2(fd, &areas, -1, libc::RWF_NOWAIT).into(),
            ReceiveBy::Recv => sys::recv(fd, area, flags).into(),
            ReceiveBy::RecvChk => sys::recv_checked(fd, area, flags).into(),
            ReceiveBy::Recvfrom | ReceiveBy::RecvfromChk => {
                let checked = call.by == ReceiveBy::RecvfromChk;
                let (answer, name_bytes) = sys::recvfrom(fd, area, flags, checked);
                let note = if answer.is_ok() {
                    format!(" name {name_bytes}")
                } else {
                    String::new()
                };
                Taken { answer, note }
            }
            _ => receive_message(fd, &areas, flags),
        }
    }

    fn receive_messages(&self, call: &Receive<'_>) -> String {
        let mut memory = vec![0; call.bytes];
        let size = (call.bytes / call.parts.max(1)).max(1);
        let areas: Vec<Area<'_>> = memory.chunks_mut(size).map(Area::of).collect();
        let flags = bits(call.flags);
        let end = self.end(call.slot);
        let messages = match sys::recvmmsg(self.fd(call.slot), &areas, flags) {
            Ok(messages) => messages,
            Err(errno) => return errno.to_string(),
        };
        drop(areas);
        let mut text = format!("{} messages", messages.len());
        let mut ahead = 0;
        for (piece, (bytes, flags)) in memory.chunks(size).zip(&messages) {
            let bytes = *bytes as usize;
            let judged = self.judge(end, &piece[..bytes.min(piece.len())], ahead);
            let _ = write!(text, " [{bytes} {judged} {flags:#x}]");
            ahead += bytes;
        }
        self.account_received(end, ahead);
        text
    }

    fn receive_all(&self, slot: Slot, by: ReceiveBy, chunk: usize, until: Until) -> String {
        let mut total = 0;
        let mut memory = vec![0; chunk];
        let end = self.end(slot);
        loop {
            let room = match until {
                Until::Bytes(bytes) => chunk.min((bytes as usize).saturating_sub(total)),
                Until::Sent => {
                    let left = end.map_or(0, |end| self.board.outstanding(end));
                    chunk.min(usize::try_from(left).unwrap_or(usize::MAX))
                }
                Until::End => chunk,
            };
            if room == 0 {
                return told(until, total, "good");
            }
            let call = Receive {
                slot,
                by,
                bytes: room,
                parts: 1 + room % 3,
                flags: &[],
                bad: false,
            };
            match self.receive_into(&call, &mut memory[..room]).answer {
                Ok(0) => return told(until, total, "good then the end"),
                Ok(bytes) => {
                    let judged = self.judge(end, &memory[..bytes.min(room)], 0);
                    if judged != "good" {
                        return format!("after {total}: {judged}");
                    }
                    self.account_received(end, bytes);
                    total += bytes;
                }
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::EAGAIN)) => {
                    if !self.wait_for(self.fd(slot), libc::POLLIN) {
                        return told(until, total, "good then nothing");
                    }
                }
                Err(errno) => return told(until, total, &format!("good then {errno}")),
            }
        }
    }

    /// Waits with `poll` until `events` are there; false when patience ended first.
    pub(super) fn wait_for(&self, fd: Fd, events: i16) -> bool {
        let ready = self.wait_until(|| {
            let mut items = [libc::pollfd {
                fd,
                events,
                revents: 0,
            }];
            matches!(sys::poll(&mut items, 100), Ok(1..)).then_some(())
        });
        ready.is_some()
    }

    fn receive_urgent(&self, slot: Slot, peek: bool) -> String {
        let mut memory = [0];
        let flags = libc::MSG_OOB | if peek { libc::MSG_PEEK } else { 0 };
        let answer = sys::recv(self.fd(slot), &Area::of(&mut memory), flags);
        format!("{} {}", show(answer), memory[0])
    }
}

/// The request number of `SIOCATMARK`, the same on all of Linux's common architectures.
const SIOCATMARK: libc::c_ulong = 0x8905;

/// How much was received: the number where it is certain, and how it ended.
fn told(until: Until, total: usize, how: &str) -> String {
    match until {
        // What was sent before may have depended on the room in the kernel's buffers.
        Until::Sent if how == "good" => "all good".into(),
        _ => format!("{total} {how}"),
    }
}

fn show_int(result: Result<c_int, Errno>) -> String {
    result.map_or_else(|errno| errno.to_string(), |value| value.to_string())
}

/// Whether the form takes several areas.
fn vectored(by: ReceiveBy) -> bool {
    matches!(
        by,
        ReceiveBy::Readv | ReceiveBy::Preadv2 | ReceiveBy::Preadv2NoWait | ReceiveBy::Recvmsg
    )
}

/// `MSG_TRUNC` throws bytes away: the memory must be as it was.
fn discarded(memory: &[u8]) -> &'static str {
    if memory.iter().all(|byte| *byte == 0) {
        "discarded"
    } else {
        "scribbled"
    }
}

fn receive_message(fd: Fd, areas: &[Area<'_>], flags: c_int) -> Taken {
    let (answer, received) = sys::recvmsg(fd, areas, flags);
    let mut note = String::new();
    if answer.is_ok() {
        let _ = write!(
            note,
            " flags {:#x} name {}",
            received.flags, received.name_bytes
        );
        if let Some(inq) = received.inq {
            let _ = write!(note, " inq {inq}");
        }
        if received.others > 0 {
            let _ = write!(note, " control {}", received.others);
        }
    }
    Taken { answer, note }
}

/// Moves bytes from the connection into a pipe, and from there into `memory`.
fn splice_out(fd: Fd, memory: &mut [u8]) -> Answer {
    let [out, into] = sys::pipe(false)?;
    let moved = sys::splice(fd, into, memory.len(), 0);
    if let Ok(bytes) = moved {
        let mut filled = 0;
        while filled < bytes {
            match sys::read(out, &Area::of(&mut memory[filled..bytes])) {
                Ok(more) if more > 0 => filled += more,
                _ => break,
            }
        }
    }
    // Two plain pipe ends: closing them cannot fail.
    let _ = (sys::close(out), sys::close(into));
    moved
}
