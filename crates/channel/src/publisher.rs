//! The side that sends.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use millrace_shm::pool::PoolMemory;
use nix::sys::epoll::Epoll;

use crate::endpoint::{Endpoint, Shared, deadline_after};
use crate::outbox::Outbox;
use crate::{DetachedLoan, Error, Loan, PushError};

/// Sends messages to whoever subscribes. Of one thread at a time.
#[derive(Debug)]
pub struct Publisher {
    endpoint: Shared,
    epoll: Arc<Epoll>,
    memory: Arc<PoolMemory>,
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
        let buffer = self.endpoint.borrow_mut().try_loan(None, bytes, true)?;
        Ok(Loan::new(&self.endpoint, &self.memory, buffer))
    }

    /// Brings a loan back that was detached from this publisher.
    ///
    /// # Panics
    /// When it is another's.
    #[must_use]
    #[inline(always)]
    pub fn attach(&self, loan: DetachedLoan) -> Loan<'_> {
        Loan::of_detached(&self.endpoint, &self.memory, loan)
    }

    /// Sends a message, to be seen after the next [`Publisher::publish`]; returns its number. Waits for room, as long as the options say,
    /// if it is one to wait.
    ///
    /// # Errors
    /// With the loan: [`Error::TimedOut`]; where nobody waits, [`Error::Full`] or [`Error::NoReceiver`]; [`Error::Option`]: the loan is
    /// another publisher's.
    #[inline(always)]
    pub fn push<'a>(&'a self, loan: Loan<'a>) -> Result<u64, PushError<Loan<'a>>> {
        loan.push(&self.endpoint, None, true)
    }

    /// As [`Publisher::push`], but of groups the member gets it that the key belongs to: messages with one key go to one member, in order.
    ///
    /// # Errors
    /// As [`Publisher::push`].
    #[inline(always)]
    pub fn push_keyed<'a>(&'a self, loan: Loan<'a>, key: u64) -> Result<u64, PushError<Loan<'a>>> {
        loan.push(&self.endpoint, Some(key), true)
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
        loan.push(&self.endpoint, key, false)
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
        let deadline = deadline_after(timeout);
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

    /// Takes news of who has come or gone: calls of the kernel, which other functions make now and then.
    pub fn attend(&self) {
        self.endpoint.borrow_mut().look_again();
    }

    /// The subscriber that has been there longest.
    #[must_use]
    pub fn peer(&self) -> Option<u64> {
        self.endpoint.borrow().first_peer()
    }

    /// Whether the only subscriber has no room for a message of so many bytes: for those who try again and again, since the kernel is not
    /// asked for news here, as it is when a push finds no room. False where there are several subscribers, or none.
    #[must_use]
    pub fn is_full(&self, bytes: usize) -> bool {
        let mut endpoint = self.endpoint.borrow_mut();
        let is_own = endpoint.check().is_ok();
        let outbox = endpoint.outbox.as_mut().filter(|_| is_own);
        outbox.is_some_and(|outbox| outbox.is_full(bytes as u64))
    }

    /// The pool, for those who write messages by their place in it ([`DetachedLoan::offset`]).
    #[must_use]
    pub fn pool(&self) -> &Arc<PoolMemory> {
        &self.memory
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

    /// A descriptor that is readable when somebody has come or gone, when what a dead member of a group had can go to another one, or when
    /// there may be room again after [`Error::Full`]. Then push until there is none, or call [`Publisher::attend`].
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.borrow_mut().note_watched();
        self.epoll.0.as_fd()
    }
}
