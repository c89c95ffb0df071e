//! Echo: messages of one length, which come back as they were sent.

use super::content::{Contents, Wrong};
use super::protocol::{Progress, Protocol, Ticket, known};

pub(super) struct Echo {
    contents: Contents,
}

impl Echo {
    pub(super) fn new(bytes: usize, seed: u64) -> Echo {
        Echo {
            contents: Contents::new(seed, bytes),
        }
    }
}

impl Protocol for Echo {
    fn request(&mut self, number: u64, _connection: usize, out: &mut Vec<u8>) -> Ticket {
        let variant = Contents::variant(number);
        out.extend_from_slice(self.contents.get(variant));
        variant.into()
    }

    fn answer(&mut self, ticket: Ticket, bytes: &[u8]) -> Result<Progress, Wrong> {
        known(b"", self.contents.get(ticket as u16), b"", bytes)
    }

    fn describe(&self, ticket: Ticket) -> String {
        format!("message of content {ticket}")
    }
}
