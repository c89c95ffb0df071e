//! The directory of the machine that containers get: the library, this program for the hook and for `ps` and `doctor` in there, and
//! the agent's socket, which the agent itself puts there.
//!
//! It is not below /run: that is often mounted so that nothing in it can be executed, which a container without privilege cannot undo.
//! Files are replaced by new ones under the same name, never written over: running programs have the old ones mapped.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use rustix::fs::{Mode, OFlags};

use super::hook::open_in;
use super::images;
use crate::locate;

/// Where containers have it: the agent's socket is then where programs look for it.
pub(super) const IN_CONTAINER: &str = "/run/millrace";
/// Where they have the sockets of their packet ports, by device.
pub(super) const PACKET_IN_CONTAINER: &str = "/run/millrace-packet";
/// What is mounted there until the hook has put a container's own in its place: an empty directory.
const PACKET: &str = "packet";
/// The library in it.
pub(super) const LIBRARY: &str = "libmillrace_preload.so";
/// This program in it.
pub(super) const PROGRAM: &str = "millrace";

/// The directory, by its absolute path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    /// Makes it, or brings it up to date.
    pub(super) fn fill(&self) -> anyhow::Result<()> {
        let library = locate::library().map_err(|places| missing("the library", &places))?;
        let program = locate::program_for_containers()
            .map_err(|places| missing("the program for containers, millrace-static,", &places))?;
        make_directories(&self.0).with_context(|| format!("cannot make {}", self.0.display()))?;
        self.check_safe()?;
        self.check_executable()?;
        images::lay_out(&library, &self.0)?;
        let program =
            fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
        replace(&self.0.join(PROGRAM), &program, 0o755)?;
        make_directories(&self.packet_place())
            .with_context(|| format!("cannot make {}", self.packet_place().display()))
    }

    /// The empty directory.
    pub(super) fn packet_place(&self) -> PathBuf {
        self.0.join(PACKET)
    }

    /// Whoever can write to it, or to a directory above it, is in every container.
    pub(super) fn check_safe(&self) -> anyhow::Result<()> {
        for path in self.0.ancestors() {
            let found = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
            let others_write = found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
            if !found.is_dir()
                || found.uid() != nix::unistd::geteuid().as_raw() && found.uid() != 0
                || others_write
            {
                bail!(
                    "{} is not safe: every directory up to it must be root's (or yours), no symbolic link, and writable for nobody else",
                    path.display()
                );
            }
        }
        Ok(())
    }

    fn check_executable(&self) -> anyhow::Result<()> {
        let flags = nix::sys::statvfs::statvfs(&self.0)
            .with_context(|| self.0.display().to_string())?
            .flags();
        if flags.contains(nix::sys::statvfs::FsFlags::ST_NOEXEC) {
            bail!(
                "{} is on a file system that nothing can be executed from (noexec); give another with --directory",
                self.0.display()
            );
        }
        Ok(())
    }

    /// What is missing.
    pub(super) fn complaints(&self) -> Vec<String> {
        let missing = |name: &str| {
            let path = self.0.join(name);
            (!path.is_file())
                .then(|| format!("{} is missing: sudo millrace cdi install", path.display()))
        };
        [LIBRARY, PROGRAM].into_iter().filter_map(missing).collect()
    }

    /// Processes that have it mounted: those of containers.
    pub(super) fn users(&self) -> Vec<u32> {
        let identity = |found: rustix::fs::Stat| (found.st_dev, found.st_ino);
        let Ok(own) = rustix::fs::stat(&self.0).map(identity) else {
            return Vec::new();
        };
        // Links in there must not lead to the machine's own.
        let has = |pid: &u32| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty());
            let opened = root.ok().and_then(|root| {
                open_in(&root, IN_CONTAINER.trim_start_matches('/'), OFlags::PATH).ok()
            });
            opened.and_then(|found| rustix::fs::fstat(found).ok().map(identity)) == Some(own)
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(has)
            .collect()
    }

    /// Removes what `fill` has made. Whether nothing is left.
    pub(super) fn empty(&self) -> anyhow::Result<bool> {
        let program = self.0.join(PROGRAM);
        sweep(&program);
        match fs::remove_file(&program) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => images::clear(&self.0),
        }
        .with_context(|| format!("cannot empty {}", self.0.display()))?;
        // Where it is not empty, or is mounted, what follows says so.
        let _ = fs::remove_dir(self.packet_place());
        match fs::remove_dir(&self.0) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            // In a container that has the machine's directory, nobody can remove it.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot remove {}", self.0.display())),
        }
    }
}

