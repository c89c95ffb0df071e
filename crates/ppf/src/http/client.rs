//! Somebody who asks.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;

use super::{Bad, HEADER_BYTES_MAX, end_of_header, fill};

/// Bytes of an answer that is read, at most, and of a piece of one.
const ANSWER_BYTES_MAX: usize = 1 << 30;
const PIECE_BYTES_MAX: usize = 16 << 20;
/// Bytes of the line before a piece.
const LINE_BYTES_MAX: usize = 1024;
/// A function that does not answer within this time is not going to.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

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
        self.put(method, target, content_type, body)?;
        let (status, body) = self.answer().map_err(ask_error)?;
        if status < 300 {
            return Ok(body);
        }
        Err(refused(status, &body))
    }

    /// Asks for what comes piece by piece.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn follow(mut self, target: &str) -> Result<Pieces, AskError> {
        self.put("GET", target, "", &[])?;
        let (status, length) = self.header().map_err(ask_error)?;
        match (status, length) {
            (..300, Length::Pieces) => Ok(Pieces { client: self }),
            (..300, _) => Err(AskError::Nonsense(
                "an answer that is not in pieces".to_owned(),
            )),
            _ => {
                let body = self.body(length).map_err(ask_error)?;
                Err(refused(status, &body))
            }
        }
    }

    fn put(
        &mut self,
        method: &str,
        target: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<(), AskError> {
        let header = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let sent = self.stream.write_all(&[header.as_bytes(), body].concat());
        sent.map_err(AskError::NoAnswer)
    }

    fn answer(&mut self) -> Result<(u16, Vec<u8>), Bad> {
        let (status, length) = self.header()?;
        Ok((status, self.body(length)?))
    }

    fn header(&mut self) -> Result<(u16, Length), Bad> {
        let whole = |read: &[u8]| end_of_header(read).is_some();
        fill(&mut self.stream, &mut self.read, whole, HEADER_BYTES_MAX)?;
        let end = end_of_header(&self.read).unwrap_or(self.read.len());
        let header: Vec<u8> = self.read.drain(..end).collect();
        let header = String::from_utf8_lossy(&header).to_ascii_lowercase();
        let mut lines = header.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok());
        let status = status.ok_or(Bad::Status(0, "the first line of the answer"))?;
        let length = lines.find_map(|line| match line.split_once(':')? {
            ("content-length", length) => length.trim().parse().ok().map(Length::Known),
            ("transfer-encoding", how) if how.trim() == "chunked" => Some(Length::Pieces),
            _ => None,
        });
        let length = length.ok_or(Bad::Status(0, "an answer without a length"))?;
        Ok((status, length))
    }

    fn body(&mut self, length: Length) -> Result<Vec<u8>, Bad> {
        let Length::Known(length) = length else {
            return Err(Bad::Status(0, "an answer in pieces"));
        };
        if length > ANSWER_BYTES_MAX {
            return Err(Bad::Status(0, "an answer of more than a gibibyte"));
        }
        self.take(length)
    }

    /// So many bytes.
    fn take(&mut self, length: usize) -> Result<Vec<u8>, Bad> {
        let is_there = |read: &[u8]| read.len() >= length;
        fill(&mut self.stream, &mut self.read, is_there, usize::MAX)?;
        Ok(self.read.drain(..length).collect())
    }

    /// The next piece; none behind the last one.
    fn piece(&mut self) -> Result<Option<Vec<u8>>, Bad> {
        let end_of_line = |read: &[u8]| read.windows(2).position(|two| two == b"\r\n");
        let has_line = |read: &[u8]| end_of_line(read).is_some();
        fill(&mut self.stream, &mut self.read, has_line, LINE_BYTES_MAX)?;
        let end = end_of_line(&self.read).unwrap_or(0);
        let line = self.take(end + 2)?;
        let digits = str::from_utf8(&line[..end]).ok();
        let length = digits.and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let length = length.filter(|length| *length <= PIECE_BYTES_MAX);
        let length = length.ok_or(Bad::Status(0, "a piece's length"))?;
        let mut piece = self.take(length + 2)?;
        piece.truncate(length);
        Ok((length > 0).then_some(piece))
    }
}

/// How long an answer is.
#[derive(Debug, Clone, Copy)]
enum Length {
    Known(usize),
    /// It comes in pieces, each with its length.
    Pieces,
}

/// An answer that comes piece by piece.
#[derive(Debug)]
pub struct Pieces {
    client: Client,
}

impl Pieces {
    /// Waits for the next one. None: there is no more.
    ///
    /// # Errors
    /// When it ends in the middle, or is not understood.
    pub fn poll_next(&mut self) -> Result<Option<Vec<u8>>, AskError> {
        self.client.piece().map_err(ask_error)
    }
}

fn ask_error(bad: Bad) -> AskError {
    match bad {
        Bad::Io(error) => AskError::NoAnswer(error),
        Bad::End => AskError::NoAnswer(io::ErrorKind::UnexpectedEof.into()),
        Bad::Status(_, what) => AskError::Nonsense(what.to_owned()),
    }
}

fn refused(status: u16, body: &[u8]) -> AskError {
    let said: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let why = said
        .as_ref()
        .and_then(|said| said.get("error")?.as_str())
        .map_or_else(|| format!("status {status}"), str::to_owned);
    AskError::Refused(status, why)
}
