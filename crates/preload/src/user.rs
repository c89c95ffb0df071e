//! Whether the program's buffers are really there.
//!
//! The kernel answers a bad pointer with EFAULT; a copy of ours would be a SIGSEGV. So memory is tried by the kernel before it is first
//! touched, and each thread remembers what it found good: pages for short buffers, ranges for long ones. The memory is forgotten when
//! the program unmaps or protects anything.
//!
//! What a thread remembers has memory of its own, from its first call on until it ends: variables of threads lie in their stacks, and the
//! smallest stack that a program may ask for has no room for it.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::kernel::{self, kernel};
use crate::local::local;
use crate::objects::{self, Keys, SetSpecific};
use crate::pool::Pool;
use crate::thread::BlockedSignals;
use crate::{memory, process, table, thread};

const PAGE: usize = 4096;
/// Pages that a thread remembers: each belongs to one row, which is a cache line, and the last used is the first in it.
const ROWS: usize = 128;
const PLACES: usize = 8;
/// Longer buffers, in pages, are remembered as ranges.
const SHORT_PAGES: usize = 8;
const RANGES: usize = 4;
const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;

/// Counts the program's changes to its address space.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Page numbers plus one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Row([usize; PLACES]);

/// What one thread has found good for one kind of access.
struct Known {
    epoch: u32,
    rows: [Row; ROWS],
    ranges: [(usize, usize); RANGES],
    next_range: usize,
}

/// What one thread has found good. Zeros say that nothing was.
struct Tables {
    readable: Known,
    writable: Known,
}

/// What ends a thread's tables with the thread, by `pthread_setspecific`. Without it only the first thread remembers anything.
#[derive(Clone, Copy)]
struct Ending {
    key: libc::pthread_key_t,
    set: SetSpecific,
}

/// The key of it, plus one; zero: there is none yet.
static KEY: AtomicU64 = AtomicU64::new(0);
static SET: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

fn ending() -> Option<Ending> {
    // Acquire: pairs with the Release of `prepare`.
    let key = KEY.load(Acquire).checked_sub(1)?;
    // SAFETY: null, which is `None`, or what `prepare` has left for good: the function of this type.
    let set: Option<SetSpecific> = unsafe { std::mem::transmute(SET.load(Relaxed)) };
    Some(Ending {
        key: key as libc::pthread_key_t,
        set: set?,
    })
}

/// When the library is loaded, and again where the program had no library of threads then. Before the program makes keys of its own: for
/// one of the first there is a place in each thread, for later ones the C library calls the program's `calloc`.
pub(crate) fn prepare() {
    thread::look_up();
    let Some(Keys { create, set }) = objects::keys() else {
        return;
    };
    let mut key = 0;
    // SAFETY: `key` is a live variable, and the destructor takes what `first_tables` leaves for it.
    if unsafe { create(&raw mut key, Some(end_tables)) } == 0 {
        // Two threads may have come here: one key too many is all.
        SET.store(set as *mut c_void, Relaxed);
        KEY.store(u64::from(key) + 1, Release);
    }
}

/// What the main thread has for its end while it has no tables.
static NO_TABLES: u8 = 0;

/// The end of this thread, which is the main one, is seen from now on: see [`end_tables`]. Makes no system call.
pub(crate) fn watch_main_thread() {
    if let Some(Ending { key, set }) = ending().filter(|_| local().tables.get().is_null()) {
        // SAFETY: the key was made by `prepare`.
        unsafe { set(key, (&raw const NO_TABLES).cast()) };
    }
}

/// A thread's first tables. Null: there is no memory for them.
#[cold]
fn first_tables() -> *mut Tables {
    let _blocked = BlockedSignals::new();
    let known: *mut Tables = local().tables.get().cast();
    if !known.is_null() {
        // A signal handler has made some.
        return known;
    }
    if ending().is_none() {
        prepare();
    }
    let ending = ending();
    if ending.is_none() && thread::id() != process::id() {
        return known;
    }
    let fresh = POOL.take().unwrap_or_else(|| {
        // Not from our heap, which would keep the memory of many threads that were.
        memory::map(size_of::<Tables>()).cast()
    });
    if !fresh.is_null() {
        local().tables.set(fresh.cast());
    }
    if let Some(Ending { key, set }) = ending.filter(|_| !fresh.is_null()) {
        // SAFETY: the key was made by `prepare`.
        unsafe { set(key, fresh.cast()) };
    }
    fresh
}

