//! How the command line asks a switch: a socket of its user's, one question and one answer as JSON, each a line.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config;
use crate::switch::Switch;

/// Bytes of a question, at most.
const QUESTION_BYTES_MAX: u64 = 256 * 1024;
/// Bytes of an answer, at most: four million stations and some.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Whoever asks has so long to say what, and to take the answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// A switch that does not answer within this time is not going to.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// A question, or something to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// What it is, does and counts.
    Report,
    /// Which stations are known.
    Stations,
    /// Forget them.
    ForgetStations,
    /// Add a port: a `[[port]]` without that line.
    AddPort {
        /// As in the file.
        toml: String,
    },
    /// Take a port away.
    RemovePort {
        /// Its name.
        name: String,
    },
    /// Add a flow: a `[[flow]]` without that line.
    AddFlow {
        /// As in the file.
        toml: String,
    },
    /// Take a flow away.
    RemoveFlow {
        /// Its name.
        name: String,
    },
    /// Add a mirror: a `[[mirror]]` without that line.
    AddMirror {
        /// As in the file.
        toml: String,
    },
    /// End a mirror.
    RemoveMirror {
        /// Its name.
        name: String,
    },
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Done(Value),
    Refused(String),
}

/// Why there is no answer.
#[derive(Debug)]
pub enum AskError {
    /// Nobody listens there.
    NoSwitch(PathBuf, io::Error),
    /// Somebody does, but it is neither root nor this user.
    Stranger(u32),
    /// It hung up or did not answer in time.
    NoAnswer(io::Error),
    /// What it says is not understood.
    Nonsense(String),
    /// It does not do what it was asked to; the text says why.
    Refused(String),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::NoSwitch(path, error) => write!(
                f,
                "no switch answers at {}: {error} (start one with `millrace switch run`, or say where it is with --control)",
                path.display()
            ),
            AskError::Stranger(uid) => write!(
                f,
                "a switch of user {uid} listens there, which is not trusted"
            ),
            AskError::NoAnswer(error) => write!(f, "the switch does not answer: {error}"),
            AskError::Nonsense(what) => write!(f, "the switch's answer is not understood: {what}"),
            AskError::Refused(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for AskError {}

/// The usual socket of a user.
#[must_use]
pub fn own_socket(uid: u32, runtime_directory: Option<&Path>) -> PathBuf {
    millrace_agent::own_directory(uid, runtime_directory).join("switch.sock")
}

/// Asks the switch at `path`.
///
/// # Errors
/// When nobody answers, or somebody who is not trusted, or when it is refused.
pub fn ask(path: &Path, request: &Request) -> Result<Value, AskError> {
    let no_switch = |error| AskError::NoSwitch(path.to_owned(), error);
    let mut stream = UnixStream::connect(path).map_err(no_switch)?;
    let uid = peer(&stream).map_err(AskError::NoAnswer)?;
    if uid != 0 && uid != geteuid().as_raw() {
        return Err(AskError::Stranger(uid));
    }
    let text = exchange(&mut stream, request).map_err(AskError::NoAnswer)?;
    let answer = serde_json::from_str(&text);
    match answer.map_err(|error| AskError::Nonsense(error.to_string()))? {
        Answer::Done(value) => Ok(value),
        Answer::Refused(why) => Err(AskError::Refused(why)),
    }
}

fn exchange(stream: &mut UnixStream, request: &Request) -> io::Result<String> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    let question = serde_json::to_string(request)?;
    stream.write_all(format!("{question}\n").as_bytes())?;
    let mut text = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut text)?;
    if text.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(text)
}

/// The user at the other end.
fn peer(stream: &UnixStream) -> io::Result<u32> {
    Ok(getsockopt(stream, sockopt::PeerCredentials)?.uid())
}

/// Serves one who asks, who must be this user or root. Whoever goes on too long is left.
pub(crate) fn serve(mut stream: UnixStream, switch: &mut Switch) -> io::Result<()> {
    let uid = peer(&stream)?;
    if uid != 0 && uid != geteuid().as_raw() {
        return Ok(());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    let mut reader = BufReader::new((&stream).take(QUESTION_BYTES_MAX));
    reader.read_line(&mut question)?;
    let answer = match serde_json::from_str::<Request>(&question) {
        Ok(request) => answer(switch, request).map_or_else(Answer::Refused, Answer::Done),
        Err(error) => Answer::Refused(format!("the question is not understood: {error}")),
    };
    let answer = serde_json::to_string(&answer)?;
    stream.write_all(format!("{answer}\n").as_bytes())
}

fn answer(switch: &mut Switch, request: Request) -> Result<Value, String> {
    let shown = |what: Result<Value, serde_json::Error>| what.map_err(|error| error.to_string());
    match request {
        Request::Report => return shown(serde_json::to_value(switch.report()?)),
        Request::Stations => return shown(serde_json::to_value(switch.stations()?)),
        Request::ForgetStations => switch.forget_stations()?,
        Request::AddPort { toml } => switch.add_port(config::parse(&toml)?)?,
        Request::RemovePort { name } => switch.remove_port(&name)?,
        Request::AddFlow { toml } => switch.add_flow(config::parse(&toml)?)?,
        Request::RemoveFlow { name } => switch.remove_flow(&name)?,
        Request::AddMirror { toml } => switch.add_mirror(config::parse(&toml)?)?,
        Request::RemoveMirror { name } => switch.remove_mirror(&name)?,
    }
    Ok(Value::Null)
}
