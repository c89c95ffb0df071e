//! The library's start, in two steps.
//!
//! When it is loaded it reads the environment and makes no system call: a program without TCP runs as if it were not there. It wakes when
//! the program is about to have a TCP socket, or what may have to do with one later (an epoll instance, an io_uring); there may be other
//! threads by then.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, SeqCst},
};

use millrace_wire::Mode;

use super::{PROCESS, SPIN_OVERRIDDEN, fork, is_borrowed, watch_forks};
use crate::kernel::{self, kernel};
use crate::local::local;
use crate::thread::{self, BlockedSignals, Uncancelled};
use crate::{c_library, client, hooks, memory, notes, real, signals, spin, table, user};

/// Where the agent is in a container that has the library by `/etc/ld.so.preload`, so that nothing in the environment is needed.
const AGENT_OF_CONTAINERS: &CStr = c"/run/millrace/agent.sock";
/// Places of a socket's path in its address, with the zero behind it.
const PATH_BYTES: usize = 108;

/// Every hook passes through, for good.
const OFF: u8 = 0;
/// Every hook passes through, but for those that wake.
const ASLEEP: u8 = 1;
/// A thread is about to make it awake.
const WAKING: u8 = 2;
const AWAKE: u8 = 3;

static STAGE: AtomicU8 = AtomicU8::new(OFF);
/// Where the agent is, as the environment said when the library was loaded: the program may write over it.
static AGENT: [AtomicU8; PATH_BYTES] = [const { AtomicU8::new(0) }; PATH_BYTES];

/// A variable of the environment, as long as nobody changes that.
fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a C string.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: what is not null is a C string; nobody changes the environment while the library is loaded.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// A variable that is text.
fn text(name: &CStr) -> Option<&'static str> {
    variable(name)?.to_str().ok()
}

