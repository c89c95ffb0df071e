//! What the protocols of stores have in common: keys that are written and read.

use anyhow::Result;

use super::content::Wrong;
use super::keys::{Keyed, Keys, Operation, name};
use super::protocol::{Progress, Protocol, Ticket};

/// How a store is spoken to.
pub(super) trait Dialect {
    /// What reading and writing are called.
    const READ: &str;
    const WRITE: &str;

    /// Appends an operation; `value` is the one that is written.
    fn emit(&self, operation: Operation, value: &[u8], out: &mut Vec<u8>);

    /// Looks at the bytes of an answer, as [`Protocol::answer`] does; `value` is the one that has to be found.
    ///
    /// # Errors
    /// They are not the answer's.
    fn answer(
        &mut self,
        operation: Operation,
        value: &[u8],
        bytes: &[u8],
    ) -> Result<Progress, Wrong>;
}

/// A store, in one of the dialects.
pub(super) struct Store<D> {
    keys: Keys,
    dialect: D,
}

impl<D: Dialect> Store<D> {
    pub(super) fn new(
        dialect: D,
        keyed: &Keyed,
        connections: usize,
        seed: u64,
    ) -> Result<Store<D>> {
        let keys = Keys::new(keyed, connections, seed)?;
        Ok(Store { keys, dialect })
    }

    #[inline]
    fn emit(&self, operation: Operation, out: &mut Vec<u8>) -> Ticket {
        self.dialect
            .emit(operation, self.keys.value(operation), out);
        operation.ticket()
    }
}

impl<D: Dialect> Protocol for Store<D> {
    fn preparations(&self) -> u64 {
        self.keys.preparations()
    }

    fn prepare(&mut self, index: u64, out: &mut Vec<u8>) -> Ticket {
        self.emit(self.keys.preparation(index), out)
    }

    #[inline]
    fn request(&mut self, number: u64, connection: usize, out: &mut Vec<u8>) -> Ticket {
        let operation = self.keys.draw(number, connection);
        self.emit(operation, out)
    }

    #[inline]
    fn answer(&mut self, ticket: Ticket, bytes: &[u8]) -> Result<Progress, Wrong> {
        let operation = Operation::of(ticket);
        let value = self.keys.value(operation);
        self.dialect.answer(operation, value, bytes)
    }

    fn describe(&self, ticket: Ticket) -> String {
        let operation = Operation::of(ticket);
        let verb = if operation.write { D::WRITE } else { D::READ };
        format!("{verb} {}", name(operation.key).escape_ascii())
    }
}
