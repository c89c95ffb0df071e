//! Every place at which an agent listens, and that they stay: what cleans up in directories of temporary files may take a socket away,
//! which nobody finds then while the agent lives.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tracing::{info, warn};

use super::{Place, PlaceError};
use crate::sys::Inlet;

/// So long after a socket has gone its place is taken again: whoever removes more there has done so.
const CLEANING_UP: Duration = Duration::from_secs(1);

/// So long after that was in vain it is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Every place at which an agent listens, the one that it must have first.
#[derive(Debug)]
pub(crate) struct Places {
    places: Vec<Place>,
    retake_at: Option<Instant>,
}

impl Places {
    /// Listens at `path`, and at those of `others` that are to be had. Those are shared with containers, which could hold a lock that lies
    /// there: the lock of `path` stands for all, and of two agents the later one has them.
    pub(crate) fn take(
        path: &Path,
        others: &[PathBuf],
        leave_no_directory: bool,
    ) -> Result<Places, PlaceError> {
        let mut places = vec![Place::take(path, leave_no_directory)?];
        for other in others {
            match Place::take_without_lock(other) {
                Ok(place) => places.push(place),
                Err(error) => warn!("whoever looks there is not served: {error}"),
            }
        }
        Ok(Places {
            places,
            retake_at: None,
        })
    }

    /// One of the sockets may have gone.
    pub(crate) fn note_gone(&mut self, now: Instant) {
        self.retake_at.get_or_insert(now + CLEANING_UP);
    }

    /// When [`Places::retake`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.retake_at
    }

    /// Listens again where a socket has gone and nobody else has its place. Returns the new listeners.
    pub(crate) fn retake(&mut self, now: Instant) -> Vec<BorrowedFd<'_>> {
        if self.retake_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.retake_at = None;
        let mut taken = Vec::new();
        for (index, place) in self.places.iter_mut().enumerate() {
            if place.is_lost() {
                match place.retake() {
                    Ok(()) => taken.push(index),
                    Err(error) => {
                        warn!("the socket has been removed, and is not to be had: {error}");
                        self.retake_at = Some(now + RETRY);
                    }
                }
            }
        }
        for place in taken.iter().map(|index| &self.places[*index]) {
            info!(socket = %place.path.display(), "the socket has been removed: the agent listens again");
        }
        taken
            .iter()
            .map(|index| self.places[*index].as_fd())
            .collect()
    }

    /// Accepts one client, wherever one waits, and whether it came by a place for containers.
    pub(crate) fn accept(&self) -> io::Result<(Inlet, bool)> {
        for (index, place) in self.iter().enumerate() {
            match place.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome.map(|socket| (socket, index > 0)),
            }
        }
        Err(Errno::EAGAIN.into())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.places.iter()
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.iter().map(|place| place.path.as_path())
    }

    /// Their paths, for the log.
    pub(crate) fn shown(&self) -> String {
        let paths = self.paths().map(|path| path.display().to_string());
        paths.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{UnixAddr, connect};

    use super::super::{is_listening, lock_path, seqpacket, socket_in};
    use super::*;

    #[test]
    fn clients_are_accepted_at_every_place_and_one_that_cannot_be_had_is_done_without() {
        let outer = tempfile::tempdir().unwrap();
        let paths = ["a", "b", "none/c"].map(|name| outer.path().join(name));
        fs::write(outer.path().join("none"), "not a directory").unwrap();
        let places = Places::take(&paths[0], &paths[1..], false).unwrap();
        assert_eq!(places.iter().count(), 2);
        assert_eq!(
            places.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        for (path, by_containers) in [(&paths[0], false), (&paths[1], true)] {
            let client = seqpacket().unwrap();
            connect(client.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
            assert_eq!(places.accept().unwrap().1, by_containers);
        }
        assert!(!lock_path(&paths[1]).exists(), "a container could hold it");
    }

    /// What is returned when a cleaner has been, and its second is over.
    fn retaken(places: &mut Places) -> usize {
        let now = Instant::now();
        places.note_gone(now);
        assert!(places.retake(now).is_empty(), "not yet");
        places.retake(places.deadline().unwrap()).len()
    }

    #[test]
    fn a_socket_that_is_removed_comes_again() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("millrace");
        let path = socket_in(&directory);
        let mut places = Places::take(&path, &[], true).unwrap();
        assert_eq!(retaken(&mut places), 0);
        for _ in 0..2 {
            fs::remove_file(&path).unwrap();
            assert_eq!(retaken(&mut places), 1);
            assert!(is_listening(&path));
        }
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(retaken(&mut places), 1);
        assert!(is_listening(&path));
        drop(places);
        assert!(!directory.exists());
    }

    #[test]
    fn a_place_that_is_another_s_by_now_is_left_to_it() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("agent.sock");
        let mut places = Places::take(&path, &[], false).unwrap();
        fs::remove_file(&path).unwrap();
        fs::remove_file(lock_path(&path)).unwrap();
        let other = Places::take(&path, &[], false).unwrap();
        assert_eq!(retaken(&mut places), 0);
        drop(places);
        assert!(is_listening(&path));
        // It is about to listen.
        let mut places = other;
        fs::remove_file(&path).unwrap();
        fs::remove_file(lock_path(&path)).unwrap();
        let _lock = super::super::try_lock(&lock_path(&path)).unwrap().unwrap();
        assert_eq!(retaken(&mut places), 0);
        assert!(!path.exists());
    }
}
