//! The event loop: one thread, one epoll set. It sleeps until something happens, or until the next deadline.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;
use tracing::{debug, info, warn};

use crate::addresses::Addresses;
use crate::awaited::Awaited;
use crate::channels::Channels;
use crate::clients::Client;
use crate::config::Config;
use crate::distant::Distant;
use crate::http::Endpoint;
use crate::introductions::Introduced;
use crate::metrics::Metrics;
use crate::offers::{ClientId, Offers};
use crate::packet_rules::PacketRules;
use crate::pairings::Pairings;
use crate::place::{PlaceError, Places};
use crate::pods::PodNames;
use crate::proof::Prover;
use crate::questions::Questions;
use crate::recall::{LeftWorker, Lingering, Patience, Waiting};
use crate::segments::Segments;
use crate::tenant::Containment;

/// A connection that says nothing for so long is closed.
pub(crate) const HELLO_WAIT: Duration = Duration::from_secs(30);
/// A background agent waits so long for a client: for its first, and for one that asked it to stay and cannot be kept in mind.
pub(crate) const FIRST_CLIENT_WAIT: Duration = Duration::from_secs(10);
/// A background agent leaves so long after its last client.
const LAST_CLIENT_WAIT: Duration = Duration::from_secs(2);

/// Tokens of the epoll set. Clients, awaited programs and metrics readers have numbers from `FIRST_NUMBER` on, each used once.
pub(crate) const LISTENER: u64 = 0;
const STOP: u64 = 1;
const SEGMENTS: u64 = 2;
const METRICS: u64 = 3;
const FIRST_NUMBER: u64 = 16;

/// How to run an agent.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen.
    pub socket: PathBuf,
    /// And where besides: what containers have of the machine's files is not where its programs look. A place that another agent has,
    /// or that cannot be listened at, is done without.
    pub others: Vec<PathBuf>,
    /// What to do.
    pub config: Config,
    /// Leave when the last client has gone.
    pub background: bool,
}

/// Why an agent could not start or go on.
#[derive(Debug)]
pub enum AgentError {
    /// It cannot listen.
    Place(PlaceError),
    /// It cannot serve metrics at this address.
    Metrics(String, io::Error),
    /// The kernel refuses something that it cannot do without.
    Kernel(&'static str, io::Error),
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentError::Place(error) => error.fmt(f),
            AgentError::Metrics(address, error) => {
                write!(f, "cannot serve metrics at {address}: {error}")
            }
            AgentError::Kernel(what, error) => write!(f, "the kernel refuses {what}: {error}"),
        }
    }
}

impl std::error::Error for AgentError {}

/// An agent that listens.
#[derive(Debug)]
pub struct Agent(Server);

impl Agent {
    /// Takes the socket's place, and listens. `stop` is what [`Agent::serve`] ends at, when it is readable.
    ///
    /// # Errors
    /// When another agent has the place, or the kernel refuses what an agent needs.
    pub fn start(options: Options, stop: BorrowedFd<'_>) -> Result<Agent, AgentError> {
        let server = Server::new(options, stop)?;
        info!(
            socket = %server.places.shown(),
            version = env!("CARGO_PKG_VERSION"),
            uid = geteuid().as_raw(),
            "the agent listens"
        );
        Ok(Agent(server))
    }

    /// Serves until it is told to stop or, in the background, until nobody needs it any more.
    ///
    /// # Errors
    /// When its epoll set fails.
    pub fn serve(mut self) -> Result<(), AgentError> {
        let ended = self.0.serve();
        info!(
            clients = self.0.clients.len(),
            "the agent leaves; connections go on without it"
        );
        ended
    }
}

/// Lets one warning through per second, so that nobody can flood the log.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Option<Instant>,
}

impl LogLimit {
    pub(crate) fn allows(&mut self) -> bool {
        let now = Instant::now();
        let allowed = self
            .last
            .is_none_or(|last| now.duration_since(last) >= Duration::from_secs(1));
        if allowed {
            self.last = Some(now);
        }
        allowed
    }
}

