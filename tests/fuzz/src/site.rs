//! An agent in little, in a thread of this process: it takes in whoever opens a channel. Links are made and handed out by who calls.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use millrace_channel::{Channel, Publisher, Subscriber};
use millrace_shm::{Mapping, link, pool, spin};
use millrace_wire::{
    LinkEnd, Linked, MAX_BYTES, Opened, ToAgent, ToClient, VERSION_MAX, VERSION_MIN,
};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen,
    sendmsg, socket, socketpair,
};

use crate::sys;

/// The size of all pools.
pub(crate) const POOL_BYTES: usize = 65_536;

/// Where participants connect.
pub(crate) struct Site {
    path: PathBuf,
    next_id: Arc<AtomicU64>,
    opened: Mutex<Receiver<Participant>>,
}

/// One that takes part, as the agent has it.
pub(crate) struct Participant {
    pub(crate) id: u64,
    socket: OwnedFd,
    /// Of one that publishes.
    pool: Option<OwnedFd>,
}

/// A link that nobody has got yet.
pub(crate) struct Fresh {
    memory: OwnedFd,
    pub(crate) slots: u32,
    /// Of the one that publishes, and of the one that subscribes.
    pub(crate) bells: [OwnedFd; 2],
}

/// The site, whose participants have numbers from 1 on again.
pub(crate) fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    let site = SITE.get_or_init(|| {
        // What comes, comes from this thread.
        spin::set_budget_us(0);
        let directory = std::env::temp_dir().join(format!("millrace-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("site.sock");
        let kind = SockType::SeqPacket;
        let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None);
        let listener = listener.expect("a socket");
        let address = UnixAddr::new(&path).expect("a short path");
        bind(listener.as_raw_fd(), &address).expect("an address");
        listen(&listener, Backlog::MAXCONN).expect("a listener");
        let next_id = Arc::new(AtomicU64::new(1));
        let (news, opened) = channel();
        let ids = Arc::clone(&next_id);
        std::thread::spawn(move || while news.send(take_in(&listener, &ids)).is_ok() {});
        let opened = Mutex::new(opened);
        Site {
            path,
            next_id,
            opened,
        }
    });
    site.next_id.store(1, Relaxed);
    site
}

/// Waits for somebody, and says that it takes part.
fn take_in(listener: &OwnedFd, ids: &AtomicU64) -> Participant {
    let socket = sys::accept(listener).expect("a connection");
    let mut buffer = [0; MAX_BYTES];
    let bytes = loop {
        match nix::sys::socket::recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            received => break received.expect("a message"),
        }
    };
    let message = ToAgent::parse(&buffer[..bytes]);
    let Ok(ToAgent::Open(open)) = message else {
        panic!("{message:?}");
    };
    let pool =
        (open.pool_bytes != 0).then(|| pool::create(open.pool_bytes).expect("memory for a pool").0);
    let id = ids.fetch_add(1, Relaxed);
    let opened = Opened {
        version: VERSION_MAX,
        id,
        pool_bytes: open.pool_bytes,
        huge: false,
    };
    let participant = Participant { id, socket, pool };
    let descriptors: Vec<i32> = participant.pool.iter().map(AsRawFd::as_raw_fd).collect();
    participant.say(&ToClient::Opened(opened), &descriptors);
    participant
}

impl Site {
    /// One that takes part by the library, and what the agent has of it.
    fn open<T>(
        &self,
        open: impl FnOnce() -> Result<T, millrace_channel::Error>,
    ) -> (T, Participant) {
        let opened = open().expect("the agent takes everybody in");
        let news = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        (opened, news.recv().expect("an agent"))
    }

    pub(crate) fn publisher(&self, channel: Channel) -> (Publisher, Participant) {
        let channel = channel.agent(&self.path).pool_bytes(POOL_BYTES as u64);
        let opened = self.open(|| channel.publisher());
        pool::seal(opened.1.pool()).expect("the publisher has mapped it");
        opened
    }

    pub(crate) fn subscriber(&self) -> (Subscriber, Participant) {
        let channel = Channel::new("news").agent(&self.path);
        self.open(|| channel.subscriber())
    }

    /// An id of one that does not use the library.
    pub(crate) fn stranger(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }
}

impl Participant {
    /// The pool of one that publishes.
    pub(crate) fn pool(&self) -> BorrowedFd<'_> {
        self.pool.as_ref().expect("a publisher").as_fd()
    }

    fn say(&self, message: &ToClient, descriptors: &[i32]) {
        let mut buffer = [0; MAX_BYTES];
        let bytes = message.encode(VERSION_MIN, &mut buffer);
        let parts = [std::io::IoSlice::new(&buffer[..bytes])];
        let beside = [ControlMessage::ScmRights(descriptors)];
        let beside = if descriptors.is_empty() {
            &[][..]
        } else {
            &beside[..]
        };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &parts, beside, flags, None)
            .expect("it reads its news");
    }

    /// Takes what it says, so that it can go on to say something.
    pub(crate) fn hear_out(&self) {
        let mut buffer = [0; MAX_BYTES];
        while sys::receive(&self.socket, &mut buffer) > 0 {}
    }
}

impl Fresh {
    pub(crate) fn new(slots: u32) -> Fresh {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let bells = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        Fresh {
            memory: link::create(slots, 1).expect("memory for a link"),
            slots,
            bells: bells.expect("a pair of sockets").into(),
        }
    }

    /// The link as an end has it that does as it should.
    pub(crate) fn attach(&self) -> Arc<link::Link> {
        let attached = link::Link::attach(self.memory.as_fd(), self.slots, 1);
        Arc::new(attached.expect("a link"))
    }

    /// All of its memory.
    pub(crate) fn map(&self) -> Mapping {
        let bytes = link::link_bytes(self.slots, 1);
        Mapping::new(self.memory.as_fd(), bytes).expect("a mapping")
    }

    fn linked(&self, peer: u64, end: LinkEnd, overwrites: bool) -> Linked {
        Linked {
            link: 1,
            peer,
            slots: self.slots,
            overwrites,
            two_way: false,
            end,
            group: 0,
            peer_pool_bytes: 0,
            own_pool_bytes: 0,
            peer_pid: 0,
        }
    }

    /// The one that publishes gets its end. The other is `peer`, of this group.
    pub(crate) fn give_publisher(&self, publisher: &Participant, peer: u64, group: u64) {
        let linked = Linked {
            group,
            ..self.linked(peer, LinkEnd::Publishes, false)
        };
        let descriptors = [self.memory.as_raw_fd(), self.bells[0].as_raw_fd()];
        publisher.say(&ToClient::Linked(linked), &descriptors);
    }

    /// The one that subscribes gets its end. The other is `peer`, with this pool.
    pub(crate) fn give_subscriber(
        &self,
        subscriber: &Participant,
        peer: u64,
        pool: &impl AsRawFd,
        overwrites: bool,
    ) {
        let linked = Linked {
            peer_pool_bytes: POOL_BYTES as u64,
            ..self.linked(peer, LinkEnd::Subscribes, overwrites)
        };
        let [memory, bell] = [self.memory.as_raw_fd(), self.bells[1].as_raw_fd()];
        subscriber.say(&ToClient::Linked(linked), &[memory, bell, pool.as_raw_fd()]);
    }
}
