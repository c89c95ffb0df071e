//! Tests of what a log's lines count as, and of the state file.

use super::*;

#[test]
fn counts_of_cargo_and_of_other_suites_are_added() {
    let log = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
               figure: 100000 sequences\n\
               test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured\n\
               10 passed, 2 failed, 3 skipped\n";
    let expected = Outcome {
        passed: 17,
        failed: 3,
        skipped: 4,
        seconds: 0,
        figures: vec!["100000 sequences".to_owned()],
    };
    assert_eq!(count(log), expected);
}

#[test]
fn failed_cases_are_named() {
    let log = "test one ... ok\n\
               test two ... FAILED\n\
               test result: FAILED. 1 passed; 1 failed; 0 ignored\n\
               FAILED  0.5 s  three\n";
    let named: Vec<&str> = failures(log).collect();
    assert_eq!(named, ["test two ... FAILED", "FAILED  0.5 s  three"]);
}

#[test]
fn outcomes_survive_the_state_file() {
    let outcome = Outcome {
        passed: 3,
        seconds: 7,
        figures: vec!["x".into()],
        ..count("")
    };
    assert_eq!(Outcome::from_json(&outcome.to_json()), Some(outcome));
}

#[test]
fn what_is_done_a_few_at_a_time_comes_back_in_its_order() {
    let all = [30, 1, 20, 2];
    let work = |ms: &u64| {
        std::thread::sleep(Duration::from_millis(*ms));
        *ms
    };
    assert_eq!(at_a_time(2, &all, work), all);
    assert!(at_a_time(2, &[], work).is_empty());
}
