//! Steps as a reader of traces sees them: short, and the same on every road.

use crate::plan::{Call, Flag, Plan, Step};
use std::fmt::{self, Debug, Display, Formatter};

impl Display for Plan {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let images = if self.fresh_images {
            ", fresh images"
        } else {
            ""
        };
        writeln!(
            out,
            "seed {}: {} processes{images}",
            self.seed, self.processes
        )?;
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(out, "{index:4} {step}")?;
        }
        Ok(())
    }
}

impl Display for Step {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Do { at, call } => write!(out, "P{at} {call}"),
            Step::Start { at, thread, call } => write!(out, "P{at}/T{thread} {call}"),
            Step::Join { any } => write!(out, "join {any:?}"),
            Step::Probe { thread } => write!(out, "probe T{thread}"),
            Step::Interrupt {
                at,
                thread,
                restart,
            } => write!(out, "P{at} interrupt T{thread} restart={restart}"),
            Step::Fork { at, child } => write!(out, "P{at} fork P{child}"),
            Step::Exec { at, by, stranger } => write!(out, "P{at} {by:?} stranger={stranger}"),
            Step::Exit { at, by } => write!(out, "P{at} ends by {by:?}"),
            Step::Stop { at } => write!(out, "P{at} stopped"),
            Step::Continue { at } => write!(out, "P{at} continued"),
        }
    }
}

/// Flags as `|Peek|WaitAll`.
struct Flags<'a>(&'a [Flag]);

impl Display for Flags<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|flag| write!(out, "|{flag:?}"))
    }
}

/// A receive or send call.
fn transfer(
    out: &mut Formatter<'_>,
    by: &dyn Debug,
    slot: u8,
    bytes: u32,
    parts: u8,
    flags: &[Flag],
    bad: bool,
) -> fmt::Result {
    let (flags, bad) = (Flags(flags), if bad { " bad address" } else { "" });
    write!(out, "{by:?}(s{slot}, {bytes} in {parts}{flags}{bad})")
}

impl Display for Call {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Call::Receive {
                slot,
                by,
                bytes,
                parts,
                flags,
                bad,
            } => transfer(out, by, *slot, *bytes, *parts, flags, *bad),
            Call::Send {
                slot,
                by,
                bytes,
                parts,
                flags,
                bad,
            } => transfer(out, by, *slot, *bytes, *parts, flags, *bad),
            Call::Poll {
                by,
                items,
                timeout_ms,
            } => {
                write!(out, "{by:?}(")?;
                for (slot, events) in items {
                    write!(out, "s{slot}:{} ", poll_events(*events))?;
                }
                write!(out, "{timeout_ms} ms)")
            }
            Call::EpollAdd { set, slot, events } => {
                write!(out, "EpollAdd(s{set}, s{slot}, {})", epoll_events(*events))
            }
            Call::EpollModify { set, slot, events } => {
                write!(
                    out,
                    "EpollModify(s{set}, s{slot}, {})",
                    epoll_events(*events)
                )
            }
            other => write!(out, "{}", short(&format!("{other:?}"))),
        }
    }
}

/// `Close { slot: 3 }` as `Close(s3)`.
fn short(text: &str) -> String {
    text.replace(" { ", "(")
        .replace(" }", ")")
        .replace("slot: ", "s")
        .replace("set: ", "s")
}

/// Names of the bits that `poll` and `epoll` share, lowest first.
const NAMES: [(u32, &str); 14] = [
    (0x001, "IN"),
    (0x002, "PRI"),
    (0x004, "OUT"),
    (0x008, "ERR"),
    (0x010, "HUP"),
    (0x020, "NVAL"),
    (0x040, "RDNORM"),
    (0x080, "RDBAND"),
    (0x100, "WRNORM"),
    (0x200, "WRBAND"),
    (0x2000, "RDHUP"),
    (1 << 28, "EXCLUSIVE"),
    (1 << 30, "ONESHOT"),
    (1 << 31, "ET"),
];

/// The bits of an epoll event by name.
pub(crate) fn epoll_events(events: u32) -> String {
    let mut text = String::new();
    let mut rest = events;
    for (bit, name) in NAMES {
        if events & bit != 0 {
            rest &= !bit;
            if !text.is_empty() {
                text.push('|');
            }
            text.push_str(name);
        }
    }
    if rest != 0 || events == 0 {
        text.push_str(&format!("{rest:#x}"));
    }
    text
}

/// The bits of a poll event by name.
pub(crate) fn poll_events(events: i16) -> String {
    epoll_events(u32::from(events.cast_unsigned()))
}
