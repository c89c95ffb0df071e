//! Functions with a variable number of arguments, or that return twice, which Rust can call but not define: a few instructions save the
//! arguments, let Rust act on the first one, and go on to the C library's function as if nothing had been. Those of the `exec` family that
//! take a list go by those that take a vector.

use libc::{c_char, c_int, c_void};
use millrace_wire::Reason;
use smallvec::SmallVec;

use super::programs;
use crate::objects::linked::Function;
use crate::{c_library, process, send, table};

/// `dprintf` and its relatives: the C library writes to the descriptor without passing here.
unsafe extern "C" fn before_print(fd: usize) {
    let fd = fd as c_int;
    if let Some(socket) = table::socket(fd) {
        send::leave_to_kernel(socket, fd, Reason::Stdio);
    }
}

/// `vfork`: a child is about to begin that runs no fork handlers.
unsafe extern "C" fn before_vfork(_nothing: usize) {
    process::expect_bare_child();
}

/// `clone`: such a child, or a thread.
unsafe extern "C" fn before_clone(_function: usize, _stack: usize, flags: usize) {
    super::uring::before_clone(flags & u32::MAX as usize);
}

/// `dlopen`: the library's names may be looked for in itself and in what it needs, the C library among that, before they are in this one.
unsafe extern "C" fn before_open(_file: usize, flags: usize) {
    let is_bound_to_itself = flags as c_int & libc::RTLD_DEEPBIND != 0;
    if is_bound_to_itself && !c_library::is_musl() {
        process::be_bypassed();
    }
}

/// `dlmopen`: in a list of objects of its own it has a C library of its own, too.
unsafe extern "C" fn before_open_apart(list: usize, file: usize, flags: usize) {
    if list != 0 {
        return process::be_bypassed();
    }
    // SAFETY: plain arguments.
    unsafe { before_open(file, flags) };
}

/// The next definition of a function.
pub(super) unsafe extern "C" fn next(function: &'static Function) -> *mut c_void {
    function.get()
}

/// Arguments that a function got one by one, up to a null: the first ones in registers, the rest where the caller has put them.
#[repr(C)]
struct List {
    registers: *const [*const c_char; IN_REGISTERS],
    rest: *const *const c_char,
}

/// Besides the path.
const IN_REGISTERS: usize = 5;
/// So many have a place on the stack.
const FEW: usize = 64;

impl List {
    /// The argument of that number, of which none before it is null.
    fn get(&self, index: usize) -> *const c_char {
        // SAFETY: the stubs below save the registers, and know where the rest is; the program ends its list with null.
        unsafe {
            match (*self.registers).get(index) {
                Some(argument) => *argument,
                None => self.rest.add(index - IN_REGISTERS).read(),
            }
        }
    }

    /// The arguments as a vector, and what comes behind their end.
    fn collect(&self) -> (SmallVec<[*const c_char; FEW]>, usize) {
        let mut vector = SmallVec::new();
        loop {
            let argument = self.get(vector.len());
            vector.push(argument);
            if argument.is_null() {
                let end = vector.len();
                return (vector, end);
            }
        }
    }
}

/// `execl`, as `execv`.
unsafe extern "C" fn with_list(path: *const c_char, list: List) -> c_int {
    let (arguments, _) = list.collect();
    // SAFETY: the program's own arguments.
    unsafe { programs::execv(path, arguments.as_ptr()) }
}

/// `execlp`, as `execvp`.
unsafe extern "C" fn with_list_along_path(file: *const c_char, list: List) -> c_int {
    let (arguments, _) = list.collect();
    // SAFETY: the program's own arguments.
    unsafe { programs::execvp(file, arguments.as_ptr()) }
}

/// `execle`, as `execve`.
unsafe extern "C" fn with_list_and_environment(path: *const c_char, list: List) -> c_int {
    let (arguments, behind) = list.collect();
    let environment = list.get(behind).cast();
    // SAFETY: the program's own arguments.
    unsafe { programs::execve(path, arguments.as_ptr(), environment) }
}

/// Looks every function up: the dynamic linker's lock, which that takes, may be another thread's for ever in a forked child.
pub(super) fn look_up_all() {
    #[cfg(target_arch = "x86_64")]
    stubs::look_up_all();
}

#[cfg(target_arch = "x86_64")]
macro_rules! stubs {
    ($($name:ident: $before:path;)*) => {
        $(mod $name {
            pub(super) static SYMBOL: super::Function = super::Function::new(concat!(stringify!($name), "\0"));
        }

        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            // The registers that carry arguments, and al, which counts those in vector registers.
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "push rax",
            "sub rsp, 136",
            "movups [rsp], xmm0",
            "movups [rsp + 16], xmm1",
            "movups [rsp + 32], xmm2",
            "movups [rsp + 48], xmm3",
            "movups [rsp + 64], xmm4",
            "movups [rsp + 80], xmm5",
            "movups [rsp + 96], xmm6",
            "movups [rsp + 112], xmm7",
            "call {before}",
            "lea rdi, [rip + {symbol}]",
            "call {next}",
            "mov r11, rax",
            "movups xmm0, [rsp]",
            "movups xmm1, [rsp + 16]",
            "movups xmm2, [rsp + 32]",
            "movups xmm3, [rsp + 48]",
            "movups xmm4, [rsp + 64]",
            "movups xmm5, [rsp + 80]",
            "movups xmm6, [rsp + 96]",
            "movups xmm7, [rsp + 112]",
            "add rsp, 136",
            "pop rax",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "pop rbp",
            "jmp r11",
            before = sym $before,
            next = sym next,
            symbol = sym $name::SYMBOL,
            )
        })*

        pub(super) fn look_up_all() {
            $($name::SYMBOL.get();)*
        }
    };
}

/// Functions whose arguments are a path and a list.
#[cfg(target_arch = "x86_64")]
macro_rules! lists {
    ($($name:ident: $work:path;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 48",
            "mov [rsp], rsi",
            "mov [rsp + 8], rdx",
            "mov [rsp + 16], rcx",
            "mov [rsp + 24], r8",
            "mov [rsp + 32], r9",
            // A structure of two words comes in two registers.
            "mov rsi, rsp",
            "lea rdx, [rbp + 16]",
            "call {work}",
            "leave",
            "ret",
            work = sym $work,
            )
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
mod stubs {
    use super::{
        Function, before_clone, before_open, before_open_apart, before_print, before_vfork, next,
        with_list, with_list_along_path, with_list_and_environment,
    };

    stubs! {
        vfork: before_vfork;
        __vfork: before_vfork;
        clone: before_clone;
        __clone: before_clone;
        dlopen: before_open;
        dlmopen: before_open_apart;
        dprintf: before_print;
        vdprintf: before_print;
        __dprintf_chk: before_print;
        __vdprintf_chk: before_print;
    }

    lists! {
        execl: with_list;
        execlp: with_list_along_path;
        execle: with_list_and_environment;
    }
}
