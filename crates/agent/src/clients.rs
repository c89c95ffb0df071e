//! One connected program: its socket, its board, and what waits to be sent to it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use millrace_shm::board::{Board, HEADER_BYTES, Row, RowView, holders, state};
use millrace_wire::{MAX_BYTES, Mode, Query, ToClient, VERSION_MIN};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    ControlMessage, MsgFlags, SockaddrStorage, UnixCredentials, sendmsg, sockopt,
};
use nix::unistd::{Whence, lseek};

use crate::offers::ClientId;
use crate::proof::{self, Process};
use crate::sys::{self, Inlet};
use crate::tenant::{Containment, Tenant};

/// Answers that may wait for a client that does not read, beside what its socket holds (some 270). Then it is dropped: whoever asks has to
/// read. News of its offers comes without its doing, and may wait in any number that these can have: it may be asleep.
const ANSWERS_MAX: usize = 256;

/// Rows of one client whose holders are looked for in one answer: the numbers are the client's, and each costs a look at `/proc`.
const LOOKS_MAX: u32 = 256;

/// Why a client is sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It has just said something.
    Asked,
    /// Something became of an offer of it.
    News,
}

/// A message, and the descriptors that go with it.
#[derive(Debug)]
struct Outgoing {
    message: ToClient,
    fds: Vec<Rc<OwnedFd>>,
    cause: Cause,
}

/// What came from a client's socket.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A message of this many bytes.
    Message(usize),
    /// Nothing now.
    Nothing,
    /// Bytes from another process than the client: not a message of this client.
    Stranger,
    /// A message with descriptors, which none has: whoever sends one is to be dropped.
    Gift,
    /// The client is gone.
    Gone,
}

/// Why a client cannot be sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendError {
    /// It is gone.
    Gone,
    /// It does not read.
    Slow,
}

/// A client's board: mapped, and its descriptor, which tells which parts of it are in use.
#[derive(Debug)]
pub(crate) struct ClientBoard {
    board: Board,
    fd: Rc<OwnedFd>,
}

/// A connected program.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) tenant: Tenant,
    pub(crate) containment: Containment,
    pub(crate) since: Instant,
    /// `None` when this agent may not look at it: then nothing of it can be proved.
    pub(crate) process: Option<Process>,
    pub(crate) name: String,
    pub(crate) mode: Mode,
    /// Of the control protocol, that both speak: the lowest, until it says which it speaks.
    pub(crate) version: u16,
    /// The configuration excludes it.
    pub(crate) excluded: bool,
    /// What it has asked too early: it is answered when its turn has come, and not heard before.
    pub(crate) question: Option<Query>,
    has_pidfd: bool,
    socket: Inlet,
    board: Option<ClientBoard>,
    /// It takes part in a channel.
    is_participant: bool,
    queue: VecDeque<Outgoing>,
    /// How many of these are answers.
    answers: usize,
    /// News of this many offers may wait.
    news_max: usize,
}

impl Drop for Client {
    fn drop(&mut self) {
        // What it was not sent: of a pair of sockets the other end may be somebody's who has sent something.
        let fds = self.queue.drain(..).flat_map(|outgoing| outgoing.fds);
        fds.filter_map(Rc::into_inner).for_each(sys::close_apart);
    }
}

