//! `epoll_wait` and its relatives: look, spin if it is worth it, close the gates, sleep.

use std::sync::atomic::Ordering::AcqRel;

use libc::{c_int, epoll_event, sigset_t};

use super::{CALLS_BEFORE_KERNEL, EpollSet, NS_BEFORE_KERNEL, SPIN_NS_BEFORE_KERNEL};
use crate::kernel::kernel;
use crate::{client, spin, thread};

/// One program's call of the `epoll_wait` family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) epoll: c_int,
    pub(crate) events: *mut epoll_event,
    pub(crate) count: c_int,
    /// Nanoseconds; None for ever.
    pub(crate) timeout_ns: Option<u64>,
    pub(crate) mask: *const sigset_t,
}

/// The whole family: looks at rings and kernel, spins if it is worth it, then `sleep`s in the program's own call.
pub(crate) fn wait(set: &'static EpollSet, call: Wait, sleep: &mut dyn FnMut() -> c_int) -> c_int {
    client::glance();
    let room = usize::try_from(call.count).unwrap_or(0);
    if room == 0 || !crate::user::can_write(call.events.cast(), room * size_of::<epoll_event>()) {
        set.close_gates();
        return sleep();
    }
    // SAFETY: just found writable; the program gives the buffer to this call.
    let events = unsafe { std::slice::from_raw_parts_mut(call.events, room) };
    loop {
        let had_active = set.has_active();
        if had_active && let Some(result) = look_until_sleep(set, &call, events) {
            return result;
        }
        if close_before_sleep(set)
            && let Some(result) = sleep_and_wake(set, &call, events, sleep)
        {
            return result;
        }
    }
}

/// Looks, and spins if it is worth it. None: there is nothing, and it is time to sleep.
fn look_until_sleep(set: &EpollSet, call: &Wait, events: &mut [epoll_event]) -> Option<c_int> {
    let interrupts = thread::interrupts();
    let mut spin: Option<spin::Spin<'_>> = None;
    loop {
        if let Some(count) = look(set, call, events, spin.is_some()) {
            if let Some(spin) = spin.filter(|spin| spin.age() > 0) {
                spin.hit();
            }
            return Some(count);
        }
        if call.timeout_ns == Some(0) {
            return Some(0);
        }
        if thread::interrupts() != interrupts {
            thread::set_errno(libc::EINTR);
            return Some(-1);
        }
        match &mut spin {
            None => spin = Some(begin_spin(set, call)?),
            Some(spin) => {
                if !spin.go_on() {
                    return None;
                }
            }
        }
    }
}

fn begin_spin<'a>(set: &'a EpollSet, call: &Wait) -> Option<spin::Spin<'a>> {
    let elsewhere = set
        .inner
        .lock()
        .is_some_and(|inner| inner.peer_runs_elsewhere());
    if !elsewhere {
        return None;
    }
    set.spinner.begin(call.timeout_ns.unwrap_or(u64::MAX))
}

/// One look at the rings and, when it is due, at the kernel. None: nothing anywhere.
fn look(set: &EpollSet, call: &Wait, events: &mut [epoll_event], spinning: bool) -> Option<c_int> {
    let mut inner = set.inner.lock()?;
    let from_rings = inner.collect(events);
    inner.calls += 1;
    let now = spin::clock();
    let patience_ns = if spinning {
        SPIN_NS_BEFORE_KERNEL
    } else {
        NS_BEFORE_KERNEL
    };
    let idle_look = from_rings == 0 && !spinning;
    let due = idle_look
        || inner.calls >= CALLS_BEFORE_KERNEL && !spinning
        || now.wrapping_sub(inner.kernel_seen) > spin::cycles(patience_ns);
    if !due {
        return (from_rings > 0).then_some(from_rings as c_int);
    }
    inner.calls = 0;
    inner.kernel_seen = now;
    inner.retire_quiet();
    drop(inner);
    let count = merge_kernel(call, events, from_rings);
    (count > 0).then_some(count as c_int)
}

/// Adds what the kernel reports now to the first `count` events. An event for data that is there already is one event.
fn merge_kernel(call: &Wait, events: &mut [epoll_event], count: usize) -> usize {
    if count == events.len() {
        return count;
    }
    let (ours, room) = events.split_at_mut(count);
    let found = kernel!(
        libc::SYS_epoll_pwait,
        call.epoll,
        room.as_mut_ptr(),
        room.len(),
        0usize,
        call.mask,
        8usize
    );
    let found = usize::try_from(found).unwrap_or(0).min(room.len());
    let mut kept = 0;
    for index in 0..found {
        let event = room[index];
        let data = event.u64;
        match ours.iter_mut().find(|known| known.u64 == data) {
            Some(known) => known.events |= event.events,
            None => {
                room[kept] = event;
                kept += 1;
            }
        }
    }
    count + kept
}

/// Makes it safe to sleep. False: something has come.
pub(super) fn close_before_sleep(set: &EpollSet) -> bool {
    let Some(mut inner) = set.inner.lock() else {
        return true;
    };
    set.sleepers.fetch_add(1, AcqRel);
    let may_sleep = inner.close_gates();
    if !may_sleep {
        set.sleepers.fetch_sub(1, AcqRel);
    }
    may_sleep
}

/// Sleeps in the program's own call. None: it was only nudged.
fn sleep_and_wake(
    set: &EpollSet,
    call: &Wait,
    events: &mut [epoll_event],
    sleep: &mut dyn FnMut() -> c_int,
) -> Option<c_int> {
    let started = spin::clock();
    let result = sleep();
    set.sleepers.fetch_sub(1, AcqRel);
    let Ok(count) = usize::try_from(result) else {
        return Some(result);
    };
    if count == 0 {
        return Some(0);
    }
    set.spinner.slept(started);
    let Some(mut inner) = set.inner.lock() else {
        return Some(result);
    };
    if inner.nudged.is_empty() {
        return Some(result);
    }
    let kept = inner.undo_nudges(call.epoll, &mut events[..count]);
    (kept > 0).then_some(kept as c_int)
}
