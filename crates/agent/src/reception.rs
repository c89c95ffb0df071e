//! How programs come in: accepting, greeting, taking their messages, and turning away those that cannot be served.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use millrace_wire::{
    Hello, MAX_BYTES, Query, SEGMENT_VERSION, ToAgent, ToClient, Unsupported, VERSION_MAX,
    VERSION_MIN, Welcome,
};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;
use tracing::{debug, warn};

use crate::clients::{Cause, Client, Incoming, SendError};
use crate::offers::ClientId;
use crate::segments::Refusal;
use crate::server::{FIRST_CLIENT_WAIT, HELLO_WAIT, LISTENER, Server};
use crate::sys::Inlet;

/// Rows of each client's board: connections of one program that can be listed. Unused rows cost nothing.
const BOARD_ROWS: u32 = 16_384;
/// Messages that are taken from one client before the others have their turn; none behind one that may cost as much as many.
pub(crate) const TURN_MESSAGES: usize = 32;
/// After an accept that failed for want of something, no new client is accepted for so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Server {
    pub(crate) fn handle_connecting(&mut self) {
        for _ in 0..TURN_MESSAGES {
            match self.places.accept() {
                Ok((socket, by_containers)) => self.welcome_connection(socket, by_containers),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return,
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    Some(libc::EMFILE | libc::ENFILE) if self.reserve.is_some() => {
                        self.turn_one_away()
                    }
                    _ => return self.pause_accepting(&error),
                },
            }
        }
    }

    /// No descriptor is left: gives the reserve up, so that the client learns it at once instead of waiting for ever.
    fn turn_one_away(&mut self) {
        self.metrics.clients_refused += 1;
        self.count_exhausted();
        self.reserve = None;
        drop(self.places.accept());
        self.reserve = File::open("/dev/null").ok();
    }

    fn count_exhausted(&mut self) {
        self.metrics.descriptors_exhausted += 1;
        if self.log_limit.allows() {
            warn!(
                "no file descriptor is left: turning programs away (raise the limit of open files)"
            );
        }
    }

    pub(crate) fn pause_accepting(&mut self, error: &io::Error) {
        if self.log_limit.allows() {
            warn!("cannot accept programs: {error}");
        }
        self.set_listener_interest(EpollFlags::empty());
        self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
        if self.reserve.is_none() {
            self.reserve = File::open("/dev/null").ok();
        }
    }

    /// Listens where a socket has been removed.
    pub(crate) fn retake_places(&mut self, now: Instant) {
        for listener in self.places.retake(now) {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
            let _ = self.epoll.add(listener, event);
        }
        let paths = self.places.paths();
        paths.for_each(|path| self.segments.watch_place(path));
    }

    fn welcome_connection(&mut self, socket: Inlet, by_containers: bool) {
        let id = ClientId(self.next_number());
        let own = geteuid();
        let Ok(peer) = getsockopt(&socket, sockopt::PeerCredentials) else {
            return;
        };
        if !own.is_root() && peer.uid() != own.as_raw() {
            self.metrics.clients_refused += 1;
            debug!(uid = peer.uid(), "refused: another user's program");
            return;
        }
        let offers_max = self.config.quota.offers_per_client;
        let Ok(client) = Client::new(
            id,
            socket,
            peer,
            (&self.containment, by_containers),
            offers_max,
        ) else {
            self.metrics.clients_refused += 1;
            return self.count_exhausted();
        };
        if !self.segments.take_silent(client.tenant) {
            self.metrics.clients_refused += 1;
            if self.log_limit.allows() {
                let tenant = self.pods.tenant_name(&client);
                warn!(
                    pid = client.pid,
                    tenant, "turned a program away: too many of its tenant's say nothing"
                );
            }
            return;
        }
        let added = self
            .epoll
            .add(client.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, id.0));
        if added.is_err() {
            self.segments.give_back_silent(client.tenant);
        } else {
            self.metrics.clients += 1;
            self.silent.push_back((client.since + HELLO_WAIT, id));
            self.clients.insert(id, client);
        }
    }

    pub(crate) fn handle_client(&mut self, id: ClientId, flags: EpollFlags) {
        if flags.contains(EpollFlags::EPOLLOUT) {
            let flushed = self.clients.get_mut(&id).map(Client::flush);
            if let Some(Err(_)) = flushed {
                return self.doomed.push(id);
            }
            self.introduce_held_up(id);
            self.channels.handle_flushed(id);
            self.set_client_interest(id);
        }
        // Who waits for its turn is not heard, but for its end.
        let is_over = flags.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        let client = self.clients.get(&id);
        if client.is_some_and(|client| client.question.is_some()) {
            if is_over {
                self.doomed.push(id);
            }
            return;
        }
        let mut buffer = [0; MAX_BYTES];
        for _ in 0..TURN_MESSAGES {
            let Some(client) = self.clients.get(&id) else {
                return;
            };
            if self.doomed.contains(&id) {
                return;
            }
            match client.receive(&mut buffer) {
                Incoming::Message(length) if self.handle_message(id, &buffer[..length]) => {}
                Incoming::Message(_) => return,
                Incoming::Stranger => self.metrics.messages_of_strangers += 1,
                Incoming::Gift => return self.handle_nonsense(id, "it sends descriptors"),
                Incoming::Nothing => return,
                Incoming::Gone => return self.doomed.push(id),
            }
        }
    }

    /// False: it has had its turn.
    fn handle_message(&mut self, id: ClientId, bytes: &[u8]) -> bool {
        let Some(client) = self.clients.get(&id) else {
            return false;
        };
        let (welcome, silent) = (client.is_welcome(), client.is_silent());
        let participant = client.is_participant();
        let message = ToAgent::parse(bytes);
        let is_dear = matches!(message, Ok(ToAgent::Recall(_) | ToAgent::Query(_)));
        let wrong = match message {
            Ok(ToAgent::Open(open)) if silent => {
                self.handle_open(id, &open);
                None
            }
            Ok(ToAgent::Holds(holds)) if participant => self.handle_holds(id, holds),
            Ok(ToAgent::Left(left)) if participant => {
                self.handle_left(id, left);
                None
            }
            Ok(ToAgent::Ready(ready)) if participant => self.handle_ready(id, ready),
            Ok(ToAgent::Query(query)) => {
                if query == Query::StatusAndStay && !self.keep_in_mind(id) {
                    self.stay_for(FIRST_CLIENT_WAIT);
                }
                self.handle_query(id, query);
                None
            }
            Ok(ToAgent::Hello(hello)) if silent => {
                self.handle_hello(id, hello);
                None
            }
            Ok(ToAgent::Offer(offer)) if welcome => self
                .handle_offer(id, offer, Instant::now())
                .err()
                .map(str::to_owned),
            Ok(ToAgent::Withdraw(withdraw)) if welcome => {
                self.handle_withdraw((id, withdraw.offer_id));
                None
            }
            Ok(ToAgent::Take(take)) if welcome => {
                self.handle_take((id, take.offer_id));
                None
            }
            Ok(ToAgent::Recall(recall)) if welcome => {
                self.handle_recall(id, &recall);
                None
            }
            Ok(ToAgent::Grow(grow)) if welcome => {
                self.handle_grow((id, grow.offer_id));
                None
            }
            Ok(_) => Some("it speaks out of turn".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(what) = wrong {
            self.handle_nonsense(id, &what);
        }
        !is_dear
    }

    /// An agent in the background stays until this process has ended. False: it does not.
    fn keep_in_mind(&mut self, id: ClientId) -> bool {
        let number = self.next_number();
        let Some(client) = self.clients.get(&id).filter(|_| self.background) else {
            return false;
        };
        let Some(pidfd) = client.pidfd() else {
            return false;
        };
        let who = (client.pid, client.uid);
        let limit = self.config.quota.clients_per_tenant;
        self.awaited.insert(number, pidfd, who, limit, &self.epoll)
    }

    pub(crate) fn handle_nonsense(&mut self, id: ClientId, what: &str) {
        self.metrics.messages_malformed += 1;
        self.drop_client(id, what);
    }

    /// Closes a client that does not behave, and says so, but not too often.
    fn drop_client(&mut self, id: ClientId, what: &str) {
        if self.doomed.contains(&id) {
            return;
        }
        self.metrics.clients_dropped += 1;
        self.doomed.push(id);
        if let (Some(client), true) = (self.clients.get(&id), self.log_limit.allows()) {
            warn!(
                pid = client.pid,
                tenant = self.pods.tenant_name(client),
                program = client.name,
                "dropped a program: {what}"
            );
        }
    }

    fn handle_hello(&mut self, id: ClientId, hello: Hello) {
        let speaks = hello.version_min <= VERSION_MAX && hello.version_max >= VERSION_MIN;
        if !speaks || hello.segment_version != SEGMENT_VERSION {
            self.metrics.clients_refused += 1;
            let message = Unsupported {
                version_min: VERSION_MIN,
                version_max: VERSION_MAX,
            };
            self.send(id, ToClient::Unsupported(message), None);
            return self.doomed.push(id);
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.mode = hello.mode;
        client.version = VERSION_MAX.min(hello.version_max);
        let version = client.version;
        let program = client
            .process
            .as_ref()
            .and_then(crate::proof::Process::program)
            .unwrap_or_default();
        client.excluded = !self.config.admits(&[&client.name, &program]);
        let made = self.segments.create_board(client.tenant, BOARD_ROWS);
        let board = match made.and_then(|fd| client.set_board(fd).map_err(Refusal::from)) {
            Ok(board) => board,
            Err(refusal) => {
                self.metrics.clients_refused += 1;
                if self.log_limit.allows() {
                    warn!(
                        pid = client.pid,
                        tenant = self.pods.tenant_name(client),
                        "turned a program away: {refusal:?}"
                    );
                }
                return self.doomed.push(id);
            }
        };
        self.segments.give_back_silent(client.tenant);
        debug!(
            client = id.0,
            pid = client.pid,
            uid = client.uid,
            tenant = self.pods.tenant_name(client),
            program = client.name,
            mode = client.mode.as_str(),
            excluded = client.excluded,
            "hello"
        );
        // Whoever was expected has come.
        self.leave_at = Instant::now();
        // A program that is excluded is told never to offer; should it do so all the same, it is declined.
        let never = client.excluded.then_some(u32::MAX);
        let message = Welcome {
            version,
            rows: BOARD_ROWS,
            spin_us: self.config.spin_us,
            offer_after_calls: never.unwrap_or(self.config.offer_after_calls),
            offer_after_bytes: never.unwrap_or(self.config.offer_after_bytes),
        };
        self.send(id, ToClient::Welcome(message), Some(board));
    }

    /// Answers a client that may have gone, or may not read.
    pub(crate) fn send(&mut self, id: ClientId, message: ToClient, fd: Option<Rc<OwnedFd>>) {
        self.send_for(id, message, fd.into_iter().collect(), Cause::Asked);
    }

    /// Tells a client what became of an offer. It may have gone, or be asleep.
    pub(crate) fn tell(&mut self, id: ClientId, message: ToClient, fd: Option<Rc<OwnedFd>>) {
        self.send_for(id, message, fd.into_iter().collect(), Cause::News);
    }

    /// Hands a link to a participant.
    pub(crate) fn hand_out(&mut self, id: ClientId, message: ToClient, fds: Vec<Rc<OwnedFd>>) {
        self.send_for(id, message, fds, Cause::News);
    }

    fn send_for(&mut self, id: ClientId, message: ToClient, fds: Vec<Rc<OwnedFd>>, cause: Cause) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        match client.send(message, fds, cause) {
            Ok(()) if client.has_mail_waiting() => self.set_client_interest(id),
            Ok(()) => {}
            Err(SendError::Slow) => self.drop_client(id, "it does not read"),
            Err(SendError::Gone) => self.doomed.push(id),
        }
    }

    pub(crate) fn set_client_interest(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let mut flags = EpollFlags::empty();
        flags.set(EpollFlags::EPOLLIN, client.question.is_none());
        let has_mail = client.has_mail_waiting() || self.offers.is_held_up(id);
        flags.set(EpollFlags::EPOLLOUT, has_mail);
        let _ = self
            .epoll
            .modify(client.as_fd(), &mut EpollEvent::new(flags, id.0));
    }
}