impl Client {
    /// Takes a fresh connection over. Its listener has SO_PASSCRED, which it inherits. Fails when no descriptor is left.
    pub(crate) fn new(
        id: ClientId,
        socket: Inlet,
        peer: UnixCredentials,
        (own, by_containers): (&Containment, bool),
        offers_max: u32,
    ) -> nix::Result<Client> {
        let process;
        let pidfd = match nix::sys::socket::getsockopt(&socket, sockopt::PeerPidfd) {
            Ok(pidfd) => {
                process = Process::open(peer.pid(), Some(pidfd.as_fd()))?;
                Some(pidfd)
            }
            // Before Linux 6.5.
            Err(Errno::ENOPROTOOPT) => {
                process = Process::open(peer.pid(), None)?;
                None
            }
            // It has ended, and its number may be another's.
            Err(_) => {
                process = None;
                None
            }
        };
        let name = process.as_ref().and_then(Process::name).unwrap_or_default();
        let groups = process.as_ref().and_then(|process| process.read("cgroup"));
        let containment = groups.map(|text| Containment::parse(&text));
        let tenant = containment.map_or(Tenant::Nobody, |containment| {
            containment.tenant(peer.uid(), own, by_containers)
        });
        Ok(Client {
            id,
            pid: peer.pid(),
            uid: peer.uid(),
            tenant,
            containment: containment.unwrap_or_default(),
            since: Instant::now(),
            process,
            name,
            mode: Mode::Default,
            version: VERSION_MIN,
            excluded: false,
            question: None,
            has_pidfd: pidfd.is_some(),
            socket,
            board: None,
            is_participant: false,
            queue: VecDeque::new(),
            answers: 0,
            // That there is another end, and that there is no segment.
            news_max: 2 * offers_max as usize,
        })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The kernel says by a descriptor which process it is.
    pub(crate) fn has_pidfd(&self) -> bool {
        self.has_pidfd
    }

    /// It has closed its end, whatever it said before.
    pub(crate) fn has_left(&self) -> bool {
        let mut socket = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        poll(&mut socket, PollTimeout::ZERO) != Ok(0)
    }

    /// A descriptor of the process, readable when that has ended. `None`: it has, or the kernel has no such thing.
    pub(crate) fn pidfd(&self) -> Option<OwnedFd> {
        nix::sys::socket::getsockopt(&self.socket, sockopt::PeerPidfd)
            .or_else(|_| crate::sys::pidfd_open(self.pid))
            .ok()
    }

    /// It has said hello and was welcomed.
    pub(crate) fn is_welcome(&self) -> bool {
        self.board.is_some()
    }

    /// It has not said yet what it is.
    pub(crate) fn is_silent(&self) -> bool {
        !self.is_welcome() && !self.is_participant
    }

    /// It takes part in a channel, and is no program with connections.
    pub(crate) fn is_participant(&self) -> bool {
        self.is_participant
    }

    pub(crate) fn become_participant(&mut self, version: u16) {
        self.version = version;
        self.is_participant = true;
    }

    /// Gives it a board, and returns the descriptor to send.
    pub(crate) fn set_board(&mut self, fd: OwnedFd) -> io::Result<Rc<OwnedFd>> {
        let board = Board::attach(fd.as_fd())?;
        let fd = Rc::new(fd);
        self.board = Some(ClientBoard {
            board,
            fd: Rc::clone(&fd),
        });
        Ok(fd)
    }

    /// Takes one message from the socket.
    pub(crate) fn receive(&self, buffer: &mut [u8; MAX_BYTES]) -> Incoming {
        let received = match self.socket.receive(buffer) {
            Ok(received) => received,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS) => {
                        Incoming::Nothing
                    }
                    _ => Incoming::Gone,
                };
            }
        };
        if received.is_gift {
            return Incoming::Gift;
        }
        // An end of stream carries no credentials; an empty message, which no client sends, counts as one.
        if received.bytes == 0 {
            return Incoming::Gone;
        }
        if received.sender == Some(self.pid) {
            Incoming::Message(received.bytes)
        } else {
            Incoming::Stranger
        }
    }

    /// Sends a message, now or when the client has read what waits.
    pub(crate) fn send(
        &mut self,
        message: ToClient,
        fds: Vec<Rc<OwnedFd>>,
        cause: Cause,
    ) -> Result<(), SendError> {
        let is_full = match cause {
            Cause::Asked => self.answers >= ANSWERS_MAX,
            Cause::News => self.queue.len() - self.answers >= self.news_max,
        };
        if is_full {
            return Err(SendError::Slow);
        }
        self.answers += usize::from(cause == Cause::Asked);
        self.queue.push_back(Outgoing {
            message,
            fds,
            cause,
        });
        self.flush()
    }

    /// Sends what waits, as far as the client reads.
    pub(crate) fn flush(&mut self) -> Result<(), SendError> {
        while let Some(Outgoing {
            message,
            fds,
            cause,
        }) = self.queue.front()
        {
            match self.transmit(message, fds) {
                Ok(()) => {
                    let is_welcome = matches!(message, ToClient::Welcome(_));
                    self.answers -= usize::from(*cause == Cause::Asked);
                    self.queue.pop_front();
                    if let (Some(held), false) = (&self.board, is_welcome) {
                        held.board.post_mail();
                    }
                }
                // ETOOMANYREFS: too many descriptors are under way to clients that do not take them.
                Err(
                    Errno::EAGAIN
                    | Errno::EINTR
                    | Errno::ENOBUFS
                    | Errno::ENOMEM
                    | Errno::ETOOMANYREFS,
                ) => break,
                Err(_) => return Err(SendError::Gone),
            }
        }
        if self.queue.is_empty() {
            self.queue.shrink_to(ANSWERS_MAX);
        }
        Ok(())
    }

    fn transmit(&self, message: &ToClient, fds: &[Rc<OwnedFd>]) -> nix::Result<()> {
        let mut buffer = [0; MAX_BYTES];
        let length = message.encode(self.version, &mut buffer);
        let descriptors: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let control = if fds.is_empty() { &[] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let parts = [IoSlice::new(&buffer[..length])];
        sendmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &parts, control, flags, None).map(drop)
    }

    /// Whether something waits to be sent.
    pub(crate) fn has_mail_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// A row of its board, in use or not. Everything in it is the client's word.
    pub(crate) fn row(&self, index: u32) -> Option<&Row> {
        self.board.as_ref()?.board.row(index)
    }

    /// Copies of the rows in use, but for those that the client's children held and were killed with. Everything in them is the
    /// client's word.
    pub(crate) fn rows(&self) -> Vec<(u32, RowView)> {
        let Some(board) = &self.board else {
            return Vec::new();
        };
        let mut rows = board.rows();
        let own = self.pid.cast_unsigned();
        let is_known = |row: &RowView| {
            let mut places = row.processes.iter();
            places.any(|place| holders::number(*place) == Some(own))
        };
        let speaks_our_numbers = rows.iter().any(|(_, row)| !is_known(row))
            && self
                .process
                .as_ref()
                .is_some_and(Process::shares_pid_namespace);
        if speaks_our_numbers {
            let mut looks = LOOKS_MAX;
            rows.retain(|(_, row)| {
                if is_known(row) || looks == 0 {
                    return true;
                }
                looks -= 1;
                !row.is_left(proof::exists)
            });
        }
        rows
    }
}

impl ClientBoard {
    /// Looks only where the memory has pages: to look elsewhere would allocate them.
    fn rows(&self) -> Vec<(u32, RowView)> {
        let mut rows = Vec::new();
        let mut at = HEADER_BYTES as i64;
        while let Ok(data) = lseek(self.fd.as_ref(), at, Whence::SeekData) {
            let Ok(hole) = lseek(self.fd.as_ref(), data, Whence::SeekHole) else {
                break;
            };
            for index in first_row_from(data)..first_row_from(hole) {
                let Some(row) = self.board.row(index) else {
                    break;
                };
                // The state is near the row's start, so it is in this page whether or not the rest of the row is.
                if row.identity.state.load(Ordering::Relaxed) != state::FREE {
                    rows.push((index, row.view()));
                }
            }
            at = hole;
        }
        rows
    }
}

/// The first row that begins at or after this offset of a board.
fn first_row_from(offset: i64) -> u32 {
    let offset = usize::try_from(offset)
        .unwrap_or(0)
        .saturating_sub(HEADER_BYTES);
    u32::try_from(offset.div_ceil(size_of::<Row>())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
