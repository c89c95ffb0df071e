//! How much of its time a program gives to recalls that its peers hold up.
//!
//! The other end of a connection can keep its half locked, or its end record wrong: then nothing that was sent to it can be sent again by
//! the kernel, and the agent says so late. A close, and the end of a direction, return at once on TCP, whatever the peer does. So a program
//! that has waited in vain waits for nobody during many times as long: what its peers can take is a small part of its time, however many
//! connections they have.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::kernel;

/// So many times as long as a wait in vain there are no others.
const REST_FACTOR: u64 = 10;
/// One end of a direction is waited for so long at most, in nanoseconds; the attempt that is under way then is the last one.
const WAIT_MAX_NS: u64 = 100_000_000;

/// Until when, of CLOCK_MONOTONIC.
static RESTS_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// Whether nobody is waited for now.
pub(crate) fn rests() -> bool {
    RESTS_UNTIL_NS.load(Relaxed) > kernel::monotonic_ns()
}

/// Does what waits for the agent's answer, and notes how long that took if it came to nothing: false.
pub(super) fn spend(work: impl FnOnce() -> bool) {
    let began_ns = kernel::monotonic_ns();
    if !work() {
        let now_ns = kernel::monotonic_ns();
        let rest_ns = (now_ns - began_ns).saturating_mul(REST_FACTOR);
        RESTS_UNTIL_NS.fetch_max(now_ns.saturating_add(rest_ns), Relaxed);
    }
}

/// Whether an end that began to leave at `began_ns` may try once more, after an attempt that came to nothing.
pub(super) fn goes_on(began_ns: u64) -> ControlFlow<()> {
    if rests() || kernel::monotonic_ns() - began_ns > WAIT_MAX_NS {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_in_vain_rests_for_longer() {
        spend(|| true);
        assert!(!rests());
        let began_ns = kernel::monotonic_ns();
        assert!(goes_on(began_ns).is_continue());
        spend(|| {
            kernel::pause(20);
            false
        });
        assert!(rests());
        assert!(goes_on(began_ns).is_break());
        while rests() {
            kernel::pause(10);
        }
        assert!(kernel::monotonic_ns() - began_ns > 20_000_000 * REST_FACTOR);
        assert!(goes_on(began_ns).is_break(), "it has taken too long");
    }
}
