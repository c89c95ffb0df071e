//! How the command line asks a switch: a socket of its user's, one question and one answer as JSON, each a line.

use std::fmt;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config;
use crate::containers::Containers;
use crate::handed::Handed;
use crate::switch::Switch;

/// Bytes of a question, at most.
const QUESTION_BYTES_MAX: usize = 256 * 1024;
/// Descriptors that come with a question, at most: queues of an interface.
pub(crate) const HANDED_MAX: usize = 64;
/// Bytes of an answer, at most: four million stations and some.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Whoever asks has so long to say what, and to take some of the answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// And so long to take all of it: meanwhile nobody else is served.
const ANSWER_TIME: Duration = Duration::from_secs(10);
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
    /// Add a port: a `[[port]]` without that line. With descriptors it is of these: an interface that was opened ([`Handed`]).
    AddPort {
        /// As in the file.
        toml: String,
        /// Of such an interface.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ifindex: Option<u32>,
    },
    /// Take a port away.
    RemovePort {
        /// Its name.
        name: String,
    },
    /// Give a container what a `[[device]]` says, until its first process ends; the answer's `directory` is where its sockets are.
    AddContainer {
        /// As its runtime calls it.
        id: String,
        /// Its first process, as the switch sees it.
        pid: u32,
        /// The device's name.
        device: String,
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
    ask_with(path, request, &[], None)
}

/// The same, and hands descriptors over with the question. `user`: one who is trusted to have the switch, beside root and this user.
///
/// # Errors
/// As [`ask`].
pub fn ask_with(
    path: &Path,
    request: &Request,
    handed: &[BorrowedFd<'_>],
    user: Option<u32>,
) -> Result<Value, AskError> {
    let no_switch = |error| AskError::NoSwitch(path.to_owned(), error);
    let mut stream = UnixStream::connect(path).map_err(no_switch)?;
    let peer = getsockopt(&stream, sockopt::PeerCredentials);
    let uid = peer
        .map_err(|errno| AskError::NoAnswer(errno.into()))?
        .uid();
    if uid != 0 && uid != geteuid().as_raw() && Some(uid) != user {
        return Err(AskError::Stranger(uid));
    }
    let text = exchange(&mut stream, request, handed).map_err(AskError::NoAnswer)?;
    let answer = serde_json::from_str(&text);
    match answer.map_err(|error| AskError::Nonsense(error.to_string()))? {
        Answer::Done(value) => Ok(value),
        Answer::Refused(why) => Err(AskError::Refused(why)),
    }
}

fn exchange(
    stream: &mut UnixStream,
    request: &Request,
    handed: &[BorrowedFd<'_>],
) -> io::Result<String> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    let question = format!("{}\n", serde_json::to_string(request)?);
    let begun = hand_over(stream, question.as_bytes(), handed)?;
    stream.write_all(&question.as_bytes()[begun..])?;
    let mut text = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut text)?;
    if text.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(text)
}

/// Sends as much of a question as goes at once, and descriptors with it.
fn hand_over(stream: &UnixStream, question: &[u8], handed: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDED_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let has_room = handed.len() <= HANDED_MAX
        && (handed.is_empty() || control.push(SendAncillaryMessage::ScmRights(handed)));
    if !has_room {
        let what = format!("more than {HANDED_MAX} descriptors cannot be handed over");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let question = [IoSlice::new(question)];
    let sent =
        rustix::io::retry_on_intr(|| sendmsg(stream, &question, &mut control, SendFlags::NOSIGNAL));
    Ok(sent?)
}

/// Reads a question, and what is handed over with it.
fn read_question(stream: &UnixStream, until: Instant) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut question = Vec::new();
    let mut handed = Vec::new();
    let mut buffer = [0; 4096];
    while question.len() < QUESTION_BYTES_MAX {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDED_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut buffer)];
        stream.set_read_timeout(Some(left(until)?))?;
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let count = received?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                handed.extend(descriptors);
            }
        }
        let part = &buffer[..count];
        let end = part.iter().position(|byte| *byte == b'\n');
        question.extend_from_slice(&part[..end.unwrap_or(count)]);
        if count == 0 || end.is_some() || handed.len() > HANDED_MAX {
            break;
        }
    }
    Ok((question, handed))
}

/// How long is left, if anything is: who says something now and then holds up all others.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

