//! Requests and their replies.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_shm::link::flags;
use millrace_shm::pool::PoolMemory;
use nix::sys::epoll::Epoll;

use crate::endpoint::{Endpoint, Shared};
use crate::inbox::Taken;
use crate::loan::taken_from;
use crate::outbox::Outbox;
use crate::pending::Pending;
use crate::{DetachedLoan, DetachedMessage, Error, Loan, Message, PushError, ReplyLoan, WhenFull};

/// Sends requests to servers, each to one, and gets their replies. Of one thread at a time.
#[derive(Debug)]
pub struct Client {
    endpoint: Shared,
    epoll: Arc<Epoll>,
    memory: Arc<PoolMemory>,
}

/// This request gets no reply: its server has died or let it fall. It may have done what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The request's number.
    pub request: u64,
}

/// A reply, or that there is none.
pub type Answer<'a> = Result<Message<'a>, Lost>;

impl Client {
    pub(crate) fn new(endpoint: Endpoint) -> Client {
        let memory = endpoint
            .outbox
            .as_ref()
            .map(|outbox| Arc::clone(outbox.pool().memory()));
        Client {
            // `Endpoint::open` fails where a sender gets no pool.
            memory: memory.expect("a client has a pool"),
            epoll: endpoint.epoll(),
            endpoint: RefCell::new(endpoint),
        }
    }

    /// Memory for a request of `bytes` bytes; waits for it as long as the options say. Write all of it.
    ///
    /// # Errors
    /// As [`crate::Publisher::loan`].
    #[inline]
    pub fn loan(&self, bytes: usize) -> Result<Loan<'_>, Error> {
        Loan::of_own(&self.endpoint, &self.memory, bytes)
    }

    /// As [`Client::loan`], but never waits.
    ///
    /// # Errors
    /// As [`crate::Publisher::try_loan`].
    #[inline]
    pub fn try_loan(&self, bytes: usize) -> Result<Loan<'_>, Error> {
        let buffer = self.endpoint.borrow_mut().try_loan(None, bytes, true)?;
        Ok(Loan::new(&self.endpoint, &self.memory, buffer))
    }

    /// Sends a request, to be seen after the next [`Client::publish`]; returns its number, which its reply has too. With a key: to the
    /// server that the key belongs to, else to the one with the fewest requests.
    ///
    /// # Errors
    /// As [`crate::Publisher::push`].
    #[inline]
    pub fn push<'a>(
        &'a self,
        loan: Loan<'a>,
        key: Option<u64>,
    ) -> Result<u64, PushError<Loan<'a>>> {
        loan.push(&self.endpoint, key, true)
    }

    /// As [`Client::push`], but never waits.
    ///
    /// # Errors
    /// As [`crate::Publisher::try_push`].
    #[inline]
    pub fn try_push<'a>(
        &'a self,
        loan: Loan<'a>,
        key: Option<u64>,
    ) -> Result<u64, PushError<Loan<'a>>> {
        loan.push(&self.endpoint, key, false)
    }

    /// Does something with the requests that have no answer yet.
    fn with_pending<T>(&self, work: impl FnOnce(&mut Pending) -> T) -> Option<T> {
        let mut endpoint = self.endpoint.borrow_mut();
        let pending = endpoint.outbox.as_mut()?.pending.as_mut();
        pending.map(work)
    }

    /// Brings a loan back that was detached from this client, as [`crate::Publisher::attach`].
    #[must_use]
    pub fn attach_loan(&self, loan: DetachedLoan) -> Loan<'_> {
        Loan::of_detached(&self.endpoint, &self.memory, loan)
    }

    /// Brings a reply back that was detached.
    #[must_use]
    pub fn attach(&self, reply: DetachedMessage) -> Message<'_> {
        Message::new(&self.endpoint, reply.0)
    }

    /// Lets the servers see what was pushed, and wakes those that sleep.
    #[inline]
    pub fn publish(&self) {
        self.endpoint.borrow_mut().publish();
    }

    /// The next answer to any request. None: there is none now.
    #[inline]
    pub fn pop(&self) -> Option<Answer<'_>> {
        loop {
            let taken = self.endpoint.borrow_mut().pop();
            let Some(taken) = taken else {
                break;
            };
            let (request, server) = (taken.sequence, taken.publisher);
            let is_awaited = self.with_pending(|pending| pending.answer(request, server));
            let message = Message::new(&self.endpoint, taken);
            if is_awaited != Some(true) {
                continue;
            }
            if taken.descriptor.flags & flags::NO_REPLY != 0 {
                return Some(Err(Lost { request }));
            }
            return Some(Ok(message));
        }
        let request = self.with_pending(Pending::next_lost)??;
        Some(Err(Lost { request }))
    }

    /// The next answer to any request, waited for as long as the options say.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Forked`].
    pub fn receive(&self) -> Result<Answer<'_>, Error> {
        let deadline = self.endpoint.borrow().deadline();
        self.receive_until(deadline)
    }

    /// The next answer to any request, waited for until `deadline`; for ever when there is none.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Forked`].
    pub fn receive_until(&self, deadline: Option<Instant>) -> Result<Answer<'_>, Error> {
        loop {
            if let Some(answer) = self.pop() {
                return Ok(answer);
            }
            let mut endpoint = self.endpoint.borrow_mut();
            endpoint.check()?;
            if !endpoint.wait_for_message(deadline) {
                return Err(Error::TimedOut);
            }
        }
    }

    /// Copies a request, sends it, and waits for its reply as long as the options say. For clients with one request at a time.
    ///
    /// # Errors
    /// As [`Client::loan`], [`Client::push`] and [`Client::receive`]; [`Error::Gone`]: its server has died or let it fall.
    pub fn call(&self, request: &[u8]) -> Result<Vec<u8>, Error> {
        let mut loan = self.loan(request.len())?;
        loan.copy_from_slice(request);
        let number = self.push(loan, None)?;
        self.publish();
        loop {
            match self.receive()? {
                Ok(reply) if reply.sequence() == number => return Ok(reply.to_vec()),
                Err(lost) if lost.request == number => return Err(Error::Gone),
                // Of an earlier request, whose caller waits no more.
                _ => {}
            }
        }
    }

    /// Requests that have no answer yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        let count = self.with_pending(|pending| pending.count());
        count.unwrap_or(0)
    }

    /// What this client is called by its servers.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.endpoint.borrow().id()
    }

    /// Waits until at least `count` servers are there. False: not in time.
    pub fn wait_for_servers(&self, count: usize, timeout: Duration) -> bool {
        self.endpoint.borrow_mut().wait_for_peers(count, timeout)
    }

    /// As [`crate::Subscriber::as_fd`], with [`Client::pop`].
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.borrow_mut().note_watched();
        std::os::fd::AsFd::as_fd(&self.epoll.0)
    }
}