/// The program is setuid, or its file has capabilities: whoever starts it may not say, by the environment, whom it talks to. Only
/// `/etc/ld.so.preload` loads the library into such a program.
fn has_privileges_of_its_file() -> bool {
    // SAFETY: takes a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A filter (seccomp) has the kernel refuse what we do in the program's calls, and cannot go on without. Whatever else it refuses keeps
/// connections on the kernel's road, or costs time only.
fn is_refused_a_call() -> bool {
    let no_memory = null_mut::<c_void>();
    let answers = [
        (
            kernel!(
                libc::SYS_rt_sigprocmask,
                0,
                no_memory,
                no_memory,
                size_of::<u64>()
            ),
            0,
        ),
        (kernel!(libc::SYS_madvise, 0, 0, libc::MADV_NORMAL), 0),
        (
            kernel!(libc::SYS_setsockopt, usize::MAX, 0, 0, no_memory, 0),
            libc::EBADF,
        ),
        (
            kernel!(libc::SYS_sendmsg, usize::MAX, no_memory, 0),
            libc::EBADF,
        ),
    ];
    answers
        .into_iter()
        .any(|(answer, error)| answer != -(error as isize))
}

fn parse_mode(text: &str) -> (Mode, u64) {
    match text.split_once(':') {
        Some(("chaos", seed)) => (Mode::Chaos, seed.parse().unwrap_or(1)),
        _ if text == Mode::Eager.as_str() => (Mode::Eager, 0),
        _ if text == Mode::EagerNospin.as_str() => (Mode::EagerNospin, 0),
        _ if text == Mode::Chaos.as_str() => (Mode::Chaos, 1),
        _ => (Mode::Default, 0),
    }
}

/// The first step: looks functions up, and reads the environment.
pub(crate) fn load() {
    real::look_up_all();
    hooks::look_up_all();
    thread::look_up();
    c_library::learn();
    let is_off = variable(c"MILLRACE") == Some(c"off");
    if is_off || has_privileges_of_its_file() || notes::are_of_go() || !watch_forks() {
        return;
    }
    user::prepare();
    user::watch_main_thread();
    #[cfg(feature = "coverage")]
    if let Some(path) = variable(c"MILLRACE_COVERAGE") {
        crate::coverage::start(path);
    }
    let (mode, seed) = parse_mode(text(c"MILLRACE_MODE").unwrap_or_default());
    client::set_mode(mode, seed);
    if let Some(budget_us) = text(c"MILLRACE_SPIN_US").and_then(|text| text.parse().ok()) {
        SPIN_OVERRIDDEN.store(true, Relaxed);
        spin::set_budget_us(budget_us);
    }
    spin::keep_locals_at(|| &local().spin);
    let path = variable(c"MILLRACE_AGENT").unwrap_or(AGENT_OF_CONTAINERS);
    // Nobody listens at a longer one.
    if path.count_bytes() < PATH_BYTES {
        for (place, byte) in AGENT.iter().zip(path.to_bytes()) {
            place.store(*byte, Relaxed);
        }
    }
    if super::MAY_BE_BORROWED.load(Relaxed) {
        learn_id();
    }
    STAGE.store(ASLEEP, SeqCst);
}

fn agent() -> CString {
    let bytes = AGENT.iter().map(|byte| byte.load(Relaxed));
    let path: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    CString::new(path).unwrap_or_default()
}

/// Whether the library does nothing, and never will.
#[inline]
pub(crate) fn is_off() -> bool {
    // Acquire: pairs with the store that ends `load`; what was read of the environment is visible after it.
    STAGE.load(Acquire) == OFF
}

/// Whether a thread is about to make it awake.
pub(crate) fn is_waking() -> bool {
    STAGE.load(SeqCst) == WAKING
}

/// From now on it does nothing. Whatever it had begun is over.
pub(super) fn turn_off() {
    STAGE.store(OFF, SeqCst);
}

/// As [`turn_off`], where it has not begun anything. False: it has.
pub(super) fn stay_asleep() -> bool {
    let stays = STAGE.compare_exchange(ASLEEP, OFF, SeqCst, SeqCst);
    stays.is_ok()
}

/// Whether it takes part in the program's calls.
#[inline]
pub(crate) fn is_awake() -> bool {
    STAGE.load(SeqCst) == AWAKE
}

/// Notes the process's number, for children that have its memory and another number.
pub(super) fn learn_id() {
    if PROCESS.load(Relaxed) == 0 {
        PROCESS.store(kernel::process_id(), Relaxed);
    }
}

/// The second step, before what concerns us begins: see the top.
#[inline]
pub(crate) fn wake() {
    if matches!(STAGE.load(Acquire), ASLEEP | WAKING) {
        wake_now();
    }
}

#[cold]
fn wake_now() {
    // A handler that interrupts a fork of its own thread would wait for itself.
    if is_borrowed() || fork::is_under_way_here() {
        return;
    }
    learn_id();
    let errno = thread::errno();
    {
        let _uncancelled = Uncancelled::new();
        // A handler that has a socket made would wait for this very thread.
        let _blocked = BlockedSignals::new();
        // SeqCst: a fork that began before this is waited for, and one that comes after it waits.
        match STAGE.compare_exchange(ASLEEP, WAKING, SeqCst, SeqCst) {
            Ok(_) => {
                let stage = std::panic::catch_unwind(start).unwrap_or(OFF);
                STAGE.store(stage, SeqCst);
            }
            Err(_) => await_waking(),
        }
    }
    thread::set_errno(errno);
}

/// Waits while another thread of this process has the library wake. The memory of a child that a system call made may be a copy in which
/// it does so for ever.
#[inline]
pub(crate) fn await_waking() {
    while is_waking() && kernel::process_id() == super::id() {
        kernel::pause(1);
    }
}

/// What comes of it.
fn start() -> u8 {
    if is_refused_a_call() {
        return OFF;
    }
    if !fork::await_others() {
        return ASLEEP;
    }
    // Before anything else needs memory: without these it might be missing where nothing can be done about it.
    let entries = table::reserve();
    if entries.is_null() || !memory::keep_reserve() {
        return OFF;
    }
    client::configure(agent());
    // Until the table is there, calls by number of whoever stands behind `sigaction` pass through.
    signals::watch();
    table::create(entries);
    AWAKE
}

/// In a forked child: another thread of the parent was about to wake, and waited for the fork to be over.
pub(super) fn begin_child() {
    let _ = STAGE.compare_exchange(WAKING, ASLEEP, SeqCst, SeqCst);
    if !is_off() && PROCESS.load(Relaxed) != 0 {
        PROCESS.store(kernel::process_id(), Relaxed);
    }
}
