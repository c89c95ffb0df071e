//! memcached: set and get in its text protocol (`doc/protocol.txt` of its sources).

use anyhow::Result;

use super::content::Wrong;
use super::keys::{KEY_BYTES, Keyed, Keys, Operation, name};
use super::protocol::{Progress, Protocol, Ticket, known};

/// Where the key stands in `VALUE key:000000000000 0 8\r\n`.
const KEY_AT: usize = "VALUE ".len();

pub(super) struct Memcached {
    keys: Keys,
    /// What stands behind the key of a set.
    set_tail: Vec<u8>,
    /// The line before a value, of the key that was asked for last.
    value_line: Vec<u8>,
}

impl Memcached {
    pub(super) fn new(keyed: &Keyed, connections: usize, seed: u64) -> Result<Memcached> {
        let key = name(0);
        Ok(Memcached {
            keys: Keys::new(keyed, connections, seed)?,
            set_tail: format!(" 0 0 {}\r\n", keyed.bytes).into_bytes(),
            value_line: format!("VALUE {} 0 {}\r\n", key.escape_ascii(), keyed.bytes).into_bytes(),
        })
    }

    #[inline]
    fn emit(&self, operation: Operation, out: &mut Vec<u8>) -> Ticket {
        out.extend_from_slice(if operation.write { b"set " } else { b"get " });
        out.extend_from_slice(&name(operation.key));
        if operation.write {
            out.extend_from_slice(&self.set_tail);
            out.extend_from_slice(self.keys.value(operation));
        }
        out.extend_from_slice(b"\r\n");
        operation.ticket()
    }
}

impl Protocol for Memcached {
    fn preparations(&self) -> u64 {
        self.keys.preparations()
    }

    fn prepare(&mut self, index: u64, out: &mut Vec<u8>) -> Ticket {
        self.emit(self.keys.preparation(index), out)
    }

    fn request(&mut self, number: u64, connection: usize, out: &mut Vec<u8>) -> Ticket {
        let operation = self.keys.draw(number, connection);
        self.emit(operation, out)
    }

    fn answer(&mut self, ticket: Ticket, bytes: &[u8]) -> Result<Progress, Wrong> {
        let operation = Operation::of(ticket);
        if operation.write {
            return known(b"STORED\r\n", b"", b"", bytes);
        }
        self.value_line[KEY_AT..][..KEY_BYTES].copy_from_slice(&name(operation.key));
        let value = self.keys.value(operation);
        known(&self.value_line, value, b"\r\nEND\r\n", bytes)
    }

    fn describe(&self, ticket: Ticket) -> String {
        let operation = Operation::of(ticket);
        let verb = if operation.write { "set" } else { "get" };
        format!("{verb} {}", name(operation.key).escape_ascii())
    }
}
