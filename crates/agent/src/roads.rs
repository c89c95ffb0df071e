//! Which road each direction of a connection takes now, and why: from what the ends say, and what the agent knows.
//!
//! A direction is on the ring when its sender and its receiver have both joined, neither is pinned to the kernel, and the gate
//! is open. A gate that is closed while both want the ring passes: the reader sleeps, or has not caught up.

use millrace_shm::board::{RowView, flags, state};
use millrace_shm::gate::Gate;
use millrace_wire::Reason;

/// What became of an end that no board shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// A forked child holds it; its row went with the parent's board.
    Held,
    /// It has left the ring for this reason.
    Left(Reason),
}

/// The road of one direction. `Reason::None`: the ring.
pub(crate) fn of_direction(
    sender: Option<&RowView>,
    receiver: Option<&RowView>,
    absent: Absent,
    gate: Option<Gate>,
) -> Reason {
    let reasons = [
        (sender, flags::SEND_PINNED),
        (receiver, flags::RECEIVE_PINNED),
    ];
    let mut reasons = reasons
        .into_iter()
        .map(|(row, pinned)| match (row, absent) {
            (Some(row), _) => reason_of_end(row, pinned | flags::CORRUPT),
            (None, Absent::Held) => Reason::None,
            (None, Absent::Left(reason)) => reason,
        })
        .filter(|reason| *reason != Reason::None);
    if let Some(first) = reasons.next() {
        return match reasons.next() {
            Some(second) if waits_for_other(first) => second,
            _ => first,
        };
    }
    match gate {
        Some(gate) if !gate.open && is_unseen(receiver) => Reason::Unseen,
        Some(gate) if !gate.open && is_behind(sender, receiver) => Reason::Overflow,
        Some(gate) if !gate.open => Reason::Sleeping,
        _ => Reason::None,
    }
}

/// Why an end keeps a direction on the kernel's road. `pinned`: the flags that say so.
fn reason_of_end(row: &RowView, pinned: u32) -> Reason {
    let stated = stated(row);
    if row.state == state::ATTACHED {
        match stated {
            _ if row.flags & pinned == 0 => Reason::None,
            // It shut this direction down.
            Reason::None => Reason::NotEstablished,
            reason => reason,
        }
    } else if stated == Reason::None {
        Reason::TooShort
    } else {
        stated
    }
}

/// Whether an end that says so has no more to say than that its other end has not come yet, or did not. If that one has a reason of its own
/// which keeps it away, as `io_uring`, it is this one's, too.
fn waits_for_other(reason: Reason) -> bool {
    matches!(reason, Reason::TooShort | Reason::NotBothEnds)
}

/// The reason that a row states.
pub(crate) fn stated(row: &RowView) -> Reason {
    Reason::from_u8(row.reason).unwrap_or(Reason::Unsupported)
}

/// Its program was not seen to wait for it when bytes came last.
fn is_unseen(receiver: Option<&RowView>) -> bool {
    receiver.is_some_and(|row| row.flags & flags::UNSEEN != 0)
}

/// Bytes are under way, by either road.
fn is_behind(sender: Option<&RowView>, receiver: Option<&RowView>) -> bool {
    let (Some(sender), Some(receiver)) = (sender, receiver) else {
        return false;
    };
    sender.sent_ring_bytes > receiver.received_ring_bytes
        || sender.sent_kernel_bytes > receiver.received_kernel_bytes
}

/// Whether a direction is kept off the ring for this moment only.
pub(crate) fn passes(reason: Reason) -> bool {
    matches!(reason, Reason::None | Reason::Sleeping | Reason::Overflow)
}

/// An end's road, and why, from those of what it sends and receives: it is on the ring while one of them may be.
pub(crate) fn of_end(row: &RowView, sent: Reason, received: Reason) -> (&'static str, Reason) {
    let stated = stated(row);
    if passes(sent) || passes(received) {
        ("shm", stated)
    } else if row.state == state::ATTACHED && stated == Reason::None || waits_for_other(stated) {
        ("kernel", sent)
    } else {
        ("kernel", stated)
    }
}