/// Everything that the agent knows.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) config: Config,
    /// The agent's own number, which a worker (`recall`) has not.
    pub(crate) pid: u32,
    pub(crate) clients: HashMap<ClientId, Client>,
    /// Programs for which an agent in the background stays.
    pub(crate) awaited: Awaited,
    pub(crate) offers: Offers,
    pub(crate) prover: Prover,
    pub(crate) packet_rules: PacketRules,
    pub(crate) pods: PodNames,
    /// For ends in other network namespaces.
    pub(crate) distant: Distant,
    pub(crate) segments: Segments,
    pub(crate) channels: Channels,
    /// Segments that exist, by the connection's number.
    pub(crate) introduced: HashMap<u64, Introduced>,
    /// Pairings of which neither end has gone.
    pub(crate) pairings: Pairings,
    /// Of connections that were not offered, as the last answer had them.
    pub(crate) addresses: Addresses,
    pub(crate) questions: Questions,
    /// For recalls that have to wait.
    pub(crate) patience: Patience,
    pub(crate) waiting: Waiting,
    pub(crate) left_workers: Vec<LeftWorker>,
    /// The client of whom a worker has taken what is no socket: the last word of one that is stuck.
    pub(crate) suspect: AtomicU64,
    pub(crate) next_connection_id: u64,
    pub(crate) metrics: Metrics,
    pub(crate) log_limit: LogLimit,
    pub(crate) background: bool,
    pub(crate) since: Instant,
    /// Where the agent itself runs.
    pub(crate) containment: Containment,
    pub(crate) places: Places,
    pub(crate) epoll: Epoll,
    endpoint: Option<Endpoint>,
    next_number: u64,
    /// Given up for a moment when no descriptor is left, to turn a client away.
    pub(crate) reserve: Option<File>,
    pub(crate) accept_again: Option<Instant>,
    /// A background agent leaves then, unless it has clients.
    pub(crate) leave_at: Instant,
    /// Connections that have not said hello, the oldest first, and when they are closed. Some may be gone or welcome by now.
    pub(crate) silent: VecDeque<(Instant, ClientId)>,
    /// Clients to be closed when the current event is dealt with.
    pub(crate) doomed: Vec<ClientId>,
    /// And those of them that are to be tried again.
    pub(crate) lingering: Lingering,
}

/// Where the agent itself runs.
fn own_containment() -> Containment {
    let text = std::fs::read_to_string("/proc/self/cgroup");
    text.map_or_else(|_| Containment::default(), |text| Containment::parse(&text))
}

