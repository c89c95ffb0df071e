//! Making a differing sequence small: steps are taken out as long as the two roads still differ (delta
//! debugging; Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).

use crate::plan::{Call, Plan, Step};
use crate::play::HANG;
use crate::run::{Difference, Road, compare};
use anyhow::{Result, bail};

/// Waiting for what was taken out is cut short.
const PATIENCE_MS: u32 = 200;
const LIMIT_MS: u32 = 1000;

/// Finds a small part of `plan` in which the roads differ.
pub(crate) fn minimize(plan: &Plan, under: &Road) -> Result<(Plan, Difference)> {
    let mut judge = Judge { under, tries: 1 };
    let mut small = plan.clone();
    small.patience_ms = PATIENCE_MS;
    small.limit_ms = LIMIT_MS;
    let mut found = None;
    for tries in [1, 4, 15] {
        judge.tries = tries;
        found = judge.difference(&small)?;
        if found.is_some() {
            break;
        }
    }
    let Some(mut found) = found else {
        bail!("the roads do not differ");
    };
    cut_off(&mut small, &found);
    let mut chunk = small.steps.len().div_ceil(2).max(1);
    loop {
        judge.drop_useless_awaits(&mut small, &mut found)?;
        let mut index = 0;
        while index < small.steps.len() {
            let end = (index + chunk).min(small.steps.len());
            let candidate = without(&small, |step| {
                (index..end).contains(&step) && !awaits(&small.steps[step])
            });
            match judge.better(&small, &candidate)? {
                Some(difference) => {
                    (small, found) = (candidate, difference);
                    cut_off(&mut small, &found);
                }
                None => index += chunk,
            }
        }
        if chunk == 1 {
            break;
        }
        chunk = chunk.div_ceil(2);
    }
    judge.drop_useless_awaits(&mut small, &mut found)?;
    (small.patience_ms, small.limit_ms) = (plan.patience_ms, plan.limit_ms);
    Ok((small, found))
}

/// What comes after the step that differs has no part in it.
fn cut_off(plan: &mut Plan, found: &Difference) {
    let lines = [&found.plain, &found.under];
    let numbers = lines.map(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    if let Some(last) = numbers.into_iter().flatten().max() {
        plan.steps.truncate(last + 1);
    }
}

/// The plan without some steps.
fn without(plan: &Plan, leave_out: impl Fn(usize) -> bool) -> Plan {
    let mut candidate = plan.clone();
    let mut index = 0;
    candidate.steps.retain(|_| {
        index += 1;
        !leave_out(index - 1)
    });
    candidate
}

/// Whether the step only waits until an end is at rest. Without these a sequence would depend on time.
fn awaits(step: &Step) -> bool {
    matches!(
        step,
        Step::Do {
            call: Call::Await { .. },
            ..
        }
    )
}

/// Steps that wait for nothing: on what is no connection, in vain, or again when only waits came between.
fn useless_awaits(plan: &Plan) -> Result<Vec<usize>> {
    let trace = Road::default().run(plan)?;
    let mut since_last_change = Vec::new();
    let mut useless = Vec::new();
    for (index, (step, line)) in plan.steps.iter().zip(&trace).enumerate() {
        if !awaits(step) {
            since_last_change.clear();
            continue;
        }
        let nothing = [
            "EBADF",
            "ENOTSOCK",
            "no connection",
            "no such process",
            " still ",
            " where ",
        ];
        let idle = nothing.iter().any(|outcome| line.contains(outcome));
        if idle || since_last_change.contains(&step) {
            useless.push(index);
        }
        since_last_change.push(step);
    }
    Ok(useless)
}

struct Judge<'a> {
    under: &'a Road,
    /// How often a rare difference is looked for.
    tries: usize,
}

impl Judge<'_> {
    fn drop_useless_awaits(&self, small: &mut Plan, found: &mut Difference) -> Result<()> {
        let useless = useless_awaits(small)?;
        let all = without(small, |step| useless.contains(&step));
        if let Some(difference) = self.better(small, &all)? {
            (*small, *found) = (all, difference);
            return Ok(());
        }
        for step in useless.into_iter().rev() {
            let candidate = without(small, |other| other == step);
            if let Some(difference) = self.better(small, &candidate)? {
                (*small, *found) = (candidate, difference);
            }
        }
        Ok(())
    }

    /// How the roads differ in a candidate that is smaller than what there is.
    fn better(&self, old: &Plan, candidate: &Plan) -> Result<Option<Difference>> {
        if candidate.steps.len() == old.steps.len() {
            return Ok(None);
        }
        let difference = self.difference(candidate)?;
        if difference.is_some() {
            eprintln!("{} steps", candidate.steps.len());
        }
        Ok(difference)
    }

    /// How the roads differ; `None` where they agree, or where the plain road alone hangs or is not certain.
    fn difference(&self, plan: &Plan) -> Result<Option<Difference>> {
        let plain = Road::default().run(plan)?;
        if plain.iter().any(|line| line.contains(HANG)) {
            return Ok(None);
        }
        for _ in 0..self.tries {
            let under = self.under.run(plan)?;
            if let Some(difference) = compare(&plain, &under) {
                let stable = compare(&plain, &Road::default().run(plan)?).is_none();
                return Ok(stable.then_some(difference));
            }
        }
        Ok(None)
    }
}