fn missing(what: &str, places: &[PathBuf]) -> anyhow::Error {
    let places: Vec<String> = places
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    anyhow!(
        "{what} is missing; it is not at {} (make build)",
        places.join(" or ")
    )
}

/// Makes a directory and those above it, for everybody to read: the umask is not to hide it from containers.
pub(super) fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        make_directories(above)?;
    }
    match fs::create_dir(path) {
        // Another one was first: hooks of containers that start at once, say.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o755)),
    }
}

/// What the name of a file that is being written has behind the name that it will get, before the writer's process number.
const FRESH: &str = ".new";

/// Removes what writers of this file have left that were killed.
pub(super) fn sweep(path: &Path) {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
    else {
        return;
    };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let rest = found.to_str().and_then(|found| found.strip_prefix(name));
        let writer = rest.and_then(|rest| rest.strip_prefix(FRESH)?.parse::<u32>().ok());
        let is_left =
            |pid| pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists();
        if writer.is_some_and(is_left) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Puts a new file in the place of another, whole or not at all, and makes the directory for it.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    sweep(path);
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{FRESH}{}", std::process::id()));
    let fresh = PathBuf::from(name);
    let write = || -> io::Result<()> {
        if let Some(directory) = path.parent() {
            make_directories(directory)?;
        }
        let mut file: File = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(bytes)?;
        // Whatever the umask is.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        // A machine that loses its power must not find an empty library.
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_by_another_and_the_old_one_stays_as_it_was() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("new/file");
        replace(&path, b"old", 0o644).unwrap();
        let old = File::open(&path).unwrap();
        replace(&path, b"new", 0o755).unwrap();
        assert_eq!(io::read_to_string(old).unwrap(), "old");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_writer_has_left_goes_and_what_is_being_written_stays() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("file");
        // No process has the first number: it is above what the kernel gives.
        for name in [
            "file.new4194305",
            "file.new1",
            "file.newer",
            "other.new4194305",
        ] {
            fs::write(outer.path().join(name), "").unwrap();
        }
        replace(&path, b"new", 0o644).unwrap();
        let mut names: Vec<_> = fs::read_dir(outer.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["file", "file.new1", "file.newer", "other.new4194305"]
        );
    }

    #[test]
    fn who_makes_a_directory_that_another_one_makes_at_once_has_it() {
        let outer = tempfile::tempdir().unwrap();
        let makers = 4;
        let barrier = std::sync::Barrier::new(makers);
        let make = || {
            let rounds = (0..200).map(|round| {
                let path = outer.path().join(format!("{round}/a/b"));
                barrier.wait();
                make_directories(&path)
            });
            // All of them: whoever stopped at an error would keep the others waiting.
            rounds.collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let makers: Vec<_> = (0..makers).map(|_| scope.spawn(make)).collect();
            for made in makers.into_iter().flat_map(|maker| maker.join().unwrap()) {
                made.unwrap();
            }
        });
    }

    #[test]
    fn directories_that_others_write_to_are_refused() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let directory = Directory(inner);
        directory.check_safe().unwrap();
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(directory.check_safe().is_err());
    }

    #[test]
    fn emptying_leaves_what_is_not_ours() {
        let outer = tempfile::tempdir().unwrap();
        let directory = Directory(outer.path().join("d"));
        assert!(directory.empty().unwrap());
        fs::create_dir(&directory.0).unwrap();
        for name in [LIBRARY, "agent.sock"] {
            fs::write(directory.0.join(name), "").unwrap();
        }
        assert!(!directory.empty().unwrap());
        fs::remove_file(directory.0.join("agent.sock")).unwrap();
        assert!(directory.empty().unwrap());
        assert!(!directory.0.exists());
    }
}
