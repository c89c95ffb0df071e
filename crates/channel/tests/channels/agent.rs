//! An agent in a thread of this process.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_agent::{Agent, Config, Options};
use millrace_shm::pool;
use millrace_wire::{MAX_BYTES, Open, Opened, Refusal, Refused, ToAgent, ToClient, VERSION_MAX};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    listen, recv, sendmsg, socket,
};

/// For an answer of the agent.
const PATIENCE: Duration = Duration::from_secs(20);

/// It stops when dropped.
pub(crate) struct Running {
    path: PathBuf,
    running: Option<(UnixStream, JoinHandle<()>)>,
    _directory: tempfile::TempDir,
}

impl Running {
    pub(crate) fn start() -> Running {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = Running {
            path: directory.path().join("agent.sock"),
            running: None,
            _directory: directory,
        };
        agent.start_again();
        agent
    }

    pub(crate) fn start_again(&mut self) {
        let (stopped, stop) = UnixStream::pair().unwrap();
        let options = Options {
            others: Vec::new(),
            socket: self.path.clone(),
            config: Config::default(),
            background: false,
        };
        let (ready, listening) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let agent = Agent::start(options, stopped.as_fd()).unwrap();
            ready.send(()).unwrap();
            agent.serve().unwrap();
        });
        listening.recv().unwrap();
        self.running = Some((stop, thread));
    }

    pub(crate) fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            // Closing this end makes the other end readable.
            drop(stop);
            thread.join().unwrap();
        }
    }

    /// In its place, one that gives a publisher a pool and dies before it seals that.
    pub(crate) fn die_before_sealing(path: &Path) -> JoinHandle<()> {
        let listener = listener(path);
        let path = path.to_owned();
        std::thread::spawn(move || {
            let program = take_in(&listener);
            // It is mapped before it says so.
            let mut buffer = [0; MAX_BYTES];
            recv(program, &mut buffer, MsgFlags::empty()).unwrap();
            std::fs::remove_file(path).unwrap();
            nix::unistd::close(program).unwrap();
        })
    }

    /// In its place, one that refuses one program, and ends.
    pub(crate) fn refuse_one(path: &Path) -> JoinHandle<()> {
        let listener = listener(path);
        let path = path.to_owned();
        std::thread::spawn(move || {
            let (program, _) = hear_out(&listener);
            let reason = Refusal::NotAllowed;
            say(program, &ToClient::Refused(Refused { reason }), &[]);
            std::fs::remove_file(path).unwrap();
            nix::unistd::close(program).unwrap();
        })
    }

    /// In its place, one that takes in one program, and leaves it to the test what is said to that; see [`say`].
    pub(crate) fn take_in_one(path: &Path) -> JoinHandle<RawFd> {
        let listener = listener(path);
        std::thread::spawn(move || take_in(&listener))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Who takes part, in order.
    pub(crate) fn roles(&self) -> Vec<String> {
        let report = millrace_agent::channels(&self.path, PATIENCE).unwrap();
        let ends = report.channels.into_iter().flat_map(|channel| channel.ends);
        let mut roles: Vec<String> = ends.map(|end| end.role).collect();
        roles.sort();
        roles
    }

    /// Memory that is charged to somebody.
    pub(crate) fn bytes(&self) -> u64 {
        let (status, _) = millrace_agent::status(&self.path, PATIENCE).unwrap();
        status.segment_bytes
    }
}

fn listener(path: &Path) -> OwnedFd {
    let kind = (AddressFamily::Unix, SockType::SeqPacket);
    let _ = std::fs::remove_file(path);
    let listener = socket(kind.0, kind.1, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    listener
}

/// Waits for a program that wants to take part.
fn hear_out(listener: &OwnedFd) -> (RawFd, Open) {
    // Programs of other tests are started meanwhile.
    let program = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC).unwrap();
    let mut buffer = [0; MAX_BYTES];
    let count = recv(program, &mut buffer, MsgFlags::empty()).unwrap();
    let Ok(ToAgent::Open(open)) = ToAgent::parse(&buffer[..count]) else {
        panic!("it begins with something else");
    };
    (program, open)
}

/// Says to a program that it takes part; gives a publisher a pool.
fn take_in(listener: &OwnedFd) -> RawFd {
    let (program, open) = hear_out(listener);
    let pool = (open.pool_bytes != 0).then(|| pool::create(open.pool_bytes).unwrap().0);
    let opened = ToClient::Opened(Opened {
        version: VERSION_MAX,
        id: 7,
        pool_bytes: open.pool_bytes,
        huge: false,
    });
    say(program, &opened, pool.as_slice());
    program
}

/// Sends a program a message, with descriptors.
pub(crate) fn say(program: RawFd, message: &ToClient, descriptors: &[OwnedFd]) {
    let mut buffer = [0; MAX_BYTES];
    let count = message.encode(VERSION_MAX, &mut buffer);
    let descriptors: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = &rights[..usize::from(!descriptors.is_empty())];
    let parts = [IoSlice::new(&buffer[..count])];
    sendmsg::<UnixAddr>(program, &parts, rights, MsgFlags::empty(), None).unwrap();
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}
