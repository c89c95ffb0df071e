//! `epoll_wait` and its relatives: look, spin if it is worth it, close the gates, sleep.

use std::sync::atomic::Ordering::{AcqRel, SeqCst};

use libc::{c_int, epoll_event, sigset_t, timespec};

use super::kills::Suspects;
use super::rings::Origin;
use super::{EpollSet, NS_BEFORE_KERNEL, NS_PER_UNTOLD, SPIN_NS_BEFORE_KERNEL, UNTOLD_MAX};
use crate::kernel;
use crate::thread::WaitInterrupts;
use crate::vectors::MEMORY_END;
use crate::{client, real, socket, spin, table, thread};

/// One program's call of the `epoll_wait` family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) epoll: c_int,
    pub(crate) events: *mut epoll_event,
    pub(crate) count: c_int,
    /// Nanoseconds; None for ever.
    pub(crate) timeout_ns: Option<u64>,
    pub(crate) mask: *const sigset_t,
    /// The descriptor is the call's own.
    pub(crate) is_own: bool,
}

impl Wait {
    fn is_of(&self, set: &'static EpollSet) -> bool {
        self.is_own || table::is_set(self.epoll, set)
    }

    /// A descriptor of the set.
    fn descriptor_of(&self, set: &'static EpollSet) -> c_int {
        match self.is_own {
            true => self.epoll,
            false => set.number(self.epoll).unwrap_or(-1),
        }
    }
}

/// How a thread has looked that is about to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    Briefly,
    Spinning,
}

/// The whole family, of which the program's own call is `sleep`.
pub(crate) fn wait(set: &'static EpollSet, call: Wait, sleep: &mut dyn FnMut() -> c_int) -> c_int {
    if call.timeout_ns != Some(0) {
        set.note_wait();
        return wait_for_events(set, call, sleep);
    }
    let count = wait_for_events(set, call, sleep);
    set.note_look(count != 0);
    count
}

/// Looks at rings and kernel, spins if it is worth it, then sleeps.
fn wait_for_events(set: &'static EpollSet, call: Wait, sleep: &mut dyn FnMut() -> c_int) -> c_int {
    thread::test_cancel();
    client::glance();
    set.notice_changes();
    let mut begun_ns = None;
    if let Some(result) = sleep_without_rings(set, &call, sleep, &mut begun_ns) {
        return result;
    }
    let wanted = usize::try_from(call.count).unwrap_or(0);
    let end =
        (call.events as usize).saturating_add(wanted.saturating_mul(size_of::<epoll_event>()));
    if wanted > c_int::MAX as usize / size_of::<epoll_event>() || end > MEMORY_END {
        // The kernel refuses that before it looks at anything.
        return sleep();
    }
    let room = writable(call.events, wanted);
    if room == 0 {
        if wanted > 0 && set.is_ready() {
            thread::set_errno(libc::EFAULT);
            return -1;
        }
        set.close_gates();
        return sleep();
    }
    // SAFETY: just found writable; the program gives the buffer to this call.
    let events = unsafe { std::slice::from_raw_parts_mut(call.events, room) };
    let mut tries = 0;
    loop {
        let mut looked = Looked::Briefly;
        let had_active = set.has_active();
        if had_active {
            set.look_what_is_registered(call.epoll);
        }
        if had_active && let Some(result) = look_until_sleep(set, &call, events, &mut looked) {
            return result;
        }
        tries += 1;
        if !close_before_sleep(set, call.epoll, tries, looked) {
            reopen_gates(set);
            continue;
        }
        let slept = match begun_ns {
            None => {
                begun_ns = Some(kernel::monotonic_ns());
                sleep_and_wake(set, &call, &mut || match is_gone(set, &call) {
                    true => gone(&call, call.timeout_ns),
                    false => sleep(),
                })
            }
            // It was woken for nothing.
            Some(begun_ns) => sleep_and_wake(set, &call, &mut || sleep_on(set, &call, begun_ns)),
        };
        if let Some(result) = slept {
            return result;
        }
    }
}

