//! The preload library as images find it: one path for the environment of programs of which nothing is known.
//!
//! glibc puts the machine's name in the place of `$PLATFORM` in `LD_PRELOAD`, musl opens the path as it stands. So each finds, below one
//! directory, an object that it can load: the library, or an empty object where the program has 32 bits. That glibc would say on standard
//! error that it cannot load a library of 64 bits, and a program's output must not change.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The library's name in every directory.
const NAME: &str = "libmillrace_preload.so";
/// What glibc replaces, and the name of the directory where it is not replaced.
const PLATFORM: &str = "$PLATFORM";

/// What glibc calls a machine with programs of 64 bits. Between 2.23 and 2.36 it tells some processors apart.
#[cfg(target_arch = "x86_64")]
const PLATFORMS: &[&str] = &["x86_64", "haswell", "xeon_phi"];
/// The same with programs of 32 bits, as the kernel and older versions of glibc have it.
#[cfg(target_arch = "x86_64")]
const PLATFORMS_32: &[&str] = &["i686", "i586", "i486", "i386"];
/// `EM_386` of the ELF format.
#[cfg(target_arch = "x86_64")]
const MACHINE_32: u16 = 3;

#[cfg(target_arch = "aarch64")]
const PLATFORMS: &[&str] = &["aarch64"];
#[cfg(target_arch = "aarch64")]
const PLATFORMS_32: &[&str] = &["v8l", "v7l"];
/// `EM_ARM` of the ELF format.
#[cfg(target_arch = "aarch64")]
const MACHINE_32: u16 = 40;

/// What `LD_PRELOAD` is to say in a container that has `directory` under this name.
pub(crate) fn preload_path(directory: &Path) -> String {
    format!("{}/{PLATFORM}/{NAME}", directory.display())
}

/// Lays `library` out below `directory` for [`preload_path`]. Running programs keep the files that they have: each is replaced whole, and
/// another one takes its name.
pub(crate) fn lay_out(library: &Path, directory: &Path) -> Result<()> {
    let content = fs::read(library).with_context(|| library.display().to_string())?;
    // In the directory itself it is found where a shell has replaced the name by nothing: a script that hands its variables to another one.
    for platform in PLATFORMS.iter().chain(&[PLATFORM, ""]) {
        place(&directory.join(platform), &content)?;
    }
    let empty = empty_object(MACHINE_32);
    for platform in PLATFORMS_32 {
        place(&directory.join(platform), &empty)?;
    }
    Ok(())
}

/// Puts the library's file into a directory, at once: nobody sees a part of it.
fn place(directory: &Path, content: &[u8]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let path = directory.join(NAME);
    let fresh = directory.join(format!(".{NAME}.{}", std::process::id()));
    let written = fs::write(&fresh, content)
        .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644)))
        .and_then(|()| fs::rename(&fresh, &path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written.with_context(|| path.display().to_string())
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
    use std::path::PathBuf;

    use super::*;

    /// A directory that goes when the test ends.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let place =
                std::env::temp_dir().join(format!("millrace-images-{name}-{}", std::process::id()));
            fs::create_dir_all(&place).unwrap();
            Scratch(place)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn every_dynamic_linker_finds_an_object_of_its_kind() {
        let scratch = Scratch::new("kinds");
        let library = scratch.0.join("built.so");
        fs::write(&library, b"the library").unwrap();
        let directory = scratch.0.join("laid out");
        lay_out(&library, &directory).unwrap();
        let path = preload_path(&directory);
        // As musl opens it, as glibc does on various processors, and as a shell leaves it that has read it once more.
        for platform in PLATFORMS.iter().chain(&[PLATFORM, ""]) {
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
        let scratch = Scratch::new("replaced");
        let library = scratch.0.join("built.so");
        let directory = scratch.0.join("laid out");
        let path = directory.join(PLATFORM).join(NAME);
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

    /// Where `MILLRACE_IMAGES` says.
    #[test]
    #[ignore = "lays out for tests/images"]
    fn lays_out_for_the_suite() {
        let Some(directory) = std::env::var_os("MILLRACE_IMAGES").map(PathBuf::from) else {
            return;
        };
        let library = std::env::var_os("MILLRACE_LIBRARY").map(PathBuf::from);
        lay_out(&library.expect("the library"), &directory).unwrap();
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let scratch = Scratch::new("missing");
        let error = lay_out(&scratch.0.join("none.so"), &scratch.0).unwrap_err();
        assert!(error.to_string().contains("none.so"));
    }
}
