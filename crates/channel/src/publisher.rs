//! The side that sends.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_shm::pool::{Buffer, PoolMemory};
use nix::sys::epoll::Epoll;

use crate::endpoint::{Endpoint, Shared};
use crate::outbox::{Details, Outbox};
use crate::{Error, PushError};

/// Sends messages to whoever subscribes. Of one thread at a time.
#[derive(Debug)]
pub struct Publisher {
    endpoint: Shared,
    epoll: Arc<Epoll>,
    memory: Arc<PoolMemory>,
}

/// Where a loan's bytes are.
enum Memory<'a> {
    Own(&'a PoolMemory),
    /// Of replies to one client: the place of its source and its name.
    OfReplies(Arc<PoolMemory>, (usize, u64)),
}

/// Memory for a message, to be written in place. Given back when dropped.
pub struct Loan<'a> {
    owner: &'a Shared,
    memory: Memory<'a>,
    /// There until it is pushed or detached, which ends the loan.
    buffer: Option<Buffer>,
}

/// A loan without the one that it is of, for those who keep both in one place. Its memory is lost when it is dropped.
#[derive(Debug)]
pub struct DetachedLoan {
    pub(crate) buffer: Buffer,
    /// Of a reply: to whom.
    pub(crate) client: Option<(usize, u64)>,
}

impl fmt::Debug for Loan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan")
            .field("buffer", &self.buffer)
            .finish_non_exhaustive()
    }
}

impl Deref for Loan<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self
            .buffer
            .as_ref()
            .map(|buffer| self.memory().bytes(buffer));
        bytes.unwrap_or_default()
    }
}

impl DerefMut for Loan<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        let memory = match &self.memory {
            Memory::Own(memory) => memory,
            Memory::OfReplies(memory, _) => memory.as_ref(),
        };
        let bytes = self.buffer.as_mut().map(|buffer| memory.bytes_mut(buffer));
        bytes.unwrap_or_default()
    }
}

impl Drop for Loan<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            give_back(self.owner, self.client(), buffer);
        }
    }
}

/// Not a method: a loan that nobody has the address of stays in registers.
#[inline(never)]
fn give_back(owner: &Shared, client: Option<(usize, u64)>, buffer: Buffer) {
    if let Some(outbox) = owner.borrow_mut().outbox_for(client) {
        outbox.pool_mut().give_back(buffer);
    }
}

impl<'a> Loan<'a> {
    #[inline(always)]
    pub(crate) fn new(owner: &'a Shared, memory: &'a PoolMemory, buffer: Buffer) -> Loan<'a> {
        Loan {
            owner,
            memory: Memory::Own(memory),
            buffer: Some(buffer),
        }
    }

    /// Memory that the owner publishes from, waited for as its options say.
    #[inline(always)]
    pub(crate) fn of_own(
        owner: &'a Shared,
        memory: &'a PoolMemory,
        bytes: usize,
    ) -> Result<Loan<'a>, Error> {
        let mut cause = None;
        let found = owner.borrow_mut().loan(None, bytes, &mut cause);
        match found {
            Some(buffer) => Ok(Loan::new(owner, memory, buffer)),
            None => Err(taken_from(&mut cause)),
        }
    }

    pub(crate) fn of_reply(
        owner: &'a Shared,
        memory: Arc<PoolMemory>,
        buffer: Buffer,
        client: (usize, u64),
    ) -> Loan<'a> {
        Loan {
            owner,
            memory: Memory::OfReplies(memory, client),
            buffer: Some(buffer),
        }
    }

    fn memory(&self) -> &PoolMemory {
        match &self.memory {
            Memory::Own(memory) => memory,
            Memory::OfReplies(memory, _) => memory,
        }
    }

    /// Of a reply: to whom.
    #[inline(always)]
    pub(crate) fn client(&self) -> Option<(usize, u64)> {
        match self.memory {
            Memory::Own(_) => None,
            Memory::OfReplies(_, client) => Some(client),
        }
    }

    /// Sends it, or returns it with the cause.
    #[inline(always)]
    pub(crate) fn push(self, (key, sequence, marks): Details) -> Result<u64, PushError<Loan<'a>>> {
        self.push_if(key, sequence, marks, true)
    }

    #[inline(always)]
    fn push_if(
        mut self,
        key: Option<u64>,
        sequence: Option<u64>,
        marks: u8,
        may_wait: bool,
    ) -> Result<u64, PushError<Loan<'a>>> {
        let Some(buffer) = self.buffer.take() else {
            // A loan that was pushed or detached exists no more.
            unreachable!("a loan without memory");
        };
        let client = self.client();
        let mut endpoint = self.owner.borrow_mut();
        let mut left = None;
        let details = (key, sequence, marks);
        let pushed = endpoint.push(client, buffer, (details, may_wait), &mut left);
        drop(endpoint);
        match (pushed, left) {
            (Some(number), _) => Ok(number),
            (None, Some((buffer, error))) => {
                self.buffer = Some(buffer);
                Err(PushError { loan: self, error })
            }
            // What could not be pushed is left.
            (None, None) => unreachable!("neither sent nor left"),
        }
    }

    /// Makes the message shorter. A longer one is left as it is.
    pub fn truncate(&mut self, bytes: usize) {
        if let (Some(buffer), Ok(bytes)) = (&mut self.buffer, u32::try_from(bytes)) {
            buffer.truncate(bytes);
        }
    }

    /// Takes it from the one that it is of, whose `attach` brings it back.
    #[must_use]
    pub fn detach(mut self) -> DetachedLoan {
        let client = self.client();
        match self.buffer.take() {
            Some(buffer) => DetachedLoan { buffer, client },
            // A loan that was pushed or detached exists no more.
            None => unreachable!("a loan without memory"),
        }
    }
}