/// Where no connection of this process was ever to be on the ring, the kernel has all there is to say, and to be refused. None: one was,
/// or came meanwhile, and the kernel has only been nudged: since `begun_ns`, of CLOCK_MONOTONIC, where the call is timed.
#[inline]
fn sleep_without_rings(
    set: &'static EpollSet,
    call: &Wait,
    sleep: &mut dyn FnMut() -> c_int,
    begun_ns: &mut Option<u64>,
) -> Option<c_int> {
    if socket::are_rings_known() {
        return None;
    }
    let begun = call.timeout_ns.map_or(0, |_| kernel::monotonic_ns());
    let started = spin::clock();
    // SeqCst, and before the question: whoever opens the first gate says that there are rings before that, and then looks for sleepers. One
    // of us sees the other.
    set.sleepers.fetch_add(1, SeqCst);
    if socket::are_rings_known() || is_gone(set, call) {
        set.sleepers.fetch_sub(1, AcqRel);
        return None;
    }
    let result = sleep();
    if !socket::are_rings_known() {
        set.sleepers.fetch_sub(1, AcqRel);
        return Some(result);
    }
    let woken = wake(set, call, result, started);
    if woken.is_none() {
        *begun_ns = Some(begun);
    }
    woken
}

/// The program's call for what is left of its time, of which the first sleep began then.
fn sleep_on(set: &'static EpollSet, call: &Wait, begun_ns: u64) -> c_int {
    let passed_ns = kernel::monotonic_ns().saturating_sub(begun_ns);
    let left_ns = call.timeout_ns.map(|ns| ns.saturating_sub(passed_ns));
    if is_gone(set, call) {
        return gone(call, left_ns);
    }
    sleep_for(call, left_ns)
}

/// The program's call for so long at most.
fn sleep_for(call: &Wait, left_ns: Option<u64>) -> c_int {
    let left_ms = left_ns.map_or(-1, left_ms);
    let Wait {
        epoll,
        events,
        count,
        ..
    } = *call;
    if call.mask.is_null() {
        // A filter may know only the one that the program makes.
        // SAFETY: the program's own arguments.
        return unsafe { real::epoll_wait(epoll, events, count, left_ms) };
    }
    // SAFETY: as above.
    unsafe { real::epoll_pwait(epoll, events, count, left_ms, call.mask) }
}

fn left_ms(left_ns: u64) -> c_int {
    c_int::try_from(left_ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

/// For how many events there is memory: the kernel minds only that of those that it reports.
fn writable(events: *mut epoll_event, wanted: usize) -> usize {
    let mut room = wanted;
    while room > 0 && !crate::user::can_write(events.cast(), room * size_of::<epoll_event>()) {
        room /= 2;
    }
    room
}

/// Looks, and spins if it is worth it. None: there is nothing, and it is time to sleep.
fn look_until_sleep(
    set: &'static EpollSet,
    call: &Wait,
    events: &mut [epoll_event],
    looked: &mut Looked,
) -> Option<c_int> {
    let interrupts = WaitInterrupts::of(call.mask);
    let mut spin: Option<spin::Spin<'_>> = None;
    loop {
        set.notice_changes();
        if let Some(count) = look(set, call, events, (*looked, &interrupts)) {
            if let Some(spin) = spin.filter(|spin| spin.age() > 0) {
                spin.hit();
            }
            return Some(count);
        }
        if call.timeout_ns == Some(0) {
            return Some(0);
        }
        if interrupts.have_come() {
            if *looked == Looked::Spinning {
                set.end_look();
            }
            thread::set_errno(libc::EINTR);
            return Some(-1);
        }
        match &mut spin {
            None => {
                spin = Some(begin_spin(set, call)?);
                *looked = Looked::Spinning;
            }
            Some(spin) => {
                if !spin.go_on() {
                    return None;
                }
            }
        }
    }
}

fn begin_spin<'a>(set: &'a EpollSet, call: &Wait) -> Option<spin::Spin<'a>> {
    let mut inner = set.inner.lock()?;
    let open = inner.active.len();
    let limit_ns = call.timeout_ns.unwrap_or(u64::MAX);
    let spin = inner
        .peers_run_elsewhere()
        .then(|| set.spinner.begin_for_bytes(limit_ns, open))??;
    inner.lookers += 1;
    Some(spin)
}

