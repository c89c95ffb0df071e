//! Messages of which each way is known: how long one took to the server, and its answer back.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::Measured;
use super::content::{Contents, Wrong};
use super::protocol::{Progress, Protocol, Ticket};
use super::record::{Trace, histogram, summarize};
use super::stamp::{HEAD_BYTES, Head, MESSAGE, Stamps};
use crate::results::{Clocks, Latency};

/// As echo, to a server that puts its times into the answers.
pub(super) struct OneWay {
    contents: Contents,
    stamps: Stamps,
}

impl OneWay {
    /// Messages of so many bytes, one of [`super::stamp::LENGTHS`].
    pub(super) fn new(bytes: usize, seed: u64) -> OneWay {
        OneWay {
            contents: Contents::new(seed, bytes - HEAD_BYTES),
            stamps: Stamps::default(),
        }
    }

    fn head(&self, contents: &[u8]) -> Head {
        Head {
            kind: MESSAGE,
            bytes: HEAD_BYTES + contents.len(),
            stamps: Stamps::default(),
        }
    }
}

impl Protocol for OneWay {
    fn request(&mut self, number: u64, _connection: usize, out: &mut Vec<u8>) -> Ticket {
        let variant = Contents::variant(number);
        let contents = self.contents.get(variant);
        out.extend_from_slice(&self.head(contents).emit());
        out.extend_from_slice(contents);
        variant.into()
    }

    fn answer(&mut self, ticket: Ticket, bytes: &[u8]) -> Result<Progress, Wrong> {
        let contents = self.contents.get(ticket as u16);
        let expected = self.head(contents);
        let (Some(head), Some(got)) = (bytes.first_chunk(), bytes.get(..expected.bytes)) else {
            return Ok(Progress::Need(expected.bytes));
        };
        let head = Head::parse(head);
        if (head.kind, head.bytes) != (expected.kind, expected.bytes) {
            return Err(Wrong::difference(&expected.emit(), &got[..HEAD_BYTES]));
        }
        let got = &got[HEAD_BYTES..];
        if got != contents {
            return Err(Wrong::difference(contents, got));
        }
        self.stamps = head.stamps;
        Ok(Progress::whole(expected.bytes))
    }

    fn describe(&self, ticket: Ticket) -> String {
        format!("message of content {ticket}")
    }

    fn stamps(&self) -> Option<Stamps> {
        Some(self.stamps)
    }
}

/// What is known beside the way there, which is the run's latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ways {
    /// From when the server sent an answer to when its last byte was there.
    pub back: Latency,
    /// From when a message was to be sent to the last byte of its answer, by the client's clock alone.
    pub round_trip: Latency,
    /// Whose times these are.
    pub clocks: Clocks,
    /// Messages of which a way took less than nothing, which counts as nothing: the clocks' estimate has an error.
    pub below_zero: u64,
}

impl Measured {
    /// Parts round trips into their ways. The way there is then what was measured.
    pub(super) fn part(&mut self, clocks: Clocks) -> Result<()> {
        let (mut there, mut back) = (histogram()?, histogram()?);
        let mut below_zero = 0;
        let parted = self.trace.iter_mut().flat_map(Trace::parted_mut);
        for ((intended_ns, latency_ns), stamps) in parted {
            let sent_ns = self.origin_ns + *intended_ns;
            let answered_ns = sent_ns + *latency_ns;
            let received_ns = stamps.received_ns as i64 - clocks.offset_ns_at(sent_ns);
            let returned_ns = stamps.sent_ns as i64 - clocks.offset_ns_at(answered_ns);
            let there_ns = received_ns - sent_ns as i64;
            let back_ns = answered_ns as i64 - returned_ns;
            below_zero += u64::from(there_ns < 0 || back_ns < 0);
            *latency_ns = there_ns.max(0) as u64;
            there.saturating_record(*latency_ns);
            back.saturating_record(back_ns.max(0) as u64);
        }
        let round_trip = std::mem::replace(&mut self.histogram, there);
        let outcome = &mut self.outcome;
        outcome.latency = summarize(&self.histogram);
        outcome.notes.extend(clocks.note());
        if below_zero > 0 {
            outcome.notes.push(format!(
                "{below_zero} messages had a way of less than nothing, which counts as nothing: the clocks' estimate is in error by as much"
            ));
        }
        if outcome.trace_left_out > 0 {
            let note = "only the round trips have the answers that the trace had no room for";
            outcome.notes.push(note.to_owned());
        }
        outcome.one_way = Some(Ways {
            back: summarize(&back),
            round_trip: summarize(&round_trip),
            clocks,
            below_zero,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_the_message_with_times() {
        let mut protocol = OneWay::new(HEAD_BYTES + 3, 1);
        let mut message = Vec::new();
        let ticket = protocol.request(5, 0, &mut message);
        let stamps = Stamps {
            received_ns: 7,
            sent_ns: 9,
        };
        let mut head = Head::parse(message.first_chunk().unwrap());
        head.stamps = stamps;
        message[..HEAD_BYTES].copy_from_slice(&head.emit());
        for there in 1..message.len() {
            let progress = protocol.answer(ticket, &message[..there]);
            assert_eq!(progress, Ok(Progress::Need(message.len())));
        }
        let whole = Ok(Progress::whole(message.len()));
        assert_eq!(protocol.answer(ticket, &message), whole);
        assert_eq!(protocol.stamps(), Some(stamps));
        for place in [0, 4, HEAD_BYTES, HEAD_BYTES + 2] {
            let mut wrong = message.clone();
            wrong[place] ^= 1;
            assert!(protocol.answer(ticket, &wrong).is_err(), "{place}");
        }
    }
}