fn write_answer(mut stream: &UnixStream, mut answer: &[u8]) -> io::Result<()> {
    let until = Instant::now() + ANSWER_TIME;
    while !answer.is_empty() {
        stream.set_write_timeout(Some(left(until)?.min(PATIENCE)))?;
        match stream.write(answer) {
            Ok(count) => answer = &answer[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Serves one who asks. Whoever goes on too long is left.
pub(crate) fn serve(
    stream: UnixStream,
    switch: &mut Switch,
    containers: &mut Containers,
) -> io::Result<()> {
    let (question, handed) = read_question(&stream, Instant::now() + PATIENCE)?;
    let answer = match serde_json::from_slice::<Request>(&question) {
        Ok(request) => {
            answer(switch, containers, request, handed).map_or_else(Answer::Refused, Answer::Done)
        }
        Err(error) => Answer::Refused(format!("the question is not understood: {error}")),
    };
    let answer = serde_json::to_string(&answer)?;
    write_answer(&stream, format!("{answer}\n").as_bytes())
}

fn answer(
    switch: &mut Switch,
    containers: &mut Containers,
    request: Request,
    handed: Vec<OwnedFd>,
) -> Result<Value, String> {
    let shown = |what: Result<Value, serde_json::Error>| what.map_err(|error| error.to_string());
    if !handed.is_empty() && !matches!(request, Request::AddPort { .. }) {
        return Err("descriptors are handed over for a port that is added only".to_owned());
    }
    match request {
        Request::Report => {
            let mut report = switch.report()?;
            report.devices = containers.report();
            return shown(serde_json::to_value(report));
        }
        Request::Stations => return shown(serde_json::to_value(switch.stations()?)),
        Request::ForgetStations => switch.forget_stations()?,
        Request::AddPort { toml, ifindex } => {
            let descriptors = handed;
            let handed = Handed {
                descriptors,
                ifindex,
            };
            switch.add_port_of(config::parse(&toml)?, handed)?;
        }
        Request::AddContainer { id, pid, device } => {
            let directory = containers.add(switch, &id, pid, &device)?;
            return Ok(json!({ "directory": directory }));
        }
        Request::RemovePort { name } => switch.remove_port(&name)?,
        Request::AddFlow { toml } => switch.add_flow(config::parse(&toml)?)?,
        Request::RemoveFlow { name } => switch.remove_flow(&name)?,
        Request::AddMirror { toml } => switch.add_mirror(config::parse(&toml)?)?,
        Request::RemoveMirror { name } => switch.remove_mirror(&name)?,
    }
    Ok(Value::Null)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::config::Config;

    /// What a switch answers to a question with descriptors.
    fn answered(request: &Request, handed: &[BorrowedFd<'_>]) -> String {
        let place = tempfile::tempdir().unwrap();
        let mut switch = Switch::inline(&Config::default()).unwrap();
        let control = place.path().join("switch.sock");
        let mut containers = Containers::open(&control, Vec::new(), &mut switch).unwrap();
        let (own, other) = UnixStream::pair().unwrap();
        let question = format!("{}\n", serde_json::to_string(request).unwrap());
        let begun = hand_over(&own, question.as_bytes(), handed).unwrap();
        (&own).write_all(&question.as_bytes()[begun..]).unwrap();
        serve(other, &mut switch, &mut containers).unwrap();
        let mut answer = String::new();
        BufReader::new(own).read_line(&mut answer).unwrap();
        answer
    }

    #[test]
    fn descriptors_go_with_a_port_of_their_kind_only() {
        let file = File::open("/dev/null").unwrap();
        let handed = [file.as_fd(), file.as_fd()];
        let port = |text: &str| Request::AddPort {
            toml: format!("name = \"a\"\n{text}"),
            ifindex: None,
        };
        let queue = |queues: u32, more: &str| Request::AddPort {
            toml: format!(
                "name = \"a\"\naf_xdp.interface = \"a\"\naf_xdp.queues = {queues}\n{more}"
            ),
            ifindex: Some(1),
        };
        for (request, why) in [
            (Request::Report, "for a port that is added only"),
            (port("memif.path = \"/a\""), "of tap and af_xdp"),
            (port("pcap.read = \"/a\""), "of tap and af_xdp"),
            (port("tap.interface = \"a\""), "a: "),
            (port("af_xdp.interface = \"a\""), "number is missing"),
            (queue(1, ""), "a descriptor is no socket of AF_XDP"),
            (
                queue(2, ""),
                "queues = 2 and a program are 3 descriptors, and 2 were",
            ),
            (
                queue(1, "af_xdp.take = []"),
                "queues = 1 are 1 descriptors, and 2 were",
            ),
        ] {
            let answer = answered(&request, &handed);
            assert!(
                answer.contains("refused") && answer.contains(why),
                "{answer}"
            );
        }
        // An interface's number without descriptors is no reason to open one of that name.
        let answer = answered(&queue(1, ""), &[]);
        assert!(answer.contains("and 0 were handed over"), "{answer}");
        let (own, _other) = UnixStream::pair().unwrap();
        let many = vec![file.as_fd(); HANDED_MAX + 1];
        assert!(hand_over(&own, b"x", &many).is_err());
    }

    #[test]
    fn who_says_a_little_now_and_then_is_left() {
        let place = tempfile::tempdir().unwrap();
        let mut switch = Switch::inline(&Config::default()).unwrap();
        let control = place.path().join("switch.sock");
        let mut containers = Containers::open(&control, Vec::new(), &mut switch).unwrap();
        let (own, other) = UnixStream::pair().unwrap();
        let dribbles = std::thread::spawn(move || {
            while (&own).write_all(b" ").is_ok() {
                std::thread::sleep(PATIENCE / 20);
            }
        });
        assert!(serve(other, &mut switch, &mut containers).is_err());
        dribbles.join().unwrap();
    }

    #[test]
    fn a_long_question_is_read_whole() {
        let toml = format!("# {}\nname = \"a\"\ncolour = 1", "x".repeat(20_000));
        let answer = answered(
            &Request::AddPort {
                toml,
                ifindex: None,
            },
            &[],
        );
        assert!(answer.contains("colour"), "{answer}");
    }
}