/// The thread ends. Destructors of the program that come later make new ones, for which we are called again.
///
/// The main thread may end before the process (`pthread_exit` in `main`). By its number nobody gets at the process's descriptors any more:
/// the agent could bring nothing back. Where the library is off, nobody asks: a filter may end the process for a system call.
extern "C" fn end_tables(tables: *mut c_void) {
    if !process::is_off() && thread::id() == kernel::process_id() {
        process::hide_from_agent();
    }
    if std::ptr::eq(tables.cast(), &raw const NO_TABLES) {
        return;
    }
    local().tables.set(null_mut());
    let tables = tables.cast();
    if !POOL.give_back(tables) {
        kernel!(libc::SYS_munmap, tables, size_of::<Tables>());
    }
}

/// Tables for as many threads as most programs have. What the last thread remembered is true of the process, and stays.
static POOL: Pool<Tables, 8> = Pool::new();

/// The program changed its address space.
pub(crate) fn forget() {
    EPOCH.fetch_add(1, Relaxed);
}

/// Whether `bytes` bytes at `start` can be read. Without the library's table nothing is asked, and nothing is known to be.
#[inline]
pub(crate) fn can_read(start: *const u8, bytes: usize) -> bool {
    table::exists()
        && is_covered(
            |tables| &mut tables.readable,
            start as usize,
            bytes,
            MADV_POPULATE_READ,
        )
}

/// Whether this thread has found before that `bytes` bytes at `start` can be read: nothing is asked.
#[inline]
pub(crate) fn is_known(start: *const u8, bytes: usize) -> bool {
    let Some(last) = (start as usize).checked_add(bytes.saturating_sub(1)) else {
        return false;
    };
    let tables: *mut Tables = local().tables.get().cast();
    // SAFETY: as in `is_covered`.
    let tables = unsafe { tables.as_mut() };
    tables.is_some_and(|tables| tables.readable.knows(start as usize / PAGE, last / PAGE))
}

/// Whether `bytes` bytes at `start` can be written, as [`can_read`].
#[inline]
pub(crate) fn can_write(start: *mut u8, bytes: usize) -> bool {
    table::exists()
        && is_covered(
            |tables| &mut tables.writable,
            start as usize,
            bytes,
            MADV_POPULATE_WRITE,
        )
}

/// As [`can_read`], for what is copied with care ([`crate::fault`]): memory of which the kernel says nothing may be tried.
#[inline]
pub(crate) fn may_read(start: *const u8, bytes: usize) -> bool {
    can_read(start, bytes) || is_unsaid(start as usize, bytes, MADV_POPULATE_READ)
}

/// As [`can_write`], for what is copied with care.
#[inline]
pub(crate) fn may_write(start: *mut u8, bytes: usize) -> bool {
    can_write(start, bytes) || is_unsaid(start as usize, bytes, MADV_POPULATE_WRITE)
}

#[cold]
fn is_unsaid(start: usize, bytes: usize, advice: i32) -> bool {
    let (low, high) = (start / PAGE, start.saturating_add(bytes).div_ceil(PAGE));
    try_pages(low, high, advice) == -(libc::EINVAL as isize)
}

#[inline]
fn is_covered(
    kind: impl FnOnce(&mut Tables) -> &mut Known,
    start: usize,
    bytes: usize,
    advice: i32,
) -> bool {
    if bytes == 0 {
        return true;
    }
    let Some(last) = start.checked_add(bytes - 1) else {
        return false;
    };
    let (first_page, last_page) = (start / PAGE, last / PAGE);
    let mut tables: *mut Tables = local().tables.get().cast();
    if tables.is_null() {
        tables = first_tables();
    }
    // SAFETY: null, or the thread's own until it ends. A signal handler that comes between can make a page be asked about once more, or
    // one that went meanwhile be remembered: `fault` ends that copy.
    match unsafe { tables.as_mut() }.map(kind) {
        Some(known) => known.covers(first_page, last_page, advice),
        None => is_there(first_page, last_page + 1, advice),
    }
}

