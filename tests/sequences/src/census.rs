//! Counting what the calls of many sequences return, to see whether the generator makes what it should.

use crate::drive::Campaign;
use crate::generate::generate;
use crate::run::Road;
use anyhow::Result;
use std::collections::BTreeMap;

/// Runs the seeds on the plain kernel and prints, per call, how often it ended how.
pub(crate) fn take(campaign: &Campaign) -> Result<()> {
    let mut counts: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for seed in campaign.seeds.clone() {
        let plan = generate(seed, &campaign.without);
        for line in Road::default().run(&plan)? {
            let (call, outcome) = classify(&line);
            let (count, example) = counts.entry((call, outcome)).or_insert((0, seed));
            *count += 1;
            *example = seed;
        }
    }
    for ((call, outcome), (count, example)) in counts {
        println!("{call:24} {outcome:32} {count:8}   as in {example}");
    }
    Ok(())
}

/// The name of the call, and its outcome without numbers.
fn classify(line: &str) -> (String, String) {
    let Some((step, outcome)) = line.split_once(" -> ") else {
        return ("(no step)".into(), without_numbers(line));
    };
    // An index, mostly a process, and the call with its arguments.
    let mut words = step.split_whitespace().skip(1);
    let first = words.next().unwrap_or(step);
    let word = if first.starts_with('P') {
        words.next().unwrap_or(first)
    } else {
        first
    };
    let call = word.split('(').next().unwrap_or(word);
    (call.into(), without_numbers(outcome))
}

fn without_numbers(text: &str) -> String {
    let mut short: String = text
        .split_whitespace()
        .map(|word| {
            if word.chars().any(|letter| letter.is_ascii_digit()) {
                "#"
            } else {
                word
            }
        })
        .take(6)
        .collect::<Vec<_>>()
        .join(" ");
    while short.contains("# #") {
        short = short.replace("# #", "#");
    }
    short
}
