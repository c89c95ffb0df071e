//! What every participant has: the agent's socket, links with others, and a way to wait for either.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_shm::link::{Link, PublishEnd, SubscribeEnd};
use millrace_shm::pool::{Pool, PoolView};
use millrace_shm::spin::{self, Spinner};
use millrace_wire::{
    CHANNEL_ABI, ChannelName, LinkEnd, Linked, Open, Role, ToClient, VERSION_MAX, VERSION_MIN,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::control::{Control, Incoming};
use crate::inbox::{Inbox, Source, Taken};
use crate::outbox::{Outbox, OutboxOptions, Peer};
use crate::places::agent_sockets;
use crate::routes::PeerIndex;
use crate::sys::{self, ForkGuard, WithheldFd};
use crate::{Channel, Error, WhenFull};

mod alarm;
mod backlog;
mod leaving;
mod wait;

use alarm::Alarm;

/// The kernel is asked for news, by a participant that never waits, not more often than this.
const LOOK_NS: u64 = 1_000_000;
/// The group of all servers.
const SERVERS: u64 = 1;
/// The agent's token in the epoll set; links have their place's number.
const CONTROL: u64 = u64::MAX;
/// That of the bell that a participant rings itself.
const OWN: u64 = u64::MAX - 1;
/// That of the alarm.
const RETRY: u64 = u64::MAX - 2;
/// So many are taken at a time.
const NEWS_MAX: usize = 32;

/// A link with another participant.
#[derive(Debug)]
struct Held {
    peer: u64,
    /// How many came before it.
    order: u64,
    bell: Arc<WithheldFd>,
    /// Among those that messages go to.
    out: Option<PeerIndex>,
    /// Among those that messages come from.
    source: Option<usize>,
    /// A server's: where the replies go.
    replies: Option<Outbox>,
    /// Requests that get no reply, while there is no room to say so.
    owed: VecDeque<Taken>,
    /// The other gets no more from here, and has not gone yet.
    is_parted: bool,
}

/// One participant.
#[derive(Debug)]
pub(crate) struct Endpoint {
    role: Role,
    control: Control,
    epoll: Arc<Epoll>,
    guard: ForkGuard,
    /// Rung where there is something already when somebody begins to wait himself.
    own_bell: EventFd,
    /// Goes off when something is to be done again, for somebody who waits himself.
    alarm: Alarm,
    links: Vec<Option<Held>>,
    /// Links so far.
    links_ever: u64,
    /// Of a publisher or client.
    pub(crate) outbox: Option<Outbox>,
    pub(crate) inbox: Inbox,
    options: OutboxOptions,
    pub(crate) timeout: Option<Duration>,
    /// Those with whom no link could be made here, and when they are asked for another.
    unlinked: Vec<u64>,
    ask_at: Option<Instant>,
    spinner: Spinner,
    /// When the kernel was asked for news last, of [`spin::clock`].
    looked_at: u64,
    /// Something has rung, and has not been looked at: a message that came with it was more urgent.
    is_behind: bool,
    /// Somebody waits on the epoll set himself: whoever finds nothing says that it sleeps.
    is_watched: bool,
    /// The user was told that there is no room, and has heard nothing since: if he waits himself, he is woken when there is some.
    is_refused: bool,
}

impl Endpoint {
    pub(crate) fn open(
        channel: &Channel,
        role: Role,
        name: ChannelName,
        group: Option<ChannelName>,
    ) -> Result<Endpoint, Error> {
        let kernel = |what| move |error: io::Error| Error::Kernel(what, error);
        let guard = ForkGuard::new().map_err(kernel("a page that children do not inherit"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| Error::Kernel("an epoll set", errno.into()))?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, OWN);
        let own_bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .and_then(|bell| epoll.add(&bell, event).map(|()| bell))
            .map_err(|errno| Error::Kernel("an eventfd", errno.into()))?;
        let open = Open {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            abi: CHANNEL_ABI,
            role,
            overwrites: channel.when_full == WhenFull::DropOldest,
            pool: None,
            id: 0,
            pool_bytes: if role.sends() { channel.pool_bytes } else { 0 },
            slots: channel.slots,
            peers: 0,
            name,
            group,
        };
        let named = channel.agent.clone().map(|socket| vec![socket]);
        let sockets = named.unwrap_or_else(agent_sockets);
        let (mut control, opened) = Control::open(sockets, open)?;
        let options = OutboxOptions::of(channel, role == Role::Client);
        let outbox = match control.pool() {
            Some(fd) => {
                let pool = Pool::attach(fd, opened.pool_bytes).map_err(kernel("to map a pool"))?;
                control.say_ready(0);
                Some(Outbox::new(pool, options))
            }
            None if role.sends() => return Err(Error::Unsupported),
            None => None,
        };
        let mut endpoint = Endpoint {
            role,
            control,
            epoll: Arc::new(epoll),
            guard,
            own_bell,
            alarm: Alarm::default(),
            links: Vec::new(),
            links_ever: 0,
            outbox,
            inbox: Inbox::default(),
            options,
            timeout: channel.timeout,
            unlinked: Vec::new(),
            ask_at: None,
            spinner: Spinner::new(),
            looked_at: 0,
            is_behind: false,
            is_watched: false,
            is_refused: false,
        };
        endpoint
            .watch_control()
            .map_err(kernel("to watch the agent"))?;
        Ok(endpoint)
    }

    fn watch_control(&mut self) -> io::Result<()> {
        if let Some(socket) = self.control.socket() {
            self.epoll
                .add(socket, EpollEvent::new(EpollFlags::EPOLLIN, CONTROL))?;
        }
        Ok(())
    }

    /// Says what the agent's socket had no room for, and watches for more room while that is needed.
    fn say_rest(&mut self) {
        let was_full = self.control.has_unsaid();
        self.control.say_rest();
        if let Some(socket) = self.control.socket()
            && (was_full || self.control.has_unsaid())
        {
            let room = EpollFlags::EPOLLOUT;
            let events = if self.control.has_unsaid() {
                room
            } else {
                EpollFlags::empty()
            };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | events, CONTROL);
            let _ = self.epoll.modify(socket, &mut event);
        }
    }

    /// Before its end: a child of a bare `clone` may have the socket, too, and the set would go on to tell of it.
    fn unwatch_control(&self) {
        if let Some(socket) = self.control.socket() {
            let _ = self.epoll.delete(socket);
        }
    }

    /// The agent's number for this participant.
    pub(crate) fn id(&self) -> u64 {
        self.control.id()
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.guard.is_own() {
            Ok(())
        } else {
            Err(Error::Forked)
        }
    }

    /// Looks for news, if that has not been done just now. True: it has.
    #[inline]
    pub(crate) fn look(&mut self) -> bool {
        let now = spin::clock();
        let is_due = now.wrapping_sub(self.looked_at) > spin::cycles(LOOK_NS);
        if is_due {
            self.look_again();
        }
        is_due
    }

    /// Takes what news there is, between other things.
    pub(crate) fn look_again(&mut self) {
        self.look_now(Some(Duration::ZERO));
        self.rearm();
    }

    /// Waits for news so long (`None`: for ever), and takes it. In a child there are none: the set is its parent's, too.
    pub(crate) fn look_now(&mut self, timeout: Option<Duration>) {
        if self.check().is_err() {
            return;
        }
        let mut news = [EpollEvent::empty(); NEWS_MAX];
        let count = self.await_news(&mut news, timeout);
        self.take_news(&news[..count]);
    }

    /// Waits for news; returns how many there are. What is not taken comes again.
    fn await_news(&self, news: &mut [EpollEvent], timeout: Option<Duration>) -> usize {
        // A signal: whoever waits looks again.
        let count = self.epoll.wait(news, wait::epoll_timeout(timeout));
        count.unwrap_or(0)
    }

    fn take_news(&mut self, news: &[EpollEvent]) {
        self.looked_at = spin::clock();
        self.is_behind = false;
        for event in news {
            match event.data() {
                CONTROL => self.handle_control(),
                OWN => {
                    let _ = self.own_bell.read();
                }
                RETRY => self.alarm.quiet(),
                index => self.handle_bell(index as usize),
            }
        }
        let has_heard = news.iter().any(|event| event.data() < RETRY);
        if has_heard && self.is_watched && std::mem::take(&mut self.is_refused) {
            self.ring_own();
        }
        self.handle_liars();
        self.report_over();
        let links = &self.links;
        let peers = || links.iter().flatten().map(|held| held.peer).collect();
        if self.control.retry(peers) {
            let _ = self.watch_control();
        }
        self.ask_again();
        self.say_rest();
        self.work_off();
    }

    fn handle_control(&mut self) {
        loop {
            match self.control.receive() {
                Ok(Some(incoming)) => self.handle_message(incoming),
                Ok(None) => return,
                Err(_) => {
                    self.unwatch_control();
                    // The next one makes all links that are not there.
                    self.unlinked.clear();
                    return self.control.note_gone();
                }
            }
        }
    }

    fn handle_message(&mut self, (message, descriptors): Incoming) {
        match message {
            ToClient::Linked(linked) => self.handle_linked(&linked, descriptors),
            ToClient::Opened(opened) => {
                self.control.note_opened(&opened);
                if self.role.sends() {
                    self.control.say_ready(0);
                }
            }
            ToClient::Refused(_) | ToClient::Unsupported(_) => {
                self.unwatch_control();
                self.control.note_refused();
            }
            _ => {}
        }
    }

    fn handle_linked(&mut self, linked: &Linked, descriptors: Vec<WithheldFd>) {
        // Where there is no memory or descriptor for a link, its peer sees that it is over.
        if self.link_up(linked, descriptors).is_err() {
            self.note_unlinked(linked.peer);
        }
    }

    fn link_up(&mut self, linked: &Linked, descriptors: Vec<WithheldFd>) -> io::Result<()> {
        let incomplete = || io::Error::from(io::ErrorKind::InvalidData);
        let mut descriptors = descriptors.into_iter();
        let memory = descriptors.next().ok_or_else(incomplete)?;
        let bell = Arc::new(descriptors.next().ok_or_else(incomplete)?);
        let directions = if linked.two_way { 2 } else { 1 };
        let link = Arc::new(Link::attach(memory.as_fd(), linked.slots, directions)?);
        let publishes = linked.end == LinkEnd::Publishes;
        let mut held = Held {
            peer: linked.peer,
            order: self.links_ever,
            bell,
            out: None,
            source: None,
            replies: None,
            owed: VecDeque::new(),
            is_parted: false,
        };
        let bell = Arc::clone(&held.bell);
        let peer = |group, direction| {
            let end = PublishEnd::new(Arc::clone(&link), direction);
            Peer::new(linked.peer, group, end, Arc::clone(&bell))
        };
        // First what can fail: a link that is half there would not be seen to end.
        let mut mapped = |bytes: u64| {
            let fd = (bytes != 0).then(|| descriptors.next().ok_or_else(incomplete));
            fd.transpose()
        };
        let (theirs, own) = (
            mapped(linked.peer_pool_bytes)?,
            mapped(linked.own_pool_bytes)?,
        );
        let view = theirs.map(|fd| PoolView::attach(fd.as_fd(), linked.peer_pool_bytes));
        let own = own.map(|fd| Pool::attach(fd.as_fd(), linked.own_pool_bytes));
        let (view, own) = (view.transpose()?, own.transpose()?);
        if let Some(view) = view {
            let end = SubscribeEnd::new(
                Arc::clone(&link),
                u32::from(publishes),
                linked.overwrites && !publishes,
            );
            let bell = Arc::clone(&held.bell);
            let has_all = self.role == Role::Subscriber && linked.group == 0;
            let source = Source::new(linked.peer, end, view, bell, has_all);
            held.source = Some(self.inbox.add(source));
        }
        if let Some(pool) = own {
            let mut replies = Outbox::new(pool, self.options.of_replies());
            replies.add(peer(0, 1));
            held.replies = Some(replies);
            self.control.say_ready(linked.link);
        }
        if publishes && let Some(outbox) = &mut self.outbox {
            // A request goes to one server, in whatever groups they are.
            let is_client = self.role == Role::Client;
            let group = if is_client { SERVERS } else { linked.group };
            held.out = Some(outbox.add(peer(group, 0)));
        }
        self.hold(held)
    }

    fn hold(&mut self, held: Held) -> io::Result<()> {
        let free = self.links.iter().position(Option::is_none);
        let index = free.unwrap_or(self.links.len());
        let peer = held.peer;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, index as u64);
        let watched = self.epoll.add(held.bell.as_fd(), event);
        if free.is_none() {
            self.links.push(None);
        }
        self.links[index] = Some(held);
        self.links_ever += 1;
        if watched.is_err() {
            // A link whose end would not be seen is none.
            let _ = self.let_go(index);
            self.inbox.over.retain(|over| *over != peer);
        }
        Ok(watched?)
    }

    /// The other end has rung, or has gone.
    fn handle_bell(&mut self, index: usize) {
        let bell = self.links.get(index).and_then(Option::as_ref);
        if bell.is_some_and(|held| !sys::hear(&held.bell)) {
            self.leave(index);
        }
    }

    /// Where the replies to a client go, that the source of this place and name is.
    pub(crate) fn replies_to(&mut self, source: usize, publisher: u64) -> Option<&mut Outbox> {
        let mut links = self.links.iter_mut().flatten();
        let found = links.find(|held| held.source == Some(source) && held.peer == publisher);
        found?.replies.as_mut()
    }

    /// What is readable when there is news.
    pub(crate) fn epoll(&self) -> Arc<Epoll> {
        Arc::clone(&self.epoll)
    }

    /// Somebody waits on [`Endpoint::epoll`] himself: it is readable when there is something, from now on.
    pub(crate) fn note_watched(&mut self) {
        if self.check().is_ok() && !std::mem::replace(&mut self.is_watched, true) {
            self.look_again();
        }
    }

    /// Has somebody who waits on [`Endpoint::epoll`] himself look again.
    pub(crate) fn ring_own(&self) {
        let _ = self.own_bell.write(1);
    }

    pub(crate) fn when_full(&self) -> WhenFull {
        self.options.when_full
    }

    /// Participants that are linked with this one.
    pub(crate) fn count_peers(&mut self) -> usize {
        self.look();
        self.peers().count()
    }

    /// The one that came first; the agent's numbers are in no order.
    pub(crate) fn first_peer(&self) -> Option<u64> {
        let first = self.peers().min_by_key(|held| held.order);
        first.map(|held| held.peer)
    }

    fn peers(&self) -> impl Iterator<Item = &Held> {
        self.links.iter().flatten().filter(|held| !held.is_parted)
    }

    /// Found nothing: takes what news there is, and where somebody waits on [`Endpoint::epoll`] himself, says that we sleep. True: there
    /// may be something after all.
    #[inline]
    pub(crate) fn is_mistaken(&mut self) -> bool {
        if !self.is_watched {
            return self.look() && self.inbox.has_some();
        }
        self.look_now(Some(Duration::ZERO));
        self.rearm_backlog();
        !self.inbox.sleep()
    }

    /// When a wait that begins now is over, as the options say.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timeout.and_then(deadline_after)
    }
}

/// When a wait of this length that begins now is over. None: in no time that a clock shows.
pub(crate) fn deadline_after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// What a participant's user has: one thread at a time.
pub(crate) type Shared = RefCell<Endpoint>;
