//! How a participant sends: memory and room, waited for or not.

use std::time::Duration;

use millrace_shm::link::MESSAGE_BYTES_MAX;
use millrace_shm::pool::Buffer;

use crate::endpoint::Endpoint;
use crate::outbox::{Details, Hindrance, Outbox};
use crate::{Error, WhenFull};

/// Whom messages go to: everybody, or one client, by the place of its source and its name.
type Client = Option<(usize, u64)>;

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

    /// Memory for a message of `bytes` bytes, if there is some now.
    #[inline]
    pub(crate) fn try_loan(&mut self, client: Client, bytes: usize) -> Result<Buffer, Error> {
        self.check()?;
        let outbox = self.outbox_for(client).ok_or(Error::Gone)?;
        match outbox.loan(bytes) {
            Ok(buffer) => Ok(buffer),
            Err(hindrance) => {
                let limit = MESSAGE_BYTES_MAX.min(outbox.pool().longest_bytes());
                self.look_now(Some(Duration::ZERO));
                if bytes > limit {
                    return Err(Error::TooLong { bytes, limit });
                }
                Err(hindrance.into())
            }
        }
    }

    /// As [`Endpoint::try_loan`]; waits for it where it is one to wait.
    #[inline]
    pub(crate) fn loan(&mut self, client: Client, bytes: usize) -> Result<Buffer, Error> {
        match self.try_loan(client, bytes) {
            Err(Error::Full) if self.when_full() == WhenFull::Block => {
                self.wait_for_memory(client, bytes)
            }
            other => other,
        }
    }

    #[cold]
    fn wait_for_memory(&mut self, client: Client, bytes: usize) -> Result<Buffer, Error> {
        let deadline = self.deadline();
        let mut found = Err(Error::TimedOut);
        self.wait_for_room(deadline, |endpoint| {
            match endpoint.outbox_for(client).map(|outbox| outbox.loan(bytes)) {
                Some(Ok(buffer)) => found = Ok(buffer),
                Some(Err(_)) => return false,
                None => found = Err(Error::Gone),
            }
            true
        });
        found
    }

    /// Sends a message, or gives its memory back with the cause. `may_wait`: until there is room, where it is one to wait.
    #[inline]
    pub(crate) fn push(
        &mut self,
        client: Client,
        buffer: Buffer,
        details: Details,
        may_wait: bool,
    ) -> Result<u64, (Buffer, Error)> {
        if let Err(error) = self.check() {
            return Err((buffer, error));
        }
        let Some(outbox) = self.outbox_for(client) else {
            return Err((buffer, Error::Gone));
        };
        match outbox.push(buffer, details) {
            Ok(sequence) => Ok(sequence),
            Err((buffer, _)) if may_wait && self.when_full() == WhenFull::Block => {
                self.wait_to_push(client, buffer, details)
            }
            Err((buffer, hindrance)) => {
                self.look_now(Some(Duration::ZERO));
                Err((buffer, hindrance.into()))
            }
        }
    }

    #[cold]
    fn wait_to_push(
        &mut self,
        client: Client,
        buffer: Buffer,
        details: Details,
    ) -> Result<u64, (Buffer, Error)> {
        let deadline = self.deadline();
        let mut state = Err((buffer, Error::TimedOut));
        self.wait_for_room(deadline, |endpoint| {
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
