//! A participant of a channel that speaks the protocol by hand.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use millrace_shm::link::Link;
use millrace_shm::pool::Pool;
use millrace_wire::{
    CHANNEL_ABI, ChannelName, Holds, LinkEnd, Linked, MAX_BYTES, Open, Opened, Ready, Refusal,
    Role, ToAgent, ToClient, VERSION_MAX, VERSION_MIN,
};
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, MsgFlags, SockaddrStorage, recv, sendmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeVal;

use crate::client::{self, Running};

pub(super) const POOL_BYTES: u64 = 65_536;

pub(super) fn open(name: &str, role: Role) -> Open {
    Open {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        abi: CHANNEL_ABI,
        role,
        overwrites: false,
        pool: None,
        id: 0,
        pool_bytes: if role.sends() { POOL_BYTES } else { 0 },
        slots: 16,
        peers: 0,
        name: ChannelName::new(name).unwrap(),
        group: None,
    }
}

/// One that was let in.
pub(super) struct Participant {
    pub(super) socket: OwnedFd,
    pub(super) open: Open,
    pub(super) opened: Opened,
    pub(super) pool: Option<OwnedFd>,
}

/// A link as one end gets it.
pub(super) struct Joined {
    pub(super) news: Linked,
    pub(super) link: OwnedFd,
    pub(super) socket: OwnedFd,
    pub(super) peer_pool: Option<OwnedFd>,
    pub(super) own_pool: Option<OwnedFd>,
}

pub(super) fn say_with(socket: &OwnedFd, message: ToAgent, fds: &[&OwnedFd]) -> nix::Result<()> {
    let mut buffer = [0; MAX_BYTES];
    let length = message.encode(VERSION_MAX, &mut buffer);
    let list: Vec<_> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&list)];
    let control = if fds.is_empty() { &[] } else { &control[..] };
    let parts = [IoSlice::new(&buffer[..length])];
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<SockaddrStorage>(socket.as_raw_fd(), &parts, control, flags, None).map(drop)
}

/// How the agent finds a descriptor of ours.
pub(super) fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// Asks to take part; returns the answer.
pub(super) fn ask(agent: &Running, open: Open) -> Result<Participant, Refusal> {
    let socket = agent.connect();
    client::say(&socket, ToAgent::Open(open));
    match client::hear_all(&socket) {
        Some((ToClient::Opened(opened), mut fds)) => {
            assert_ne!(opened.id, 0);
            assert_eq!(opened.pool_bytes, open.pool_bytes);
            let expected = usize::from(open.role.sends() && open.pool.is_none());
            assert_eq!(fds.len(), expected);
            Ok(Participant {
                socket,
                open,
                opened,
                pool: fds.pop(),
            })
        }
        Some((ToClient::Refused(refused), fds)) => {
            assert!(fds.is_empty());
            assert!(client::hear(&socket).is_none(), "the agent hangs up");
            Err(refused.reason)
        }
        other => panic!("{other:?}"),
    }
}

/// Takes part, and has its pool sealed.
pub(super) fn come(agent: &Running, name: &str, role: Role) -> Participant {
    let participant = ask(agent, open(name, role)).unwrap();
    if role.sends() {
        participant.say(ToAgent::Ready(Ready { link: 0 }));
    }
    participant
}

impl Participant {
    pub(super) fn say(&self, message: ToAgent) {
        client::say(&self.socket, message);
    }

    pub(super) fn holds(&self, peer: u64) {
        self.say(ToAgent::Holds(Holds { peer }));
    }

    pub(super) fn ready(&self, link: u64) {
        self.say(ToAgent::Ready(Ready { link }));
    }

    pub(super) fn joined(&self) -> Joined {
        let (message, fds) = client::hear_all(&self.socket).expect("the agent hung up");
        let ToClient::Linked(news) = message else {
            panic!("{message:?}");
        };
        assert_eq!(fds.len(), news.descriptors());
        let mut fds = fds.into_iter();
        let joined = Joined {
            link: fds.next().unwrap(),
            socket: fds.next().unwrap(),
            peer_pool: (news.peer_pool_bytes != 0).then(|| fds.next().unwrap()),
            own_pool: (news.own_pool_bytes != 0).then(|| fds.next().unwrap()),
            news,
        };
        assert_eq!(news.two_way, self.open.role.is_two_way());
        assert_eq!(news.end == LinkEnd::Publishes, self.open.role.sends());
        assert_eq!(news.peer_pid, std::process::id());
        joined
    }

    /// Nothing has come, and nothing comes that the agent has had reason to send: it answers in order, and has answered others since.
    pub(super) fn has_nothing(&self, agent: &Running) -> bool {
        agent.wait_for(|_| true);
        recv(
            self.socket.as_raw_fd(),
            &mut [0; 1],
            MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK,
        ) == Err(Errno::EAGAIN)
    }

    pub(super) fn is_dropped(&self) -> bool {
        setsockopt(&self.socket, sockopt::ReceiveTimeout, &TimeVal::new(5, 0)).unwrap();
        client::hear_all(&self.socket).is_none()
    }

    pub(super) fn map_pool(&self) -> Pool {
        Pool::attach(self.pool.as_ref().unwrap().as_fd(), self.open.pool_bytes).unwrap()
    }
}

impl Joined {
    pub(super) fn map(&self) -> Link {
        let directions = if self.news.two_way { 2 } else { 1 };
        Link::attach(self.link.as_fd(), self.news.slots, directions).unwrap()
    }

    /// The other end has gone.
    pub(super) fn is_over(&self) -> bool {
        recv(self.socket.as_raw_fd(), &mut [0; 1], MsgFlags::MSG_DONTWAIT) == Ok(0)
    }
}
