//! The clock. A program's C library may not be the one that is asked: libfaketime stands before it, and can have time stand still.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{c_int, c_void, clockid_t, timespec};

use super::call;

/// What reads the clock; null: the C library's function, or what stands for it in this process.
static CLOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

type ClockGettime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

/// Where the C library's function may be another's, which shows a time of its own: from now on `vdso` is asked, the kernel's function, or
/// the kernel itself where that is null.
///
/// # Safety
/// `vdso` is null or the kernel's `clock_gettime` (vdso(7)).
pub unsafe fn trust_clock(vdso: *mut c_void) {
    let clock = if vdso.is_null() {
        ask_for_time as ClockGettime as *mut c_void
    } else {
        vdso
    };
    CLOCK.store(clock, Relaxed);
}

unsafe extern "C" fn ask_for_time(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: as the caller promises.
    let result = unsafe {
        call(
            libc::SYS_clock_gettime,
            [clock as usize, time as usize, 0, 0, 0, 0],
        )
    };
    result as c_int
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let clock = CLOCK.load(Relaxed);
    if clock.is_null() {
        read_clock(libc::clock_gettime)
    } else {
        // SAFETY: as `trust_clock` was promised.
        read_clock(unsafe { std::mem::transmute::<*mut c_void, ClockGettime>(clock) })
    }
}

fn read_clock(clock: ClockGettime) -> u64 {
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the structure; served by the vDSO as a rule.
    unsafe { clock(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
