//! Sending, in all forms.

use super::receiving::bits;
use super::{Context, pause, show};
use crate::plan::{Call, Flag, SendBy, Slot};
use crate::sys::{self, Answer, Area, Errno, Fd};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// One send call as the plan has it.
pub(super) struct Send<'a> {
    pub(super) slot: Slot,
    pub(super) by: SendBy,
    pub(super) parts: usize,
    pub(super) flags: &'a [Flag],
    pub(super) bad: bool,
}

/// How long a full connection must stay full to count as full: longer than an acknowledgement is delayed.
const SETTLED: Duration = Duration::from_millis(60);
/// Whatever is taken after this long does not count: it comes with the kernel's probes of the closed window.
const FILLED: Duration = Duration::from_millis(500);
/// An urgent byte that is not part of the stream.
pub(super) const URGENT: u8 = b'!';

impl Context {
    pub(super) fn perform_sending(&self, call: &Call) -> String {
        match call {
            Call::Send {
                slot,
                by,
                bytes,
                parts,
                flags,
                bad,
            } => {
                let mut memory = self.content(*slot, *bytes as usize);
                let kept = flags.contains(&Flag::ZeroCopy);
                let call = Send {
                    slot: *slot,
                    by: *by,
                    parts: usize::from(*parts),
                    flags,
                    bad: *bad,
                };
                let answer = self.send(&call, &mut memory);
                self.account_sent(*slot, answer.unwrap_or_default());
                if kept {
                    // The kernel may read it until the bytes are received.
                    memory.leak();
                }
                show(answer)
            }
            Call::SendAll {
                slot,
                by,
                chunk,
                bytes,
            } => self.send_all(*slot, *by, *chunk as usize, *bytes as usize),
            Call::Fill { slot, chunk } => self.fill(*slot, *chunk as usize),
            Call::SendUrgent { slot, inline } => {
                let mut memory = if *inline {
                    self.content(*slot, 1)
                } else {
                    vec![URGENT]
                };
                let answer = sys::send(self.fd(*slot), &Area::of(&mut memory), libc::MSG_OOB);
                if *inline {
                    self.account_sent(*slot, answer.unwrap_or_default());
                }
                show(answer)
            }
            other => unreachable!("{other} is no sending call"),
        }
    }

    /// Makes one send call with `memory`; does not note what was sent.
    pub(super) fn send(&self, call: &Send<'_>, memory: &mut [u8]) -> Answer {
        let (fd, flags) = (self.fd(call.slot), bits(call.flags));
        match call.by {
            SendBy::Sendfile | SendBy::SendfileOwnOffset | SendBy::Sendfile64 => {
                return send_file(fd, call.by, memory);
            }
            SendBy::Splice => return splice_in(fd, memory, call.flags.contains(&Flag::More)),
            SendBy::Dprintf => {
                let text = CString::new(memory.to_vec()).unwrap_or_default();
                return sys::print_to(fd, &text);
            }
            SendBy::Stdio => {
                return sys::dup(fd)
                    .and_then(|copy| sys::stdio_write(Fd::try_from(copy).unwrap_or(-1), memory));
            }
            SendBy::Sendmmsg => {
                let areas = Area::cut(memory, call.parts);
                let sent = sys::sendmmsg(fd, &areas, flags)?;
                return Ok(sent.iter().map(|bytes| *bytes as usize).sum());
            }
            _ => {}
        }
        let areas = if call.bad {
            vec![Area::bad(memory.len())]
        } else if matches!(call.by, SendBy::Writev | SendBy::Pwritev2 | SendBy::Sendmsg) {
            Area::cut(memory, call.parts)
        } else {
            vec![Area::of(memory)]
        };
        let area = &areas[0];
        match call.by {
            SendBy::Write => sys::write(fd, area),
            SendBy::Writev => sys::writev(fd, &areas),
            SendBy::Pwritev2 => sys::pwritev2(fd, &areas, -1, 0),
            SendBy::Sendto => sys::sendto(fd, area, flags, false),
            SendBy::SendtoAddressed => sys::sendto(fd, area, flags, true),
            SendBy::Sendmsg => sys::sendmsg(fd, &areas, flags),
            _ => sys::send(fd, area, flags),
        }
    }

    fn send_all(&self, slot: Slot, by: SendBy, chunk: usize, bytes: usize) -> String {
        let mut total = 0;
        while total < bytes {
            let size = chunk.min(bytes - total);
            let mut memory = self.content(slot, size);
            let call = Send {
                slot,
                by,
                parts: 1 + size % 3,
                flags: &[],
                bad: false,
            };
            match self.send(&call, &mut memory) {
                Ok(sent) => {
                    self.account_sent(slot, sent);
                    total += sent;
                }
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::EAGAIN)) => {
                    if !self.wait_for(self.fd(slot), libc::POLLOUT) {
                        return "stuck".into();
                    }
                }
                Err(errno) => return errno.to_string(),
            }
        }
        format!("all {bytes}")
    }

    fn fill(&self, slot: Slot, chunk: usize) -> String {
        let fd = self.fd(slot);
        let start = Instant::now();
        let mut full_since = None;
        loop {
            let mut memory = self.content(slot, chunk);
            match sys::send(fd, &Area::of(&mut memory), libc::MSG_DONTWAIT) {
                Ok(sent) => {
                    self.account_sent(slot, sent);
                    full_since = None;
                }
                Err(Errno(libc::EAGAIN)) => {
                    let since = *full_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > SETTLED || start.elapsed() > FILLED {
                        return "full".into();
                    }
                    pause(Duration::from_millis(2));
                }
                Err(errno) => return errno.to_string(),
            }
        }
    }
}

/// Sends `memory` from a file.
fn send_file(fd: Fd, by: SendBy, memory: &[u8]) -> Answer {
    let file = file_of(memory).map_err(|errno| Errno(errno.raw_os_error()))?;
    let from = file.as_raw_fd();
    match by {
        SendBy::Sendfile64 => sys::sendfile64(fd, from, memory.len()),
        _ => sys::sendfile(fd, from, memory.len(), by == SendBy::SendfileOwnOffset),
    }
}

/// A file in memory that holds `bytes`, positioned at its start.
fn file_of(bytes: &[u8]) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let file = rustix::fs::memfd_create("sequence", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(&file, &bytes[written..], written as u64)?;
    }
    Ok(file)
}

/// Sends `memory` through a pipe.
fn splice_in(fd: Fd, memory: &mut [u8], more: bool) -> Answer {
    let [out, into] = sys::pipe(true)?;
    let flags = if more { libc::SPLICE_F_MORE } else { 0 };
    let moved = sys::write(into, &Area::of(memory))
        .and_then(|written| sys::splice(out, fd, written, flags));
    // Two plain pipe ends: closing them cannot fail.
    let _ = (sys::close(out), sys::close(into));
    moved
}
