//! Loops of many calls that run beside others: streams in random pieces, and conversations.

use super::receiving::Receive;
use super::sending::Send;
use super::{Context, pause};
use crate::plan::{Flag, Manner, ReceiveBy, SendBy, Stream, Until};
use crate::random::Random;
use crate::sys::{self, Answer, EpollBy, Errno, Fd, FdSet};
use std::time::Duration;

/// The last two open descriptors.
const SEND_FORMS: [SendBy; 9] = [
    SendBy::Write,
    SendBy::Writev,
    SendBy::Send,
    SendBy::Sendto,
    SendBy::Sendmsg,
    SendBy::Sendmmsg,
    SendBy::Pwritev2,
    SendBy::Sendfile,
    SendBy::Splice,
];

/// The last one opens descriptors.
const RECEIVE_FORMS: [ReceiveBy; 10] = [
    ReceiveBy::Read,
    ReceiveBy::Readv,
    ReceiveBy::Preadv2,
    ReceiveBy::Recv,
    ReceiveBy::Recvfrom,
    ReceiveBy::Recvmsg,
    ReceiveBy::RecvChk,
    ReceiveBy::ReadChk,
    ReceiveBy::RecvfromChk,
    ReceiveBy::Splice,
];

/// What a pipe holds at least.
const PIPE_BYTES: usize = 16_384;

/// How a loop was cut short, as the trace has it.
type Cut = String;

/// One who makes a loop's calls.
struct Streamer<'a> {
    context: &'a Context,
    manner: &'a Manner,
    random: Random,
    /// A set that watches the connection, and whether for edges.
    set: Option<(Fd, bool)>,
}

impl Context {
    pub(super) fn perform_stream(&self, stream: &Stream) -> String {
        let (manner, salt) = match stream {
            Stream::Pour { manner, .. } => (manner, 1),
            Stream::Drain { manner, .. } => (manner, 2),
            Stream::Converse { manner, first, .. } => (manner, 3 + u64::from(*first)),
        };
        let mut streamer = Streamer {
            context: self,
            manner,
            random: Random::new(u64::from(manner.seed) << 3 | salt),
            set: None,
        };
        streamer.open_set();
        let told = match stream {
            Stream::Pour { bytes, ends, .. } => streamer.pour(*bytes as usize, *ends),
            Stream::Drain { until, .. } => streamer.drain(*until),
            Stream::Converse { first, rounds, .. } => streamer.converse(*first, *rounds),
        };
        if let Some((set, _)) = streamer.set {
            // A set of our own: closing it cannot fail.
            let _ = sys::close(set);
        }
        told.unwrap_or_else(|cut| cut)
    }
}

