//! The dynamic linker's own list of what is loaded, which debuggers read (`link.h`).
//!
//! `dl_iterate_phdr` shows the same, with the list locked; but a program may have one of its own, and ask for the C library's by `dlsym`
//! before anything of it may be called, as sanitizers do at the start.

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{c_int, c_void};

use super::{Object, STT_GNU_IFUNC};

/// `struct r_debug`, its beginning.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const Entry,
}

/// `struct link_map`, its beginning.
#[repr(C)]
struct Entry {
    base: usize,
    name: *const libc::c_char,
    dynamic: usize,
    next: *const Entry,
}

// glibc has the structure itself, musl the address of it.
std::arch::global_asm!(".weak _r_debug", ".weak _dl_debug_addr");

unsafe extern "C" {
    /// This object's own dynamic section, and its beginning. The linker defines them.
    static _DYNAMIC: u8;
    static __ehdr_start: u8;
}

fn debug() -> Option<&'static Debug> {
    let (glibc, musl): (*const Debug, *const *const Debug);
    // SAFETY: both are words of our own table of addresses, zero where nobody defines the name.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "mov {glibc}, [rip + _r_debug@GOTPCREL]",
            "mov {musl}, [rip + _dl_debug_addr@GOTPCREL]",
            glibc = out(reg) glibc,
            musl = out(reg) musl,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "adrp {glibc}, :got:_r_debug",
            "ldr {glibc}, [{glibc}, :got_lo12:_r_debug]",
            "adrp {musl}, :got:_dl_debug_addr",
            "ldr {musl}, [{musl}, :got_lo12:_dl_debug_addr]",
            glibc = out(reg) glibc,
            musl = out(reg) musl,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    // SAFETY: null, or what the dynamic linker has there for as long as the process lives.
    unsafe { glibc.as_ref().or_else(|| musl.as_ref()?.as_ref()) }
}

/// This library.
#[cfg(target_arch = "x86_64")]
pub(super) fn ours() -> Option<Object> {
    let (base, dynamic) = (
        &raw const __ehdr_start as usize,
        &raw const _DYNAMIC as usize,
    );
    Object::at(base, dynamic, |value| value >= base)
}

/// As [`super::next`], by calling nobody; not while objects come or go. Null: nobody else defines the name.
fn next(name: &CStr) -> *mut c_void {
    let mut entry = debug().map_or(std::ptr::null(), |debug| debug.first);
    let mut has_passed_ours = false;
    // SAFETY: entries of the dynamic linker's list, which ends with null.
    while let Some(linked) = unsafe { entry.as_ref() } {
        if has_passed_ours
            && let Some(object) =
                Object::at(linked.base, linked.dynamic, |value| value >= linked.base)
            && let Some((address, kind)) = object.look_up(name)
            && kind != STT_GNU_IFUNC
        {
            return address as *mut c_void;
        }
        has_passed_ours |= linked.dynamic == &raw const _DYNAMIC as usize;
        entry = linked.next;
    }
    null_mut()
}

/// A function that ours stands before, looked up once.
#[derive(Debug)]
pub(crate) struct Function {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(name: &'static str) -> Function {
        let found = AtomicPtr::new(null_mut());
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Function { name, found },
            Err(_) => panic!("names end with NUL, and have no other"),
        }
    }

    /// Null: there is none. Whoever asks first may be at its own start, when nothing of it may be called.
    pub(crate) fn get(&self) -> *mut c_void {
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            found = next(self.name);
            self.found.store(found, Relaxed);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_tells_what_the_dynamic_linker_tells() {
        for name in [c"send", c"epoll_wait", c"dlsym", c"pthread_create"] {
            assert_eq!(next(name), super::super::next(name), "{name:?}");
            assert!(!next(name).is_null(), "{name:?}");
        }
        assert!(next(c"millrace_is_no_function").is_null());
    }
}
