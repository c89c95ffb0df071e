//! As much of HTTP/1.1 (RFC 9112) as an API of one machine needs: questions with bodies of a known length, one after another on a
//! connection, and somebody who asks them.
//!
//! Own code: a server that knows sockets of the file system brings an asynchronous runtime, and threads that wait are what is wanted here.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;

/// Bytes of a question before its body, and of its body, at most: bearers come in pieces.
const HEADER_BYTES_MAX: usize = 16 * 1024;
const BODY_BYTES_MAX: usize = 64 << 20;
/// Bytes of an answer that is read, at most.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// A function that does not answer within this time is not going to.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// JSON, and several values of it, each a line.
pub(crate) const JSON: &str = "application/json";
pub(crate) const JSON_LINES: &str = "application/x-ndjson";
pub(crate) const TEXT: &str = "text/plain; version=0.0.4";

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
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    }
}

/// Serves one who asks until it has nothing more to say, or goes on too long for the stream's own patience.
pub(crate) fn serve(
    stream: &mut (impl Read + Write),
    answer: impl Fn(&Question) -> Answer,
) -> io::Result<()> {
    let mut read = Vec::new();
    loop {
        let (answer, is_last) = match next(stream, &mut read) {
            Ok(question) => (answer(&question), question.is_last),
            Err(Bad::End) => return Ok(()),
            Err(Bad::Io(error)) => return Err(error),
            Err(Bad::Status(status, why)) => (Answer::error(status, why), true),
        };
        let Answer {
            status,
            content_type,
            body,
        } = answer;
        let connection = if is_last { "close" } else { "keep-alive" };
        let header = format!(
            "HTTP/1.1 {status} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
            reason(status),
            body.len()
        );
        stream.write_all(&[header.as_bytes(), &body].concat())?;
        if is_last {
            return Ok(());
        }
    }
}

