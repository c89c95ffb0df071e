//! What the processes of a trial do, for any transport.

mod round_trip;
mod stream;
mod waking;

use anyhow::{Context, Result};

use crate::clock::Clock;
use crate::line::{Line, Word};
use crate::outcome::Outcome;
use crate::transport::{Parts, Transport};
use crate::trial::{Trial, Workload};

/// The asking process's side: opens its ends when the others have opened theirs, and lets everybody go.
pub(crate) fn ask<T: Transport>(
    trial: &Trial,
    parts: Parts,
    lines: &mut [Line],
) -> Result<Outcome> {
    let clock = Clock::calibrated();
    for line in lines.iter_mut() {
        line.expect(Word::Ready)?;
    }
    let lane = |there: bool| {
        let lane = if there { trial.there() } else { trial.back() };
        lane.context("the workload has no such lane")
    };
    let mut outcome = match trial.workload {
        Workload::RoundTrip => {
            let source = T::source(&lane(true)?, parts.there, 0)?;
            let sink = T::sink(&lane(false)?, parts.back, 0)?;
            round_trip::ask(trial, clock, source, sink, lines)
        }
        Workload::OneWay | Workload::FanIn => {
            let sink = T::sink(&lane(false)?, parts.back, 0)?;
            stream::gather(trial, clock, sink, lines)
        }
        Workload::Work => {
            let source = T::source(&lane(true)?, parts.there, 0)?;
            stream::hand_out(trial, clock, source, lines)
        }
        Workload::Waking => {
            let sink = T::sink(&lane(false)?, parts.back, 0)?;
            waking::sleep(trial, sink, lines)
        }
    }?;
    outcome.clock_ns = clock.cost_ns();
    Ok(outcome)
}

/// The side of another process, by its number.
pub(crate) fn take_part<T: Transport>(
    trial: &Trial,
    parts: Parts,
    line: &mut Line,
    index: usize,
) -> Result<()> {
    let clock = Clock::calibrated();
    let lane = |there: bool| {
        let lane = if there { trial.there() } else { trial.back() };
        lane.context("the workload has no such lane")
    };
    match trial.workload {
        Workload::RoundTrip => {
            let source = T::source(&lane(false)?, parts.back, 0)?;
            let sink = T::sink(&lane(true)?, parts.there, 0)?;
            round_trip::answer(source, sink, line)
        }
        Workload::OneWay | Workload::FanIn => {
            let source = T::source(&lane(false)?, parts.back, index)?;
            stream::send(trial, clock, source, line, index)
        }
        Workload::Work => {
            let sink = T::sink(&lane(true)?, parts.there, index)?;
            stream::work(trial, clock, sink, line)
        }
        Workload::Waking => {
            let source = T::source(&lane(false)?, parts.back, index)?;
            waking::wake(trial, source, line)
        }
    }
}

/// Lets all ends meet, ours by `meet`, and then go.
fn go(lines: &mut [Line], meet: impl FnOnce() -> Result<()>) -> Result<()> {
    lines.iter_mut().try_for_each(|line| line.say(Word::Meet))?;
    meet()?;
    lines
        .iter_mut()
        .try_for_each(|line| line.expect(Word::Met))?;
    lines.iter_mut().try_for_each(|line| line.say(Word::Go))
}

/// The same in another process, whose ends are open.
fn wait_for_go(line: &mut Line, meet: impl FnOnce() -> Result<()>) -> Result<()> {
    line.say(Word::Ready)?;
    line.expect(Word::Meet)?;
    meet()?;
    line.say(Word::Met)?;
    line.expect(Word::Go)
}

/// Lets the others end: until then they keep what is still to be taken from them.
fn end(lines: &mut [Line]) -> Result<()> {
    lines.iter_mut().try_for_each(|line| line.say(Word::End))
}
