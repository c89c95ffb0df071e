//! What is said with the agent.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millrace_wire::{Holds, Left, MAX_BYTES, Open, Opened, Ready, ToAgent, ToClient, VERSION_MIN};

use crate::sys::WithheldFd;
use crate::{Error, sys};

/// The agent's answer is waited for so long.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// An agent that has gone is looked for again after this time, and after twice as long each time, up to the other.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// The same of one that did not want us.
const REFUSED_MIN: Duration = Duration::from_secs(1);
const REFUSED_MAX: Duration = Duration::from_secs(60);

/// The agent that is there, by its place; or the last place, which is the user's own, and why none is.
fn connect_to_first(sockets: Vec<PathBuf>) -> (PathBuf, io::Result<WithheldFd>) {
    let mut last = (
        PathBuf::new(),
        Err(io::Error::from(io::ErrorKind::NotFound)),
    );
    for path in sockets {
        let connected = sys::connect_to_agent(&path);
        let is_there = connected.is_ok();
        last = (path, connected);
        if is_there {
            break;
        }
    }
    last
}

/// A message of the agent, with what came with it.
pub(crate) type Incoming = (ToClient, Vec<WithheldFd>);

/// The connection to the agent, while there is one.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    /// Above the pool, and so closed before it: whoever cannot find that can tell that we are gone.
    socket: Option<WithheldFd>,
    /// What was said first, and will be said again to the next agent.
    open: Open,
    /// The own pool, which the next agent has to be given.
    pool: Option<WithheldFd>,
    version: u16,
    /// What the socket has had no room for yet.
    unsaid: VecDeque<ToAgent>,
    retry_at: Instant,
    last_pause: Duration,
}

impl Control {
    /// Says what we are to the first agent that is there, and waits for the answer.
    pub(crate) fn open(sockets: Vec<PathBuf>, open: Open) -> Result<(Control, Opened), Error> {
        let (path, connected) = connect_to_first(sockets);
        let mut control = Control {
            path,
            socket: None,
            open,
            pool: None,
            version: VERSION_MIN,
            unsaid: VecDeque::new(),
            retry_at: Instant::now(),
            last_pause: Duration::ZERO,
        };
        let introduced = connected.and_then(|socket| control.introduce(socket, &[]));
        introduced.map_err(|error| Error::NoAgent(control.path.clone(), error))?;
        let socket = control.socket.as_ref().ok_or(Error::Unsupported)?;
        if !sys::wait_readable(socket, ANSWER_WAIT) {
            let error = io::Error::from(io::ErrorKind::TimedOut);
            return Err(Error::NoAgent(control.path, error));
        }
        let (opened, mut descriptors) = match control.receive() {
            Ok(Some((ToClient::Opened(opened), descriptors))) => (opened, descriptors),
            Ok(Some((ToClient::Refused(refused), _))) => {
                return Err(Error::Refused(refused.reason));
            }
            // One that does not know the message closes the connection.
            _ => return Err(Error::Unsupported),
        };
        control.note_opened(&opened);
        control.pool = descriptors.pop();
        Ok((control, opened))
    }

    /// Says, over a fresh connection, what we are and with whom we have links.
    fn introduce(&mut self, socket: WithheldFd, peers: &[u64]) -> io::Result<()> {
        self.open.peers = u32::try_from(peers.len()).unwrap_or(u32::MAX);
        self.open.pool = self
            .pool
            .as_ref()
            .map(|pool| pool.as_raw_fd().cast_unsigned());
        let mut buffer = [0; MAX_BYTES];
        let bytes = ToAgent::Open(self.open).encode(VERSION_MIN, &mut buffer);
        sys::send_message(&socket, &buffer[..bytes])?;
        self.socket = Some(socket);
        // Which one the agent speaks, it says in its answer.
        self.version = VERSION_MIN;
        let held = peers
            .iter()
            .map(|peer| ToAgent::Holds(Holds { peer: *peer }));
        self.unsaid = held.collect();
        self.say_rest();
        Ok(())
    }

    /// The agent has taken us in.
    pub(crate) fn note_opened(&mut self, opened: &Opened) {
        self.version = opened.version;
        self.open.id = opened.id;
        self.last_pause = Duration::ZERO;
    }

