//! Redis: SET and GET in RESP (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).

use anyhow::Result;

use super::content::Wrong;
use super::keys::{KEY_BYTES, Keyed, Keys, Operation, name};
use super::protocol::{Progress, Protocol, Ticket, known};

pub(super) struct Redis {
    keys: Keys,
    /// A value's length as RESP writes it: `$8\r\n`.
    length: Vec<u8>,
}

impl Redis {
    pub(super) fn new(keyed: &Keyed, connections: usize, seed: u64) -> Result<Redis> {
        Ok(Redis {
            keys: Keys::new(keyed, connections, seed)?,
            length: format!("${}\r\n", keyed.bytes).into_bytes(),
        })
    }

    #[inline]
    fn emit(&self, operation: Operation, out: &mut Vec<u8>) -> Ticket {
        const { assert!(KEY_BYTES == 16, "the heads tell the length of a key") };
        let head: &[u8] = if operation.write {
            b"*3\r\n$3\r\nSET\r\n$16\r\n"
        } else {
            b"*2\r\n$3\r\nGET\r\n$16\r\n"
        };
        out.extend_from_slice(head);
        out.extend_from_slice(&name(operation.key));
        out.extend_from_slice(b"\r\n");
        if operation.write {
            out.extend_from_slice(&self.length);
            out.extend_from_slice(self.keys.value(operation));
            out.extend_from_slice(b"\r\n");
        }
        operation.ticket()
    }
}

impl Protocol for Redis {
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
            known(b"+OK\r\n", b"", b"", bytes)
        } else {
            known(&self.length, self.keys.value(operation), b"\r\n", bytes)
        }
    }

    fn describe(&self, ticket: Ticket) -> String {
        let operation = Operation::of(ticket);
        let verb = if operation.write { "SET" } else { "GET" };
        format!("{verb} {}", name(operation.key).escape_ascii())
    }
}
