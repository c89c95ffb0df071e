//! The preload library as images find it: one path for the environment of programs of which nothing is known.
//!
//! glibc puts the machine's name in the place of `$PLATFORM` in `LD_PRELOAD`, musl opens the path as it stands. So each finds, below one
//! directory, an object that it can load: the library, or an empty object where the program has 32 bits. That glibc would say on standard
//! error that it cannot load a library of 64 bits, and a program's output must not change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::directory::{LIBRARY, replace, sweep};

/// What glibc replaces, and the name of the directory where it is not replaced.
const PLATFORM: &str = "$PLATFORM";

/// What glibc calls a machine with programs of 64 bits; between 2.23 and 2.36 it tells some processors apart. Then what musl opens; and
/// the directory itself, where the library is found once a shell has replaced the name by nothing: a script that hands its variables on.
#[cfg(target_arch = "x86_64")]
const PLATFORMS_64: &[&str] = &["x86_64", "haswell", "xeon_phi", PLATFORM, ""];
/// The same with programs of 32 bits, as the kernel and older versions of glibc have it.
#[cfg(target_arch = "x86_64")]
const PLATFORMS_32: &[&str] = &["i686", "i586", "i486", "i386"];
/// `EM_386` of the ELF format.
#[cfg(target_arch = "x86_64")]
const MACHINE_32: u16 = 3;

#[cfg(target_arch = "aarch64")]
const PLATFORMS_64: &[&str] = &["aarch64", PLATFORM, ""];
#[cfg(target_arch = "aarch64")]
const PLATFORMS_32: &[&str] = &["v8l", "v7l"];
/// `EM_ARM` of the ELF format.
#[cfg(target_arch = "aarch64")]
const MACHINE_32: u16 = 40;

/// What a container is to preload that has `directory` under this name.
pub(super) fn preload_path(directory: &Path) -> String {
    format!("{}/{PLATFORM}/{LIBRARY}", directory.display())
}

/// Lays `library` out below `directory` for [`preload_path`]. Running programs keep the files that they have: each is replaced whole, and
/// another one takes its name.
pub(super) fn lay_out(library: &Path, directory: &Path) -> Result<()> {
    let content = fs::read(library).with_context(|| library.display().to_string())?;
    for path in paths(directory, PLATFORMS_64) {
        replace(&path, &content, 0o644)?;
    }
    let empty = empty_object(MACHINE_32);
    for path in paths(directory, PLATFORMS_32) {
        replace(&path, &empty, 0o644)?;
    }
    Ok(())
}

/// Takes away what has been laid out.
pub(super) fn clear(directory: &Path) -> io::Result<()> {
    for path in paths(directory, PLATFORMS_64).chain(paths(directory, PLATFORMS_32)) {
        sweep(&path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if let Some(own) = path.parent().filter(|own| *own != directory) {
            // Fails, rightly, when somebody else has put something there.
            let _ = fs::remove_dir(own);
        }
    }
    Ok(())
}

fn paths(directory: &Path, platforms: &'static [&str]) -> impl Iterator<Item = PathBuf> {
    platforms
        .iter()
        .map(move |platform| directory.join(platform).join(LIBRARY))
}

/// A shared object of 32 bits with nothing in it: the header, one loaded segment, and a dynamic section with an empty table of symbols.
#[rustfmt::skip]
fn empty_object(machine: u16) -> Vec<u8> {
    const HEADER: u32 = 52;
    const PROGRAM_HEADER: u32 = 32;
    const DYNAMIC: u32 = HEADER + 2 * PROGRAM_HEADER;
    /// Six entries of two words.
    const DYNAMIC_BYTES: u32 = 48;
    const SYMBOLS: u32 = DYNAMIC + DYNAMIC_BYTES;
    const SYMBOL: u32 = 16;
    const HASH: u32 = SYMBOLS + SYMBOL;
    const STRINGS: u32 = HASH + 16;
    const END: u32 = STRINGS + 4;
    const PAGE: u32 = 0x1_0000;
    /// The dynamic linker notes addresses in the dynamic section.
    const READ_WRITE: u32 = 6;
    let halves = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    let words = [
        // Magic; 32 bits, little-endian, version 1; zeros.
        u32::from_le_bytes(*b"\x7fELF"), 0x0001_0101, 0, 0,
        // ET_DYN, and the machine; version; no entry; program headers follow; no sections; no flags.
        halves(3, machine), 1, 0, HEADER, 0, 0,
        // Sizes of this header and of the two program headers; no section headers.
        halves(HEADER as u16, PROGRAM_HEADER as u16), halves(2, 0), 0,
        // PT_LOAD: all of it. PT_DYNAMIC.
        1, 0, 0, 0, END, END, READ_WRITE, PAGE,
        2, DYNAMIC, DYNAMIC, DYNAMIC, DYNAMIC_BYTES, DYNAMIC_BYTES, READ_WRITE, 4,
        // DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL.
        4, HASH, 5, STRINGS, 6, SYMBOLS, 10, 1, 11, SYMBOL, 0, 0,
        // The symbol that stands for none.
        0, 0, 0, 0,
        // One bucket, one symbol: none in the bucket, none behind the symbol.
        1, 1, 0, 0,
        // The empty string.
        0,
    ];
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn every_dynamic_linker_finds_an_object_of_its_kind() {
        let scratch = tempfile::tempdir().unwrap();
        let library = scratch.path().join("built.so");
        fs::write(&library, b"the library").unwrap();
        let directory = scratch.path().join("laid out");
        lay_out(&library, &directory).unwrap();
        let path = preload_path(&directory);
        // As musl opens it, as glibc does on various processors, and as a shell leaves it that has read it once more.
        for platform in PLATFORMS_64 {
            let found = fs::read(path.replace(PLATFORM, platform)).unwrap();
            assert_eq!(found, b"the library", "{platform}");
        }
        for platform in PLATFORMS_32 {
            let found = fs::read(path.replace(PLATFORM, platform)).unwrap();
            assert!(found.starts_with(b"\x7fELF\x01"), "{platform}");
        }
    }

    #[test]
    fn a_running_program_keeps_the_file_that_it_has() {
        let scratch = tempfile::tempdir().unwrap();
        let library = scratch.path().join("built.so");
        let directory = scratch.path().join("laid out");
        let path = directory.join(PLATFORM).join(LIBRARY);
        fs::write(&library, b"one").unwrap();
        lay_out(&library, &directory).unwrap();
        let (open, before) = (fs::File::open(&path).unwrap(), fs::metadata(&path).unwrap());
        fs::write(&library, b"another").unwrap();
        lay_out(&library, &directory).unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), before.ino());
        assert_eq!(std::io::read_to_string(open).unwrap(), "one");
        assert_eq!(fs::read(&path).unwrap(), b"another");
        let names = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "nothing is left beside it");
    }

    #[test]
    fn nothing_of_it_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let library = scratch.path().join("built.so");
        fs::write(&library, b"the library").unwrap();
        lay_out(&library, scratch.path()).unwrap();
        clear(scratch.path()).unwrap();
        let left = fs::read_dir(scratch.path()).unwrap();
        assert_eq!(left.count(), 1, "the library that was given");
        clear(scratch.path()).unwrap();
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let error = lay_out(&scratch.path().join("none.so"), scratch.path()).unwrap_err();
        assert!(error.to_string().contains("none.so"));
    }
}
