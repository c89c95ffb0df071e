//! Which unwinder walks the stack: the process's own, where it has one, or else the one that is part of this library.
//!
//! The C library cancels a thread with `libgcc_s.so.1`, and so may a program throw. That unwinder comes through frames of ours, and these
//! ask it where it is and go on with it. What it hands them only it can read, so they must not ask another one. A program that loads no
//! such library is not unwound; there our own panics are caught at the start by the unwinder inside.
//!
//! A thread may end in the middle of our code: in a handler that calls `pthread_exit`, or where it may be cancelled at any instruction.
//! What the compiler has to say of a frame it says of calls alone. Rust takes an instruction of which it says nothing for one from which
//! nothing may be thrown: the process would be aborted. And what lies between two calls that it says the same of counts as said of too,
//! where a value may be half made. A frame that was interrupted is passed by, therefore, as by `siglongjmp`, and so is one whose call may
//! not throw.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::{call_sites, objects};

/// Where the C library looks for it, and the compilers link to it.
const LIBRARY: &CStr = c"libgcc_s.so.1";

/// Comes before each function that the linker has been told to wrap (`build.rs`): asks which is to be called, and goes on to that one as
/// if nothing had been.
#[cfg(target_arch = "x86_64")]
macro_rules! choose {
    ($($name:literal)*) => {$(
        core::arch::global_asm!(
            ".pushsection .text.millrace_unwinder, \"ax\", %progbits",
            concat!(".globl __wrap_", $name),
            concat!(".hidden __wrap_", $name),
            concat!(".type __wrap_", $name, ", %function"),
            concat!("__wrap_", $name, ":"),
            "push rdi",
            "push rsi",
            "push rdx",
            "lea rdi, [rip + 2f]",
            concat!("lea rsi, [rip + __real_", $name, "]"),
            "call {chosen}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp rax",
            concat!("2: .asciz \"", $name, "\""),
            concat!(".size __wrap_", $name, ", . - __wrap_", $name),
            ".popsection",
            chosen = sym chosen,
        );
    )*};
}

#[cfg(target_arch = "aarch64")]
macro_rules! choose {
    ($($name:literal)*) => {$(
        core::arch::global_asm!(
            ".pushsection .text.millrace_unwinder, \"ax\", %progbits",
            ".balign 4",
            concat!(".globl __wrap_", $name),
            concat!(".hidden __wrap_", $name),
            concat!(".type __wrap_", $name, ", %function"),
            concat!("__wrap_", $name, ":"),
            "stp x29, x30, [sp, #-48]!",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "adr x0, 2f",
            concat!("adrp x1, __real_", $name),
            concat!("add x1, x1, :lo12:__real_", $name),
            "bl {chosen}",
            "mov x16, x0",
            "ldr x2, [sp, #32]",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #48",
            "br x16",
            concat!("2: .asciz \"", $name, "\""),
            ".balign 4",
            concat!(".size __wrap_", $name, ", . - __wrap_", $name),
            ".popsection",
            chosen = sym chosen,
        );
    )*};
}

choose! {
    "_Unwind_Backtrace"
    "_Unwind_DeleteException"
    "_Unwind_GetDataRelBase"
    "_Unwind_GetIP"
    "_Unwind_GetIPInfo"
    "_Unwind_GetRegionStart"
    "_Unwind_GetTextRelBase"
    "_Unwind_RaiseException"
    "_Unwind_Resume"
    "_Unwind_SetGR"
    "_Unwind_SetIP"
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {to}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {to}"
    };
}

core::arch::global_asm!(
    ".pushsection .text.millrace_unwinder, \"ax\", %progbits",
    ".balign 4",
    ".globl __wrap__Unwind_GetLanguageSpecificData",
    ".hidden __wrap__Unwind_GetLanguageSpecificData",
    ".type __wrap__Unwind_GetLanguageSpecificData, %function",
    "__wrap__Unwind_GetLanguageSpecificData:",
    jump!(),
    ".size __wrap__Unwind_GetLanguageSpecificData, . - __wrap__Unwind_GetLanguageSpecificData",
    ".popsection",
    to = sym table_of,
);

unsafe extern "C" {
    #[link_name = "__real__Unwind_GetLanguageSpecificData"]
    fn table_inside(context: *mut c_void) -> *const u8;
    #[link_name = "_Unwind_GetIPInfo"]
    fn instruction_of(context: *mut c_void, is_next: *mut c_int) -> usize;
    #[link_name = "_Unwind_GetRegionStart"]
    fn function_of(context: *mut c_void) -> usize;
}

/// What there is to be done in a frame of ours; null: nothing, also where it is not at a call that may throw.
unsafe extern "C" fn table_of(context: *mut c_void) -> *const u8 {
    let name = c"_Unwind_GetLanguageSpecificData";
    let inside = table_inside as *const () as *mut c_void;
    // SAFETY: a C string; a function of that type, of this unwinder or the process's.
    let table = unsafe {
        let asked: unsafe extern "C" fn(*mut c_void) -> *const u8 =
            std::mem::transmute(chosen(name.as_ptr(), inside));
        asked(context)
    };
    if table.is_null() {
        return table;
    }
    let mut is_next = 0;
    // SAFETY: the unwinder's own context; what it calls a table is one.
    let is_call = unsafe {
        let next = instruction_of(context, &raw mut is_next);
        // Of a call it tells where it returns to.
        let at = next.wrapping_sub(1).wrapping_sub(function_of(context));
        is_next == 0 && call_sites::says_of(table, at as u64) != Some(false)
    };
    if is_call { table } else { std::ptr::null() }
}

/// The function of the process's unwinder, or else `inside`. It is asked for each time: a library may be loaded and go.
unsafe extern "C" fn chosen(name: *const c_char, inside: *mut c_void) -> *mut c_void {
    // SAFETY: the functions above pass C strings.
    let found = objects::of_library(LIBRARY, unsafe { CStr::from_ptr(name) });
    if found.is_null() { inside } else { found }
}

/// `struct dl_find_object` of glibc 2.35.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Found {
    flags: u64,
    start: *mut c_void,
    end: *mut c_void,
    link_map: *mut c_void,
    frames: *mut c_void,
    reserved: [u64; 7],
}

/// `_dl_find_object`, for the unwinder inside, which may have been made for a newer C library than the program's.
pub(crate) unsafe extern "C" fn find_object(address: usize, found: *mut Found) -> c_int {
    let Some(object) = objects::around(address) else {
        return -1;
    };
    // SAFETY: the unwinder's own variable.
    unsafe {
        found.write(Found {
            flags: 0,
            start: object.start as *mut c_void,
            end: object.end as *mut c_void,
            link_map: std::ptr::null_mut(),
            frames: object.frames as *mut c_void,
            reserved: [0; 7],
        });
    }
    0
}
