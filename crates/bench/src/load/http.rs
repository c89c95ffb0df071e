//! HTTP/1.1: GET of one path, whose body is the same every time (RFC 9112).
//!
//! Each request has a number in a header; a server that sends that header back, as ours does and nginx can be told to
//! (`add_header X-Request-Id $http_x_request_id`), is checked for swapped answers, too.

use anyhow::{Result, ensure};
use memchr::memchr;

use super::address::Address;
use super::content::Wrong;
use super::protocol::{Progress, Protocol, Ticket};

/// The header with a request's number.
pub(super) const REQUEST_ID: &[u8] = b"X-Request-Id";
/// A number is 16 hexadecimal digits.
const ID_BYTES: usize = 16;
/// A longer head is no answer.
const HEAD_LIMIT: usize = 64 << 10;

/// What is asked for, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// As `/index.html`.
    pub path: String,
    /// Length that the body has to have; without it, that of the first answer.
    pub bytes: Option<usize>,
    /// A connection for each request.
    pub close: bool,
}

pub(super) struct Http {
    get: Get,
    /// A request, of which only the number changes.
    request: Vec<u8>,
    id_at: usize,
    /// The body, once an answer has told it.
    body: Option<Vec<u8>>,
    /// Answers tell the request's number.
    names_requests: bool,
}

/// What an answer's head tells.
#[derive(Debug, PartialEq)]
struct Head<'a> {
    bytes: usize,
    status: &'a [u8],
    length: Option<usize>,
    id: Option<&'a [u8]>,
    last: bool,
}

impl Http {
    pub(super) fn new(get: &Get, address: &Address) -> Result<Http> {
        let path = &get.path;
        ensure!(
            path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()),
            "a path begins with / and has no blanks: {path}"
        );
        let host = match address {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(_) => "localhost".to_owned(),
        };
        let close = if get.close {
            "Connection: close\r\n"
        } else {
            ""
        };
        let mut request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{close}").into_bytes();
        request.extend_from_slice(REQUEST_ID);
        request.extend_from_slice(b": ");
        let id_at = request.len();
        request.extend_from_slice(&[b'0'; ID_BYTES]);
        request.extend_from_slice(b"\r\n\r\n");
        Ok(Http {
            get: get.clone(),
            request,
            id_at,
            body: None,
            names_requests: false,
        })
    }

    /// What the first answer is like, all have to be like.
    fn learn(&mut self, head: &Head, body: &[u8]) -> Result<(), Wrong> {
        if let Some(bytes) = self.get.bytes
            && bytes != body.len()
        {
            return Err(Wrong::new(
                format!("a body of {bytes} bytes"),
                format!("one of {}", body.len()),
            ));
        }
        self.names_requests = head.id.is_some();
        self.body = Some(body.to_vec());
        Ok(())
    }

    fn check_id(&self, ticket: Ticket, id: Option<&[u8]>) -> Result<(), Wrong> {
        if !self.names_requests || id == Some(&hexadecimal(ticket)) {
            return Ok(());
        }
        let header = |id: &[u8]| format!("{}: {}", REQUEST_ID.escape_ascii(), id.escape_ascii());
        let got = id.map_or("no such header".to_owned(), header);
        Err(Wrong::new(header(&hexadecimal(ticket)), got))
    }
}

impl Protocol for Http {
    /// One, whose answer tells the body.
    fn preparations(&self) -> u64 {
        1
    }

    fn prepare(&mut self, index: u64, out: &mut Vec<u8>) -> Ticket {
        self.request(u64::MAX - index, 0, out)
    }

    fn request(&mut self, number: u64, _connection: usize, out: &mut Vec<u8>) -> Ticket {
        self.request[self.id_at..][..ID_BYTES].copy_from_slice(&hexadecimal(number));
        out.extend_from_slice(&self.request);
        number
    }

    fn answer(&mut self, ticket: Ticket, bytes: &[u8]) -> Result<Progress, Wrong> {
        let Some(head) = parse(bytes)? else {
            return Ok(Progress::Need(bytes.len() + 1));
        };
        if head.status != b"200" {
            return Err(Wrong::line(b"HTTP/1.1 200 OK", bytes));
        }
        let Some(length) = head.length else {
            let got = "a head without it (chunked answers are not understood)";
            return Err(Wrong::new("Content-Length", got));
        };
        let expected = self.body.as_ref().map(Vec::len);
        if expected.is_some_and(|expected| expected != length) {
            let expected = format!("a body of {} bytes", expected.unwrap_or_default());
            return Err(Wrong::new(expected, format!("one of {length}")));
        }
        let total = head.bytes + length;
        if bytes.len() < total {
            return Ok(Progress::Need(total));
        }
        let body = &bytes[head.bytes..total];
        match &self.body {
            Some(expected) if expected != body => return Err(Wrong::difference(expected, body)),
            Some(_) => {}
            None => self.learn(&head, body)?,
        }
        self.check_id(ticket, head.id)?;
        let last = head.last || self.get.close;
        Ok(Progress::Whole { bytes: total, last })
    }

