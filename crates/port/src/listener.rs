//! A server's socket of the Unix domain, and its place in the file system.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, listen, shutdown, socket,
};

use crate::bell;
use crate::handed::Debts;

mod connection;
mod sys;

pub(crate) use sys::Connection;

/// So many connections are taken before it is others' turn: whoever connects again and again is as fast. There is news of the rest still.
pub(crate) const AT_ONCE: usize = 4;

/// Who cannot take anybody now is not told of those who wait for so long.
pub(crate) const REST: Duration = Duration::from_millis(20);

/// Listens at a path, which is there as long as the listener.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// What was put at the path.
    identity: (u64, u64),
    /// Of nobody there is news until then.
    rests_until: Option<Instant>,
    debts: Debts,
}

impl Listener {
    /// Makes the socket under another name, with its permissions, and then gives it the path: nobody finds it half made, and nobody's file
    /// is replaced. What a dead server has left is removed.
    pub(crate) fn new(
        kind: SockType,
        path: &Path,
        mode: u32,
        debts: &Debts,
    ) -> io::Result<Listener> {
        if let Some(directory) = path.parent() {
            sweep(kind, directory);
        }
        let socket = open(kind)?;
        let draft = draft(path);
        bind(socket.as_raw_fd(), &UnixAddr::new(&draft)?)?;
        let placed = place(&socket, kind, &draft, path, mode);
        // It has the other name now, or is not wanted.
        let _ = fs::remove_file(&draft);
        Ok(Listener {
            socket,
            path: path.to_owned(),
            identity: placed?,
            rests_until: None,
            debts: debts.clone(),
        })
    }

    /// The next who wants to connect, unless what the last ones have left is still being closed. None: nobody does now, or it rests.
    pub(crate) fn accept(&mut self, epoll: &Epoll, now: Instant) -> io::Result<Option<Connection>> {
        if self.rests_until.is_some() {
            return Ok(None);
        }
        let accepted = match self.debts.are_many() {
            false => sys::accept(&self.socket, &self.debts),
            true => Err(many_debts()),
        };
        if accepted.is_err() {
            // There is news of whoever waits, and would be until it can be taken.
            self.watch(epoll, EpollFlags::empty());
            self.rests_until = Some(now + REST);
        }
        accepted
    }

    /// Whoever waits is news again, once it has rested.
    pub(crate) fn wake(&mut self, epoll: &Epoll, now: Instant) {
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
            self.watch(epoll, EpollFlags::EPOLLIN);
        }
    }

    /// When to call [`Listener::wake`].
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.rests_until
    }

    fn watch(&self, epoll: &Epoll, events: EpollFlags) {
        // It is there.
        let _ = epoll.modify(&self.socket, &mut EpollEvent::new(events, bell::LISTENER));
    }

    /// Whether what is at its path is still its own.
    pub(crate) fn has_path(&self) -> bool {
        identity(&self.path).is_ok_and(|identity| identity == self.identity)
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.has_path() {
            let _ = fs::remove_file(&self.path);
        }
        // Those who wait have put something into their queues, perhaps.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Read);
        while let Ok(Some(_)) = sys::accept(&self.socket, &self.debts) {}
    }
}

fn open(kind: SockType) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, kind, flags, None)
}

/// A name beside the path that nobody else of this system uses.
fn draft(path: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only that no two are equal.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{}.{number}", std::process::id()))
}

/// Whose name beside a path this is.
fn drafted_by(name: &str) -> Option<u32> {
    let (process, number) = name.strip_prefix('.')?.split_once('.')?;
    number.parse::<u32>().ok()?;
    process.parse().ok()
}

/// Removes what those have left who were killed before they had their path. A process that is not seen from here, in another namespace,
/// listens there a moment later: only what nobody listens at is left over.
fn sweep(kind: SockType, directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let is_socket = entry.file_type().is_ok_and(|found| found.is_socket());
        let drafted_by = entry.file_name().to_str().and_then(drafted_by);
        if let (true, Some(process)) = (is_socket, drafted_by)
            && !Path::new("/proc").join(process.to_string()).exists()
            && is_stale(kind, &entry.path())
        {
            // Somebody else may have done it.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether nobody listens at a socket.
fn is_stale(kind: SockType, path: &Path) -> bool {
    let connected = connected(kind, path);
    connected.is_err_and(|error| error.raw_os_error() == Some(Errno::ECONNREFUSED as i32))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn place(
    socket: &OwnedFd,
    kind: SockType,
    draft: &Path,
    path: &Path,
    mode: u32,
) -> io::Result<(u64, u64)> {
    fs::set_permissions(draft, Permissions::from_mode(mode))?;
    listen(socket, Backlog::new(8)?)?;
    match fs::hard_link(draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove_stale(kind, path)?;
            fs::hard_link(draft, path)?;
        }
        linked => linked?,
    }
    identity(draft)
}

/// Removes a socket that nobody listens at. It is moved aside first, and looked at there: what has come in its place meanwhile stays.
fn remove_stale(kind: SockType, path: &Path) -> io::Result<()> {
    let in_use = || io::Error::from(io::ErrorKind::AddrInUse);
    let found = identity(path)?;
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(in_use());
    }
    if !is_stale(kind, path) {
        return Err(in_use());
    }
    let aside = draft(path);
    fs::rename(path, &aside)?;
    if identity(&aside)? != found {
        let restored = fs::hard_link(&aside, path);
        fs::remove_file(&aside)?;
        restored?;
        return Err(in_use());
    }
    fs::remove_file(&aside)
}

/// Why nobody is taken for now.
pub(crate) fn many_debts() -> io::Error {
    io::Error::other("what the last peers handed over is not closed yet")
}

/// Connects to whoever listens at a path, unless what the last one has left is still being closed.
pub(crate) fn connect(kind: SockType, path: &Path, debts: &Debts) -> io::Result<Connection> {
    if debts.are_many() {
        return Err(many_debts());
    }
    Ok(Connection::new(connected(kind, path)?, debts))
}

fn connected(kind: SockType, path: &Path) -> io::Result<OwnedFd> {
    let socket = open(kind)?;
    nix::sys::socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: SockType = SockType::SeqPacket;

    fn bound(path: &Path) -> OwnedFd {
        let socket = open(KIND).unwrap();
        bind(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        socket
    }

    #[test]
    fn what_the_killed_have_left_beside_a_path_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (gone, own) = (child.id(), std::process::id());
        child.wait().unwrap();
        let kept = [
            format!(".{own}.77"),
            format!(".{gone}"),
            format!(".{gone}.x"),
            format!("{gone}.0"),
        ];
        for name in &kept {
            drop(bound(&path(name)));
        }
        let heard = format!(".{gone}.1");
        let listening = bound(&path(&heard));
        listen(&listening, Backlog::new(1).unwrap()).unwrap();
        fs::write(path(&format!(".{gone}.2")), "").unwrap();
        drop(bound(&path(&format!(".{gone}.0"))));
        let listener = Listener::new(KIND, &path("a.sock"), 0o600, &Debts::default()).unwrap();
        let is_there = |name: &String| path(name).exists();
        assert!(!is_there(&format!(".{gone}.0")));
        assert!(kept.iter().all(is_there) && is_there(&heard));
        assert!(is_there(&format!(".{gone}.2")) && path("a.sock").exists());
        drop(listener);
        assert!(!path("a.sock").exists());
    }
}
