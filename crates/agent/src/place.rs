//! The agent's place in the file system: which directory, one agent per socket, and nothing left behind.
//!
//! A lock file beside the socket says who may have it, so two agents never race and a socket whose agent was killed is
//! replaced. The new socket is bound under another name and renamed over the old one: a client finds either the old or the new.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, setsockopt,
    socket, sockopt,
};
use nix::unistd::geteuid;

use crate::sys::{self, Inlet};

mod all;

pub(crate) use all::Places;

/// The socket of root's agent, which serves every user.
pub const ROOT_SOCKET: &str = "/run/millrace/agent.sock";

/// What containers have of root's agent: this directory is mounted into them, with the library and a socket.
pub const CONTAINERS_DIRECTORY: &str = "/var/lib/millrace";

/// How long to wait for an agent that is about to leave.
const LEAVING: Duration = Duration::from_secs(1);

/// The directory of the agent of this user: `/run/millrace` for root, else `millrace` in the runtime directory, else
/// `/tmp/millrace-UID`.
#[must_use]
pub fn own_directory(uid: u32, runtime_directory: Option<&Path>) -> PathBuf {
    match runtime_directory {
        _ if uid == 0 => PathBuf::from("/run/millrace"),
        Some(path) if path.is_absolute() => path.join("millrace"),
        _ => PathBuf::from(format!("/tmp/millrace-{uid}")),
    }
}

/// The agent's socket in its directory.
#[must_use]
pub fn socket_in(directory: &Path) -> PathBuf {
    directory.join("agent.sock")
}

