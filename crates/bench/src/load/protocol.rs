//! What a protocol does for a run: makes requests, and knows the right answer to each.

use super::content::Wrong;
use super::stamp::Stamps;

/// An answer's line is looked for in so many bytes.
const LINE_LIMIT: usize = 512;

/// What the protocol has to know about a request to check its answer, in a form of its own.
pub(super) type Ticket = u64;

/// What became of bytes that may be an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is not known before there are so many bytes of it, which are more than there are.
    Need(usize),
    /// It is whole, and right.
    Whole {
        /// How many of the bytes it has.
        bytes: usize,
        /// The server ends the connection after it.
        last: bool,
    },
}

impl Progress {
    pub(super) fn whole(bytes: usize) -> Progress {
        Progress::Whole { bytes, last: false }
    }
}

/// A protocol of requests and answers, the answers in the requests' order. To add one, write a file that implements this, and name it
/// in [`super::Workload`].
pub(super) trait Protocol {
    /// How many requests the server is sent before the run, one connection for all.
    fn preparations(&self) -> u64 {
        0
    }

    /// Appends one of them.
    fn prepare(&mut self, _index: u64, _out: &mut Vec<u8>) -> Ticket {
        0
    }

    /// Appends a request. Numbers are unique in a run.
    fn request(&mut self, number: u64, connection: usize, out: &mut Vec<u8>) -> Ticket;

    /// Looks at the bytes that came after the answers so far; there is at least one.
    ///
    /// # Errors
    /// They are not the answer's.
    fn answer(&mut self, ticket: Ticket, bytes: &[u8]) -> Result<Progress, Wrong>;

    /// A request as a person would write it.
    fn describe(&self, ticket: Ticket) -> String;

    /// The server's times of the last answer that was whole; none where it tells none.
    fn stamps(&self) -> Option<Stamps> {
        None
    }

    /// Whether each request has a connection of its own, which the server ends.
    fn closes(&self) -> bool {
        false
    }
}

/// Checks an answer that is known to the byte. A wrong head is taken for the line of an error, and shown as that.
#[inline]
pub(super) fn known(
    head: &[u8],
    body: &[u8],
    tail: &[u8],
    bytes: &[u8],
) -> Result<Progress, Wrong> {
    let there = head.len().min(bytes.len());
    if bytes[..there] != head[..there] {
        let whole_line = bytes.contains(&b'\n') || bytes.len() >= LINE_LIMIT;
        return if whole_line {
            Err(Wrong::line(head.trim_ascii_end(), bytes))
        } else {
            Ok(Progress::Need(bytes.len() + 1))
        };
    }
    let total = head.len() + body.len() + tail.len();
    if bytes.len() < total {
        return Ok(Progress::Need(total));
    }
    let (got_body, got_tail) = bytes[head.len()..total].split_at(body.len());
    if got_body != body {
        return Err(Wrong::difference(body, got_body));
    }
    if got_tail != tail {
        return Err(Wrong::difference(tail, got_tail));
    }
    Ok(Progress::whole(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_answer_is_waited_for_and_anything_else_is_wrong() {
        let answer = |bytes: &[u8]| known(b"$3\r\n", b"abc", b"\r\n", bytes);
        for there in 1..9 {
            assert_eq!(answer(&b"$3\r\nabc\r\n"[..there]), Ok(Progress::Need(9)));
        }
        assert_eq!(answer(b"$3\r\nabc\r\n+OK"), Ok(Progress::whole(9)));
        assert!(answer(b"$3\r\nabd\r\n").is_err());
        assert!(answer(b"$3\r\nabc\n\n").is_err());
        assert_eq!(answer(b"-ERR"), Ok(Progress::Need(5)));
        let error = answer(b"-ERR no\r\n").unwrap_err().to_string();
        assert_eq!(error, r#"expected "$3", got "-ERR no""#);
    }
}
