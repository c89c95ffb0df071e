//! Sends messages back with the times at which they came and went.

use super::{Service, Taken};
use crate::load::clocks::Name;
use crate::load::stamp::{HEAD_BYTES, Head, LENGTHS, MESSAGE, Stamps, WHO};
use crate::load::sys;

pub(super) struct Stamp {
    /// What our clock is known by.
    name: String,
}

impl Stamp {
    pub(super) fn new() -> Stamp {
        Stamp {
            name: Name::own().to_string(),
        }
    }

    /// Answers a message. The contents come first, so that the time is the last that is done with it.
    fn answer(&self, asked: Head, message: &[u8], received_ns: u64, out: &mut Vec<u8>) {
        let contents = match asked.kind {
            WHO => self.name.as_bytes(),
            _ => &message[HEAD_BYTES..],
        };
        let begin = out.len();
        out.resize(begin + HEAD_BYTES, 0);
        out.extend_from_slice(contents);
        let head = Head {
            kind: asked.kind,
            bytes: HEAD_BYTES + contents.len(),
            stamps: Stamps {
                received_ns,
                sent_ns: sys::monotonic_ns(),
            },
        };
        out[begin..begin + HEAD_BYTES].copy_from_slice(&head.emit());
    }
}

impl Service for Stamp {
    fn serve(&mut self, input: &[u8], out: &mut Vec<u8>) -> Taken {
        let received_ns = sys::monotonic_ns();
        let mut taken = Taken::default();
        while let Some(bytes) = input[taken.bytes..].first_chunk() {
            let head = Head::parse(bytes);
            let is_known = [MESSAGE, WHO].contains(&head.kind);
            if !is_known || !LENGTHS.contains(&head.bytes) {
                taken.close = true;
                break;
            }
            let Some(message) = input[taken.bytes..].get(..head.bytes) else {
                break;
            };
            self.answer(head, message, received_ns, out);
            taken.bytes += head.bytes;
            taken.requests += 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, contents: &[u8]) -> Vec<u8> {
        let head = Head {
            kind,
            bytes: HEAD_BYTES + contents.len(),
            stamps: Stamps::default(),
        };
        [&head.emit(), contents].concat()
    }

    #[test]
    fn whole_messages_come_back_with_times_and_anything_else_ends_the_connection() {
        let (mut stamp, mut out) = (Stamp::new(), Vec::new());
        let one = message(MESSAGE, b"abc");
        let input = [&one[..], &one[..], &one[..HEAD_BYTES]].concat();
        let before_ns = sys::monotonic_ns();
        let taken = stamp.serve(&input, &mut out);
        assert_eq!((taken.bytes, taken.requests, taken.close), (54, 2, false));
        for answer in out.chunks(one.len()) {
            let head = Head::parse(answer.first_chunk().unwrap());
            assert_eq!((head.kind, head.bytes), (MESSAGE, answer.len()));
            assert_eq!(&answer[HEAD_BYTES..], b"abc");
            assert!(before_ns <= head.stamps.received_ns);
            assert!(head.stamps.received_ns <= head.stamps.sent_ns);
        }
        out.clear();
        assert_eq!(stamp.serve(&message(WHO, b""), &mut out).requests, 1);
        assert_eq!(out[HEAD_BYTES..], *stamp.name.as_bytes());
        for wrong in [message(7, b""), message(MESSAGE, &[0; 64 << 10])] {
            assert!(stamp.serve(&wrong, &mut out).close);
        }
    }
}
