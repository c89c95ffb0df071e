//! A message now and then, to a sink that sleeps: from before the source's call that sends to after the sink's that received.

use anyhow::{Result, ensure};
use rustix::time::{ClockId, Timespec};

use super::{end, go, wait_for_go};
use crate::clock::monotonic_ns;
use crate::head::Head;
use crate::line::{Line, Word};
use crate::outcome::{self, Outcome};
use crate::transport::{Sink, Source};
use crate::trial::Trial;

const SECOND_NS: u64 = 1_000_000_000;

/// The sink.
pub(super) fn sleep(trial: &Trial, mut sink: impl Sink, lines: &mut [Line]) -> Result<Outcome> {
    let mut histogram = outcome::histogram()?;
    go(lines, || sink.meet())?;
    let measured_from = monotonic_ns() + trial.warm_up().as_nanos() as u64;
    let measured_to = measured_from + trial.measured().as_nanos() as u64;
    let (mut number, mut wrong, mut is_over) = (0, 0u64, false);
    while !is_over {
        let taken = sink.pop(trial.batch, &mut |head| {
            let now = monotonic_ns();
            is_over = head.is_stop();
            if is_over {
                return;
            }
            wrong += u64::from(head.number() != number || !head.is_whole());
            number += 1;
            if (measured_from..measured_to).contains(&head.time_ns()) {
                histogram.saturating_record(now.saturating_sub(head.time_ns()));
            }
        })?;
        match taken {
            Some(0) if !is_over => sink.wait()?,
            Some(_) => {}
            None => break,
        }
    }
    ensure!(
        wrong == 0,
        "{wrong} messages were lost, torn or out of order"
    );
    for line in lines.iter_mut() {
        let sent: u64 = line.receive()?;
        ensure!(sent == number, "of {sent} messages {number} have come");
    }
    end(lines)?;
    Ok(Outcome::new(trial, histogram.len(), number, trial.seconds).with_latency(histogram))
}

/// The source.
pub(super) fn wake(trial: &Trial, mut source: impl Source, line: &mut Line) -> Result<()> {
    wait_for_go(line, || source.meet())?;
    let begun = monotonic_ns();
    let sending = trial.sending().as_nanos() as u64;
    let mut number = 0;
    loop {
        let due = begun + (number + 1) * trial.interval_us * 1000;
        if due > begun + sending {
            break;
        }
        sleep_until(due);
        let was_taken = source.push(&Head::new(number, 0, monotonic_ns()))?;
        ensure!(was_taken, "there is no room for one message");
        source.publish()?;
        number += 1;
    }
    source.finish(&Head::stop(number))?;
    line.send(&number)?;
    line.expect(Word::End)
}

fn sleep_until(due_ns: u64) {
    let due = Timespec {
        tv_sec: (due_ns / SECOND_NS) as i64,
        tv_nsec: (due_ns % SECOND_NS) as i64,
    };
    // A signal may end it before its time; the message is early then, and its latency is what it is.
    let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &due);
}
