//! Links the library so that it needs no other: it is loaded into programs with whatever C library there is, old or small.
//!
//! Its undefined symbols are then without versions and found in the program's own C library. `src/lacking.rs` has what the standard
//! library wants and not every C library has, and `tests/images/symbols.txt` lists what is left.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What the standard library and the libc crate ask the linker for. Without them there is nothing that we would need.
const LIBRARIES: &[&str] = &["c", "m", "rt", "pthread", "util", "dl"];
/// An archive without members.
const EMPTY_ARCHIVE: &[u8] = b"!<arch>\n";
/// The unwinder is part of the library, for its own panics. `src/unwinder.rs` stands before it.
const UNWINDER: &str = "GROUP ( -lgcc_eh -lgcc )\n";
/// Functions of the unwinder that Rust code calls.
const UNWINDING: &[&str] = &[
    "_Unwind_Backtrace",
    "_Unwind_DeleteException",
    "_Unwind_GetDataRelBase",
    "_Unwind_GetIP",
    "_Unwind_GetIPInfo",
    "_Unwind_GetLanguageSpecificData",
    "_Unwind_GetRegionStart",
    "_Unwind_GetTextRelBase",
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_SetGR",
    "_Unwind_SetIP",
];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let place = env::var_os("OUT_DIR").map(PathBuf::from);
    let place = place.ok_or_else(|| io::Error::other("cargo sets OUT_DIR"))?;
    let stubs = place.join("libraries");
    lay_out(&stubs)?;
    // Only for the library itself: tests are programs. It comes before the directories that the compiler knows.
    println!("cargo:rustc-cdylib-link-arg=-L{}", stubs.display());
    // What the standard library calls for us is our own function, and not that of a library in front of ours: whoever calls us with a lock
    // held would meet himself.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    for name in UNWINDING {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    Ok(())
}

fn lay_out(stubs: &Path) -> io::Result<()> {
    fs::create_dir_all(stubs)?;
    for name in LIBRARIES {
        fs::write(stubs.join(format!("lib{name}.a")), EMPTY_ARCHIVE)?;
    }
    fs::write(stubs.join("libgcc_s.so"), UNWINDER)
}
