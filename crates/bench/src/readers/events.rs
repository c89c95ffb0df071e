//! What is told of events that passed stages of a scheduler, and of the hashes by which their flows are found.

use std::fmt;

use anyhow::{Context, Error, Result, ensure};

use super::Reading;
use crate::events::{Hashed, Passed, expected_sum};
use crate::results::Outcome;

/// Seconds in which DPDK's program comes up to its rate.
const BEGINNING: usize = 2;

/// What DPDK's program says when it has come to its end, however much it has counted.
const END: &str = "Packet distribution across worker cores";

/// A program has brought events through, but its thread that counts them had no processor for so long that this tells nothing.
#[derive(Debug)]
struct Uncounted {
    times: usize,
}

impl fmt::Display for Uncounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = self.times;
        write!(
            f,
            "events passed, but were counted {times} times only, of which the first {BEGINNING} are of the beginning: \
             the thread that counts had no processor"
        )
    }
}

impl std::error::Error for Uncounted {}

/// What a trial is that ended with this error: void, where the next one may tell something.
pub(crate) fn outcome_of(error: &Error) -> Outcome {
    match error.downcast_ref::<Uncounted>() {
        Some(why) => Outcome::Void(why.to_string()),
        None => Outcome::Failed(format!("{error:#}")),
    }
}

/// `millrace load events --json`, or `dpdk-test-eventdev`, which prints a rate each second: events a second, of DPDK's the median of its
/// seconds. Processor time is of the whole run, and not that of so many events.
pub(super) fn passed(text: &str) -> Result<Reading> {
    let value = match serde_json::from_str::<Passed>(text) {
        Ok(passed) => passed.rate,
        Err(_) => {
            let times = rates(text).count();
            if times <= BEGINNING && text.contains(END) {
                return Err(Uncounted { times }.into());
            }
            let mut rates: Vec<f64> = rates(text).skip(BEGINNING).collect();
            ensure!(!rates.is_empty(), "nobody has counted events");
            rates.sort_by(f64::total_cmp);
            let middle = rates.len() / 2;
            f64::midpoint(rates[(rates.len() - 1) / 2], rates[middle]) * 1e6
        }
    };
    Ok(Reading {
        value,
        ..Reading::default()
    })
}

/// `millrace load toeplitz --json`, or `millrace-softrss`: hashes a second, if they are the right ones.
pub(super) fn hashed(text: &str) -> Result<Reading> {
    let hashed: Hashed = serde_json::from_str(text).context("nobody has told of hashes as JSON")?;
    let (sum, expected) = (hashed.sum, expected_sum());
    ensure!(
        sum == expected,
        "the sum of all hashes is {sum:08x}, and not {expected:08x}: some are wrong"
    );
    Ok(Reading {
        value: hashed.rate,
        operations: hashed.hashes as f64,
        ..Reading::default()
    })
}

/// Millions a second, as `5.123 mpps avg 5.000 mpps`.
fn rates(text: &str) -> impl Iterator<Item = f64> {
    let lines = text.split(['\n', '\r']);
    lines.filter_map(|line| {
        let (before, _) = line.split_once(" mpps avg ")?;
        before.split_whitespace().next_back()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_count_where_they_are_the_right_ones() {
        let line = |sum: u32| format!(r#"{{"rate":1e7,"hashes":4096,"seconds":0.1,"sum":{sum}}}"#);
        let reading = hashed(&line(expected_sum())).unwrap();
        assert_eq!((reading.value, reading.operations), (1e7, 4096.0));
        let wrong = hashed(&line(7)).unwrap_err().to_string();
        assert!(wrong.contains("is 00000007, and not"), "{wrong}");
        assert!(hashed("nothing").is_err());
    }

    #[test]
    fn events_are_counted_alike_whoever_brought_them_through() {
        let ours = r#"{"rate":2.5e7,"events":75000000,"refused":3,"seconds":3.0,"stages":[],"hand_over_ns":30}"#;
        assert_eq!(passed(ours).unwrap().value, 2.5e7);
        let theirs = "EAL: detected\n\r0.100 mpps avg 0.100 mpps\n\r3.000 mpps avg 1.5 mpps\n\r5.000 mpps avg 2.7 mpps\n\
                      6.000 mpps avg 3.0 mpps\nnothing more";
        assert_eq!(passed(theirs).unwrap().value, 5.5e6);
        for nothing in ["", "1 mpps avg 1 mpps\n2 mpps avg 2 mpps", "nothing"] {
            let outcome = outcome_of(&passed(nothing).unwrap_err());
            assert!(matches!(outcome, Outcome::Failed(_)), "{nothing}");
        }
        let starved = "1 mpps avg 1 mpps\nPacket distribution across worker cores :";
        let error = passed(starved).unwrap_err().context("a client");
        assert!(matches!(outcome_of(&error), Outcome::Void(why) if why.contains("1 times")));
    }
}
