//! `dlsym` by the handle of an object, as foreign-function interfaces call it (Python's `ctypes.CDLL("libc.so.6")`, .NET's `DllImport`,
//! Java's JNA): in the C library it finds the very functions that ours stand before, and so the caller gets ours.
//!
//! By RTLD_DEFAULT ours are found as they are, and by RTLD_NEXT a library asks for what is behind itself. The C library tells by the return
//! address who that is, so those two go on to it as if nothing had been.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use libc::{c_char, c_void};

use super::variadic::next;
use crate::objects::{self, linked::Function};

/// Those of glibc that define functions of ours.
const C_LIBRARIES: [&CStr; 3] = [c"libc.so.6", c"libpthread.so.0", c"librt.so.1"];

static DLSYM: Function = Function::new("dlsym\0");
static DLVSYM: Function = Function::new("dlvsym\0");

/// Calls `dlsym`, or `dlvsym`, which has a third argument.
fn call(
    function: &Function,
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    type Look =
        unsafe extern "C-unwind" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    // SAFETY: the symbol of that name has this type, or takes less; null is `None`.
    let look: Option<Look> = unsafe { std::mem::transmute(function.get()) };
    // SAFETY: the program's own arguments.
    look.map_or(null_mut(), |look| unsafe { look(handle, name, version) })
}

/// Looks both up, while nothing else is loaded.
pub(super) fn look_up_all() {
    DLSYM.get();
    DLVSYM.get();
}

unsafe extern "C-unwind" fn dlsym_by_handle(
    handle: *mut c_void,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: what was found has a name.
    unsafe { ours_instead(call(&DLSYM, handle, name, null()), name) }
}

unsafe extern "C-unwind" fn dlvsym_by_handle(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    // SAFETY: what was found has a name.
    unsafe { ours_instead(call(&DLVSYM, handle, name, version), name) }
}

/// Our function of that name, if what was `found` is the one that it stands before.
///
/// # Safety
/// If something was found, there is a name.
unsafe fn ours_instead(found: *mut c_void, name: *const c_char) -> *mut c_void {
    if found.is_null() {
        return found;
    }
    // SAFETY: by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let ours = objects::ours(name);
    if !ours.is_null() && stands_before(name, found) {
        ours
    } else {
        found
    }
}

/// Before glibc 2.34 several libraries of it define a name: ours stands before the first.
fn stands_before(name: &CStr, found: *mut c_void) -> bool {
    let next = objects::next(name);
    let of_c_library = |function: *mut c_void| {
        C_LIBRARIES
            .iter()
            .any(|library| objects::of_library(library, name) == function)
    };
    next == found || !next.is_null() && of_c_library(found) && of_c_library(next)
}

macro_rules! lookups {
    ($($name:ident: $symbol:ident, $by_handle:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
            // RTLD_NEXT is -1, RTLD_DEFAULT 0.
            "lea rax, [rdi + 1]",
            "cmp rax, 1",
            "ja {by_handle}",
            "push rdi",
            "push rsi",
            "push rdx",
            "lea rdi, [rip + {symbol}]",
            "call {next}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2: ret",
            by_handle = sym $by_handle,
            next = sym next,
            symbol = sym $symbol,
            )
        }
    )*};
}

lookups! {
    dlsym: DLSYM, dlsym_by_handle;
    dlvsym: DLVSYM, dlvsym_by_handle;
}