impl Server {
    fn new(options: Options, stop: BorrowedFd<'_>) -> Result<Server, AgentError> {
        raise_descriptor_limit();
        let Options {
            socket,
            others,
            config,
            background,
        } = options;
        let prover = Prover::new()
            .map_err(|error| AgentError::Kernel("to describe sockets (sock_diag)", error))?;
        let mut segments = Segments::new(
            config.quota.clone(),
            [config.ring_bytes, config.bulk_ring_bytes],
        )
        .map_err(|error| AgentError::Kernel("to watch memory (inotify)", error))?;
        let places = Places::take(&socket, &others, background).map_err(AgentError::Place)?;
        places.paths().for_each(|path| segments.watch_place(path));
        let open = |address: &String| {
            Endpoint::open(address).map_err(|error| AgentError::Metrics(address.clone(), error))
        };
        let endpoint = config.metrics.as_ref().map(open).transpose()?;
        let listeners = places.iter().map(|place| (place.as_fd(), LISTENER));
        let endpoint_fd = endpoint.as_ref().map(Endpoint::as_fd);
        let sources = listeners
            .chain([(stop, STOP), (segments.as_fd(), SEGMENTS)])
            .chain(endpoint_fd.map(|fd| (fd, METRICS)));
        let epoll =
            watch(sources).map_err(|errno| AgentError::Kernel("an epoll set", errno.into()))?;
        let now = Instant::now();
        let mut server = Server {
            config,
            pid: std::process::id(),
            clients: HashMap::new(),
            awaited: Awaited::default(),
            offers: Offers::new(prover.reach()),
            prover,
            packet_rules: PacketRules::new(),
            pods: PodNames::default(),
            distant: Distant::default(),
            segments,
            channels: Channels::default(),
            introduced: HashMap::new(),
            pairings: Pairings::default(),
            addresses: Addresses::default(),
            questions: Questions::default(),
            patience: Patience::default(),
            waiting: Waiting::default(),
            left_workers: Vec::new(),
            suspect: AtomicU64::new(0),
            next_connection_id: 1,
            metrics: Metrics::new(),
            log_limit: LogLimit::default(),
            background,
            since: now,
            containment: own_containment(),
            places,
            epoll,
            endpoint,
            next_number: FIRST_NUMBER,
            reserve: File::open("/dev/null").ok(),
            accept_again: None,
            leave_at: now + FIRST_CLIENT_WAIT,
            silent: VecDeque::new(),
            doomed: Vec::new(),
            lingering: Lingering::default(),
        };
        server.warn_if_blind();
        Ok(server)
    }

    fn warn_if_blind(&mut self) {
        if !self.prover.can_ask() {
            warn!(
                "the kernel does not answer sock_diag requests: no connection can be proved (is the module inet_diag there?)"
            );
        }
    }

