//! Sends back what comes.

use super::{Service, Taken};

pub(super) struct Echo;

impl Service for Echo {
    fn serve(&mut self, input: &[u8], out: &mut Vec<u8>) -> Taken {
        out.extend_from_slice(input);
        Taken {
            bytes: input.len(),
            requests: 1,
            close: false,
        }
    }
}
