//! As much of HTTP/1.1 (RFC 9112) as an API of one machine needs: questions with bodies of a known length, one after another on a
//! connection, and somebody who asks them.
//!
//! Own code: a server that knows sockets of the file system brings an asynchronous runtime, and threads that wait are what is wanted here.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

pub use client::{AskError, Client, Pieces};

mod client;

/// Bytes of a question before its body, and of its body, at most: bearers come in pieces.
const HEADER_BYTES_MAX: usize = 16 * 1024;
const BODY_BYTES_MAX: usize = 64 << 20;
/// A question is whole within this time, and so is an answer taken, however often something comes or goes meanwhile.
const QUESTION_TIME: Duration = Duration::from_secs(120);

/// JSON, and several values of it, each a line.
pub(crate) const JSON: &str = "application/json";
pub(crate) const JSON_LINES: &str = "application/x-ndjson";
pub(crate) const TEXT: &str = "text/plain; version=0.0.4";
pub(crate) const SVG: &str = "image/svg+xml";
pub(crate) const PCAPNG: &str = "application/x-pcapng";

/// What is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    /// `GET` or another.
    pub method: String,
    /// Without what follows a question mark.
    pub path: String,
    /// What follows it.
    pub query: String,
    /// Whom it is for, as the asker calls it.
    pub host: String,
    /// What the body is.
    pub content_type: String,
    /// The body.
    pub body: Vec<u8>,
    /// Nothing follows.
    pub is_last: bool,
    /// Its asker speaks HTTP/1.0, which knows no answers in pieces.
    pub(crate) is_old: bool,
}

impl Question {
    /// One with a body.
    #[must_use]
    pub fn new(method: &str, target: &str, content_type: &str, body: Vec<u8>) -> Question {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Question {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            host: "localhost".to_owned(),
            content_type: content_type.to_owned(),
            body,
            is_last: false,
            is_old: false,
        }
    }

    /// What the query says of a name.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        let mut named = pairs.filter(|(known, _)| *known == name);
        named.next().map(|(_, value)| value)
    }
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// 200 or another.
    pub status: u16,
    /// What the body is.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
    /// To whom asked otherwise: how can be asked (RFC 9110, 10.2.1). Otherwise nothing.
    pub allow: &'static str,
}

/// An answer, or one that comes piece by piece, whose end is not known.
pub(crate) enum Said {
    Whole(Answer),
    /// What it is, and its pieces, of which none is empty.
    Pieces(&'static str, Box<dyn Iterator<Item = Vec<u8>>>),
}

/// Why a question is not understood: the answer to it ends the connection.
#[derive(Debug)]
enum Bad {
    Io(io::Error),
    /// The other end has nothing more to say.
    End,
    Status(u16, &'static str),
}

impl From<io::Error> for Bad {
    fn from(error: io::Error) -> Bad {
        Bad::Io(error)
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    }
}

/// Serves one who asks until it has nothing more to say, or goes on too long for the stream's own patience.
pub(crate) fn serve(
    stream: &mut (impl Read + Write),
    answer: impl Fn(&Question) -> Said,
) -> io::Result<()> {
    serve_in_time(stream, QUESTION_TIME, answer)
}

fn serve_in_time(
    stream: &mut (impl Read + Write),
    time: Duration,
    answer: impl Fn(&Question) -> Said,
) -> io::Result<()> {
    let mut read = Vec::new();
    loop {
        let mut hurried = Hurried::new(stream, time);
        let (said, is_last, is_old) = match next(&mut hurried, &mut read) {
            Ok(question) => (answer(&question), question.is_last, question.is_old),
            Err(Bad::End) => return Ok(()),
            Err(Bad::Io(error)) => return Err(error),
            Err(Bad::Status(status, why)) => (Said::Whole(Answer::error(status, why)), true, false),
        };
        let answer = match said {
            Said::Whole(answer) => answer,
            Said::Pieces(..) if is_old => Answer::error(505, "HTTP/1.1 has answers in pieces"),
            Said::Pieces(kind, pieces) => return write_pieces(stream, kind, pieces),
        };
        let Answer {
            status,
            content_type,
            body,
            allow,
        } = answer;
        let allow = match allow {
            "" => String::new(),
            _ => format!("Allow: {allow}\r\n"),
        };
        // What is not to be had now is, a second later, as often as not.
        let later = match status {
            503 => "Retry-After: 1\r\n",
            _ => "",
        };
        let connection = if is_last { "close" } else { "keep-alive" };
        let header = format!(
            "HTTP/1.1 {status} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}{later}Connection: {connection}\r\n\r\n",
            reason(status),
            body.len()
        );
        Hurried::new(stream, time).write_all(&[header.as_bytes(), &body].concat())?;
        if is_last {
            return Ok(());
        }
    }
}

/// A stream that ends at some time: the other end's patience is for each of its parts.
struct Hurried<'a, S> {
    stream: &'a mut S,
    until: Instant,
}

impl<S> Hurried<'_, S> {
    fn new(stream: &mut S, time: Duration) -> Hurried<'_, S> {
        let until = Instant::now() + time;
        Hurried { stream, until }
    }

    fn in_time(&mut self) -> io::Result<&mut S> {
        match Instant::now() < self.until {
            true => Ok(self.stream),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl<S: Read> Read for Hurried<'_, S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.in_time()?.read(to)
    }
}

