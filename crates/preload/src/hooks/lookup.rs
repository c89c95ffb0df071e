//! `dlsym` by the handle of an object, as foreign-function interfaces call it (Python's `ctypes.CDLL("libc.so.6")`, .NET's `DllImport`,
//! Java's JNA): in the C library it finds the very functions that ours stand before, and so the caller gets ours.
//!
//! By RTLD_DEFAULT ours are found as they are, and by RTLD_NEXT a library asks for what is behind itself. The C library tells by the return
//! address who that is, so those two go on to it as if nothing had been.

use std::ffi::CStr;
use std::ptr::null_mut;

use libc::{c_char, c_void};

use super::variadic::next;
use crate::objects;
use crate::real::Symbol;

static DLSYM: Symbol = Symbol::new("dlsym\0");
static DLVSYM: Symbol = Symbol::new("dlvsym\0");

/// Looks both up, as [`super::look_up_all`] does.
pub(super) fn look_up_all() {
    DLSYM.get();
    DLVSYM.get();
}

/// The C library's `dlsym`, or `dlvsym`, which has a third argument. Null: there is none.
fn look(
    symbol: &Symbol,
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    type Look =
        unsafe extern "C-unwind" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    // SAFETY: the symbol of that name has this type, or takes less; null is `None`.
    let look: Option<Look> = unsafe { std::mem::transmute(symbol.get()) };
    // SAFETY: the program's own arguments.
    look.map_or(null_mut(), |look| unsafe { look(handle, name, version) })
}

unsafe extern "C-unwind" fn dlsym_by_handle(
    handle: *mut c_void,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: what was found has a name.
    unsafe { ours_instead(look(&DLSYM, handle, name, std::ptr::null()), name) }
}

unsafe extern "C-unwind" fn dlvsym_by_handle(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    // SAFETY: what was found has a name.
    unsafe { ours_instead(look(&DLVSYM, handle, name, version), name) }
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
    let stands_before = !ours.is_null() && objects::next(name) == found;
    if stands_before { ours } else { found }
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