/// One look at the rings and, when it is due, at the kernel. None: nothing anywhere.
fn look(
    set: &'static EpollSet,
    call: &Wait,
    events: &mut [epoll_event],
    (looked, interrupts): (Looked, &WaitInterrupts),
) -> Option<c_int> {
    let spinning = looked == Looked::Spinning;
    let mut inner = set.inner.lock()?;
    if !call.is_of(set) {
        drop(inner);
        return table::exists().then(|| go_on(set, call, (looked, interrupts)));
    }
    let now = spin::clock();
    let patience_ns = if spinning {
        (SPIN_NS_BEFORE_KERNEL << inner.kernel_misses.min(8)).min(NS_BEFORE_KERNEL)
    } else {
        NS_BEFORE_KERNEL + NS_PER_UNTOLD * inner.untold.len().min(UNTOLD_MAX) as u64
    };
    // Room for what they were refused.
    let room = events.len().saturating_sub(inner.refused_rings());
    let rings_turn = room == 0;
    let (mut from_kernel, mut asked) = (0, (!rings_turn).then_some(0));
    let mut suspects = Suspects::new();
    let due = now.wrapping_sub(inner.kernel_seen) > spin::cycles(patience_ns);
    // Who does not wait asks for all that there is now.
    let due = due || call.timeout_ns == Some(0) || inner.kernel_reports;
    if !rings_turn && (due || inner.kernel_hinted(now)) {
        inner.retire_quiet();
        if !inner.untold.is_empty() {
            drop(inner);
            set.tell_kernel_by(call.epoll);
            inner = set.inner.lock()?;
        }
        asked = Some(std::mem::replace(&mut inner.kernel_seen, now));
        inner.note_received();
        from_kernel = ask_kernel(call, &mut events[..room]);
        if from_kernel > 0 && !inner.nudged.is_empty() {
            let epoll = call.descriptor_of(set);
            let others_sleep = set.has_sleepers();
            from_kernel = inner.undo_nudges(epoll, &mut events[..from_kernel], others_sleep);
        }
        from_kernel = inner.drop_repeats(&mut events[..from_kernel]);
        suspects = inner.suspects(&events[..from_kernel]);
        inner.kernel_misses = if from_kernel > 0 {
            0
        } else {
            inner.kernel_misses.saturating_add(1)
        };
    }
    let count = inner.collect(call.epoll, events, from_kernel, (asked, now));
    // It may still have what it reported before.
    inner.kernel_reports |= rings_turn;
    if spinning && count > 0 {
        inner.end_look();
    }
    drop(inner);
    if rings_turn && count == 0 {
        // Another thread has taken what the rings had: the kernel's turn after all.
        return look(set, call, events, (looked, interrupts));
    }
    set.show_kills(&suspects, &mut events[..count]);
    (count > 0).then_some(count as c_int)
}

/// Whether another thread has closed the set since the call began.
fn is_gone(set: &'static EpollSet, call: &Wait) -> bool {
    !call.is_of(set) && table::exists()
}

/// Another thread has closed the set since the call began, which spins, perhaps, and goes on by a descriptor of its own.
#[cold]
fn go_on(
    set: &'static EpollSet,
    call: &Wait,
    (looked, interrupts): (Looked, &WaitInterrupts),
) -> c_int {
    if looked == Looked::Briefly {
        return gone(call, call.timeout_ns);
    }
    let own = set.take_own();
    // Until this is over nobody takes the set for another instance.
    set.sleepers.fetch_add(1, AcqRel);
    let result = match &own {
        // It may be a handler of this thread that has closed it.
        _ if interrupts.have_come() => thread::fail(libc::EINTR),
        Some(own) => {
            let (epoll, is_own) = (own.fd(), true);
            let call = Wait {
                epoll,
                is_own,
                ..*call
            };
            wait_for_events(set, call, &mut || sleep_for(&call, call.timeout_ns))
        }
        None => gone(call, call.timeout_ns),
    };
    set.end_look();
    set.sleepers.fetch_sub(1, AcqRel);
    result
}

