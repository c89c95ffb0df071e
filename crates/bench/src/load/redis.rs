//! Redis: SET and GET in RESP (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).

use super::content::Wrong;
use super::keys::{KEY_BYTES, Operation, name};
use super::protocol::{Progress, known};
use super::store::Dialect;

pub(super) struct Redis {
    /// A value's length as RESP writes it: `$8\r\n`.
    length: Vec<u8>,
}

impl Redis {
    /// For values of so many bytes.
    pub(super) fn new(bytes: usize) -> Redis {
        Redis {
            length: format!("${bytes}\r\n").into_bytes(),
        }
    }
}

impl Dialect for Redis {
    const READ: &str = "GET";
    const WRITE: &str = "SET";

    #[inline]
    fn emit(&self, operation: Operation, value: &[u8], out: &mut Vec<u8>) {
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
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }

    #[inline]
    fn answer(
        &mut self,
        operation: Operation,
        value: &[u8],
        bytes: &[u8],
    ) -> Result<Progress, Wrong> {
        if operation.write {
            known(b"+OK\r\n", b"", b"", bytes)
        } else {
            known(&self.length, value, b"\r\n", bytes)
        }
    }
}
