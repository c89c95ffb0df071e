//! A function that is there for others: its control socket, its address for HTTP, its store, and its end.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_switch::{ControlSocket, ListenError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{info, warn};

use crate::api::Api;
use crate::config::{Config, SupervisionConfig};
use crate::http;
use crate::running::Running;
use crate::store::{Store, StoreError};

/// Askers at a time by the control socket, each with a thread, and as many by HTTP: users of the machine cannot keep its own user out.
const ASKERS_MAX: usize = 32;
/// One that is silent for so long is left.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who could not be taken waits for so long.
const PAUSE: Duration = Duration::from_millis(100);
/// How often what was written is synchronised: a machine that loses power loses the changes of so long at most.
const SYNC: Duration = Duration::from_secs(1);

/// How to run a function.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the command line asks.
    pub control: PathBuf,
    /// What to do.
    pub config: Config,
}

/// Why a function cannot start, or go on.
#[derive(Debug)]
pub enum ServeError {
    /// There is no control socket.
    Control(ListenError),
    /// It cannot listen at this address.
    Http(SocketAddr, io::Error),
    /// What is kept cannot be had.
    Store(StoreError),
    /// Something that was configured is not right, or cannot be had.
    Config(String),
    /// The kernel refuses something that it cannot do without.
    Kernel(&'static str, io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Control(error) => write!(f, "{error}"),
            ServeError::Http(address, error) => write!(f, "cannot listen at {address}: {error}"),
            ServeError::Store(error) => write!(f, "{error}"),
            ServeError::Config(what) => write!(f, "{what}"),
            ServeError::Kernel(what, error) => write!(f, "the kernel refuses {what}: {error}"),
        }
    }
}

impl std::error::Error for ServeError {}

/// The usual control socket of a user.
#[must_use]
pub fn own_socket(uid: u32, runtime_directory: Option<&Path>) -> PathBuf {
    millrace_agent::own_directory(uid, runtime_directory).join("ppf.sock")
}

/// A function that works, and listens.
#[derive(Debug)]
pub struct Server {
    api: Arc<Api>,
    control: ControlSocket,
    http: Option<TcpListener>,
    /// By the control socket, and by HTTP.
    askers: [Arc<AtomicUsize>; 2],
}

impl Server {
    /// Opens everything, takes in what is kept, and starts the workers.
    ///
    /// # Errors
    /// When anything cannot be had; nothing is left then.
    pub fn start(options: &Options) -> Result<Server, ServeError> {
        let control =
            ControlSocket::open("function", &options.control).map_err(ServeError::Control)?;
        let config = &options.config;
        let http = match config.http {
            Some(address) => {
                let failed = |error| ServeError::Http(address, error);
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Some(listener)
            }
            None => None,
        };
        let store = match &config.store {
            Some(directory) => {
                let store = Store::open(directory).map_err(ServeError::Store)?;
                if store.cut_bytes() > 0 {
                    let bytes = store.cut_bytes();
                    warn!(
                        bytes,
                        "the store ended in the middle of a record, which was cut off"
                    );
                }
                Some(store)
            }
            None => None,
        };
        let running = Running::start(config, store).map_err(ServeError::Config)?;
        info!(
            control = %options.control.display(),
            version = env!("CARGO_PKG_VERSION"),
            ports = config.port.len(),
            bearers = running.count(),
            "the function works"
        );
        if config.supervision.is_some_and(SupervisionConfig::is_hasty) {
            warn!(
                "supervision.interval_s is less than the 60 s that TS 29.281 (7.2.1) has at least"
            );
        }
        Ok(Server {
            api: Arc::new(Api::new(running)),
            control,
            http,
            askers: Default::default(),
        })
    }

    /// Serves until `stop` is readable.
    ///
    /// # Errors
    /// When the kernel does not let it wait.
    pub fn serve(self, stop: BorrowedFd<'_>) -> Result<(), ServeError> {
        let mut synced = Instant::now();
        loop {
            let mut fds = vec![
                PollFd::new(stop, PollFlags::POLLIN),
                PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
            ];
            if let Some(http) = &self.http {
                fds.push(PollFd::new(http.as_fd(), PollFlags::POLLIN));
            }
            match poll(&mut fds, PollTimeout::from(SYNC.as_millis() as u16)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(ServeError::Kernel("to wait for events", errno.into())),
            }
            let is_ready = |at: usize| fds.get(at).is_some_and(|fd| fd.any().unwrap_or(false));
            let (is_over, has_control, has_http) = (is_ready(0), is_ready(1), is_ready(2));
            if is_over || synced.elapsed() >= SYNC {
                synced = Instant::now();
                if let Err(error) = self.api.running().sync() {
                    warn!("what was changed may be lost with the machine: {error}");
                }
            }
            if is_over {
                // Those who still ask hold on to it.
                self.api.running().stop();
                info!("the function stops");
                return Ok(());
            }
            let http = self.http.as_ref().filter(|_| has_http);
            let outcomes = [
                has_control.then(|| {
                    let accepted = self.control.accept();
                    accepted
                        .map(|stream| stream.into_iter().for_each(|stream| self.take_unix(stream)))
                }),
                http.map(|http| http.accept().map(|(stream, _)| self.take_tcp(stream))),
            ];
            for error in outcomes.into_iter().flatten().filter_map(Result::err) {
                if error.kind() != io::ErrorKind::WouldBlock {
                    warn!("whoever asked was not taken: {error}");
                    // No descriptor is left, say: there is news of who waits all the same.
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn take_unix(&self, stream: UnixStream) {
        let patience = Some(PATIENCE);
        if stream.set_read_timeout(patience).is_ok() && stream.set_write_timeout(patience).is_ok() {
            self.take(stream, &self.askers[0]);
        }
    }

    fn take_tcp(&self, stream: TcpStream) {
        let patience = Some(PATIENCE);
        if stream.set_nonblocking(false).is_ok()
            && stream.set_nodelay(true).is_ok()
            && stream.set_read_timeout(patience).is_ok()
            && stream.set_write_timeout(patience).is_ok()
        {
            self.take(stream, &self.askers[1]);
        }
    }

    /// Serves one by a thread. Whoever comes when there are too many is sent away.
    fn take(&self, mut stream: impl Read + Write + Send + 'static, askers: &Arc<AtomicUsize>) {
        let own = Asker::new(askers);
        if askers.load(Ordering::Relaxed) > ASKERS_MAX {
            return;
        }
        let api = self.api.clone();
        let body = move || {
            // Whoever goes away in the middle has had what it wanted.
            let _ = http::serve(&mut stream, |question| api.say(question));
            drop(own);
        };
        if let Err(error) = std::thread::Builder::new()
            .name("ppf-asker".to_owned())
            .spawn(body)
        {
            warn!("whoever asked was not answered: {error}");
        }
    }
}

/// One more asker, as long as it is there.
struct Asker(Arc<AtomicUsize>);

impl Asker {
    fn new(askers: &Arc<AtomicUsize>) -> Asker {
        askers.fetch_add(1, Ordering::Relaxed);
        Asker(askers.clone())
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