impl Streamer<'_> {
    fn fd(&self) -> Fd {
        self.context.fd(self.manner.slot)
    }

    fn open_set(&mut self) {
        if !self.manner.opens || self.random.chance(40) {
            return;
        }
        let Ok(set) = sys::epoll_create(true) else {
            return;
        };
        let set = Fd::try_from(set).unwrap_or(-1);
        let edges = self.random.chance(50);
        let events = libc::EPOLLIN | libc::EPOLLOUT | if edges { libc::EPOLLET } else { 0 };
        if edges {
            // A connection that cannot be watched is found out by the waits.
            let _ = sys::epoll_ctl(
                set,
                libc::EPOLL_CTL_ADD,
                self.fd(),
                events.cast_unsigned(),
                0,
            );
        }
        self.set = Some((set, edges));
    }

    /// The length of the next piece.
    fn piece(&mut self) -> usize {
        let short = self.random.chance(15);
        let longest = if short { 3 } else { self.manner.piece };
        self.random.between(1, longest) as usize
    }

    /// Mostly goes on at once.
    fn linger(&mut self) {
        if self.random.chance(4) {
            let micros = self.random.pick(&[0, 20, 200]);
            pause(Duration::from_micros(micros));
        }
    }

    /// Waits until one of `events` is there. `refused`: a call has just said that it is not, so an edge may be waited for.
    fn wait(&mut self, events: i16, refused: bool) -> Result<(), Cut> {
        let form = self.random.between(0, 3);
        let fd = self.fd();
        let ready = self.context.wait_until(|| {
            let answer = match (form, self.set) {
                (0, Some((set, edges))) if refused || !edges => wait_by_set(set, edges, fd, events),
                (1, _) => wait_by_select(fd, events),
                (2, _) => wait_by_poll(fd, events, true),
                _ => wait_by_poll(fd, events, false),
            };
            matches!(answer, Ok(1..)).then_some(())
        });
        ready.ok_or_else(|| "stuck".into())
    }

    fn pour(&mut self, bytes: usize, ends: bool) -> Result<String, Cut> {
        let mut left = bytes;
        while left > 0 {
            let piece = self.piece().min(left);
            left -= self.send(piece)?;
            self.linger();
        }
        let mut told = format!("all {bytes}");
        if ends && let Err(errno) = sys::shutdown(self.fd(), libc::SHUT_WR) {
            told.push_str(&format!(" then {errno}"));
        }
        Ok(told)
    }

    /// Makes one call that sends up to `bytes`, until it sends something.
    fn send(&mut self, bytes: usize) -> Result<usize, Cut> {
        let forms = &SEND_FORMS[..if self.manner.opens { 9 } else { 7 }];
        let by = self.random.pick(forms);
        let bytes = match by {
            SendBy::Splice => bytes.min(PIPE_BYTES),
            _ => bytes,
        };
        let flags = match self.random.between(0, 5) {
            0 => vec![Flag::DontWait],
            1 => vec![Flag::NoSignal],
            _ => Vec::new(),
        };
        let call = Send {
            slot: self.manner.slot,
            by,
            parts: self.random.between(1, 3) as usize,
            flags: &flags,
            bad: false,
        };
        loop {
            let mut memory = self.context.content(call.slot, bytes);
            match self.context.send(&call, &mut memory) {
                Ok(sent) => {
                    self.context.account_sent(call.slot, sent);
                    return Ok(sent);
                }
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::EAGAIN)) => self.wait(libc::POLLOUT, true)?,
                Err(errno) => return Err(errno.to_string()),
            }
        }
    }

    fn drain(&mut self, until: Until) -> Result<String, Cut> {
        let mut total = 0;
        loop {
            let left = match until {
                Until::Bytes(bytes) => (bytes as usize).saturating_sub(total),
                _ => usize::MAX,
            };
            if left == 0 {
                return Ok(format!("{total} good"));
            }
            let piece = self.piece().min(left);
            match self.receive(piece)? {
                0 => return Ok(format!("{total} good then the end")),
                bytes => total += bytes,
            }
            self.linger();
        }
    }

    /// Makes one call that receives up to `bytes`, until it brings something. Now and then looks first.
    fn receive(&mut self, bytes: usize) -> Result<usize, Cut> {
        if self.random.chance(25) {
            self.wait(libc::POLLIN, false)?;
        }
        if self.random.chance(8) {
            let peek = [Flag::Peek, Flag::DontWait];
            self.take(ReceiveBy::Recv, bytes, &peek)?;
        }
        let forms = &RECEIVE_FORMS[..if self.manner.opens { 10 } else { 9 }];
        let by = self.random.pick(forms);
        let bytes = match by {
            ReceiveBy::Splice => bytes.min(PIPE_BYTES),
            _ => bytes,
        };
        let flags = match self.random.between(0, 5) {
            0 => vec![Flag::DontWait],
            1 if bytes < 5000 => vec![Flag::WaitAll],
            _ => Vec::new(),
        };
        loop {
            if let Some(taken) = self.take(by, bytes, &flags)? {
                return Ok(taken);
            }
            self.wait(libc::POLLIN, true)?;
        }
    }

    /// One call; None: nothing is there.
    fn take(&self, by: ReceiveBy, bytes: usize, flags: &[Flag]) -> Result<Option<usize>, Cut> {
        let slot = self.manner.slot;
        let end = self.context.end(slot);
        let mut memory = vec![0; bytes];
        let parts = 1 + bytes % 3;
        let call = Receive {
            slot,
            by,
            bytes,
            parts,
            flags,
            bad: false,
        };
        loop {
            match self.context.receive_into(&call, &mut memory).answer {
                Ok(taken) => {
                    let judged = self.context.judge(end, &memory[..taken.min(bytes)], 0);
                    if taken > 0 && judged != "good" {
                        return Err(judged);
                    }
                    if !flags.contains(&Flag::Peek) {
                        self.context.account_received(end, taken);
                    }
                    return Ok(Some(taken));
                }
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::EAGAIN)) => return Ok(None),
                Err(errno) => return Err(format!("good then {errno}")),
            }
        }
    }

    /// Question and answer, as long as the seed that both ends have says.
    fn converse(&mut self, first: bool, rounds: u8) -> Result<String, Cut> {
        let mut lengths = Random::new(self.manner.seed.into());
        for _ in 0..rounds {
            for asks in [true, false] {
                let bytes = lengths.between(1, self.manner.piece) as usize;
                if asks == first {
                    self.say(bytes)?;
                } else {
                    self.hear(bytes)?;
                }
            }
        }
        Ok("all good".into())
    }

    /// A message, mostly in one call.
    fn say(&mut self, bytes: usize) -> Result<(), Cut> {
        let mut left = bytes;
        while left > 0 {
            let some = if self.random.chance(5) {
                left.div_ceil(2)
            } else {
                left
            };
            left -= self.send(some)?;
        }
        Ok(())
    }

    fn hear(&mut self, bytes: usize) -> Result<(), Cut> {
        let mut left = bytes;
        while left > 0 {
            let some = if self.random.chance(20) {
                self.random.between(1, left as u32) as usize
            } else {
                left
            };
            match self.receive(some)? {
                0 => return Err("good then the end".into()),
                taken => left -= taken,
            }
        }
        Ok(())
    }
}

/// Milliseconds of a wait, after which it is begun anew.
const WAIT_MS: i32 = 100;

/// A set for levels has the connection only while it is waited for: what else is there would end the wait.
fn wait_by_set(set: Fd, edges: bool, fd: Fd, events: i16) -> Answer {
    if edges {
        return sys::epoll_wait(EpollBy::Wait, set, 1, WAIT_MS).map(|found| found.len());
    }
    let events = u32::from(events.cast_unsigned());
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, 0)?;
    let found = sys::epoll_wait(EpollBy::Pwait, set, 1, WAIT_MS);
    sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0)?;
    found.map(|found| found.len())
}

fn wait_by_poll(fd: Fd, events: i16, masked: bool) -> Answer {
    let mut items = [libc::pollfd {
        fd,
        events,
        revents: 0,
    }];
    sys::ppoll(&mut items, WAIT_MS, masked)
}

fn wait_by_select(fd: Fd, events: i16) -> Answer {
    let limit = usize::try_from(fd + 1).unwrap_or(0);
    let mut sets = [(); 3].map(|()| FdSet::new(limit));
    sets[usize::from(events == libc::POLLOUT)].insert(fd);
    sys::select(limit, &mut sets, WAIT_MS)
}
