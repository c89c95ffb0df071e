//! memcached: set and get in its text protocol (`doc/protocol.txt` of its sources).

use super::content::Wrong;
use super::keys::{KEY_BYTES, Operation, name};
use super::protocol::{Progress, known};
use super::store::Dialect;

/// Where the key stands in `VALUE key:000000000000 0 8\r\n`.
const KEY_AT: usize = "VALUE ".len();

pub(super) struct Memcached {
    /// What stands behind the key of a set.
    set_tail: Vec<u8>,
    /// The line before a value, of the key that was asked for last.
    value_line: Vec<u8>,
}

impl Memcached {
    /// For values of so many bytes.
    pub(super) fn new(bytes: usize) -> Memcached {
        let key = name(0);
        Memcached {
            set_tail: format!(" 0 0 {bytes}\r\n").into_bytes(),
            value_line: format!("VALUE {} 0 {bytes}\r\n", key.escape_ascii()).into_bytes(),
        }
    }
}

impl Dialect for Memcached {
    const READ: &str = "get";
    const WRITE: &str = "set";

    #[inline]
    fn emit(&self, operation: Operation, value: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(if operation.write { b"set " } else { b"get " });
        out.extend_from_slice(&name(operation.key));
        if operation.write {
            out.extend_from_slice(&self.set_tail);
            out.extend_from_slice(value);
        }
        out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn answer(
        &mut self,
        operation: Operation,
        value: &[u8],
        bytes: &[u8],
    ) -> Result<Progress, Wrong> {
        if operation.write {
            return known(b"STORED\r\n", b"", b"", bytes);
        }
        self.value_line[KEY_AT..][..KEY_BYTES].copy_from_slice(&name(operation.key));
        known(&self.value_line, value, b"\r\nEND\r\n", bytes)
    }
}
