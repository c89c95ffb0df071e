//! The plugin's socket in the kubelet's directory: one plugin for a resource, and nothing left behind.
//!
//! A kubelet that starts removes every socket in there, so [`Place::state`] is asked again and again. The new socket is made under
//! another name and renamed, so that the old one is replaced whole; of two plugins that start at once the later one stays, and the
//! other sees that.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tokio::net::UnixListener;

/// A file, whatever has been made under its name since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    /// Numbers of inodes are used again at once.
    changed: (i64, i64),
}

/// Which file is there; none when there is none, or it cannot be looked at.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    let found = fs::symlink_metadata(path).ok()?;
    Some(Identity {
        device: found.dev(),
        inode: found.ino(),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

/// What has become of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It is there.
    Ours,
    /// Somebody removed it: a kubelet that started.
    Gone,
    /// There is another one.
    Others,
}

/// The socket; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    own: Identity,
}

impl Place {
    /// Takes the place, where nobody else answers.
    pub(crate) fn take(path: &Path) -> anyhow::Result<(Place, UnixListener)> {
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                bail!(
                    "{} is in the way: it is no socket; remove it",
                    path.display()
                )
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                bail!(
                    "another device plugin serves {}: one is enough for a node; stop the other (kubectl get pods -A, or a program \
                     outside of Kubernetes)",
                    path.display()
                )
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
        let new = path.with_extension(format!("{}.new", std::process::id()));
        // Of a killed one that had the same number.
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new)
            .with_context(|| format!("cannot make a socket at {}", new.display()))?;
        fs::rename(&new, path)
            .with_context(|| format!("cannot put a socket at {}", path.display()))?;
        let own = identity(path)
            .with_context(|| format!("{} is gone as soon as it was made", path.display()))?;
        let path = path.to_owned();
        Ok((Place { path, own }, listener))
    }

    /// What has become of it, while its listener is there: the number of a socket that is bound is no other file's, and who gives it other
    /// rights or another label (`restorecon`) changes nothing.
    pub(crate) fn state(&self) -> State {
        let number = |of: Identity| (of.device, of.inode);
        match identity(&self.path) {
            Some(found) if number(found) == number(self.own) => State::Ours,
            Some(_) => State::Others,
            None => State::Gone,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.state() == State::Ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_socket_with_other_rights_is_the_same_and_one_in_its_place_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let (place, _listener) = Place::take(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(place.state(), State::Ours);
        fs::remove_file(&path).unwrap();
        assert_eq!(place.state(), State::Gone);
        let _other = UnixListener::bind(&path).unwrap();
        assert_eq!(place.state(), State::Others);
        drop(place);
        assert!(path.exists());
    }
}