/// Why an agent cannot listen at a path.
#[derive(Debug)]
pub enum PlaceError {
    /// Another agent does.
    Busy(PathBuf),
    /// The directory is not safe to use; the text says why.
    Unsafe(PathBuf, String),
    /// The path is too long for a socket, or has no directory.
    Path(PathBuf),
    /// Something else went wrong with this file.
    Io(PathBuf, io::Error),
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlaceError::Busy(path) => {
                write!(f, "another agent already listens at {}", path.display())
            }
            PlaceError::Unsafe(path, why) => write!(
                f,
                "the directory {} is not safe to use: {why}",
                path.display()
            ),
            PlaceError::Path(path) => {
                write!(
                    f,
                    "{} cannot be a socket: give an absolute path of at most 100 bytes",
                    path.display()
                )
            }
            PlaceError::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for PlaceError {}

/// A socket that listens, and the files that are this agent's while it lives.
#[derive(Debug)]
pub(crate) struct Place {
    listener: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
    lock: Option<Flock<File>>,
    /// This agent made the directory.
    made_directory: bool,
    /// Take the directory away, too, when leaving: an agent that came by itself goes without a trace.
    leave_no_directory: bool,
}

impl Place {
    /// Listens at `path`. Root's agent is for everybody, any other for its own user.
    fn take(path: &Path, leave_no_directory: bool) -> Result<Place, PlaceError> {
        let directory = match path.parent() {
            Some(directory) if path.is_absolute() && path.as_os_str().len() <= 100 => directory,
            _ => return Err(PlaceError::Path(path.to_owned())),
        };
        let for_everybody = geteuid().is_root();
        let start = Instant::now();
        let (lock, made_directory) = loop {
            let made = prepare_directory(directory, for_everybody)?;
            if let Some(lock) = try_lock(&lock_path(path))
                .map_err(|error| PlaceError::Io(lock_path(path), error))?
            {
                break (lock, made);
            }
            if start.elapsed() > LEAVING || is_listening(path) {
                return Err(PlaceError::Busy(path.to_owned()));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Place::bind(path, Some(lock), made_directory, leave_no_directory)
    }

    fn take_without_lock(path: &Path) -> Result<Place, PlaceError> {
        match path.parent() {
            Some(directory) if path.is_absolute() && path.as_os_str().len() <= 100 => {
                prepare_directory(directory, geteuid().is_root())?;
            }
            _ => return Err(PlaceError::Path(path.to_owned())),
        }
        Place::bind(path, None, false, false)
    }

    fn bind(
        path: &Path,
        lock: Option<Flock<File>>,
        made_directory: bool,
        leave_no_directory: bool,
    ) -> Result<Place, PlaceError> {
        let (listener, identity) = bind_over(path, geteuid().is_root())
            .map_err(|error| PlaceError::Io(path.to_owned(), error))?;
        Ok(Place {
            listener,
            path: path.to_owned(),
            identity,
            lock,
            made_directory,
            leave_no_directory,
        })
    }

    /// Whether nothing has the socket's name any more: something has cleaned up there. What has taken it since is somebody's.
    fn is_lost(&self) -> bool {
        let found = fs::symlink_metadata(&self.path);
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Listens at its path again. Who had connected stays. Busy: another agent has the lock by now.
    fn retake(&mut self) -> Result<(), PlaceError> {
        let lock_path = lock_path(&self.path);
        if let Some(directory) = self.path.parent() {
            self.made_directory |= prepare_directory(directory, geteuid().is_root())?;
        }
        let is_gone = |lock: &Flock<File>| !is_same_file(lock, &lock_path);
        if self.lock.as_ref().is_some_and(is_gone) {
            let lock =
                try_lock(&lock_path).map_err(|error| PlaceError::Io(lock_path.clone(), error))?;
            self.lock = Some(lock.ok_or_else(|| PlaceError::Busy(self.path.clone()))?);
        }
        (self.listener, self.identity) = bind_over(&self.path, geteuid().is_root())
            .map_err(|error| PlaceError::Io(self.path.clone(), error))?;
        Ok(())
    }

    /// Accepts one client.
    fn accept(&self) -> io::Result<Inlet> {
        // The kernel's accept does not mind that this listener's messages have boundaries.
        let (socket, _) = self.listener.accept()?;
        socket.set_nonblocking(true)?;
        Ok(Inlet::new(socket.into()))
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Place {
    /// Takes away what is still this agent's own.
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
        {
            let _ = fs::remove_file(&self.path);
        }
        let lock_path = lock_path(&self.path);
        if self
            .lock
            .as_deref()
            .is_some_and(|lock| is_same_file(lock, &lock_path))
        {
            let _ = fs::remove_file(&lock_path);
        }
        if let (true, true, Some(directory)) = (
            self.made_directory,
            self.leave_no_directory,
            self.path.parent(),
        ) {
            // Fails, rightly, when somebody else has put something there.
            let _ = fs::remove_dir(directory);
        }
        drop(self.lock.take());
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Makes the directory where there is none, and checks that nobody else can put things in it. Returns whether it was made.
fn prepare_directory(directory: &Path, for_everybody: bool) -> Result<bool, PlaceError> {
    let mode = if for_everybody { 0o755 } else { 0o700 };
    let made = match DirBuilder::new().mode(mode).create(directory) {
        Ok(()) => {
            // The umask must not hide root's agent from its users.
            let _ = fs::set_permissions(directory, Permissions::from_mode(mode));
            true
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(PlaceError::Io(directory.to_owned(), error)),
    };
    let found = fs::symlink_metadata(directory)
        .map_err(|error| PlaceError::Io(directory.to_owned(), error))?;
    let refuse = |why: String| Err(PlaceError::Unsafe(directory.to_owned(), why));
    if !found.is_dir() {
        return refuse("it is not a directory, or a symbolic link".to_owned());
    }
    if found.uid() != 0 && found.uid() != geteuid().as_raw() {
        return refuse(format!("it belongs to user {}", found.uid()));
    }
    // In a sticky directory others cannot replace what is ours.
    if found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0 {
        return refuse(format!(
            "others may write to it (mode {:o})",
            found.mode() & 0o7777
        ));
    }
    Ok(made)
}

/// `None`: another agent has the lock, or took it away just now.
fn try_lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        // The directory went between its check and here.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
        return Ok(None);
    };
    Ok(is_same_file(&lock, path).then_some(lock))
}

fn is_same_file(file: &File, path: &Path) -> bool {
    let identity =
        |found: io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
    let opened = identity(file.metadata());
    opened.is_some() && opened == identity(fs::symlink_metadata(path))
}

fn seqpacket() -> nix::Result<OwnedFd> {
    socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )
}

fn is_listening(path: &Path) -> bool {
    let connected = || connect(seqpacket()?.as_raw_fd(), &UnixAddr::new(path)?);
    // EAGAIN: somebody listens, and many wait.
    matches!(connected(), Ok(()) | Err(Errno::EAGAIN))
}

fn bind_over(path: &Path, for_everybody: bool) -> io::Result<(UnixListener, (u64, u64))> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = seqpacket()?;
    bind(socket.as_raw_fd(), &UnixAddr::new(&fresh)?)?;
    let mode = if for_everybody { 0o666 } else { 0o600 };
    fs::set_permissions(&fresh, Permissions::from_mode(mode))?;
    // Before anybody connects, so that no message comes without its sender's credentials.
    setsockopt(&socket, sockopt::PassCred, &true)?;
    sys::refuse_descriptors(socket.as_fd());
    listen(&socket, Backlog::MAXCONN)?;
    let found = fs::symlink_metadata(&fresh)?;
    fs::rename(&fresh, path)?;
    Ok((socket.into(), (found.dev(), found.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn directories_are_as_documented() {
        let runtime = Some(Path::new("/run/user/7"));
        assert_eq!(own_directory(0, runtime), Path::new("/run/millrace"));
        assert_eq!(own_directory(7, runtime), Path::new("/run/user/7/millrace"));
        assert_eq!(own_directory(7, None), Path::new("/tmp/millrace-7"));
        assert_eq!(
            own_directory(7, Some(Path::new(""))),
            Path::new("/tmp/millrace-7")
        );
    }

    #[test]
    fn one_agent_per_path_and_nothing_stays() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("millrace");
        let path = socket_in(&directory);
        let place = Place::take(&path, true).unwrap();
        assert!(is_listening(&path));
        assert!(matches!(Place::take(&path, true), Err(PlaceError::Busy(_))));
        drop(place);
        assert_eq!(names(outer.path()), Vec::<String>::new());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_somebody_else_s_file_is_not_removed() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("agent.sock");
        drop(UnixListener::bind(&path).unwrap());
        let place = Place::take(&path, false).unwrap();
        assert!(is_listening(&path));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "not the agent's").unwrap();
        drop(place);
        assert_eq!(names(outer.path()), ["agent.sock"]);
    }

    #[test]
    fn unsafe_directories_are_refused() {
        let outer = tempfile::tempdir().unwrap();
        let open = outer.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let link = outer.path().join("link");
        std::os::unix::fs::symlink(outer.path(), &link).unwrap();
        for directory in [open, link] {
            assert!(matches!(
                Place::take(&socket_in(&directory), false),
                Err(PlaceError::Unsafe(..))
            ));
        }
        assert!(matches!(
            Place::take(Path::new("agent.sock"), false),
            Err(PlaceError::Path(_))
        ));
    }
}
