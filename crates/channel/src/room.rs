//! How a participant sends: memory and room, waited for or not.
//!
//! What every message goes through hands its result on in registers, and leaves the cause of a failure in a place of its own: a result with
//! everything in it goes by memory, and the processor waits for each word of it that was written in parts and is read as a whole.

use millrace_shm::link::MESSAGE_BYTES_MAX;
use millrace_shm::pool::Buffer;
use millrace_shm::spin;

use crate::endpoint::Endpoint;
use crate::outbox::{Details, Hindrance, Outbox};
use crate::{Error, WhenFull};

/// So long is waited for much room rather than for some, in nanoseconds.
const MUCH_NS: u64 = 2_000;

/// Whom messages go to: everybody, or one client, by the place of its source and its name.
pub(crate) type Client = Option<(usize, u64)>;

impl From<Hindrance> for Error {
    fn from(hindrance: Hindrance) -> Error {
        match hindrance {
            Hindrance::NoReceiver => Error::NoReceiver,
            Hindrance::Full => Error::Full,
        }
    }
}

impl Endpoint {
    /// Where messages go.
    #[inline]
    pub(crate) fn outbox_for(&mut self, client: Client) -> Option<&mut Outbox> {
        match client {
            None => self.outbox.as_mut(),
            Some((source, name)) => self.replies_to(source, name),
        }
    }

    /// Memory for a message of `bytes` bytes, if there is some now, or when those are left that have kept it for too long. `is_told`: the
    /// user gets the error, and does not wait.
    pub(crate) fn try_loan(
        &mut self,
        client: Client,
        bytes: usize,
        is_told: bool,
    ) -> Result<Buffer, Error> {
        self.check()?;
        loop {
            let outbox = self.outbox_for(client).ok_or(Error::Gone)?;
            let hindrance = match outbox.loan(bytes) {
                Ok(buffer) => return Ok(buffer),
                Err(hindrance) => hindrance,
            };
            if is_told {
                // What is not seen does not come back.
                outbox.publish();
            }
            outbox.count_full(is_told);
            let limit = MESSAGE_BYTES_MAX.min(outbox.pool().longest_bytes());
            self.look_again();
            if bytes > limit {
                return Err(Error::TooLong { bytes, limit });
            }
            if !is_told || client.is_some() {
                return Err(hindrance.into());
            }
            if !self.part_with_hindering() {
                self.note_refused();
                return Err(hindrance.into());
            }
        }
    }

    /// As [`Endpoint::try_loan`]; waits for it where it is one to wait. `None`: the cause is in `cause`.
    #[inline(always)]
    pub(crate) fn loan(
        &mut self,
        client: Client,
        bytes: usize,
        cause: &mut Option<Error>,
    ) -> Option<Buffer> {
        if client.is_none()
            && self.check().is_ok()
            && let Some(outbox) = &mut self.outbox
            && let Some(buffer) = outbox.pool_mut().take(bytes)
        {
            return Some(buffer);
        }
        self.loan_or_wait(client, bytes, cause)
    }

    #[inline(never)]
    fn loan_or_wait(
        &mut self,
        client: Client,
        bytes: usize,
        cause: &mut Option<Error>,
    ) -> Option<Buffer> {
        let waits = self.when_full() == WhenFull::Block;
        let found = match self.try_loan(client, bytes, !waits) {
            Err(Error::Full) if waits => self.wait_for_memory(client, bytes),
            other => other,
        };
        found.map_err(|error| *cause = Some(error)).ok()
    }

    #[cold]
    fn wait_for_memory(&mut self, client: Client, bytes: usize) -> Result<Buffer, Error> {
        let deadline = self.deadline();
        let mut found = Err(Error::TimedOut);
        self.begin_wait(client);
        self.wait_for_room(deadline, |endpoint| {
            let Some(outbox) = endpoint.outbox_for(client) else {
                found = Err(Error::Gone);
                return true;
            };
            let Ok(buffer) = outbox.loan(bytes) else {
                return false;
            };
            found = Ok(buffer);
            true
        });
        self.end_wait(client, found.is_ok());
        found
    }

    fn begin_wait(&mut self, client: Client) {
        if let Some(outbox) = self.outbox_for(client) {
            outbox.begin_wait();
        }
    }

