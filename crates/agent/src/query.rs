//! The asking side: what `millrace ps` and `millrace doctor` do to get an answer.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_wire::{Answer, MAX_BYTES, Query, ToAgent, ToClient, VERSION_MIN};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, getsockopt, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::geteuid;

use crate::channels::ChannelsReport;
use crate::report::{ConnectionsReport, StatusReport};

/// Most bytes that an answer may have.
const ANSWER_BYTES_MAX: u32 = 1 << 30;
/// What users are in a user namespace that does not map them.
const OVERFLOW_UID: u32 = 65_534;

/// Who answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answerer {
    /// The agent's process, or 0 when it is not in this PID namespace.
    pub pid: i32,
    /// The agent's user.
    pub uid: u32,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum AskError {
    /// Nobody listens there.
    NoAgent(io::Error),
    /// Somebody does, but it is neither root nor this user: not to be trusted.
    Stranger(u32),
    /// The agent hung up or did not answer in time.
    NoAnswer(io::Error),
    /// The answer is not understood.
    Nonsense(String),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::NoAgent(error) => write!(f, "no agent answers: {error}"),
            AskError::Stranger(uid) => write!(
                f,
                "an agent of user {uid} listens there, which is not trusted"
            ),
            AskError::NoAnswer(error) => write!(f, "the agent does not answer: {error}"),
            AskError::Nonsense(what) => write!(f, "the agent's answer is not understood: {what}"),
        }
    }
}

impl std::error::Error for AskError {}

/// Asks the agent at `path`, waits at most `patience` for each step (twice that when signals come), and returns its answer as JSON.
///
/// # Errors
/// When nobody answers, or somebody who is not trusted.
pub fn ask(path: &Path, query: Query, patience: Duration) -> Result<(String, Answerer), AskError> {
    let (socket, answerer) = reach(path, patience).map_err(AskError::NoAgent)?;
    // In a user namespace that does not map the agent's user, root shows as the overflow user.
    let is_root = matches!(answerer.uid, 0 | OVERFLOW_UID);
    if !is_root && answerer.uid != geteuid().as_raw() {
        return Err(AskError::Stranger(answerer.uid));
    }
    let mut buffer = [0; MAX_BYTES];
    let length = ToAgent::Query(query).encode(VERSION_MIN, &mut buffer);
    let question = &buffer[..length];
    uninterrupted(patience, || {
        Ok(send(socket.as_raw_fd(), question, MsgFlags::MSG_NOSIGNAL)?)
    })
    .map_err(AskError::NoAnswer)?;
    let (length, descriptor) = uninterrupted(patience, || {
        crate::sys::receive_with_descriptor(&socket, &mut buffer)
    })
    .map_err(AskError::NoAnswer)?;
    if length == 0 {
        return Err(AskError::NoAnswer(io::Error::from(
            io::ErrorKind::UnexpectedEof,
        )));
    }
    let bytes = match ToClient::parse(&buffer[..length]) {
        Ok(ToClient::Answer(Answer { bytes })) if bytes <= ANSWER_BYTES_MAX => bytes,
        Ok(other) => return Err(AskError::Nonsense(format!("{other:?}"))),
        Err(error) => return Err(AskError::Nonsense(error.to_string())),
    };
    let Some(descriptor) = descriptor else {
        return Err(AskError::Nonsense("no descriptor came with it".to_owned()));
    };
    let mut text = String::new();
    let mut file = File::from(descriptor).take(bytes.into());
    file.read_to_string(&mut text)
        .map_err(|error| AskError::Nonsense(error.to_string()))?;
    Ok((text, answerer))
}

/// Makes a call again that a signal interrupted: the kernel does so by itself only where a call has no time limit (signal(7)). Each
/// time that limit begins anew: after `patience` none is made again, whatever signals go on to come.
fn uninterrupted<T>(patience: Duration, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let began = Instant::now();
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
        if began.elapsed() > patience {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Asks for the agent's status.
///
/// # Errors
/// As [`ask`].
pub fn status(path: &Path, patience: Duration) -> Result<(StatusReport, Answerer), AskError> {
    report(path, Query::Status, patience)
}

/// As [`status`], and asks the agent to stay until this process has ended, whatever program it becomes.
///
/// # Errors
/// As [`ask`].
pub fn status_and_stay(
    path: &Path,
    patience: Duration,
) -> Result<(StatusReport, Answerer), AskError> {
    report(path, Query::StatusAndStay, patience)
}

fn report(
    path: &Path,
    query: Query,
    patience: Duration,
) -> Result<(StatusReport, Answerer), AskError> {
    let (text, answerer) = ask(path, query, patience)?;
    let report =
        serde_json::from_str(&text).map_err(|error| AskError::Nonsense(error.to_string()))?;
    Ok((report, answerer))
}

/// Asks for all connections that the caller may see.
///
/// # Errors
/// As [`ask`].
pub fn connections(path: &Path, patience: Duration) -> Result<ConnectionsReport, AskError> {
    let (text, _) = ask(path, Query::Connections, patience)?;
    serde_json::from_str(&text).map_err(|error| AskError::Nonsense(error.to_string()))
}

/// Asks for all channels that the caller may see. An agent that is older than channels hangs up.
///
/// # Errors
/// As [`ask`].
pub fn channels(path: &Path, patience: Duration) -> Result<ChannelsReport, AskError> {
    let (text, _) = ask(path, Query::Channels, patience)?;
    serde_json::from_str(&text).map_err(|error| AskError::Nonsense(error.to_string()))
}

fn reach(path: &Path, patience: Duration) -> io::Result<(OwnedFd, Answerer)> {
    let socket = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let milliseconds = i64::try_from(patience.as_millis())
        .unwrap_or(i64::MAX)
        .max(1);
    let timeout = TimeVal::new(milliseconds / 1000, milliseconds % 1000 * 1000);
    setsockopt(&socket, sockopt::SendTimeout, &timeout)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)?;
    let address = UnixAddr::new(path)?;
    uninterrupted(patience, || Ok(connect(socket.as_raw_fd(), &address)?))?;
    let peer = getsockopt(&socket, sockopt::PeerCredentials)?;
    Ok((
        socket,
        Answerer {
            pid: peer.pid(),
            uid: peer.uid(),
        },
    ))
}
