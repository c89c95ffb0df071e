//! One thread for all connections, with `poll` or an epoll set.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::flow::{Did, End};
use crate::ledger::Ledger;
use crate::sys::{self, Ready};
use crate::{Order, Side};

/// Calls on one connection before the others have their turn.
const TURN: usize = 16;
/// A wait for a connection that can be written at once.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const NOTHING: Ready = Ready {
    readable: false,
    writable: false,
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Poll,
    Level,
    Edge,
}

/// One connection, and what it waits for.
struct Member {
    stream: TcpStream,
    end: End,
    /// The last we heard is that a call would not block.
    readable: bool,
    writable: bool,
    /// There is nothing to send, perhaps until a moment.
    idle: bool,
    idle_until: Option<Instant>,
    /// What the epoll set watches for.
    watched: Ready,
}

impl Member {
    fn new(stream: TcpStream, end: End) -> Member {
        // A stream that the kernel has taken to pieces may refuse; its calls say so again.
        let _ = stream.set_nonblocking(true);
        let watched = NOTHING;
        Member {
            stream,
            end,
            readable: true,
            writable: true,
            idle: false,
            idle_until: None,
            watched,
        }
    }

    fn has_ended(&self) -> bool {
        self.end.incoming.has_ended() && self.end.outgoing.has_ended()
    }

    fn may_read(&self) -> bool {
        self.readable && self.end.reads()
    }

    fn may_write(&self) -> bool {
        self.writable && !self.idle && !self.end.outgoing.has_ended()
    }

    /// What the connection needs to hear of.
    fn wanted(&self) -> Ready {
        Ready {
            readable: !self.readable && self.end.reads(),
            writable: !self.writable && !self.idle && !self.end.outgoing.has_ended(),
        }
    }

    /// Makes calls as long as they do not block.
    fn turn(&mut self) {
        if self
            .idle_until
            .is_some_and(|moment| moment <= Instant::now())
        {
            self.idle = false;
        }
        for _ in 0..if self.end.incoming.rests() { 1 } else { TURN } {
            if self.may_read() {
                self.readable = self.end.incoming.receive(&self.stream) != Did::Blocked;
                self.idle &= self.idle_until.is_some() && !self.end.incoming.has_ended();
            }
            if self.may_write() {
                match self.end.outgoing.transmit(&self.stream) {
                    Did::Blocked => self.writable = false,
                    Did::Idle(until) => (self.idle, self.idle_until) = (true, until),
                    Did::Moved | Did::Ended => {}
                }
            }
            if !self.may_read() && !self.may_write() {
                return;
            }
        }
    }
}

/// All connections, and the epoll set if there is one.
struct Loop {
    kind: Kind,
    set: Option<sys::EpollSet>,
    listener: Option<RawFd>,
    members: Vec<Member>,
}

impl Loop {
    fn new(kind: Kind, listener: Option<RawFd>) -> Loop {
        let set = (kind != Kind::Poll).then(sys::EpollSet::new);
        if let (Some(set), Some(listener)) = (&set, listener) {
            set.add(
                listener,
                Ready {
                    readable: true,
                    writable: false,
                },
                false,
            );
        }
        Loop {
            kind,
            set,
            listener,
            members: Vec::new(),
        }
    }

    fn add(&mut self, stream: TcpStream, end: End) {
        let member = Member::new(stream, end);
        let fd = member.stream.as_raw_fd();
        let both = Ready {
            readable: true,
            writable: true,
        };
        match &self.set {
            Some(set) if self.kind == Kind::Edge => set.add(fd, both, true),
            Some(_) => {}
            // It is seen how this one waits, also when it never has to.
            None => drop(sys::poll(std::iter::once((fd, both)), Some(FIRST_WAIT))),
        }
        self.members.push(member);
    }

    /// Serves every connection once, then waits. True: the listener has a connection.
    fn round(&mut self) -> bool {
        for member in &mut self.members {
            member.turn();
        }
        self.members.retain(|member| !member.has_ended());
        let busy = self
            .members
            .iter()
            .any(|member| member.may_read() || member.may_write());
        if self.members.is_empty() && self.listener.is_none() {
            return false;
        }
        let ready = self.wait(if busy {
            Some(Duration::ZERO)
        } else {
            self.patience()
        });
        let mut accepts = false;
        for (fd, ready) in ready {
            accepts |= Some(fd) == self.listener;
            for member in self
                .members
                .iter_mut()
                .filter(|member| member.stream.as_raw_fd() == fd)
            {
                member.readable |= ready.readable;
                member.writable |= ready.writable;
            }
        }
        accepts
    }

    /// Until the first connection has something to send again.
    fn patience(&self) -> Option<Duration> {
        let idle = self
            .members
            .iter()
            .filter(|member| member.idle && !member.end.outgoing.has_ended());
        idle.filter_map(|member| member.idle_until)
            .min()
            .map(|moment| moment.saturating_duration_since(Instant::now()))
    }

    fn wait(&mut self, patience: Option<Duration>) -> Vec<(RawFd, Ready)> {
        let Some(set) = &self.set else {
            let wants = self
                .members
                .iter()
                .map(|member| (member.stream.as_raw_fd(), member.wanted()));
            let listener = self.listener.map(|fd| {
                (
                    fd,
                    Ready {
                        readable: true,
                        writable: false,
                    },
                )
            });
            return sys::poll(wants.chain(listener), patience);
        };
        if self.kind == Kind::Level {
            for member in &mut self.members {
                let wanted = member.wanted();
                let fd = member.stream.as_raw_fd();
                // A set that watches for nothing reports hang-ups all the same.
                match (member.watched == NOTHING, wanted == NOTHING) {
                    _ if wanted == member.watched => {}
                    (true, _) => set.add(fd, wanted, false),
                    (_, true) => set.remove(fd),
                    _ => set.modify(fd, wanted),
                }
                member.watched = wanted;
            }
        }
        set.wait(patience)
    }
}

/// Serves what connects, for good.
pub(crate) fn serve(listener: &TcpListener, ledger: &'static Ledger, kind: Kind) -> ! {
    let mut all = Loop::new(kind, Some(listener.as_raw_fd()));
    loop {
        if all.round()
            && let Ok((stream, _)) = listener.accept()
            && let Some(order) = Order::receive(&stream)
        {
            all.add(stream, End::new(order, Side::Server, ledger));
        }
    }
}

/// Serves these connections until all have ended.
pub(crate) fn connect(streams: Vec<(TcpStream, End)>, kind: Kind) {
    let mut all = Loop::new(kind, None);
    for (stream, end) in streams {
        all.add(stream, end);
    }
    while !all.members.is_empty() {
        all.round();
    }
}
