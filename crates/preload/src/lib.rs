//! The preload library: an unmodified program's TCP bytes take a faster road where both ends agree.
//!
//! It replaces functions of the C library, in the program that is started with it, and it is not a network stack: every
//! connection is the kernel's. Follow one `send` through it:
//!
//! 1. `hooks` has the functions that the program calls; each is a shell that finds the descriptor in the
//! 2. `table`, and, when it is a tracked TCP connection (`socket`), calls the operation in
//! 3. `send` (or `receive`, `poll`, `epoll`), which asks `millrace_stream` for the next step and does it:
//!    copies to the ring, or makes the program's own system call (`real`);
//! 4. meanwhile `client` offers connections that have proved long enough to the agent, and
//! 5. `attach` joins those that the agent has paired.
//!
//! `spin` decides how long to look before sleeping; `thread` (its variables are in `local`) and `process` hold what
//! belongs to a thread and to a process;
//! `signals` notices handlers that ran while we looked; `memory` is a heap apart from the program's, and
//! `fault` ends a copy whose buffer is not there any more. The library needs no other one: `objects` finds the C library's functions,
//! `c_library` knows which one it is, `lacking` has what some C libraries have not, and `unwinder` asks the program's unwinder, which
//! `call_sites` shows what it may do.

/// The beginning of a hook: the thread is not cancelled at any instruction, and a call is counted in the build that counts.
macro_rules! enter {
    () => {
        let _deferred = crate::thread::Deferred::new();
    };
    ($function:ident($($argument:expr),*)) => {
        enter!();
        #[cfg(feature = "coverage")]
        crate::coverage::$function($($argument),*);
    };
}

mod attach;
mod c_library;
mod call_sites;
mod client;
#[cfg(feature = "coverage")]
mod coverage;
mod epoll;
mod fault;
mod file;
mod guarded;
mod headers;
mod hooks;
mod kernel;
#[cfg(not(test))]
mod lacking;
mod local;
mod memory;
mod notes;
mod objects;
mod pass;
mod poll;
mod pool;
mod process;
mod real;
mod receive;
mod send;
mod signals;
mod socket;
mod started;
mod table;
mod thread;
#[cfg(not(test))]
mod unwinder;
mod uring;
mod user;
mod vectors;
mod waits;

use millrace_shm::spin;

/// Runs when the library is loaded, before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn start() {
        // Where that fails every hook passes through.
        let errno = thread::errno();
        let _ = std::panic::catch_unwind(process::load);
        thread::set_errno(errno);
    }
    start
};

/// How an operation on a tracked connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The program's call returns this.
    Handled(isize),
    /// The program's call fails with this error number.
    Errno(i32),
    /// The program's own call is to be made; nothing has happened yet.
    PassThrough,
}