/// Gets requests, and replies. Of one thread at a time.
#[derive(Debug)]
pub struct Server {
    endpoint: Shared,
    epoll: Arc<Epoll>,
}

/// A request. When it is dropped without a reply, its client learns that there is none.
#[derive(Debug)]
pub struct Request<'a> {
    /// There until it is detached, which ends the request.
    message: Option<Message<'a>>,
    owner: &'a Shared,
    taken: Taken,
    is_answered: bool,
}

impl<'a> Request<'a> {
    fn new(owner: &'a Shared, taken: Taken) -> Request<'a> {
        Request {
            message: Some(Message::new(owner, taken)),
            owner,
            taken,
            is_answered: false,
        }
    }

    /// What was asked.
    #[must_use]
    pub fn message(&self) -> &Message<'a> {
        match &self.message {
            Some(message) => message,
            // A request that was detached exists no more.
            None => unreachable!("a request without its message"),
        }
    }

    fn client(&self) -> (usize, u64) {
        (self.taken.source, self.taken.publisher)
    }

    /// Memory for a reply of `bytes` bytes, which the client pays for; waits for it as long as the options say. Write all of it.
    ///
    /// # Errors
    /// As [`crate::Publisher::loan`]; [`Error::Gone`]: the client has gone.
    pub fn loan(&self, bytes: usize) -> Result<ReplyLoan<'a>, Error> {
        let client = self.client();
        let mut endpoint = self.owner.borrow_mut();
        let mut cause = None;
        let buffer = endpoint.loan(Some(client), bytes, &mut cause);
        let buffer = buffer.ok_or_else(|| taken_from(&mut cause))?;
        let outbox = endpoint.outbox_for(Some(client)).ok_or(Error::Gone)?;
        let memory = Arc::clone(outbox.pool().memory());
        drop(endpoint);
        Ok(ReplyLoan::of_reply(self.owner, memory, buffer, client))
    }

    /// Replies. The reply is published before the request is given back: a server that is killed between the two leaves a request that is
    /// out, never one that nobody has.
    ///
    /// # Errors
    /// As [`crate::Publisher::push`]; [`Error::Gone`]: the client has gone, and needs no reply.
    pub fn reply(mut self, loan: ReplyLoan<'a>) -> Result<(), Error> {
        if loan.client() != Some(self.client()) {
            return Err(Error::Option(
                "the loan is for another client's reply".to_owned(),
            ));
        }
        let pushed = loan.push_reply(self.taken.sequence);
        let pushed = pushed.map_err(|failed| failed.error);
        let mut endpoint = self.owner.borrow_mut();
        let drops = !matches!(endpoint.when_full(), WhenFull::Block | WhenFull::Fail);
        match pushed {
            Ok(_) => self.is_answered = true,
            // Dropped. Its client is told so when there is room, as of a request that is let fall.
            Err(Error::Full) if drops => endpoint
                .outbox_for(Some(self.client()))
                .into_iter()
                .for_each(Outbox::note_dropped),
            Err(error) => return Err(error),
        }
        if let Some(outbox) = endpoint.outbox_for(Some(self.client())) {
            outbox.publish();
        }
        endpoint.look();
        Ok(())
    }

    /// Copies a reply, and sends it.
    ///
    /// # Errors
    /// As [`Request::loan`] and [`Request::reply`].
    pub fn send(self, reply: &[u8]) -> Result<(), Error> {
        let mut loan = self.loan(reply.len())?;
        loan.copy_from_slice(reply);
        self.reply(loan)
    }

    /// Takes it from its server, to which [`Server::attach`] brings it back. Its client waits for ever when it is dropped.
    #[must_use]
    pub fn detach(mut self) -> DetachedMessage {
        self.is_answered = true;
        match self.message.take() {
            Some(message) => message.detach(),
            None => unreachable!("a request without its message"),
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        if let Some(message) = self.message.take() {
            // It is given back when its client has been told.
            let DetachedMessage(request) = message.detach();
            self.owner.borrow_mut().let_fall(request);
        }
    }
}

