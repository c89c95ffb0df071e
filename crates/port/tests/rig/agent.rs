//! An agent in a thread of this process.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

use millrace_agent::{Agent, Config, Options};

/// It stops when dropped.
pub(crate) struct Running {
    running: Option<(UnixStream, JoinHandle<()>)>,
}

impl Running {
    /// One that listens at a path.
    pub(crate) fn start(path: &Path) -> Running {
        let (stopped, stop) = UnixStream::pair().unwrap();
        let options = Options {
            others: Vec::new(),
            socket: path.to_owned(),
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
        Running {
            running: Some((stop, thread)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            // Closing this end makes the other end readable.
            drop(stop);
            thread.join().unwrap();
        }
    }
}
