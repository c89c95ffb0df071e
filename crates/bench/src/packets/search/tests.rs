//! Searches whose runs are made up.

use super::*;

/// What is found where rates up to `limit` hold, and when they are verified those up to `verified`.
fn found(most: f64, limit: f64, verified: f64) -> (f64, u32) {
    found_by(Width::default(), most, limit, verified)
}

fn found_by(width: Width, most: f64, limit: f64, verified: f64) -> (f64, u32) {
    let mut runs = 0;
    let range = Range {
        held: 0.0,
        lost: None,
        most,
    };
    let rate = narrow(range, width, |rate, is_verifying| {
        runs += 1;
        Ok(rate <= if is_verifying { verified } else { limit })
    });
    (rate.unwrap(), runs)
}

#[test]
fn the_highest_rate_that_holds_is_found() {
    for limit in [2_000.0, 123_456.0, 9.0e6, 9.95e6] {
        let (rate, runs) = found(1e7, limit, limit);
        assert!(rate <= limit && rate > limit * 0.985, "{rate} of {limit}");
        assert!(runs < 60, "{runs}");
    }
    assert_eq!(found(1e7, 2e7, 2e7), (1e7, 2), "all that can be offered");
    let (rate, _) = found(1e7, 5e6, 4.5e6);
    assert!(rate <= 4.5e6 && rate > 4.5e6 * 0.95, "{rate} is taken back");
    assert_eq!(found(1e7, 0.0, 0.0).0, 0.0);
    assert_eq!(found(1e7, 1e6, 0.0).0, 0.0, "none is verified");
}

#[test]
fn a_narrow_search_tells_the_rate_to_as_many_packets_however_fast_it_is() {
    let width = Width::Rate(100.0);
    for limit in [2_000.0, 123_456.0, 9_876_543.0] {
        let (rate, runs) = found_by(width, 1e7, limit, limit);
        assert!(rate <= limit && limit - rate <= 100.0, "{rate} of {limit}");
        assert!(runs < 80, "{runs}");
    }
    // What is not verified is taken back by as little.
    let (rate, _) = found_by(width, 1e7, 5_000_000.0, 4_999_500.0);
    assert!((4_999_000.0..=4_999_500.0).contains(&rate), "{rate}");
    let (rate, runs) = found_by(width, 1e7, 5e6, 4e5);
    assert!(rate <= 4e5 && rate > 5e4 && runs < 60, "{rate} by {runs}");
    // Wider than the rate itself: it is looked for all the same.
    assert!(found_by(Width::Rate(1e6), 5e5, 1e5, 1e5).0 > 7e4);
}

/// A search whose steps lost these shares at these rates.
fn limit(steps: &[(f64, f64)]) -> Limit {
    let outcome = |lost: f64| Outcome {
        ports: String::new(),
        sizes: "64".to_owned(),
        flows: 1,
        asked_rate: None,
        seconds: 1.0,
        sent: 1_000_000,
        refused: 0,
        received: 1_000_000 - (lost * 1e6) as u64,
        lost: (lost * 1e6) as u64,
        rate: 1e7,
        bits_per_second: 0.0,
        faults: Default::default(),
        late: 0,
        latency: Default::default(),
        late_max_ns: 0,
        preempted: 0,
        device_preempted: 0,
        stolen: 0.0,
        notes: Vec::new(),
    };
    let step = |&(rate, lost): &(f64, f64)| Step {
        loss: 0.0,
        rate,
        is_verifying: false,
        verdict: Verdict::Lost,
        outcome: outcome(lost),
    };
    Limit {
        found: Vec::new(),
        own: 2e7,
        most: outcome(0.3),
        steps: steps.iter().map(step).collect(),
        disturbed: 0,
        latencies: Vec::new(),
    }
}

#[test]
fn what_the_search_for_one_share_has_found_narrows_the_range_for_the_next() {
    let limit = limit(&[(1e7, 0.2), (8e6, 0.1), (6e6, 0.004), (5e6, 0.0)]);
    let known = |loss| {
        let Range { held, lost, most } = Range::known(&limit, loss);
        (held, lost, most)
    };
    assert_eq!(known(0.0), (5e6, Some(6e6), 1e7));
    assert_eq!(known(0.005), (6e6, Some(8e6), 1e7));
    assert_eq!(known(0.5), (1e7, None, 1e7));
    // A rate that held once, above one that did not, is no bound.
    let odd = self::limit(&[(6e6, 0.1), (7e6, 0.0), (3e6, 0.0)]);
    assert_eq!(Range::known(&odd, 0.0).held, 3e6);
    let mut runs = Vec::new();
    let range = Range::known(&limit, 0.005);
    let rate = narrow(range, Width::default(), |rate, _| {
        runs.push(rate);
        Ok(rate <= 7.3e6)
    });
    let rate = rate.unwrap();
    assert!(rate <= 7.3e6 && rate > 7.2e6, "{rate}");
    assert!(
        runs.iter().all(|rate| (6e6..8e6).contains(rate)),
        "{runs:?}"
    );
}

#[test]
fn a_rate_that_the_generator_did_not_keep_up_with_has_not_held() {
    let mut limit = limit(&[(1e7, 0.0), (5e6, 0.0)]);
    // It sent a million, of two and of one.
    limit.steps[0].outcome.asked_rate = Some(2e6);
    limit.steps[1].outcome.asked_rate = Some(1e6);
    let Range { held, lost, .. } = Range::known(&limit, 0.0);
    assert_eq!((held, lost), (5e6, Some(1e7)));
    assert!(limit.notes()[0].contains("did not keep up"));
}

#[test]
fn a_rate_that_fails_to_be_verified_again_and_again_is_taken_back_far() {
    let (rate, _) = found(1e7, 9e6, 4e5);
    assert!(rate <= 4e5 && rate > 1e5, "{rate}");
}

#[test]
fn a_reader_is_told_when_the_generator_limits_or_was_disturbed() {
    let mut limit = limit(&[]);
    assert_eq!(limit.rate(), 0.0);
    limit.found = [(0.0, 9e6), (0.005, 1.7e7)]
        .map(|(loss, rate)| Found { loss, rate })
        .to_vec();
    assert_eq!(limit.rate(), 9e6);
    assert_eq!(limit.notes(), ["the generator is the limit, or nearly so"]);
    limit.found.pop();
    limit.disturbed = 2;
    assert!(limit.notes()[0].starts_with("some runs of the search count"));
    let told = limit.to_string();
    assert!(
        told.contains("9.000 M packets/s with at most 0 % lost"),
        "{told}"
    );
}