impl<S: Write> Write for Hurried<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.in_time()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.in_time()?.flush()
    }
}

/// Writes an answer whose end is not known (RFC 9112, 7.1), which is a connection's last.
fn write_pieces(
    stream: &mut impl Write,
    kind: &str,
    pieces: impl Iterator<Item = Vec<u8>>,
) -> io::Result<()> {
    let header = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(header.as_bytes())?;
    for piece in pieces.filter(|piece| !piece.is_empty()) {
        let length = format!("{:x}\r\n", piece.len());
        stream.write_all(&[length.as_bytes(), &piece, b"\r\n"].concat())?;
    }
    stream.write_all(b"0\r\n\r\n")
}

impl Answer {
    /// One with a body.
    #[must_use]
    pub fn new(status: u16, content_type: &'static str, body: Vec<u8>) -> Answer {
        Answer {
            status,
            content_type,
            body,
            allow: "",
        }
    }

    /// That something was not done, and why.
    #[must_use]
    pub fn error(status: u16, why: &str) -> Answer {
        let body = serde_json::json!({ "error": why }).to_string();
        Answer::new(status, JSON, body.into_bytes())
    }
}

/// Reads until what was read has so much, or an end of it is found.
fn fill(
    stream: &mut impl Read,
    read: &mut Vec<u8>,
    mut is_enough: impl FnMut(&[u8]) -> bool,
    most: usize,
) -> Result<(), Bad> {
    let mut buffer = vec![0; 64 * 1024];
    while !is_enough(read.as_slice()) {
        if read.len() >= most {
            return Err(Bad::Status(431, "the header is too long"));
        }
        match stream.read(&mut buffer) {
            Ok(0) if read.is_empty() => return Err(Bad::End),
            Ok(0) => return Err(Bad::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => read.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Bad::Io(error)),
        }
    }
    Ok(())
}

fn end_of_header(read: &[u8]) -> Option<usize> {
    let end = read.windows(4).position(|four| four == b"\r\n\r\n");
    end.map(|at| at + 4)
}

/// The next question of a connection; what was read and not needed stays in `read`.
fn next(stream: &mut (impl Read + Write), read: &mut Vec<u8>) -> Result<Question, Bad> {
    fill(
        stream,
        read,
        |read| end_of_header(read).is_some(),
        HEADER_BYTES_MAX,
    )?;
    let end = end_of_header(read).unwrap_or(read.len());
    let header: Vec<u8> = read.drain(..end).collect();
    let bad = |why| Bad::Status(400, why);
    let header = String::from_utf8(header).map_err(|_| bad("the header is no text"))?;
    let mut lines = header.split("\r\n");
    let mut question = parse_line(lines.next().unwrap_or_default())?;
    let (mut length, mut waits) = (None, false);
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(bad("a header has no colon"))?;
        // One that others read as another header, or as none (RFC 9112, 5.1).
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad("a header's name has a space in it, or is none"));
        }
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let digits = Some(value).filter(|value| !value.starts_with('+'));
                let count = digits.and_then(|digits| digits.parse().ok());
                let count: usize = count.ok_or(bad("the length is no number"))?;
                // Two that differ are an attempt to be understood twice (RFC 9112, 6.3).
                if length.is_some_and(|before| before != count) {
                    return Err(bad("there are two lengths"));
                }
                length = Some(count);
            }
            "transfer-encoding" => return Err(Bad::Status(501, "give a Content-Length")),
            "content-type" => question.content_type = value.to_ascii_lowercase(),
            "host" => value.clone_into(&mut question.host),
            "connection" => question.is_last |= value.eq_ignore_ascii_case("close"),
            "expect" => waits = value.eq_ignore_ascii_case("100-continue"),
            _ => {}
        }
    }
    let has_body = matches!(question.method.as_str(), "POST" | "PUT" | "PATCH");
    let length = match length {
        None if has_body => return Err(Bad::Status(411, "give a Content-Length")),
        None => 0,
        Some(length) if length > BODY_BYTES_MAX => {
            return Err(Bad::Status(413, "the body is too long: give it in pieces"));
        }
        Some(length) => length,
    };
    if waits && read.len() < length {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    fill(stream, read, |read| read.len() >= length, usize::MAX)?;
    question.body = read.drain(..length).collect();
    Ok(question)
}

fn parse_line(line: &str) -> Result<Question, Bad> {
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Bad::Status(400, "the first line is not understood"));
    };
    if !target.starts_with('/') {
        return Err(Bad::Status(400, "the target is no path"));
    }
    let mut question = Question::new(method, target, "", Vec::new());
    question.host.clear();
    match version {
        "HTTP/1.1" => Ok(question),
        "HTTP/1.0" => {
            question.is_last = true;
            question.is_old = true;
            Ok(question)
        }
        _ => Err(Bad::Status(505, "HTTP/1.1 is spoken here")),
    }
}

#[cfg(test)]
mod tests;