fn try_pages(low: usize, high: usize, advice: i32) -> isize {
    kernel!(libc::SYS_madvise, low * PAGE, (high - low) * PAGE, advice)
}

/// Lets the kernel try the pages from `low` up to `high`.
fn is_there(low: usize, high: usize, advice: i32) -> bool {
    let answer = try_pages(low, high, advice);
    let invalid = -(libc::EINVAL as isize);
    answer == 0 || answer == -(libc::EAGAIN as isize) || answer == invalid && !is_advice_known()
}

/// Whether the kernel can be asked at all (Linux 5.14). It says the same of memory that may not be used so.
#[cold]
fn is_advice_known() -> bool {
    /// 0: it is not known yet.
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    if KNOWN.load(Relaxed) == 0 {
        let own = std::ptr::from_ref(&KNOWN) as usize / PAGE * PAGE;
        let answer = kernel!(libc::SYS_madvise, own, PAGE, MADV_POPULATE_READ);
        KNOWN.store(if answer == 0 { 1 } else { 2 }, Relaxed);
    }
    KNOWN.load(Relaxed) == 1
}

impl Row {
    #[inline]
    fn has(&mut self, page: usize) -> bool {
        self.0[0] == page + 1 || self.brings_forward(page)
    }

    fn brings_forward(&mut self, page: usize) -> bool {
        let place = self.0.iter().position(|known| *known == page + 1);
        if let Some(place) = place {
            self.0[..=place].rotate_right(1);
        }
        place.is_some()
    }

    /// In the place of the one that was used longest ago.
    fn put(&mut self, page: usize) {
        if !self.has(page) {
            self.0.rotate_right(1);
            self.0[0] = page + 1;
        }
    }
}

impl Known {
    #[inline]
    fn row(&mut self, page: usize) -> &mut Row {
        // Buffers of one kind often lie a power of two apart: all bits of the number have a say.
        let mixed = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.rows[(mixed >> (u64::BITS - ROWS.ilog2())) as usize]
    }

    #[inline]
    fn knows(&mut self, first_page: usize, last_page: usize) -> bool {
        self.epoch == EPOCH.load(Relaxed)
            && if last_page - first_page < SHORT_PAGES {
                (first_page..=last_page).all(|page| self.row(page).has(page))
            } else {
                let mut ranges = self.ranges.iter();
                ranges.any(|(low, high)| *low <= first_page && last_page < *high)
            }
    }

    #[inline]
    fn covers(&mut self, first_page: usize, last_page: usize, advice: i32) -> bool {
        self.knows(first_page, last_page) || self.learn(first_page, last_page + 1, advice)
    }

    /// Lets the kernel try the pages from `low` up to `high`, and remembers the answer when it is good.
    #[cold]
    fn learn(&mut self, low: usize, high: usize, advice: i32) -> bool {
        if !is_there(low, high, advice) {
            return false;
        }
        let epoch = EPOCH.load(Relaxed);
        if self.epoch != epoch {
            self.epoch = epoch;
            self.rows.fill(Row([0; PLACES]));
            self.ranges.fill((0, 0));
            self.next_range = 0;
        }
        if high - low <= SHORT_PAGES {
            for page in low..high {
                self.row(page).put(page);
            }
        } else if let Some(range) = self
            .ranges
            .iter_mut()
            .find(|range| range.0 <= high && low <= range.1 && range.1 != 0)
        {
            *range = (range.0.min(low), range.1.max(high));
        } else {
            self.ranges[self.next_range] = (low, high);
            self.next_range = (self.next_range + 1) % RANGES;
        }
        true
    }
}
