//! One message there, one back. Both ends look without a pause; each has its next buffer before the message comes that it answers.

use anyhow::{Result, ensure};

use super::{end, go, wait_for_go};
use crate::clock::{Clock, ticks};
use crate::head::Head;
use crate::line::{Line, Word};
use crate::outcome::{self, Outcome};
use crate::transport::{Sink, Source};
use crate::trial::Trial;

/// Asks, and takes the time from before the call that sends to after the one that received.
pub(super) fn ask(
    trial: &Trial,
    clock: Clock,
    mut source: impl Source,
    mut sink: impl Sink,
    lines: &mut [Line],
) -> Result<Outcome> {
    let mut histogram = outcome::histogram()?;
    go(lines, || source.meet().and_then(|()| sink.meet()))?;
    let begun = ticks();
    let measured_from = begun + clock.ticks_of(trial.warm_up());
    let measured_to = measured_from + clock.ticks_of(trial.measured());
    let mut number = 0;
    let seconds = loop {
        source.prepare()?;
        let head = Head::new(number, 0, 0);
        let before = ticks();
        exchange(&head, &mut source, &mut sink)?;
        let after = ticks();
        number += 1;
        if before >= measured_from {
            histogram.saturating_record(clock.ns(before, after) as u64);
        }
        if after >= measured_to {
            break clock.ns(measured_from, after) / 1e9;
        }
    };
    source.finish(&Head::stop(number))?;
    end(lines)?;
    Ok(Outcome::new(trial, histogram.len(), number, seconds).with_latency(histogram))
}

/// Sends a message, and takes the answer to it.
#[inline]
fn exchange(head: &Head, source: &mut impl Source, sink: &mut impl Sink) -> Result<()> {
    let was_taken = source.push(head)?;
    ensure!(was_taken, "there is no room for one message");
    source.publish()?;
    source.prepare()?;
    let mut answer = None;
    loop {
        match sink.pop(1, &mut |head| answer = Some(*head))? {
            Some(0) => std::hint::spin_loop(),
            Some(_) => break,
            None => anyhow::bail!("the other end is gone"),
        }
    }
    ensure!(
        answer == Some(*head),
        "the answer to message {} is another one",
        head.number()
    );
    Ok(())
}

/// Answers each message with its own head.
pub(super) fn answer(mut source: impl Source, mut sink: impl Sink, line: &mut Line) -> Result<()> {
    wait_for_go(line, || source.meet().and_then(|()| sink.meet()))?;
    let mut is_over = false;
    while !is_over {
        source.prepare()?;
        let mut asked = None;
        match sink.pop(1, &mut |head| asked = Some(*head))? {
            Some(0) => std::hint::spin_loop(),
            Some(_) => {}
            None => break,
        }
        let Some(head) = asked else {
            continue;
        };
        ensure!(head.is_whole(), "message {} is torn", head.number());
        is_over = head.is_stop();
        if !is_over {
            let was_taken = source.push(&head)?;
            ensure!(was_taken, "there is no room for one message");
            source.publish()?;
        }
    }
    line.expect(Word::End)
}
