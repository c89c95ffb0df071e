//! A segment in the memory of a process that maps it, read as a debugger would. The kernel decides who may.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// How the segments' mappings are called.
const NAME: &str = "/memfd:millrace-segment";

/// Why a process's memory cannot be read.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The kernel does not allow it.
    Denied,
    /// The process is gone, or does not map the segment any more.
    Gone,
    /// Something else.
    Kernel(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Denied => f.write_str("the kernel does not let you trace it"),
            OpenError::Gone => f.write_str("it does not have the segment any more"),
            OpenError::Kernel(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        match error.kind() {
            io::ErrorKind::PermissionDenied => OpenError::Denied,
            io::ErrorKind::NotFound => OpenError::Gone,
            _ if error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32) => OpenError::Gone,
            _ => OpenError::Kernel(error),
        }
    }
}

/// A process's view of a segment. It ends with the process's program: a new one's memory is another.
#[derive(Debug)]
pub(super) struct Memory {
    file: File,
    start: u64,
    bytes: u64,
}

impl Memory {
    /// Finds the segment of this inode in a process: the larger part of it, where there are two mappings.
    pub(super) fn open(pid: i32, inode: u64) -> Result<Memory, OpenError> {
        // First the memory: the list of mappings is of the same program then, or of a later one that has no such mapping.
        let file = File::open(format!("/proc/{pid}/mem"))?;
        let maps = std::fs::read(format!("/proc/{pid}/maps"))?;
        // Names of files are any bytes.
        let maps = String::from_utf8_lossy(&maps);
        let places = maps.lines().filter_map(|line| place(line, inode));
        let (start, bytes) = places.max_by_key(|place| place.1).ok_or(OpenError::Gone)?;
        Ok(Memory { file, start, bytes })
    }

    /// How much of the segment is mapped here.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads bytes of the segment. `NotFound`: that part is not mapped here. Other errors: nothing is mapped here any more.
    pub(super) fn fetch(&self, offset: usize, bytes: &mut [u8]) -> io::Result<()> {
        let offset = offset as u64;
        if offset + bytes.len() as u64 > self.bytes {
            return Err(io::ErrorKind::NotFound.into());
        }
        let read = self.file.read_exact_at(bytes, self.start + offset);
        read.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// The address and length of a mapping, if it is of the beginning of the segment of this inode:
/// `7f5c8a000000-7f5c8a021000 rw-s 00000000 00:01 4711 /memfd:millrace-segment (deleted)`.
fn place(line: &str, inode: u64) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let offset = words.nth(1)?;
    let found: u64 = words.nth(1)?.parse().ok()?;
    let is_its = found == inode && offset.bytes().all(|digit| digit == b'0');
    if !is_its || words.next()? != NAME {
        return None;
    }
    let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).ok());
    Some((start?, end?.checked_sub(start?)?))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_the_segment_itself_is_found() {
        let line = "7f5c8a000000-7f5c8a021000 rw-s 00000000 00:01 4711    /memfd:millrace-segment (deleted)";
        assert_eq!(place(line, 4711), Some((0x7f5c_8a00_0000, 0x2_1000)));
        assert_eq!(place(line, 4712), None);
        assert_eq!(place(&line.replace("segment", "board"), 4711), None);
        assert_eq!(place(&line.replace("00000000 ", "00001000 "), 4711), None);
        assert_eq!(
            place("7f5c8a000000-7f5c8a021000 rw-p 00000000 00:00 0", 0),
            None
        );
        assert_eq!(place("", 0), None);
    }

    #[test]
    fn names_of_other_files_are_any_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(OsStr::from_bytes(b"sleep-\xff"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("60").spawn().unwrap();
        // It is mapped some time after the process is another.
        while !std::fs::read(format!("/proc/{}/maps", child.id()))
            .is_ok_and(|maps| maps.contains(&0xff))
        {
            std::thread::yield_now();
        }
        let opened = Memory::open(child.id().cast_signed(), u64::MAX);
        let _ = child.kill();
        let _ = child.wait();
        assert!(matches!(opened, Err(OpenError::Gone)), "{opened:?}");
    }

    #[test]
    fn a_process_that_does_not_have_it_is_told_from_one_that_is_gone() {
        let own = std::process::id().cast_signed();
        assert!(matches!(Memory::open(own, u64::MAX), Err(OpenError::Gone)));
        assert!(matches!(Memory::open(i32::MAX, 1), Err(OpenError::Gone)));
    }
}
