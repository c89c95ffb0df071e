//! The side that gets messages.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_shm::link::LINE_BYTES;
use millrace_shm::pool::PoolView;
use nix::sys::epoll::Epoll;

use crate::Error;
use crate::endpoint::{Endpoint, Shared};
use crate::inbox::Taken;

/// So often something seems to be there and is not, where its publisher takes it back again and again.
const TRIES: u32 = 64;

/// Gets the messages of whoever publishes, of each publisher in order and of all in turn. Of one thread at a time.
#[derive(Debug)]
pub struct Subscriber {
    endpoint: Shared,
    epoll: Arc<Epoll>,
}

/// A message, where its publisher wrote it. Given back when dropped.
///
/// Its publisher could change it at any time. What must stay as it was checked, of a publisher that is not trusted, is copied out first.
pub struct Message<'a> {
    owner: &'a Shared,
    taken: Taken,
}

/// A message without its subscriber, for those who keep both in one place. Its publisher does not get it back when it is dropped.
#[derive(Debug)]
pub struct DetachedMessage(pub(crate) Taken);

impl DetachedMessage {
    /// Where it begins in its publisher's pool ([`Subscriber::pool_of`]), in bytes. It lies inside.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> usize {
        self.0.descriptor.line as usize * LINE_BYTES
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.descriptor.bytes as usize
    }

    /// Whose it is.
    #[must_use]
    #[inline]
    pub fn publisher(&self) -> u64 {
        self.0.publisher
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl Drop for Message<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let taken = &self.taken;
        give_back(
            self.owner,
            taken.source,
            taken.publisher,
            taken.descriptor.ticket,
        );
    }
}

/// Not a method, nor a part of the drop: a message that nobody has the address of stays in registers.
#[inline(never)]
fn give_back(owner: &Shared, source: usize, publisher: u64, ticket: u16) {
    let mut endpoint = owner.borrow_mut();
    if endpoint.check().is_ok() {
        endpoint.inbox.release(source, publisher, ticket);
        // That was the last of one who has gone.
        if !endpoint.inbox.over.is_empty() {
            endpoint.report_over();
        }
    }
}

impl<'a> Message<'a> {
    #[inline(always)]
    pub(crate) fn new(owner: &'a Shared, taken: Taken) -> Message<'a> {
        Message { owner, taken }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.taken.descriptor.bytes as usize
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from `offset` on, until `target` is full or the message ends; returns how many. In a forked child: none.
    #[inline(always)]
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) -> usize {
        let endpoint = self.owner.borrow();
        if endpoint.check().is_err() {
            return 0;
        }
        let bytes = endpoint.inbox.bytes(&self.taken);
        bytes.map_or(0, |bytes| bytes.copy_at(offset, target))
    }

    /// Copies the whole message. In a forked child: nothing.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        let count = self.copy_to(0, &mut copy);
        copy.truncate(count);
        copy
    }

    /// The eight bytes at `offset`, as a little-endian number. None: the message ends before.
    #[must_use]
    #[inline]
    pub fn u64_at(&self, offset: usize) -> Option<u64> {
        let mut copy = [0; 8];
        (self.copy_to(offset, &mut copy) == 8).then(|| u64::from_le_bytes(copy))
    }

    /// Where it begins, for code that reads memory by its address. Valid until the message is given back; a forked child finds zeros there.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        let endpoint = self.owner.borrow();
        let bytes = endpoint.inbox.bytes(&self.taken);
        bytes.map_or(std::ptr::dangling(), |bytes| bytes.as_ptr())
    }

    /// Its number, as its publisher counts. Of a publisher whose messages go to one group member each, others have the numbers between.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.taken.sequence
    }

    /// Whose it is.
    #[must_use]
    pub fn publisher(&self) -> u64 {
        self.taken.publisher
    }

    /// Whether another member of the group may have read it: one that has died, or that was left because it was slow.
    #[must_use]
    pub fn is_redelivered(&self) -> bool {
        self.taken.is_redelivered()
    }

    /// Messages of this publisher that were for this subscriber and were given up, since the last message. In a group it may tell early of
    /// some that were given up after this one.
    #[must_use]
    pub fn lost_before(&self) -> u64 {
        self.taken.lost
    }

    /// Takes it from its subscriber, to which [`Subscriber::attach`] brings it back.
    #[must_use]
    pub fn detach(self) -> DetachedMessage {
        let taken = self.taken;
        std::mem::forget(self);
        DetachedMessage(taken)
    }
}

