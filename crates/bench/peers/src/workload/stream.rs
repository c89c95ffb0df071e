//! As many messages as go, in batches: of one source or several to one sink, and of one source to several workers. Every message has to
//! come, once, and those of a source in their order.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{end, go, wait_for_go};
use crate::clock::{Clock, ticks};
use crate::head::Head;
use crate::line::{Line, Word};
use crate::outcome::Outcome;
use crate::transport::{Sink, Source, pause};
use crate::trial::Trial;

/// What a worker has done.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Work {
    /// Within the measured time.
    counted: u64,
    seconds: f64,
    /// From the first to the last.
    taken: u64,
    /// Of the numbers of all messages: nobody had one that somebody else had.
    sum: u64,
}

/// Fills batches until its time is over, and returns how many messages that were.
fn fill(trial: &Trial, clock: Clock, source: &mut impl Source, index: u64) -> Result<u64> {
    let is_crowded = trial.others > 1;
    let limit = ticks() + clock.ticks_of(trial.sending());
    let mut number = 0;
    while ticks() < limit {
        for _ in 0..trial.batch {
            let head = Head::new(number, index, 0);
            while !source.push(&head)? {
                // What is not visible cannot be taken.
                source.publish()?;
                pause(is_crowded);
            }
            number += 1;
        }
        source.publish()?;
    }
    Ok(number)
}

/// A source.
pub(super) fn send(
    trial: &Trial,
    clock: Clock,
    mut source: impl Source,
    line: &mut Line,
    index: usize,
) -> Result<()> {
    wait_for_go(line, || source.meet())?;
    let sent = fill(trial, clock, &mut source, index as u64)?;
    source.finish(&Head::stop(sent))?;
    line.send(&sent)?;
    line.expect(Word::End)
}

/// The sink of one source or several.
pub(super) fn gather(
    trial: &Trial,
    clock: Clock,
    mut sink: impl Sink,
    lines: &mut [Line],
) -> Result<Outcome> {
    go(lines, || sink.meet())?;
    let measured_from = ticks() + clock.ticks_of(trial.warm_up());
    let measured_to = measured_from + clock.ticks_of(trial.measured());
    // What has come of each source: in all, and before and until the end of the measured time.
    let mut came = vec![0u64; trial.others];
    let (mut at_first, mut at_last) = (None, None);
    let (mut stops, mut wrong) = (0, 0u64);
    while stops < trial.others {
        let taken = sink.pop(trial.batch, &mut |head| {
            if head.is_stop() {
                stops += 1;
            } else {
                match came.get_mut(head.source() as usize) {
                    Some(next) if *next == head.number() && head.is_whole() => *next += 1,
                    _ => wrong += 1,
                }
            }
        })?;
        let now = ticks();
        if at_first.is_none() && now >= measured_from {
            at_first = Some((now, came.clone()));
        }
        if at_last.is_none() && now >= measured_to {
            at_last = Some((now, came.clone()));
        }
        match taken {
            Some(0) => sink.wait().map(|()| std::hint::spin_loop())?,
            Some(_) => {}
            None => break,
        }
    }
    ensure!(
        wrong == 0,
        "{wrong} messages were lost, torn or out of order"
    );
    for (line, came) in lines.iter_mut().zip(&came) {
        let sent: u64 = line.receive()?;
        ensure!(sent == *came, "of {sent} messages {came} have come");
    }
    end(lines)?;
    let (first, last) = at_first
        .zip(at_last)
        .ok_or_else(|| anyhow::anyhow!("the sources ended before their time"))?;
    let shares: Vec<u64> = last
        .1
        .iter()
        .zip(&first.1)
        .map(|(last, first)| last - first)
        .collect();
    let seconds = clock.ns(first.0, last.0) / 1e9;
    let outcome = Outcome::new(trial, shares.iter().sum(), came.iter().sum(), seconds);
    Ok(if trial.others > 1 {
        outcome.with_shares(shares)
    } else {
        outcome
    })
}

/// The source of several workers.
pub(super) fn hand_out(
    trial: &Trial,
    clock: Clock,
    mut source: impl Source,
    lines: &mut [Line],
) -> Result<Outcome> {
    go(lines, || source.meet())?;
    let sent = fill(trial, clock, &mut source, 0)?;
    source.finish(&Head::stop(sent))?;
    let works: Vec<Work> = lines.iter_mut().map(Line::receive).collect::<Result<_>>()?;
    end(lines)?;
    let taken: u64 = works.iter().map(|work| work.taken).sum();
    ensure!(taken == sent, "of {sent} messages {taken} have come");
    let sum = works
        .iter()
        .fold(0u64, |sum, work| sum.wrapping_add(work.sum));
    let expected = (u128::from(sent) * u128::from(sent.saturating_sub(1)) / 2) as u64;
    ensure!(sum == expected, "messages came twice, and others never");
    let rate: f64 = works
        .iter()
        .map(|work| work.counted as f64 / work.seconds)
        .sum();
    let counted = works.iter().map(|work| work.counted).sum();
    let outcome = Outcome::new(trial, counted, sent, counted as f64 / rate);
    Ok(outcome.with_shares(works.iter().map(|work| work.counted).collect()))
}

/// A worker.
pub(super) fn work(
    trial: &Trial,
    clock: Clock,
    mut sink: impl Sink,
    line: &mut Line,
) -> Result<()> {
    wait_for_go(line, || sink.meet())?;
    let measured_from = ticks() + clock.ticks_of(trial.warm_up());
    let measured_to = measured_from + clock.ticks_of(trial.measured());
    let mut work = Work::default();
    let (mut is_over, mut next, mut wrong) = (false, 0, 0u64);
    let (mut first, mut last) = (None, None);
    while !is_over {
        let taken = sink.pop(trial.batch, &mut |head| {
            if head.is_stop() {
                is_over = true;
                return;
            }
            wrong += u64::from(head.number() < next || !head.is_whole());
            next = head.number() + 1;
            work.taken += 1;
            work.sum = work.sum.wrapping_add(head.number());
        })?;
        let now = ticks();
        if first.is_none() && now >= measured_from {
            first = Some((now, work.taken));
        }
        if last.is_none() && now >= measured_to {
            last = Some((now, work.taken));
        }
        match taken {
            Some(0) => sink.wait().map(|()| pause(trial.others > 1))?,
            Some(_) => {}
            None => break,
        }
    }
    ensure!(wrong == 0, "{wrong} messages were torn or out of order");
    let ended = (ticks(), work.taken);
    // A worker whom nothing came to for long was not there when the time began.
    let (first, last) = (first.unwrap_or(ended), last.unwrap_or(ended));
    work.counted = last.1 - first.1;
    work.seconds = clock.ns(first.0, last.0).max(1.0) / 1e9;
    line.send(&work)?;
    line.expect(Word::End)
}
