//! Variables of one thread, in the memory that each thread has from its start on.
//!
//! The compiler's own way to a library's variables goes by a function of the dynamic linker that may have to make room for them first,
//! and calls the program's `malloc` for that. A signal handler must not: what it has interrupted may be `malloc`. It is slower, too.

/// Defines a function that returns the calling thread's own value of a type: `visibility fn name() -> &Type as "a symbol of its own"`.
///
/// All bytes are zero at a thread's start, and nothing is dropped at its end: both must suit the type, whose alignment is at most 64.
#[macro_export]
macro_rules! thread_block {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident() -> &$kind:ty as $symbol:literal) => {
        #[cfg(not(miri))]
        core::arch::global_asm!(
            ".pushsection .tbss,\"awT\",%nobits",
            ".balign 64",
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ",%object"),
            concat!($symbol, ":"),
            ".zero {size}",
            concat!(".size ", $symbol, ", {size}"),
            ".popsection",
            size = const size_of::<$kind>(),
        );

        $(#[$attribute])*
        #[inline(always)]
        #[allow(clippy::inline_always, reason = "two instructions")]
        $visibility fn $name() -> &'static $kind {
            const { assert!(align_of::<$kind>() <= 64 && !std::mem::needs_drop::<$kind>()) };
            let place: *const $kind;
            // SAFETY: reads where the dynamic linker has put the variables, as seen from the thread's own address, and that address. Both
            // stay as long as the thread.
            #[cfg(all(not(miri), target_arch = "x86_64"))]
            unsafe {
                core::arch::asm!(
                    concat!("mov {place}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    "add {place}, qword ptr fs:[0]",
                    place = out(reg) place,
                    options(pure, nomem, nostack)
                );
            }
            // SAFETY: as above.
            #[cfg(all(not(miri), target_arch = "aarch64"))]
            unsafe {
                core::arch::asm!(
                    "mrs {place}, tpidr_el0",
                    concat!("adrp {offset}, :gottprel:", $symbol),
                    concat!("ldr {offset}, [{offset}, :gottprel_lo12:", $symbol, "]"),
                    "add {place}, {place}, {offset}",
                    place = out(reg) place,
                    offset = out(reg) _,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            #[cfg(miri)]
            {
                thread_local! {
                    // SAFETY: by the macro's promise zeros are a value.
                    static VALUE: $kind = const { unsafe { std::mem::zeroed() } };
                }
                place = VALUE.with(|value| std::ptr::from_ref(value));
            }
            // SAFETY: the thread's own memory, of this size and alignment, zeros at first, by the macro's promise a value.
            unsafe { &*place }
        }
    };
}