    fn describe(&self, ticket: Ticket) -> String {
        let id = hexadecimal(ticket);
        format!("GET {} with number {}", self.get.path, id.escape_ascii())
    }

    fn closes(&self) -> bool {
        self.get.close
    }
}

/// Reads a head; `None` when it has no end yet.
fn parse(bytes: &[u8]) -> Result<Option<Head<'_>>, Wrong> {
    const VERSION: &[u8] = b"HTTP/1.";
    let there = VERSION.len().min(bytes.len());
    if bytes[..there] != VERSION[..there] {
        return Err(Wrong::line(b"HTTP/1.1 200 OK", bytes));
    }
    let mut head = Head {
        bytes: 0,
        status: b"",
        length: None,
        id: None,
        last: bytes.get(there) == Some(&b'0'),
    };
    loop {
        let rest = &bytes[head.bytes..];
        let Some(end) = memchr(b'\n', rest) else {
            return if bytes.len() < HEAD_LIMIT {
                Ok(None)
            } else {
                let got = format!("{HEAD_LIMIT} bytes without an end");
                Err(Wrong::new("a head", got))
            };
        };
        let line = rest[..end].trim_ascii_end();
        if head.bytes == 0 {
            let mut words = line.splitn(3, |&byte| byte == b' ');
            head.status = words.nth(1).unwrap_or_default();
        } else if line.is_empty() {
            head.bytes += end + 1;
            return Ok(Some(head));
        } else {
            field(line, &mut head);
        }
        head.bytes += end + 1;
    }
}

/// Takes from a header field what matters here.
fn field<'a>(line: &'a [u8], head: &mut Head<'a>) {
    if let Some(value) = value_of(b"Content-Length", line) {
        let digits = std::str::from_utf8(value).ok();
        head.length = digits.and_then(|digits| digits.parse().ok());
    } else if let Some(value) = value_of(REQUEST_ID, line) {
        head.id = Some(value);
    } else if let Some(value) = value_of(b"Connection", line) {
        head.last = value.eq_ignore_ascii_case(b"close");
    }
}

/// The value of a header field, if it is the one of this name.
#[inline]
pub(super) fn value_of<'a>(name: &[u8], line: &'a [u8]) -> Option<&'a [u8]> {
    let (found, rest) = line.split_at_checked(name.len())?;
    let value = rest.strip_prefix(b":")?;
    found.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

fn hexadecimal(number: u64) -> [u8; ID_BYTES] {
    std::array::from_fn(|digit| {
        let shift = 4 * (ID_BYTES - 1 - digit);
        b"0123456789abcdef"[(number >> shift) as usize & 0xf]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\nserver: x\r\ncontent-length: 3\r\nX-Request-ID: 00000000000000ab\r\n\r\nabc";

    fn http() -> Http {
        let get = Get {
            path: "/".to_owned(),
            bytes: None,
            close: false,
        };
        Http::new(&get, &"unix:x".parse().unwrap()).unwrap()
    }

    #[test]
    fn an_answer_is_whole_only_with_its_last_byte() {
        let mut http = http();
        for there in 1..ANSWER.len() {
            let progress = http.answer(0xab, &ANSWER[..there]).unwrap();
            assert!(matches!(progress, Progress::Need(need) if need > there));
        }
        let whole = Progress::whole(ANSWER.len());
        assert_eq!(http.answer(0xab, ANSWER), Ok(whole));
    }

    #[test]
    fn other_numbers_bodies_lengths_and_statuses_are_wrong() {
        let mut http = http();
        http.answer(0xab, ANSWER).unwrap();
        let text = String::from_utf8(ANSWER.to_vec()).unwrap();
        let wrong = [
            text.replace("ab\r", "ac\r"),
            text.replace("abc", "abd"),
            text.replace(": 3", ": 2"),
            text.replace("200", "404"),
            text.replace("X-Request", "Y-Request"),
            text.replace("content-length", "length"),
            text.replace("HTTP", "HTTQ"),
        ];
        for answer in wrong {
            assert!(http.answer(0xab, answer.as_bytes()).is_err(), "{answer}");
        }
    }

    #[test]
    fn the_end_of_a_connection_is_announced() {
        for (field, version, last) in [
            ("Connection: close", "1.1", true),
            ("Connection: keep-alive", "1.1", false),
            ("Connection: keep-alive", "1.0", false),
            ("Date: today", "1.0", true),
        ] {
            let answer = format!("HTTP/{version} 200 OK\r\nContent-Length: 0\r\n{field}\r\n\r\n");
            let progress = http().answer(1, answer.as_bytes());
            let bytes = answer.len();
            assert_eq!(progress, Ok(Progress::Whole { bytes, last }), "{answer}");
        }
    }
}
