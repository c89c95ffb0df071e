//! A client of the agent, as the preload library is one, and an agent to talk to.

mod sys;

pub(crate) use sys::{hear, hear_all, write_ring};

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_agent::{Agent, Config, Options, StatusReport};
use millrace_shm::board::Board;
use millrace_wire::{
    End, Family, Hello, MAX_BYTES, Matched, Mode, Offer, Paired, SEGMENT_VERSION, Take, ToAgent,
    ToClient, VERSION_MAX, VERSION_MIN, Welcome,
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

/// An agent in a thread of this process; it stops when dropped.
pub(crate) struct Running {
    path: PathBuf,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    _directory: Option<tempfile::TempDir>,
}

impl Running {
    pub(crate) fn start(config: Config) -> Running {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let mut running = Running::start_at(&path, config);
        running._directory = Some(directory);
        running
    }

    pub(crate) fn start_at(path: &Path, config: Config) -> Running {
        let (stopped, stop) = UnixStream::pair().unwrap();
        let options = Options {
            others: Vec::new(),
            socket: path.to_owned(),
            config,
            background: false,
        };
        let (ready, listening) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let agent = Agent::start(options, stopped.as_fd()).unwrap();
            ready.send(()).unwrap();
            agent.serve().unwrap();
        });
        listening.recv().unwrap();
        Running {
            path: path.to_owned(),
            stop: Some(stop),
            thread: Some(thread),
            _directory: None,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn connect(&self) -> OwnedFd {
        let socket = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .unwrap();
        let patience = TimeVal::new(5, 0);
        setsockopt(&socket, sockopt::ReceiveTimeout, &patience).unwrap();
        setsockopt(&socket, sockopt::SendTimeout, &patience).unwrap();
        connect(socket.as_raw_fd(), &UnixAddr::new(&self.path).unwrap()).unwrap();
        socket
    }

    pub(crate) fn client(&self) -> Client {
        let socket = self.connect();
        let hello = Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            segment_version: SEGMENT_VERSION,
            mode: Mode::Default,
        };
        say(&socket, ToAgent::Hello(hello));
        let Some((ToClient::Welcome(welcome), Some(fd))) = hear(&socket) else {
            panic!("no welcome")
        };
        Client {
            socket,
            welcome,
            board: Board::attach_rows(fd.as_fd(), welcome.rows).unwrap(),
        }
    }

    /// Waits until the agent's status is as wanted, which it must become soon.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&StatusReport) -> bool) {
        let start = Instant::now();
        loop {
            let (status, _) = millrace_agent::status(&self.path, Duration::from_secs(5)).unwrap();
            if wanted(&status) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{status:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Closing this end makes the other end readable.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the agent failed"
            );
        }
    }
}

/// A client that was welcomed.
pub(crate) struct Client {
    socket: OwnedFd,
    pub(crate) welcome: Welcome,
    pub(crate) board: Board,
}

impl Client {
    pub(crate) fn say(&self, message: ToAgent) {
        say(&self.socket, message);
    }

    pub(crate) fn try_say(&self, message: ToAgent) -> bool {
        let mut buffer = [0; MAX_BYTES];
        let length = message.encode(VERSION_MAX, &mut buffer);
        send(
            self.socket.as_raw_fd(),
            &buffer[..length],
            MsgFlags::MSG_NOSIGNAL,
        )
        .is_ok()
    }

    pub(crate) fn try_say_bytes(&self, bytes: &[u8]) -> bool {
        send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).is_ok()
    }

    pub(crate) fn say_bytes(&self, bytes: &[u8]) {
        send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).unwrap();
    }

    pub(crate) fn offer(&self, stream: &TcpStream, offer_id: u64, end: End) {
        self.say(ToAgent::Offer(offer(stream, offer_id, end)));
    }

    pub(crate) fn hear(&self) -> ToClient {
        self.try_hear().expect("the agent hung up")
    }

    pub(crate) fn try_hear(&self) -> Option<ToClient> {
        hear(&self.socket).map(|(message, _)| message)
    }

    /// How many messages have come already.
    pub(crate) fn hear_waiting(&self) -> usize {
        let mut buffer = [0; MAX_BYTES];
        let mut next = || recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT);
        std::iter::from_fn(|| next().ok().filter(|bytes| *bytes > 0)).count()
    }

    /// Hears that the other end is there, and says that it wants the segment; returns the offer's id.
    pub(crate) fn take(&self) -> u64 {
        match self.hear() {
            ToClient::Matched(Matched { offer_id }) => {
                self.say(ToAgent::Take(Take { offer_id }));
                offer_id
            }
            other => panic!("not matched: {other:?}"),
        }
    }

    pub(crate) fn paired(&self) -> (Paired, OwnedFd) {
        match hear(&self.socket) {
            Some((ToClient::Paired(paired), Some(segment))) => (paired, segment),
            other => panic!("not paired: {other:?}"),
        }
    }
}

pub(crate) fn say(socket: &OwnedFd, message: ToAgent) {
    let mut buffer = [0; MAX_BYTES];
    let length = message.encode(VERSION_MAX, &mut buffer);
    send(
        socket.as_raw_fd(),
        &buffer[..length],
        MsgFlags::MSG_NOSIGNAL,
    )
    .unwrap();
}

/// The true offer of a stream of this process.
pub(crate) fn offer(stream: &TcpStream, offer_id: u64, end: End) -> Offer {
    Offer {
        offer_id,
        fd: stream.as_raw_fd(),
        row: 0,
        family: if stream.local_addr().unwrap().is_ipv4() {
            Family::V4
        } else {
            Family::V6
        },
        end,
        local: stream.local_addr().unwrap().into(),
        remote: stream.peer_addr().unwrap().into(),
        cookie: sys::number(stream, libc::SO_COOKIE),
        netns_cookie: sys::number(stream, libc::SO_NETNS_COOKIE),
    }
}
