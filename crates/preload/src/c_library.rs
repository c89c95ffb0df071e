//! Which C library the program has, where that makes a difference.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::c_char;
use millrace_shm::sys;

use crate::objects;

/// glibc ends a thread that is cancelled in a call which has something to return; from here on it does not, nor does musl.
const RETURNS_PARTS: (u32, u32) = (2, 41);

/// What the kernel puts into every process calls itself so, and its function to read the clock (vdso(7)). That of x86-64 is also the name
/// of a pointer in older ones of glibc.
const VDSO: &CStr = c"linux-vdso.so.1";
#[cfg(target_arch = "x86_64")]
const CLOCK: &CStr = c"__vdso_clock_gettime";
#[cfg(target_arch = "aarch64")]
const CLOCK: &CStr = c"__kernel_clock_gettime";

static IS_MUSL: AtomicBool = AtomicBool::new(false);
static CANCELS_WITH_A_PART: AtomicBool = AtomicBool::new(false);

/// Finds out which one it is, and goes past it for what others show in its place.
pub(crate) fn learn() {
    // SAFETY: the kernel's function, or none.
    unsafe { sys::trust_clock(objects::of_library(VDSO, CLOCK)) };
    let function = objects::any(c"gnu_get_libc_version");
    let version = (!function.is_null()).then(|| {
        // SAFETY: the function of this name has this type.
        let function: extern "C" fn() -> *const c_char = unsafe { std::mem::transmute(function) };
        // SAFETY: a text that stays.
        unsafe { CStr::from_ptr(function()) }
    });
    IS_MUSL.store(version.is_none(), Relaxed);
    CANCELS_WITH_A_PART.store(version.is_some_and(|text| !returns_parts(text)), Relaxed);
}

fn returns_parts(version: &CStr) -> bool {
    let text = version.to_str().unwrap_or_default();
    let mut numbers = text.split('.').map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()) >= Some(RETURNS_PARTS)
}

/// Whether it is musl: its `select` says nothing of what is left of the time, its `sendmmsg` is a loop of `sendmsg`, and counts in its
/// headers have gaps.
#[inline]
pub(crate) fn is_musl() -> bool {
    IS_MUSL.load(Relaxed)
}

/// Whether a thread is cancelled in a call that has something to return, which is lost then; else the call returns, and the thread ends in
/// the next one.
pub(crate) fn cancels_with_a_part() -> bool {
    CANCELS_WITH_A_PART.load(Relaxed)
}

/// So that both layouts of headers can be tested.
#[cfg(test)]
pub(crate) fn pretend(is_musl: bool) {
    IS_MUSL.store(is_musl, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_clock_is_found() {
        let found = objects::of_library(VDSO, CLOCK) as usize;
        // SAFETY: reads what the kernel gave.
        let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        assert_ne!(found, 0);
        assert!((vdso..vdso + (1 << 16)).contains(&found));
    }

    #[test]
    fn versions_are_told_apart() {
        let returns = [c"2.41", c"2.42", c"2.100", c"3.0", c"2.41.9000"];
        assert!(returns.iter().all(|version| returns_parts(version)));
        let ends = [c"2.17", c"2.36", c"2.40", c"2", c"", c"two.41"];
        assert!(!ends.iter().any(|version| returns_parts(version)));
    }
}