    /// What to watch, while there is a connection.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|fd| fd.as_fd())
    }

    /// The own pool.
    pub(crate) fn pool(&self) -> Option<BorrowedFd<'_>> {
        self.pool.as_ref().map(|fd| fd.as_fd())
    }

    /// The agent's number for us.
    pub(crate) fn id(&self) -> u64 {
        self.open.id
    }

    /// That a pool is mapped, and can be sealed: the own one, or that for the replies over a link.
    pub(crate) fn say_ready(&mut self, link: u64) {
        self.say(ToAgent::Ready(Ready { link }));
    }

    /// That a link is over for us.
    pub(crate) fn say_left(&mut self, peer: u64) {
        self.say(ToAgent::Left(Left { peer }));
    }

    fn say(&mut self, message: ToAgent) {
        if self.socket.is_some() {
            self.unsaid.push_back(message);
            self.say_rest();
        }
    }

    /// Says as much of what is to be said as the socket has room for.
    pub(crate) fn say_rest(&mut self) {
        let mut buffer = [0; MAX_BYTES];
        while let (Some(socket), Some(message)) = (&self.socket, self.unsaid.front()) {
            let bytes = message.encode(self.version, &mut buffer);
            let sent = sys::send_message(socket, &buffer[..bytes]);
            if sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                break;
            }
            // An agent that has gone is noticed by the end of its socket.
            self.unsaid.pop_front();
        }
    }

    /// Whether something is to be said when the socket has room.
    pub(crate) fn has_unsaid(&self) -> bool {
        !self.unsaid.is_empty()
    }

    /// The next message, if there is one now.
    ///
    /// # Errors
    /// The agent is gone, or says what this library does not know.
    pub(crate) fn receive(&self) -> io::Result<Option<Incoming>> {
        let Some(socket) = &self.socket else {
            return Ok(None);
        };
        let mut buffer = [0; MAX_BYTES];
        let Some((bytes, descriptors)) = sys::receive_message(socket, &mut buffer)? else {
            return Ok(None);
        };
        let message = ToClient::parse(&buffer[..bytes]);
        let message = message.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Some((message, descriptors)))
    }

    /// The agent does not want us. Another one may, or this one, one day.
    pub(crate) fn note_refused(&mut self) {
        self.look_again_after((self.last_pause * 2).clamp(REFUSED_MIN, REFUSED_MAX));
    }

    /// The agent has gone.
    pub(crate) fn note_gone(&mut self) {
        self.look_again_after((self.last_pause * 2).clamp(RETRY_MIN, RETRY_MAX));
    }

    fn look_again_after(&mut self, pause: Duration) {
        self.socket = None;
        self.unsaid.clear();
        self.retry_at = Instant::now() + pause;
        self.last_pause = pause;
    }

    /// How long until the agent is looked for again; `None`: it is there.
    pub(crate) fn retry_in(&self, now: Instant) -> Option<Duration> {
        let is_missing = self.socket.is_none();
        is_missing.then(|| self.retry_at.saturating_duration_since(now))
    }

    /// Looks for the agent again, when it is time. True: there is a new connection.
    pub(crate) fn retry(&mut self, peers: impl FnOnce() -> Vec<u64>) -> bool {
        if self.retry_in(Instant::now()) != Some(Duration::ZERO) {
            return false;
        }
        if let Some(pool) = &self.pool {
            // An agent that died at a bad moment has not done it, and the next one takes no other. Where it has, this fails.
            let _ = millrace_shm::pool::seal(pool.as_fd());
        }
        let again =
            sys::connect_to_agent(&self.path).and_then(|socket| self.introduce(socket, &peers()));
        if again.is_err() {
            self.note_gone();
        }
        again.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use millrace_shm::withheld::Withheld;
    use millrace_wire::{CHANNEL_ABI, ChannelName, Role, VERSION_MAX};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn who_has_more_links_than_a_socket_holds_messages_names_them_all() {
        let open = Open {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            abi: CHANNEL_ABI,
            role: Role::Publisher,
            overwrites: false,
            pool: None,
            id: 7,
            pool_bytes: 1 << 21,
            slots: 2,
            peers: 0,
            name: ChannelName::new("many").unwrap(),
            group: None,
        };
        let mut control = Control {
            path: PathBuf::new(),
            socket: None,
            open,
            pool: None,
            version: VERSION_MIN,
            unsaid: VecDeque::new(),
            retry_at: Instant::now(),
            last_pause: Duration::ZERO,
        };
        let (own, agent) = pair();
        let peers: Vec<u64> = (1..=2000).collect();
        control.introduce(Withheld::new(own), &peers).unwrap();
        control.say_left(1);
        assert!(control.has_unsaid(), "no socket holds so many");
        let (mut heard, mut buffer) = (Vec::new(), [0; MAX_BYTES]);
        while let Some((bytes, _)) = sys::receive_message(&agent, &mut buffer).unwrap() {
            heard.push(ToAgent::parse(&buffer[..bytes]).unwrap());
            control.say_rest();
        }
        let held = peers
            .iter()
            .map(|peer| ToAgent::Holds(Holds { peer: *peer }));
        assert_eq!(heard.len(), 2002);
        assert!(heard[1..=2000].iter().eq(&held.collect::<Vec<_>>()));
        assert_eq!(heard[2001], ToAgent::Left(Left { peer: 1 }));
    }
}