/// What is in there where there is nothing else.
#[cold]
pub(crate) fn taken_from(cause: &mut Option<Error>) -> Error {
    cause.take().unwrap_or(Error::Full)
}

impl Publisher {
    pub(crate) fn new(endpoint: Endpoint) -> Publisher {
        let memory = endpoint
            .outbox
            .as_ref()
            .map(|outbox| Arc::clone(outbox.pool().memory()));
        Publisher {
            // `Endpoint::open` fails where a sender gets no pool.
            memory: memory.expect("a publisher has a pool"),
            epoll: endpoint.epoll(),
            endpoint: RefCell::new(endpoint),
        }
    }

    /// Memory for a message of `bytes` bytes. Waits for it, as long as the options say, if it is one to wait
    /// ([`crate::WhenFull::Block`]). It has what was there before: write all of it.
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::TimedOut`], or [`Error::Full`] where nobody waits.
    #[inline(always)]
    pub fn loan(&self, bytes: usize) -> Result<Loan<'_>, Error> {
        Loan::of_own(&self.endpoint, &self.memory, bytes)
    }

    /// As [`Publisher::loan`], but never waits.
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::Full`].
    #[inline]
    pub fn try_loan(&self, bytes: usize) -> Result<Loan<'_>, Error> {
        let buffer = self.endpoint.borrow_mut().try_loan(None, bytes)?;
        Ok(Loan::new(&self.endpoint, &self.memory, buffer))
    }

    /// Brings a loan back that was detached from this publisher. One of another's is of no use here: writing to it, or pushing it, panics.
    #[must_use]
    #[inline(always)]
    pub fn attach(&self, loan: DetachedLoan) -> Loan<'_> {
        Loan::new(&self.endpoint, &self.memory, loan.buffer)
    }

    /// Sends a message, to be seen after the next [`Publisher::publish`]; returns its number. Waits for room, as long as the options say,
    /// if it is one to wait.
    ///
    /// # Errors
    /// With the loan: [`Error::TimedOut`]; where nobody waits, [`Error::Full`] or [`Error::NoReceiver`].
    #[inline(always)]
    pub fn push<'a>(&'a self, loan: Loan<'a>) -> Result<u64, PushError<Loan<'a>>> {
        loan.push((None, None, 0))
    }

    /// As [`Publisher::push`], but of groups the member gets it that the key belongs to: messages with one key go to one member, in order.
    ///
    /// # Errors
    /// As [`Publisher::push`].
    #[inline(always)]
    pub fn push_keyed<'a>(&'a self, loan: Loan<'a>, key: u64) -> Result<u64, PushError<Loan<'a>>> {
        loan.push((Some(key), None, 0))
    }

    /// As [`Publisher::push`], or with a key as [`Publisher::push_keyed`], but never waits.
    ///
    /// # Errors
    /// With the loan: [`Error::Full`] or [`Error::NoReceiver`].
    #[inline]
    pub fn try_push<'a>(
        &'a self,
        loan: Loan<'a>,
        key: Option<u64>,
    ) -> Result<u64, PushError<Loan<'a>>> {
        loan.push_if(key, None, 0, false)
    }

    /// Lets the subscribers see what was pushed, and wakes those that sleep.
    #[inline]
    pub fn publish(&self) {
        self.endpoint.borrow_mut().publish();
    }

    /// Copies a message, sends it and publishes; returns its number.
    ///
    /// # Errors
    /// As [`Publisher::loan`] and [`Publisher::push`].
    pub fn send(&self, message: &[u8]) -> Result<u64, Error> {
        let mut loan = self.loan(message.len())?;
        loan.copy_from_slice(message);
        let sequence = self.push(loan)?;
        self.publish();
        Ok(sequence)
    }

    /// Publishes, and waits until everybody has given everything back. False: not in time.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.publish();
        let mut endpoint = self.endpoint.borrow_mut();
        let deadline = Some(Instant::now() + timeout);
        endpoint.check().is_ok()
            && endpoint.wait_for_room(deadline, |endpoint| {
                let outbox = endpoint.outbox.as_mut();
                outbox.is_none_or(|outbox| {
                    outbox.collect_all();
                    outbox.in_flight() == 0
                })
            })
    }

    /// Waits until at least `count` subscribers are there. False: not in time.
    pub fn wait_for_subscribers(&self, count: usize, timeout: Duration) -> bool {
        self.endpoint.borrow_mut().wait_for_peers(count, timeout)
    }

    /// Subscribers that are there.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.endpoint.borrow_mut().count_peers()
    }

    /// Messages that were given up so far, each counted for every subscriber that it was for.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let endpoint = self.endpoint.borrow();
        endpoint.outbox.as_ref().map_or(0, Outbox::dropped)
    }

    /// What this publisher is called by those that get its messages.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.endpoint.borrow().id()
    }

    /// A descriptor that is readable when somebody has come or gone. Then call any other function.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