impl Endpoint {
    /// The next message. None: there is none now.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Taken> {
        self.check().ok()?;
        if let Some(taken) = self.inbox.pop_in_turn() {
            return Some(taken);
        }
        let taken = self.pop_of_any()?;
        // A copy, so that the one above has no address.
        Some(Taken { ..taken })
    }

    #[inline(never)]
    fn pop_of_any(&mut self) -> Option<Taken> {
        for _ in 0..TRIES {
            if let Some(taken) = self.pop_of_next() {
                return Some(taken);
            }
            if !self.is_mistaken() {
                return None;
            }
        }
        // It has not said that it sleeps.
        self.ring_own();
        None
    }

    /// A turn is over: takes news, so that those who have come meanwhile have theirs, however much the others send.
    fn pop_of_next(&mut self) -> Option<Taken> {
        self.look();
        self.inbox.pop()
    }

    /// The next message, waited for until `deadline`.
    pub(crate) fn pop_until(&mut self, deadline: Option<Instant>) -> Result<Taken, Error> {
        self.check()?;
        let mut is_over = false;
        loop {
            let taken = self.inbox.pop_in_turn();
            if let Some(taken) = taken.or_else(|| self.pop_of_next()) {
                return Ok(taken);
            }
            if is_over || !self.wait_for_message(deadline) || self.has_lost() {
                return Err(Error::TimedOut);
            }
            // Something is there. Where it cannot be taken, its publisher takes it back again and again.
            is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        }
    }
}

impl Subscriber {
    pub(crate) fn new(endpoint: Endpoint) -> Subscriber {
        Subscriber {
            epoll: endpoint.epoll(),
            endpoint: RefCell::new(endpoint),
        }
    }

    /// The next message. None: there is none now.
    #[inline(always)]
    pub fn pop(&self) -> Option<Message<'_>> {
        let taken = self.endpoint.borrow_mut().pop()?;
        Some(self.attach(DetachedMessage(taken)))
    }

    /// The next message, waited for as long as the options say.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Forked`].
    pub fn receive(&self) -> Result<Message<'_>, Error> {
        let deadline = self.endpoint.borrow().deadline();
        self.receive_until(deadline)
    }

    /// The next message, waited for until `deadline`; for ever when there is none.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Forked`].
    pub fn receive_until(&self, deadline: Option<Instant>) -> Result<Message<'_>, Error> {
        let taken = self.endpoint.borrow_mut().pop_until(deadline)?;
        Ok(self.attach(DetachedMessage(taken)))
    }

    /// Brings a message back that was detached.
    #[must_use]
    #[inline(always)]
    pub fn attach(&self, message: DetachedMessage) -> Message<'_> {
        Message::new(&self.endpoint, message.0)
    }

    /// Waits until at least `count` publishers are there. False: not in time.
    pub fn wait_for_publishers(&self, count: usize, timeout: Duration) -> bool {
        self.endpoint.borrow_mut().wait_for_peers(count, timeout)
    }

    /// Publishers that are there.
    #[must_use]
    pub fn publishers(&self) -> usize {
        self.endpoint.borrow_mut().count_peers()
    }

    /// Messages for this subscriber that were given up so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.endpoint.borrow().inbox.lost()
    }

    /// What this subscriber is called by the agent.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.endpoint.borrow().id()
    }

    /// Takes news of who has come or gone: calls of the kernel, which other functions make now and then.
    pub fn attend(&self) {
        self.endpoint.borrow_mut().look_again();
    }

    /// The publisher that has been there longest.
    #[must_use]
    pub fn peer(&self) -> Option<u64> {
        self.endpoint.borrow().first_peer()
    }

    /// The pool of a publisher, for those who read messages by their place in it ([`DetachedMessage::offset`]), also when it has gone.
    #[must_use]
    pub fn pool_of(&self, publisher: u64) -> Option<Arc<PoolView>> {
        self.endpoint.borrow().inbox.pool_of(publisher)
    }

    /// For those who wait by [`Subscriber::news`], before they do: the next message makes that readable, once. False: there is one already.
    /// Publishers ring for nobody else.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.endpoint.borrow_mut().fall_asleep()
    }

    /// Nobody waits any more.
    pub fn disarm(&self) {
        self.endpoint.borrow().inbox.wake();
    }

    /// A descriptor that is readable when somebody has come or gone, and, after [`Subscriber::arm`], when there is a message. Unlike
    /// [`Subscriber::as_fd`], publishers have nothing to ring while it is not armed.
    #[must_use]
    pub fn news(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// A descriptor that is readable when there may be a message, for the program's own `epoll` or `poll`: then call [`Subscriber::pop`]
    /// until it gives none, which also says that the next message shall make the descriptor readable again. So the first time, before
    /// waiting.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.borrow_mut().note_watched();
        self.epoll.0.as_fd()
    }
}