impl Answer {
    /// That something was not done, and why.
    #[must_use]
    pub fn error(status: u16, why: &str) -> Answer {
        Answer {
            status,
            content_type: JSON,
            body: serde_json::json!({ "error": why }).to_string().into_bytes(),
        }
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
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let count: usize = value.parse().map_err(|_| bad("the length is no number"))?;
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
            Ok(question)
        }
        _ => Err(Bad::Status(505, "HTTP/1.1 is spoken here")),
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum AskError {
    /// Nobody listens there.
    NoFunction(PathBuf, io::Error),
    /// Somebody does, but it is neither root nor this user.
    Stranger(u32),
    /// It hung up or did not answer in time.
    NoAnswer(io::Error),
    /// What it says is not understood.
    Nonsense(String),
    /// It does not do what it was asked to; the text says why.
    Refused(u16, String),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::NoFunction(path, error) => write!(
                f,
                "no packet processing function answers at {}: {error} (start one by `millrace ppf run`, or say where it is by --control)",
                path.display()
            ),
            AskError::Stranger(uid) => write!(
                f,
                "a function of user {uid} listens there, which is not trusted"
            ),
            AskError::NoAnswer(error) => write!(f, "the function does not answer: {error}"),
            AskError::Nonsense(what) => {
                write!(f, "the function's answer is not understood: {what}")
            }
            AskError::Refused(_, why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for AskError {}

/// Somebody who asks, one question after another.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    read: Vec<u8>,
}

impl Client {
    /// One of the function with this control socket.
    ///
    /// # Errors
    /// When nobody listens there, or somebody who is not trusted.
    pub fn connect(path: &Path) -> Result<Client, AskError> {
        let failed = |error| AskError::NoFunction(path.to_owned(), error);
        let stream = UnixStream::connect(path).map_err(failed)?;
        let peer = getsockopt(&stream, sockopt::PeerCredentials);
        let uid = peer.map_err(|errno| failed(errno.into()))?.uid();
        if uid != 0 && uid != geteuid().as_raw() {
            return Err(AskError::Stranger(uid));
        }
        let timeout = Some(ANSWER_PATIENCE);
        stream.set_read_timeout(timeout).map_err(failed)?;
        stream.set_write_timeout(timeout).map_err(failed)?;
        Ok(Client {
            stream,
            read: Vec::new(),
        })
    }

    /// Asks; returns the body of an answer that says that it was done.
    ///
    /// # Errors
    /// When there is no answer, or it says that it was not.
    pub fn ask(
        &mut self,
        method: &str,
        target: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<Vec<u8>, AskError> {
        let header = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let sent = self.stream.write_all(&[header.as_bytes(), body].concat());
        sent.map_err(AskError::NoAnswer)?;
        let (status, body) = self.answer().map_err(|bad| match bad {
            Bad::Io(error) => AskError::NoAnswer(error),
            Bad::End => AskError::NoAnswer(io::ErrorKind::UnexpectedEof.into()),
            Bad::Status(_, what) => AskError::Nonsense(what.to_owned()),
        })?;
        if status < 300 {
            return Ok(body);
        }
        let said: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        let why = said
            .as_ref()
            .and_then(|said| said.get("error")?.as_str())
            .map_or_else(|| format!("status {status}"), str::to_owned);
        Err(AskError::Refused(status, why))
    }

    fn answer(&mut self) -> Result<(u16, Vec<u8>), Bad> {
        let whole = |read: &[u8]| end_of_header(read).is_some();
        fill(&mut self.stream, &mut self.read, whole, HEADER_BYTES_MAX)?;
        let end = end_of_header(&self.read).unwrap_or(self.read.len());
        let header: Vec<u8> = self.read.drain(..end).collect();
        let header = String::from_utf8_lossy(&header).to_ascii_lowercase();
        let mut lines = header.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok());
        let status = status.ok_or(Bad::Status(0, "the first line of the answer"))?;
        let mut lengths = lines.filter_map(|line| line.strip_prefix("content-length:"));
        let length = lengths.find_map(|length| length.trim().parse().ok());
        let length: usize = length.ok_or(Bad::Status(0, "an answer without a length"))?;
        if length > ANSWER_BYTES_MAX {
            return Err(Bad::Status(0, "an answer of more than a gibibyte"));
        }
        let is_there = |read: &[u8]| read.len() >= length;
        fill(&mut self.stream, &mut self.read, is_there, usize::MAX)?;
        Ok((status, self.read.drain(..length).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection by which these bytes come, so many at a time.
    struct Line {
        comes: Vec<u8>,
        step: usize,
        goes: Vec<u8>,
    }

    impl Read for Line {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let count = self.step.min(self.comes.len()).min(to.len());
            to[..count].copy_from_slice(&self.comes[..count]);
            self.comes.drain(..count);
            Ok(count)
        }
    }

    impl Write for Line {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.goes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn said(text: &str, step: usize) -> String {
        let mut line = Line {
            comes: text.as_bytes().to_vec(),
            step,
            goes: Vec::new(),
        };
        let _ = serve(&mut line, |question| Answer {
            status: 200,
            content_type: JSON,
            body: format!(
                "{} {} {:?} {}",
                question.method,
                question.path,
                question.parameter("limit"),
                String::from_utf8_lossy(&question.body)
            )
            .into_bytes(),
        });
        String::from_utf8(line.goes).unwrap()
    }

    #[test]
    fn questions_are_answered_one_after_another_however_they_come() {
        let text = "GET /a?limit=7 HTTP/1.1\r\nHost: x\r\n\r\nPOST /b HTTP/1.1\r\ncontent-LENGTH: 5\r\n\r\nhello";
        for step in [1, 7, 1000] {
            let said = said(text, step);
            assert_eq!(said.matches("HTTP/1.1 200 OK").count(), 2, "{said}");
            assert!(said.contains("GET /a Some(\"7\") ") && said.ends_with("POST /b None hello"));
        }
    }

    #[test]
    fn what_is_not_understood_ends_the_connection_with_a_reason() {
        for (text, status) in [
            ("GET\r\n\r\n", 400),
            ("GET a HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/2\r\n\r\n", 505),
            ("GET / HTTP/1.1\r\nnothing\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\n\r\n", 411),
            ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
            (
                "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                400,
            ),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
            (
                "POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
                413,
            ),
        ] {
            let said = said(&format!("{text}GET / HTTP/1.1\r\n\r\n"), 1000);
            let wanted = format!("HTTP/1.1 {status} ");
            assert!(
                said.starts_with(&wanted) && said.contains("Connection: close"),
                "{said}"
            );
            assert_eq!(said.matches("Content-Length: ").count(), 1, "{said}");
            assert_eq!(said.matches("Connection: ").count(), 1, "{said}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEADER_BYTES_MAX * 2));
        assert!(said(&long, 1000).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn who_waits_to_be_told_to_go_on_is_told() {
        let text = "PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
        assert!(said(text, 1000).starts_with("HTTP/1.1 100 Continue\r\n\r\n"));
    }
}
