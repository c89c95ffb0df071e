//! A switch that is there for others: its control socket, its metrics, and its end.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millrace_agent::Endpoint;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use tracing::{info, warn};

use crate::config::Config;
use crate::containers::Containers;
use crate::listen::{ControlSocket, ListenError};
use crate::silent::Silent;
use crate::switch::Switch;
use crate::{control, metrics};

/// Whoever asks waits for so long where no descriptor is left.
const PAUSE: Duration = Duration::from_millis(100);
/// Tokens of the epoll set; readers of metrics have higher ones.
const STOP: u64 = 0;
const CONTROL: u64 = 1;
const METRICS: u64 = 2;
const CONTAINERS: u64 = 3;
const FIRST_READER: u64 = 16;
/// And those who have not asked yet still higher ones.
const FIRST_SILENT: u64 = 1 << 32;

/// How to run a switch.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the command line asks.
    pub control: PathBuf,
    /// What to do.
    pub config: Config,
}

/// Why a switch cannot start, or go on.
#[derive(Debug)]
pub enum ServeError {
    /// There is no control socket.
    Control(ListenError),
    /// Metrics cannot be served at this address.
    Metrics(String, io::Error),
    /// Something that was configured is not right, or cannot be had.
    Config(String),
    /// What an earlier switch has left of containers cannot be taken up.
    Containers(io::Error),
    /// The kernel refuses something that it cannot do without.
    Kernel(&'static str, io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Control(error) => write!(f, "{error}"),
            ServeError::Metrics(address, error) => {
                write!(f, "cannot serve metrics at {address}: {error}")
            }
            ServeError::Config(what) => write!(f, "{what}"),
            ServeError::Containers(error) => {
                write!(f, "cannot take up what containers have: {error}")
            }
            ServeError::Kernel(what, error) => write!(f, "the kernel refuses {what}: {error}"),
        }
    }
}

impl std::error::Error for ServeError {}

/// A switch that works, and listens.
#[derive(Debug)]
pub struct Server {
    switch: Switch,
    containers: Containers,
    control: ControlSocket,
    metrics: Option<Endpoint>,
    epoll: Epoll,
    next_reader: u64,
    silent: Silent,
}

impl Server {
    /// Opens everything and starts the workers. `stop` is what [`Server::serve`] ends at, when it is readable.
    ///
    /// # Errors
    /// When anything cannot be had; nothing is left then.
    pub fn start(options: Options, stop: BorrowedFd<'_>) -> Result<Server, ServeError> {
        let control =
            ControlSocket::open("switch", &options.control).map_err(ServeError::Control)?;
        let metrics = match &options.config.metrics {
            Some(address) => Some(
                Endpoint::open(address)
                    .map_err(|error| ServeError::Metrics(address.clone(), error))?,
            ),
            None => None,
        };
        let kernel = |errno: Errno| ServeError::Kernel("a set of descriptors", errno.into());
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(kernel)?;
        let watch = |fd: BorrowedFd<'_>, token| {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
            epoll.add(fd, event).map_err(kernel)
        };
        watch(stop, STOP)?;
        watch(control.as_fd(), CONTROL)?;
        if let Some(endpoint) = &metrics {
            watch(endpoint.as_fd(), METRICS)?;
        }
        let mut switch = Switch::start(&options.config).map_err(ServeError::Config)?;
        let devices = options.config.device.clone();
        let containers = Containers::open(&options.control, devices, &mut switch)
            .map_err(ServeError::Containers)?;
        watch(containers.as_fd(), CONTAINERS)?;
        info!(
            control = %options.control.display(),
            version = env!("CARGO_PKG_VERSION"),
            ports = options.config.port.len(),
            "the switch works"
        );
        Ok(Server {
            switch,
            containers,
            control,
            metrics,
            epoll,
            next_reader: FIRST_READER,
            silent: Silent::new(FIRST_SILENT),
        })
    }

    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// When the kernel does not let it wait.
    pub fn serve(mut self) -> Result<(), ServeError> {
        let mut events = [EpollEvent::empty(); 32];
        loop {
            let (now, metrics) = (Instant::now(), self.metrics.as_mut());
            let until = metrics.and_then(|endpoint| endpoint.expire(now));
            let until = until.into_iter().chain(self.silent.expire(now)).min();
            let count = match self.epoll.wait(&mut events, timeout(until)) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(ServeError::Kernel("to wait for events", errno.into())),
            };
            for event in &events[..count] {
                match event.data() {
                    STOP => {
                        info!("the switch stops");
                        return Ok(());
                    }
                    CONTROL => self.handle_connecting(),
                    METRICS => self.handle_metrics_connecting(),
                    CONTAINERS => self.containers.collect(&mut self.switch),
                    number if number >= FIRST_SILENT => self.handle_asking(number),
                    number => self.handle_metrics(number),
                }
            }
        }
    }

    fn handle_connecting(&mut self) {
        let taken = match self.control.accept() {
            Ok(Some(asker)) => self.silent.add(asker, &self.epoll, Instant::now()),
            Ok(None) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
        };
        if let Err(error) = taken {
            warn!("whoever asked was not taken: {error}");
            // There is news of who waits, until a descriptor is free, say.
            std::thread::sleep(PAUSE);
        }
    }

    fn handle_asking(&mut self, number: u64) {
        let Some(asker) = self.silent.take(number, &self.epoll) else {
            return;
        };
        if let Err(error) = control::serve(asker, &mut self.switch, &mut self.containers) {
            warn!("whoever asked was not answered: {error}");
        }
    }

    fn handle_metrics_connecting(&mut self) {
        self.next_reader += 1;
        let endpoint = self.metrics.as_mut();
        let accepted = endpoint.map(|endpoint| endpoint.accept(self.next_reader, &self.epoll));
        if let Some(Err(error)) = accepted {
            warn!("a reader of metrics was not taken: {error}");
            std::thread::sleep(PAUSE);
        }
    }

    fn handle_metrics(&mut self, number: u64) {
        let Some(endpoint) = &mut self.metrics else {
            return;
        };
        let switch = &mut self.switch;
        endpoint.handle(number, &self.epoll, || {
            switch.report().map_or_else(
                |error| format!("# {error}\n"),
                |report| metrics::render(&report),
            )
        });
    }
}

/// To the deadline, rounded up so that it has passed when the wait ends.
fn timeout(until: Option<Instant>) -> EpollTimeout {
    match until {
        Some(until) => {
            let milliseconds = until.saturating_duration_since(Instant::now()).as_millis() + 1;
            EpollTimeout::try_from(milliseconds).unwrap_or(EpollTimeout::MAX)
        }
        None => EpollTimeout::NONE,
    }
}