    fn end_wait(&mut self, client: Client, has_room: bool) {
        if let Some(outbox) = self.outbox_for(client) {
            outbox.end_wait(has_room);
        }
    }

    /// Sends a message; returns its number. `None`: its memory is in `left`, with the cause. `may_wait`: until there is room, where it is
    /// one to wait.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        client: Client,
        buffer: Buffer,
        (details, may_wait): (Details, bool),
        left: &mut Option<(Buffer, Error)>,
    ) -> Option<u64> {
        if client.is_none()
            && self.check().is_ok()
            && let Some(outbox) = &mut self.outbox
            && let Some(single) = outbox.single(buffer.memory_bytes())
        {
            return Some(outbox.push_to(single, buffer, details.sequence, details.marks));
        }
        let Details {
            key,
            sequence,
            marks,
        } = details;
        self.push_or_leave(client, buffer, (key, sequence), (marks, may_wait), left)
    }

    #[inline(never)]
    fn push_or_leave(
        &mut self,
        client: Client,
        buffer: Buffer,
        (key, sequence): (Option<u64>, Option<u64>),
        (marks, may_wait): (u8, bool),
        left: &mut Option<(Buffer, Error)>,
    ) -> Option<u64> {
        let details = Details {
            key,
            sequence,
            marks,
        };
        let pushed = self.push_to_any(client, buffer, (details, may_wait));
        if self.has_lost() {
            self.rearm();
        }
        pushed.map_err(|failed| *left = Some(failed)).ok()
    }

    fn push_to_any(
        &mut self,
        client: Client,
        buffer: Buffer,
        (details, may_wait): (Details, bool),
    ) -> Result<u64, (Buffer, Error)> {
        if let Err(error) = self.check() {
            return Err((buffer, error));
        }
        let waits = may_wait && self.when_full() == WhenFull::Block;
        let mut left = buffer;
        loop {
            // The client may have gone, and have come again to the same place.
            let outbox = self.outbox_for(client);
            let Some(outbox) = outbox.filter(|outbox| outbox.pool().owns(&left)) else {
                return Err((left, Error::Gone));
            };
            let (buffer, hindrance) = match outbox.push(left, details) {
                Ok(sequence) => return Ok(sequence),
                Err(failed) => failed,
            };
            // What is not seen does not come back.
            outbox.publish();
            outbox.count_full(!waits);
            if waits {
                return self.wait_to_push(client, buffer, details);
            }
            self.look_again();
            if client.is_some() {
                return Err((buffer, hindrance.into()));
            }
            if !self.part_with_hindering() {
                self.note_refused();
                return Err((buffer, hindrance.into()));
            }
            // Without them there may be room.
            left = buffer;
        }
    }

    #[cold]
    fn wait_to_push(
        &mut self,
        client: Client,
        buffer: Buffer,
        details: Details,
    ) -> Result<u64, (Buffer, Error)> {
        // What is not seen does not come back.
        if let Some(outbox) = self.outbox_for(client) {
            outbox.publish();
        }
        let deadline = self.deadline();
        let began = spin::clock();
        self.begin_wait(client);
        let mut state = Err((buffer, Error::TimedOut));
        self.wait_for_room(deadline, |endpoint| {
            let outbox = endpoint.outbox_for(client);
            if outbox.is_some_and(|outbox| !outbox.has_much_back())
                && spin::clock().wrapping_sub(began) < spin::cycles(MUCH_NS)
            {
                return false;
            }
            // Taken out for a moment: it is put back whatever happens.
            let Err((buffer, cause)) = std::mem::replace(&mut state, Ok(0)) else {
                return true;
            };
            let Some(outbox) = endpoint.outbox_for(client) else {
                state = Err((buffer, Error::Gone));
                return true;
            };
            state = outbox
                .push(buffer, details)
                .map_err(|(buffer, _)| (buffer, cause));
            state.is_ok()
        });
        self.end_wait(client, state.is_ok());
        state
    }

    /// Lets those see what was pushed who get messages from here.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.check().is_ok() {
            if let Some(outbox) = &mut self.outbox {
                outbox.publish();
            }
            self.look();
        }
    }
}