/// The name of the road of a direction.
pub(crate) fn name(reason: Reason) -> &'static str {
    if reason == Reason::None {
        "shm"
    } else {
        "kernel"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Absent = Absent::Left(Reason::NotEstablished);

    fn joined(pinned: u32, reason: Reason) -> RowView {
        RowView {
            state: state::ATTACHED,
            flags: pinned,
            reason: reason as u8,
            ..RowView::default()
        }
    }

    fn gate(open: bool) -> Option<Gate> {
        Some(Gate {
            open,
            ..Gate::INITIAL
        })
    }

    #[test]
    fn a_direction_is_on_the_ring_when_both_ends_want_it_and_the_gate_is_open() {
        let end = joined(0, Reason::None);
        let ask = |sender, receiver, gate| of_direction(sender, receiver, GONE, gate);
        assert_eq!(ask(Some(&end), Some(&end), gate(true)), Reason::None);
        assert_eq!(ask(Some(&end), Some(&end), None), Reason::None);
        assert_eq!(ask(Some(&end), Some(&end), gate(false)), Reason::Sleeping);
        let ahead = RowView {
            sent_ring_bytes: 1,
            ..end
        };
        assert_eq!(ask(Some(&ahead), Some(&end), gate(false)), Reason::Overflow);
    }

    #[test]
    fn a_gate_is_closed_because_nobody_was_seen_to_wait() {
        let seen = joined(0, Reason::None);
        let unseen = joined(flags::UNSEEN, Reason::None);
        let sent = |gate| of_direction(Some(&seen), Some(&unseen), GONE, gate);
        assert_eq!(sent(gate(false)), Reason::Unseen);
        assert_eq!(sent(gate(true)), Reason::None);
        let received = of_direction(Some(&unseen), Some(&seen), GONE, gate(false));
        assert_eq!(received, Reason::Sleeping);
        assert_eq!(
            of_end(&seen, Reason::Unseen, received),
            ("shm", Reason::None)
        );
        assert_eq!(
            of_end(&unseen, Reason::Unseen, Reason::Unseen),
            ("kernel", Reason::Unseen)
        );
    }

    #[test]
    fn an_end_that_is_pinned_takes_its_direction_to_the_kernel() {
        let end = joined(0, Reason::None);
        let spliced = joined(flags::SEND_PINNED, Reason::Splice);
        let shut = joined(flags::SEND_PINNED, Reason::None);
        let ask = |sender, receiver| of_direction(Some(sender), Some(receiver), GONE, gate(true));
        assert_eq!(ask(&spliced, &end), Reason::Splice);
        assert_eq!(
            ask(&end, &spliced),
            Reason::None,
            "only its sending is pinned"
        );
        assert_eq!(ask(&shut, &end), Reason::NotEstablished);
        assert_eq!(
            of_end(&spliced, Reason::Splice, Reason::None),
            ("shm", Reason::Splice)
        );
    }

    #[test]
    fn both_ends_are_off_the_ring_when_one_is() {
        let both = flags::SEND_PINNED | flags::RECEIVE_PINNED;
        let end = joined(0, Reason::None);
        let passed = joined(both, Reason::PassedFd);
        let sent = of_direction(Some(&end), Some(&passed), GONE, gate(false));
        let received = of_direction(Some(&passed), Some(&end), GONE, gate(false));
        assert_eq!(of_end(&end, sent, received), ("kernel", Reason::PassedFd));
        assert_eq!(
            of_end(&passed, received, sent),
            ("kernel", Reason::PassedFd)
        );
        let waits = RowView {
            state: state::KERNEL,
            reason: Reason::TooShort as u8,
            ..end
        };
        let sent = of_direction(Some(&end), Some(&waits), GONE, gate(false));
        assert_eq!(of_end(&end, sent, sent), ("kernel", Reason::TooShort));
    }

    #[test]
    fn who_waits_for_an_end_that_will_not_come_has_its_reason() {
        let kernel = |reason| RowView {
            state: state::KERNEL,
            reason: reason as u8,
            ..RowView::default()
        };
        let shown = |own, peer| {
            let (own, peer) = (kernel(own), kernel(peer));
            let sent = of_direction(Some(&own), Some(&peer), GONE, None);
            let received = of_direction(Some(&peer), Some(&own), GONE, None);
            of_end(&own, sent, received).1
        };
        for waits in [Reason::TooShort, Reason::NotBothEnds] {
            assert_eq!(shown(waits, Reason::IoUring), Reason::IoUring);
            assert_eq!(shown(Reason::IoUring, waits), Reason::IoUring);
        }
        assert_eq!(shown(Reason::Ktls, Reason::IoUring), Reason::Ktls);
        assert_eq!(shown(Reason::TooShort, Reason::TooShort), Reason::TooShort);
    }

    #[test]
    fn an_end_whose_other_end_left_is_off_the_ring_unless_a_child_holds_it() {
        let end = joined(0, Reason::None);
        let ask = |absent| of_direction(Some(&end), None, absent, None);
        let exec = ask(Absent::Left(Reason::Exec));
        assert_eq!(of_end(&end, exec, exec), ("kernel", Reason::Exec));
        assert_eq!(ask(Absent::Held), Reason::None);
    }

    #[test]
    fn what_a_client_invents_is_still_something() {
        let invented = RowView {
            state: 200,
            reason: 200,
            ..RowView::default()
        };
        let road = of_direction(Some(&invented), None, GONE, None);
        assert_eq!(
            of_end(&invented, road, road),
            ("kernel", Reason::Unsupported)
        );
    }
}