impl Server {
    pub(crate) fn new(endpoint: Endpoint) -> Server {
        Server {
            epoll: endpoint.epoll(),
            endpoint: RefCell::new(endpoint),
        }
    }

    /// The next request, of each client in turn. None: there is none now.
    #[inline]
    pub fn pop(&self) -> Option<Request<'_>> {
        let taken = self.endpoint.borrow_mut().pop()?;
        Some(Request::new(&self.endpoint, taken))
    }

    /// The next request, waited for as long as the options say.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Forked`].
    pub fn receive(&self) -> Result<Request<'_>, Error> {
        let deadline = self.endpoint.borrow().deadline();
        self.receive_until(deadline)
    }

    /// The next request, waited for until `deadline`; for ever when there is none.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Forked`].
    pub fn receive_until(&self, deadline: Option<Instant>) -> Result<Request<'_>, Error> {
        let taken = self.endpoint.borrow_mut().pop_until(deadline)?;
        Ok(Request::new(&self.endpoint, taken))
    }

    /// Brings a request back that was detached.
    #[must_use]
    pub fn attach(&self, request: DetachedMessage) -> Request<'_> {
        Request::new(&self.endpoint, request.0)
    }

    /// Brings the loan of a reply back that was detached. None: the client has gone, and the loan with it.
    #[must_use]
    pub fn attach_loan(&self, loan: DetachedLoan) -> Option<ReplyLoan<'_>> {
        let client = loan.client?;
        let mut endpoint = self.endpoint.borrow_mut();
        let outbox = endpoint.outbox_for(Some(client))?;
        // One who has gone may have come again to the same place.
        let pool = Some(outbox.pool()).filter(|pool| pool.owns(&loan.buffer))?;
        let memory = Arc::clone(pool.memory());
        Some(ReplyLoan::of_reply(
            &self.endpoint,
            memory,
            loan.buffer,
            client,
        ))
    }

    /// What this server is called by its clients: the publisher of its replies.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.endpoint.borrow().id()
    }

    /// Waits until at least `count` clients are there. False: not in time.
    pub fn wait_for_clients(&self, count: usize, timeout: Duration) -> bool {
        self.endpoint.borrow_mut().wait_for_peers(count, timeout)
    }

    /// As [`crate::Subscriber::as_fd`], with [`Server::pop`].
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.borrow_mut().note_watched();
        std::os::fd::AsFd::as_fd(&self.epoll.0)
    }
}