    fn serve(&mut self) -> Result<(), AgentError> {
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let now = Instant::now();
            let deadline = self.handle_deadlines(now);
            if self.is_unneeded(now) {
                return Ok(());
            }
            let count = match self.epoll.wait(&mut events, timeout(deadline, now)) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(AgentError::Kernel("to wait for events", errno.into())),
            };
            for event in &events[..count] {
                match event.data() {
                    STOP => return Ok(()),
                    LISTENER => self.handle_connecting(),
                    SEGMENTS => self.handle_gone_segments(),
                    METRICS => self.handle_metrics_connecting(),
                    number if self.clients.contains_key(&ClientId(number)) => {
                        self.handle_client(ClientId(number), event.events());
                    }
                    number if self.awaited.remove(number, &self.epoll) => {
                        self.stay_for(LAST_CLIENT_WAIT);
                    }
                    number => self.handle_metrics(number),
                }
                self.bury_doomed();
            }
        }
    }

    /// Does what is due, and returns when the next thing is.
    fn handle_deadlines(&mut self, now: Instant) -> Option<Instant> {
        self.expire_offers(now);
        self.look_for_distant(now);
        let hello = self.expire_silent(now);
        self.retry_recalls(now);
        self.answer_kept(now);
        let workers = self.bury_workers(now);
        let links = self.link_participants(now);
        self.doomed.extend(self.lingering.due(now));
        self.bury_doomed();
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            self.set_listener_interest(EpollFlags::EPOLLIN);
        }
        if self.places.deadline().is_some_and(|at| at <= now) {
            self.retake_places(now);
        }
        let metrics = self
            .endpoint
            .as_mut()
            .and_then(|endpoint| endpoint.expire(now));
        let leave = self.is_alone().then_some(self.leave_at);
        [
            self.offers.next_deadline(),
            self.distant.next_deadline(),
            self.lingering.next_deadline(),
            self.waiting.next_deadline(),
            self.questions.next_deadline(),
            workers,
            hello,
            links,
            self.accept_again,
            self.places.deadline(),
            metrics,
            leave,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Dooms connections that have said nothing for too long; returns when the next one will have.
    fn expire_silent(&mut self, now: Instant) -> Option<Instant> {
        while let Some(&(deadline, id)) = self.silent.front() {
            if self.clients.get(&id).is_some_and(Client::is_silent) {
                if deadline > now {
                    return Some(deadline);
                }
                self.doomed.push(id);
            }
            self.silent.pop_front();
        }
        None
    }

    fn is_unneeded(&self, now: Instant) -> bool {
        self.is_alone() && self.leave_at <= now
    }

    /// An agent in the background, with nobody to serve.
    fn is_alone(&self) -> bool {
        self.background && self.clients.is_empty() && self.awaited.count() == 0
    }

    pub(crate) fn stay_for(&mut self, wait: Duration) {
        self.leave_at = self.leave_at.max(Instant::now() + wait);
    }

    fn bury_doomed(&mut self) {
        while let Some(id) = self.doomed.pop() {
            if !self.send_last(id) {
                self.hear_no_more(id);
                continue;
            }
            self.forget_question(id);
            let Some(client) = self.clients.remove(&id) else {
                continue;
            };
            self.pairings.end_client(id);
            self.note_lost(&client);
            let _ = self.epoll.delete(client.as_fd());
            debug!(client = id.0, pid = client.pid, "gone");
            if client.is_silent() {
                self.segments.give_back_silent(client.tenant);
            } else {
                self.stay_for(LAST_CLIENT_WAIT);
            }
            if client.is_participant() {
                self.leave_channel(&client);
            }
            for left in self.offers.remove_client(id, Instant::now()) {
                self.look_for_partner(left);
            }
        }
    }

    /// The client is gone, and not buried yet.
    fn hear_no_more(&self, id: ClientId) {
        if let Some(client) = self.clients.get(&id) {
            let _ = self.epoll.delete(client.as_fd());
        }
    }

    fn handle_gone_segments(&mut self) {
        for connection_id in self.segments.handle_gone() {
            self.introduced.remove(&connection_id);
            self.pairings.forget(connection_id);
            debug!(connection = connection_id, "left the ring");
        }
        if self.segments.has_freed_channels() {
            self.channels.handle_freed();
        }
        if self.segments.has_lost_place() {
            self.places.note_gone(Instant::now());
        }
    }

    /// Of all listeners: what the one lacks, the others do, too.
    pub(crate) fn set_listener_interest(&self, flags: EpollFlags) {
        let endpoint = self
            .endpoint
            .as_ref()
            .map(|endpoint| (endpoint.as_fd(), METRICS));
        let places = self.places.iter().map(|place| (place.as_fd(), LISTENER));
        for (listener, token) in places.chain(endpoint) {
            let _ = self
                .epoll
                .modify(listener, &mut EpollEvent::new(flags, token));
        }
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn handle_metrics_connecting(&mut self) {
        let number = self.next_number();
        let accepted = self
            .endpoint
            .as_mut()
            .map(|endpoint| endpoint.accept(number, &self.epoll));
        if let Some(Err(error)) = accepted {
            self.pause_accepting(&error);
        }
    }

    fn handle_metrics(&mut self, number: u64) {
        let Some(mut endpoint) = self.endpoint.take() else {
            return;
        };
        endpoint.handle(number, &self.epoll, || self.render_metrics());
        self.endpoint = Some(endpoint);
    }
}

/// A set that waits for input of `sources`.
fn watch<'a>(sources: impl Iterator<Item = (BorrowedFd<'a>, u64)>) -> Result<Epoll, Errno> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (source, token) in sources {
        epoll.add(source, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
    }
    Ok(epoll)
}

/// To the next deadline, rounded up so that it has passed when the wait ends.
fn timeout(deadline: Option<Instant>, now: Instant) -> EpollTimeout {
    match deadline {
        Some(deadline) => {
            let milliseconds = deadline.saturating_duration_since(now).as_millis() + 1;
            EpollTimeout::try_from(milliseconds).unwrap_or(EpollTimeout::MAX)
        }
        None => EpollTimeout::NONE,
    }
}

/// Three descriptors per client: the soft limit of 1024 would be reached soon.
fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
