//! The socket by which a program of this user is asked. A lock beside it says whose it is, so that a dead one's is replaced, and a live
//! one's is not.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;

/// It goes when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
    lock: Flock<File>,
}

/// Why there is none.
#[derive(Debug)]
pub enum ListenError {
    /// Another program of this sort has it.
    Busy(&'static str, PathBuf),
    /// It cannot be made.
    Io(PathBuf, io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::Busy(sort, path) => write!(
                f,
                "another {sort} already listens at {} (give this one another --control)",
                path.display()
            ),
            ListenError::Io(path, error) => write!(
                f,
                "cannot make the control socket {}: {error}",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ListenError {}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

fn identity(found: io::Result<fs::Metadata>) -> Option<(u64, u64)> {
    found.map(|one| (one.dev(), one.ino())).ok()
}

impl ControlSocket {
    /// Listens at a path, whose directory is made where there is none. `sort` is what this program is called.
    ///
    /// # Errors
    /// When another one listens there, or the kernel refuses.
    pub fn open(sort: &'static str, path: &Path) -> Result<ControlSocket, ListenError> {
        let failed = |error| ListenError::Io(path.to_owned(), error);
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
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(lock_path(path))
            .map_err(failed)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| ListenError::Busy(sort, path.to_owned()))?;
        ControlSocket::bind(path, lock).map_err(failed)
    }

    fn bind(path: &Path, lock: Flock<File>) -> io::Result<ControlSocket> {
        let left = fs::symlink_metadata(path);
        if left.is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        // Whoever connects before this is asked who it is, all the same.
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let found = fs::symlink_metadata(path)?;
        Ok(ControlSocket {
            listener,
            path: path.to_owned(),
            identity: (found.dev(), found.ino()),
            lock,
        })
    }

    /// One who asks, whose socket blocks. `None`: neither this user nor root.
    ///
    /// # Errors
    /// As accept(2) has it; `WouldBlock` when there is nobody.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(false)?;
        let uid = getsockopt(&stream, sockopt::PeerCredentials)?.uid();
        let is_known = uid == 0 || uid == geteuid().as_raw();
        Ok(is_known.then_some(stream))
    }
}

impl AsFd for ControlSocket {
    /// Readable when there is one who asks.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if identity(fs::symlink_metadata(&self.path)) == Some(self.identity) {
            let _ = fs::remove_file(&self.path);
        }
        let lock_path = lock_path(&self.path);
        let own = identity(self.lock.metadata());
        if own.is_some() && own == identity(fs::symlink_metadata(&lock_path)) {
            let _ = fs::remove_file(&lock_path);
        }
    }
}