/// Another thread has closed the set since the call began. The number may be another set's by now, whose events are not for this call. In
/// the kernel it would go on, and so it waits for what is left of its time. A call without end would hear of no member, and fails.
#[cold]
fn gone(call: &Wait, left_ns: Option<u64>) -> c_int {
    let Some(left_ns) = left_ns else {
        thread::set_errno(libc::EBADF);
        return -1;
    };
    if call.mask.is_null() {
        // SAFETY: no descriptors.
        return unsafe { real::poll(std::ptr::null_mut(), 0, left_ms(left_ns)) };
    }
    let left = timespec {
        tv_sec: (left_ns / 1_000_000_000) as i64,
        tv_nsec: (left_ns % 1_000_000_000) as i64,
    };
    // SAFETY: no descriptors, and the program's own mask.
    unsafe { real::ppoll(std::ptr::null_mut(), 0, &raw const left, call.mask) }
}

/// What the kernel reports now.
fn ask_kernel(call: &Wait, events: &mut [epoll_event]) -> usize {
    let found = kernel::epoll_now(call.epoll, events, call.mask);
    usize::try_from(found).unwrap_or(0).min(events.len())
}

/// Opens what [`Inner::close_gates`](super::rings::Inner::close_gates) closed, where it had been in use: its senders will hardly stop now.
pub(super) fn reopen_gates(set: &EpollSet) {
    let Some(mut warm) = set
        .inner
        .lock()
        .map(|mut inner| std::mem::take(&mut inner.warm))
    else {
        return;
    };
    if set.spinner.is_willing() {
        for (fd, socket) in &warm {
            socket.open_gate_after(*fd, Origin::Wake, false);
        }
    }
    // Its memory is for the next sleep.
    warm.clear();
    if let Some(mut inner) = set.inner.lock().filter(|inner| inner.warm.is_empty()) {
        inner.warm = warm;
    }
}

/// Makes it safe to sleep, in so many tries. False: something has come.
pub(super) fn close_before_sleep(
    set: &'static EpollSet,
    epoll: c_int,
    tries: u32,
    looked: Looked,
) -> bool {
    let Some(mut inner) = set.inner.lock() else {
        return true;
    };
    if looked == Looked::Spinning {
        inner.end_look();
    }
    // From now on registrations go to the kernel at once.
    if set.sleepers.fetch_add(1, AcqRel) == 0 {
        inner.strays.clear();
    }
    let may_sleep = inner.close_gates(tries);
    let is_told = inner.untold.is_empty();
    drop(inner);
    if may_sleep && !is_told {
        set.tell_kernel_by(epoll);
    } else if !may_sleep {
        set.sleepers.fetch_sub(1, AcqRel);
    }
    may_sleep
}

/// Sleeps in the program's own call. None: it was only nudged.
fn sleep_and_wake(
    set: &'static EpollSet,
    call: &Wait,
    sleep: &mut dyn FnMut() -> c_int,
) -> Option<c_int> {
    let started = spin::clock();
    let result = sleep();
    wake(set, call, result, started)
}

/// A sleep that began at `started`, of [`spin::clock`], has ended with `result`. None: it was only nudged.
fn wake(set: &'static EpollSet, call: &Wait, result: c_int, started: u64) -> Option<c_int> {
    let Some(count) = usize::try_from(result).ok().filter(|count| *count > 0) else {
        set.sleepers.fetch_sub(1, AcqRel);
        return Some(result);
    };
    set.spinner.slept(started);
    // SAFETY: the kernel has just written so many.
    let events = unsafe { std::slice::from_raw_parts_mut(call.events, count) };
    let inner = set.inner.lock();
    // Not before: what was there for sleepers is remembered while there are some.
    let others_sleep = set.sleepers.fetch_sub(1, AcqRel) > 1;
    let Some(mut inner) = inner else {
        return Some(result);
    };
    let kept = if inner.has_nudges() {
        let epoll = call.descriptor_of(set);
        inner.undo_nudges(epoll, &mut events[..count], others_sleep)
    } else {
        count
    };
    let kept = inner.drop_repeats(&mut events[..kept]);
    inner.add_rings(&mut events[..kept]);
    let suspects = inner.suspects(&events[..kept]);
    inner.kernel_reports = true;
    inner.disarm(call.epoll, &events[..kept], |_| (true, None));
    let was_open = !inner.warm.is_empty();
    drop(inner);
    set.show_kills(&suspects, &mut events[..kept]);
    if was_open {
        reopen_gates(set);
    }
    (kept > 0).then_some(kept as c_int)
}
