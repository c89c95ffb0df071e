//! A function that is there for others: its control socket, its address for HTTP, its store, and its end.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;
use tracing::{info, warn};

use crate::api::Api;
use crate::config::{Config, SupervisionConfig};
use crate::http;
use crate::registry::Registry;
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
    /// Another one has the control socket.
    Busy(PathBuf),
    /// The control socket cannot be made.
    Control(PathBuf, io::Error),
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
            ServeError::Busy(path) => write!(
                f,
                "another function already listens at {} (give this one another --control)",
                path.display()
            ),
            ServeError::Control(path, error) => write!(
                f,
                "cannot make the control socket {}: {error}",
                path.display()
            ),
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

/// The control socket. A lock beside it says whose it is, so that a dead one's is replaced, and a live one's is not.
#[derive(Debug)]
struct Control {
    listener: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
    lock_path: PathBuf,
    _lock: Flock<File>,
}

impl Control {
    fn open(path: &Path) -> Result<Control, ServeError> {
        let failed = |error| ServeError::Control(path.to_owned(), error);
        if let Some(directory) = path.parent() {
            // Root's directory is the agent's as well, which serves everybody.
            let mode = if geteuid().is_root() { 0o755 } else { 0o700 };
            match DirBuilder::new().mode(mode).create(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed(error));
                }
                _ => {}
            }
        }
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
            .open(&lock_path)
            .map_err(failed)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| ServeError::Busy(path.to_owned()))?;
        let left = fs::symlink_metadata(path);
        if left.is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // Whoever connects before this is asked who it is, all the same.
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let found = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Control {
            listener,
            path: path.to_owned(),
            identity: (found.dev(), found.ino()),
            lock_path,
            _lock: lock,
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
        // The lock is held: nobody else has made another one.
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// A function that works, and listens.
#[derive(Debug)]
pub struct Server {
    api: Arc<Api>,
    control: Control,
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
        let control = Control::open(&options.control)?;
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
        let registry = match &config.store {
            Some(directory) => {
                let store = Store::open(directory).map_err(ServeError::Store)?;
                if store.cut_bytes() > 0 {
                    let bytes = store.cut_bytes();
                    warn!(
                        bytes,
                        "the store ended in the middle of a record, which was cut off"
                    );
                }
                Registry::restored(store).map_err(ServeError::Store)?
            }
            None => Registry::new(),
        };
        let bearers = registry.len();
        let running = Running::start(config, registry).map_err(ServeError::Config)?;
        info!(
            control = %options.control.display(),
            version = env!("CARGO_PKG_VERSION"),
            ports = config.port.len(),
            bearers,
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
                PollFd::new(self.control.listener.as_fd(), PollFlags::POLLIN),
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
                    let accepted = self.control.listener.accept();
                    accepted.map(|(stream, _)| self.take_unix(stream))
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

    /// Takes one who asks, who must be this user or root.
    fn take_unix(&self, stream: UnixStream) {
        let uid = getsockopt(&stream, sockopt::PeerCredentials).map(|peer| peer.uid());
        let is_known = uid.is_ok_and(|uid| uid == 0 || uid == geteuid().as_raw());
        let patience = Some(PATIENCE);
        if is_known
            && stream.set_nonblocking(false).is_ok()
            && stream.set_read_timeout(patience).is_ok()
            && stream.set_write_timeout(patience).is_ok()
        {
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
