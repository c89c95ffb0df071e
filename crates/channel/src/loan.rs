//! Memory for a message that is being written.
//!
//! A loan of one's own memory is a few words of which nobody takes the address, so that it stays in registers from its `loan` to its
//! `push`. Written to memory in parts and read as a whole, it would have to wait until everything that was written before it has arrived,
//! and that is the last message, in lines that its reader has.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use millrace_shm::link::LINE_BYTES;
use millrace_shm::pool::{Buffer, PoolMemory};

use crate::endpoint::Shared;
use crate::outbox::Details;
use crate::room::Client;
use crate::{Error, PushError};

/// Memory for a message, to be written in place. Given back when dropped.
pub struct Loan<'a, L: Lender = Own<'a>> {
    owner: &'a Shared,
    lender: L,
    /// There until it is pushed or detached, which ends the loan.
    buffer: Option<Buffer>,
}

/// Memory for a reply.
pub type ReplyLoan<'a> = Loan<'a, OfClient>;

/// Whose memory a loan is of.
pub trait Lender: sealed::Lender {}

impl<L: sealed::Lender> Lender for L {}

mod sealed {
    use super::{Client, PoolMemory};

    pub trait Lender {
        fn memory(&self) -> &PoolMemory;
        fn client(&self) -> Client;
    }
}

/// The memory of a publisher or client.
#[derive(Debug)]
pub struct Own<'a>(&'a PoolMemory);

/// The memory of replies to one client, which is there as long as the loan.
#[derive(Debug)]
pub struct OfClient {
    memory: Arc<PoolMemory>,
    client: (usize, u64),
}

impl sealed::Lender for Own<'_> {
    #[inline(always)]
    fn memory(&self) -> &PoolMemory {
        self.0
    }

    #[inline(always)]
    fn client(&self) -> Client {
        None
    }
}

impl sealed::Lender for OfClient {
    fn memory(&self) -> &PoolMemory {
        &self.memory
    }

    fn client(&self) -> Client {
        Some(self.client)
    }
}

/// A loan without the one that it is of, for those who keep both in one place. Its memory is lost when it is dropped.
#[derive(Debug)]
pub struct DetachedLoan {
    pub(crate) buffer: Buffer,
    /// Of a reply: to whom.
    pub(crate) client: Client,
}

impl DetachedLoan {
    /// Where it begins in its pool, in bytes. It lies inside.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> usize {
        self.buffer.line() as usize * LINE_BYTES
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.buffer.bytes() as usize
    }
}

impl<L: Lender> fmt::Debug for Loan<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan")
            .field("buffer", &self.buffer)
            .finish_non_exhaustive()
    }
}

impl<L: Lender> Deref for Loan<'_, L> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        let memory = self.lender.memory();
        let bytes = self.buffer.as_ref().map(|buffer| memory.bytes(buffer));
        bytes.unwrap_or_default()
    }
}

impl<L: Lender> DerefMut for Loan<'_, L> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        let memory = self.lender.memory();
        let bytes = self.buffer.as_mut().map(|buffer| memory.bytes_mut(buffer));
        bytes.unwrap_or_default()
    }
}

impl<L: Lender> Drop for Loan<'_, L> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            give_back(self.owner, self.lender.client(), buffer);
        }
    }
}

/// Not a method, which would take the loan's address.
#[inline(never)]
fn give_back(owner: &Shared, client: Client, buffer: Buffer) {
    let mut endpoint = owner.borrow_mut();
    let outbox = endpoint.outbox_for(client);
    // The client may have gone, and have come again to the same place.
    if let Some(outbox) = outbox.filter(|outbox| outbox.pool().owns(&buffer)) {
        outbox.pool_mut().give_back(buffer);
    }
}

impl<'a> Loan<'a> {
    #[inline(always)]
    pub(crate) fn new(owner: &'a Shared, memory: &'a PoolMemory, buffer: Buffer) -> Loan<'a> {
        Loan {
            owner,
            lender: Own(memory),
            buffer: Some(buffer),
        }
    }

    /// Brings one back that was detached, of this memory.
    #[inline(always)]
    pub(crate) fn of_detached(
        owner: &'a Shared,
        memory: &'a PoolMemory,
        loan: DetachedLoan,
    ) -> Loan<'a> {
        assert!(memory.owns(&loan.buffer), "a loan of somebody else's");
        Loan::new(owner, memory, loan.buffer)
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

    /// Has its owner, who `owner` should be, send it, or returns it with the cause.
    #[inline(always)]
    pub(crate) fn push(
        self,
        owner: &Shared,
        key: Option<u64>,
        may_wait: bool,
    ) -> Result<u64, PushError<Loan<'a>>> {
        if !std::ptr::eq(self.owner, owner) {
            return Err(self.left_as_foreign());
        }
        self.push_as(Details::of_next(key), may_wait)
    }
}

impl<'a> Loan<'a> {
    #[cold]
    fn left_as_foreign(self) -> PushError<Loan<'a>> {
        let error = Error::Option("the loan is of somebody else's memory".to_owned());
        PushError { loan: self, error }
    }
}

impl<'a> ReplyLoan<'a> {
    pub(crate) fn of_reply(
        owner: &'a Shared,
        memory: Arc<PoolMemory>,
        buffer: Buffer,
        client: (usize, u64),
    ) -> ReplyLoan<'a> {
        Loan {
            owner,
            lender: OfClient { memory, client },
            buffer: Some(buffer),
        }
    }

    /// Sends it as the reply to the request of this number, or returns it with the cause.
    pub(crate) fn push_reply(self, request: u64) -> Result<u64, PushError<ReplyLoan<'a>>> {
        self.push_as(Details::of_reply(request, 0), true)
    }
}

impl<'a, L: Lender> Loan<'a, L> {
    /// Of a reply: to whom.
    #[inline(always)]
    pub(crate) fn client(&self) -> Client {
        self.lender.client()
    }

    #[inline(always)]
    fn push_as(mut self, details: Details, may_wait: bool) -> Result<u64, PushError<Self>> {
        let Some(buffer) = self.buffer.take() else {
            // A loan that was pushed or detached exists no more.
            unreachable!("a loan without memory");
        };
        let client = self.client();
        let mut endpoint = self.owner.borrow_mut();
        let mut left = None;
        let pushed = endpoint.push(client, buffer, (details, may_wait), &mut left);
        drop(endpoint);
        if let Some(number) = pushed {
            return Ok(number);
        }
        let Some((buffer, error)) = left else {
            // What could not be pushed is left.
            unreachable!("neither sent nor left");
        };
        self.buffer = Some(buffer);
        Err(PushError { loan: self, error })
    }

    /// Makes the message shorter. A longer one is left as it is.
    pub fn truncate(&mut self, bytes: usize) {
        if let (Some(buffer), Ok(bytes)) = (&mut self.buffer, u32::try_from(bytes)) {
            buffer.truncate(bytes);
        }
    }

    /// Takes it from the one that it is of, whose `attach` brings it back.
    #[must_use]
    #[inline(always)]
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
