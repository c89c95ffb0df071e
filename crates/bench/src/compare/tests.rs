use std::collections::BTreeMap;

use super::*;
use crate::builds::Build;
use crate::results::{self, Fact, Outcome, Plan, Road, Trial};

/// The noise of a round: a few per cent, not the same for two cells.
fn wobble(round: u32, phase: u32) -> f64 {
    1.0 + 0.02 * f64::from((round * 7 + phase * 3) % 11) / 11.0
}

fn trial(round: u32, value: f64, outcome: Outcome) -> Trial {
    Trial {
        outcome,
        value,
        seconds: 1.0,
        ..Trial::begun(round)
    }
}

fn cell(road: &str, clients: u64, unit: Unit, figure: f64) -> Cell {
    let phase = road.len() as u32;
    let value = |round| figure * wobble(round, phase);
    Cell {
        scenario: "redis".to_owned(),
        title: "Redis: SET and GET".to_owned(),
        road: road.to_owned(),
        parameters: BTreeMap::from([("clients".to_owned(), clients)]),
        unit,
        figure: String::new(),
        trials: (1..=12)
            .map(|round| trial(round, value(round), Outcome::Counts))
            .collect(),
    }
}

fn set(cells: Vec<Cell>) -> Results {
    let mut roads: Vec<Road> = Vec::new();
    for cell in &cells {
        if roads.iter().all(|road| road.name != cell.road) {
            roads.push(Road {
                name: cell.road.clone(),
                about: String::new(),
                settings: Vec::new(),
                build: None,
            });
        }
    }
    Results {
        schema: results::SCHEMA,
        millrace: "0.1.0".to_owned(),
        started: "2026-11-22T09:30:00Z".to_owned(),
        plan: Plan {
            seconds: 1.0,
            ..Plan::default()
        },
        machine: Vec::new(),
        roads,
        cells,
        warnings: Vec::new(),
    }
}

const RATE: Unit = Unit::OperationsPerSecond;

/// As sets that were made in turns, with fewer samples drawn than a report has.
fn in_turns() -> Options {
    Options {
        settings: Settings {
            resamples: 500,
            ..Settings::default()
        },
        interleaved: true,
        ..Options::default()
    }
}

fn verdicts(comparison: &Comparison) -> Vec<Verdict> {
    comparison.rows.iter().map(|row| row.verdict).collect()
}

#[test]
fn roads_are_held_against_the_baseline() {
    let results = set(vec![
        cell("bridge", 1, RATE, 100e3),
        cell("millrace-bridge", 1, RATE, 250e3),
        cell("veth", 1, RATE, 100e3),
        cell("vxlan", 1, RATE, 60e3),
    ]);
    let found = roads(&results, "bridge", &in_turns());
    let roads: Vec<&str> = found.rows.iter().map(|row| row.road.as_str()).collect();
    assert_eq!(roads, ["millrace-bridge", "veth", "vxlan"]);
    let expected = [Verdict::Faster, Verdict::NoDifference, Verdict::Slower];
    assert_eq!(verdicts(&found), expected);
    let ratio = found.rows[0].compared.as_ref().expect("pairs").ratio;
    assert!((ratio - 2.5).abs() < 0.05, "{ratio}");
    assert_eq!((found.exit_status(), found.unmatched.len()), (1, 0));
}

#[test]
fn a_road_of_millrace_stands_against_the_kernels_in_its_place_and_the_baseline() {
    let results = set(vec![
        cell("loopback", 1, RATE, 200e3),
        cell("bridge", 1, RATE, 100e3),
        cell("millrace-loopback", 1, RATE, 400e3),
        cell("millrace-bridge", 1, RATE, 150e3),
        cell("millrace-vxlan", 1, RATE, 200e3),
    ]);
    let found = standing(&results);
    let said: Vec<(&str, &str, Verdict)> = found
        .rows
        .iter()
        .map(|row| (row.road.as_str(), row.baseline_road.as_str(), row.verdict))
        .collect();
    let expected = [
        ("bridge", "loopback", Verdict::Slower),
        ("millrace-loopback", "loopback", Verdict::Faster),
        ("millrace-bridge", "bridge", Verdict::Faster),
        ("millrace-bridge", "loopback", Verdict::Slower),
        ("millrace-vxlan", "loopback", Verdict::NoDifference),
    ];
    assert_eq!(said, expected);
    let text = found.text();
    assert!(text.contains("millrace-bridge against bridge"), "{text}");
}

#[test]
fn where_the_baseline_cannot_be_measured_the_first_road_that_can_is_one() {
    let of_another = |road: &str| Cell {
        scenario: "packets".to_owned(),
        ..cell(road, 1, RATE, 80e3)
    };
    let mut cells = vec![cell("memif", 1, RATE, 1e5), cell("switch", 1, RATE, 2e5)];
    cells.extend([of_another("vhost"), of_another("guest")]);
    let rows = standing(&set(cells)).rows;
    let said = rows.iter().map(|row| [&row.road, &row.baseline_road]);
    let expected = [["switch", "memif"], ["guest", "vhost"]];
    assert!(said.eq(expected), "{rows:?}");
}

#[test]
fn less_is_faster_for_times_and_less_for_memory() {
    let half = |unit| {
        let results = set(vec![
            cell("bridge", 1, unit, 2e4),
            cell("unix", 1, unit, 1e4),
        ]);
        let found = roads(&results, "bridge", &in_turns());
        let row = &found.rows[0];
        (
            row.verdict,
            verdict_word(row.verdict, unit),
            found.exit_status(),
        )
    };
    assert_eq!(half(Unit::Nanoseconds), (Verdict::Faster, "faster", 0));
    assert_eq!(half(Unit::Bytes), (Verdict::Faster, "less", 0));
    assert_eq!(half(Unit::ProcessorShare), (Verdict::Faster, "less", 0));
    assert_eq!(half(Unit::BitsPerSecond), (Verdict::Slower, "slower", 1));
}

#[test]
fn exchanging_two_sets_inverts_ratios_and_verdicts() {
    let first = set(vec![
        cell("bridge", 1, RATE, 100e3),
        cell("bridge", 8, RATE, 5e5),
    ]);
    let second = set(vec![
        cell("bridge", 1, RATE, 130e3),
        cell("bridge", 8, RATE, 4e5),
    ]);
    let forth = compare(&first, &second, &in_turns());
    let back = compare(&second, &first, &in_turns());
    assert_eq!(verdicts(&forth), [Verdict::Faster, Verdict::Slower]);
    assert_eq!(verdicts(&back), [Verdict::Slower, Verdict::Faster]);
    for (one, other) in forth.rows.iter().zip(&back.rows) {
        let (one, other) = (one.compared.as_ref(), other.compared.as_ref());
        let (one, other) = (one.expect("pairs"), other.expect("pairs"));
        assert!((one.ratio * other.ratio - 1.0).abs() < 1e-9);
        assert!((one.interval.low * other.interval.high - 1.0).abs() < 1e-9);
        assert_eq!(one.p, other.p);
    }
}

#[test]
fn a_set_has_no_difference_to_itself() {
    let results = set(vec![
        cell("bridge", 1, RATE, 1e5),
        cell("unix", 1, RATE, 2e5),
    ]);
    let found = compare(&results, &results, &in_turns());
    assert_eq!(verdicts(&found), [Verdict::NoDifference; 2]);
    assert_eq!((found.exit_status(), found.warnings.len()), (0, 0));
}

#[test]
fn trials_are_paired_by_round_and_only_those_that_count_on_both() {
    let mut baseline = cell("bridge", 1, RATE, 1e5);
    let mut measured = cell("unix", 1, RATE, 2e5);
    // Rounds 3 and 5 were disturbed, each on one road; 5 was repeated at the end. The order of trials says nothing.
    baseline.trials[2].outcome = Outcome::Void("steal time".to_owned());
    measured.trials[4].outcome = Outcome::Failed("no answer".to_owned());
    measured.trials[4].value = 0.0;
    measured.trials.push(trial(5, 2e5, Outcome::Counts));
    measured.trials.reverse();
    let found = roads(&set(vec![baseline, measured]), "bridge", &in_turns());
    let row = &found.rows[0];
    assert_eq!(row.compared.as_ref().expect("pairs").pairs, 11);
    assert_eq!(
        row.notes,
        ["rounds that count on one side only, and are left out: 1"]
    );
}

#[test]
fn rounds_without_ratio_are_left_out_and_told() {
    let mut measured = cell("unix", 1, Unit::Bytes, 1e5);
    measured.trials[0].value = 0.0;
    measured.trials[1].value = f64::NAN;
    let found = roads(
        &set(vec![cell("bridge", 1, Unit::Bytes, 1e5), measured]),
        "bridge",
        &in_turns(),
    );
    let row = &found.rows[0];
    assert_eq!(row.compared.as_ref().expect("pairs").pairs, 10);
    assert!(
        row.notes[0].ends_with("no ratio: 2 of 12"),
        "{:?}",
        row.notes
    );
}

#[test]
fn two_groups_of_trials_are_told() {
    let mut measured = cell("unix", 1, RATE, 1e5);
    measured
        .trials
        .iter_mut()
        .take(5)
        .for_each(|trial| trial.value *= 0.5);
    let found = roads(
        &set(vec![cell("bridge", 1, RATE, 1e5), measured]),
        "bridge",
        &in_turns(),
    );
    let notes = &found.rows[0].notes;
    assert!(
        notes.len() == 1 && notes[0].starts_with("measured: the trials fall into two groups"),
        "{notes:?}"
    );
}

#[test]
fn cells_on_one_side_only_are_listed_and_change_no_status() {
    let first = set(vec![
        cell("bridge", 1, RATE, 1e5),
        cell("bridge", 8, RATE, 1e5),
    ]);
    let second = set(vec![
        cell("bridge", 1, RATE, 1e5),
        cell("unix", 1, RATE, 1e5),
    ]);
    let found = compare(&first, &second, &in_turns());
    let listed: Vec<(&str, u64, &str, &str)> = found
        .unmatched
        .iter()
        .map(|cell| {
            (
                cell.road.as_str(),
                cell.parameters["clients"],
                cell.only_in.as_str(),
                cell.missing_in.as_str(),
            )
        })
        .collect();
    assert_eq!(listed, [("bridge", 8, "A", "B"), ("unix", 1, "B", "A")]);
    assert_eq!((found.rows.len(), found.exit_status()), (1, 0));
    assert!(
        found
            .text()
            .contains("redis clients=8 on bridge: only in A, not in B\n")
    );

    let results = set(vec![
        cell("bridge", 1, RATE, 1e5),
        cell("unix", 1, RATE, 1e5),
        cell("bridge", 8, RATE, 1e5),
        cell("unix", 9, RATE, 1e5),
    ]);
    let found = roads(&results, "bridge", &in_turns());
    let listed: Vec<(u64, &str)> = found
        .unmatched
        .iter()
        .map(|cell| (cell.parameters["clients"], cell.only_in.as_str()))
        .collect();
    assert_eq!(listed, [(9, "unix"), (8, "bridge")]);
}

#[test]
fn cells_of_another_unit_are_no_counterparts() {
    let first = set(vec![cell("bridge", 1, RATE, 1e5)]);
    let second = set(vec![cell("bridge", 1, Unit::Nanoseconds, 1e5)]);
    let found = compare(&first, &second, &in_turns());
    assert_eq!((found.rows.len(), found.unmatched.len()), (0, 2));
}

#[test]
fn nothing_to_compare_is_a_status_of_its_own() {
    let results = set(vec![
        cell("bridge", 1, RATE, 1e5),
        cell("unix", 1, RATE, 1e5),
    ]);
    let missing = roads(&results, "vxlan", &in_turns());
    assert_eq!(missing.exit_status(), 2);
    assert_eq!(
        missing.warnings,
        ["the road `vxlan` has no cells here; these results are of bridge, unix"]
    );
    assert!(missing.text().contains("Nothing could be compared"));
    let nothing = compare(&results, &set(Vec::new()), &in_turns());
    assert_eq!((nothing.exit_status(), nothing.unmatched.len()), (2, 2));
    assert!(nothing.markdown().contains("Nothing could be compared"));
}

#[test]
fn quick_runs_have_intervals_and_no_verdict() {
    let mut quick = set(vec![
        cell("bridge", 1, RATE, 1e5),
        cell("unix", 1, RATE, 5e4),
    ]);
    quick.plan.quick = true;
    for cell in &mut quick.cells {
        cell.trials.truncate(3);
    }
    let found = roads(&quick, "bridge", &in_turns());
    assert_eq!(verdicts(&found), [Verdict::TooFew]);
    assert_eq!(found.exit_status(), 2);
    let text = found.text();
    assert!(
        text.contains("(75 %)") && text.contains("no verdict"),
        "{text}"
    );
}

#[test]
fn a_cell_whose_trials_all_failed_has_a_row_that_says_so() {
    let mut failed = cell("unix", 1, RATE, 1e5);
    for trial in &mut failed.trials {
        trial.outcome = Outcome::Failed("redis-server is missing".to_owned());
    }
    let results = set(vec![cell("bridge", 1, RATE, 1e5), failed]);
    let found = roads(&results, "bridge", &in_turns());
    assert_eq!(found.rows[0].median, None);
    let text = found.text();
    assert!(text.contains("no round counts on both sides"), "{text}");
    assert!(
        found.csv().contains(",0,,,,,,,,,too_few\n"),
        "{}",
        found.csv()
    );
}

#[test]
fn what_differs_beside_the_figures_is_a_warning() {
    let fact = |name: &str, value: &str| Fact {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let mut first = set(vec![cell("bridge", 1, RATE, 1e5)]);
    let mut second = first.clone();
    first.machine = vec![fact("kernel", "6.17"), fact("processor", "X")];
    second.machine = vec![
        fact("processor", "X"),
        fact("kernel", "6.18"),
        fact("redis", "8.0"),
        fact(crate::machine::VARYING[0], "0.52 0.71 0.60"),
    ];
    second.plan.seconds = 5.0;
    second.plan.pinned = "0 and 1".to_owned();
    second.plan.width = "100/s".parse().unwrap();
    let found = compare(&first, &second, &Options::default());
    assert!(found.warnings[0].starts_with("A and B were measured one after the other"));
    assert_eq!(
        found.warnings[1..],
        [
            "kernel differs: 6.17 in A, 6.18 in B",
            "redis differs: not told in A, 8.0 in B",
            "trials differ in length: 1 s in A, 5 s in B",
            "rates were searched to 1 % in A, to 100 packets/s in B",
            "processors differ:  in A, 0 and 1 in B",
        ]
    );
}

#[test]
fn all_forms_show_the_same_rows() {
    let results = set(vec![
        cell("bridge", 1, RATE, 100e3),
        cell("millrace-bridge", 1, RATE, 250e3),
    ]);
    let found = roads(&results, "bridge", &in_turns());
    let text = found.text();
    let mut lines = text.lines();
    let heading = lines.next().expect("a heading");
    assert_eq!(
        heading
            .split("  ")
            .filter(|cell| !cell.is_empty())
            .map(str::trim)
            .collect::<Vec<_>>(),
        [
            "scenario",
            "parameters",
            "road",
            "bridge",
            "this road",
            "ratio",
            "95 % interval",
            "adjusted p",
            "pairs",
            "verdict"
        ]
    );
    assert!(lines.next().expect("a row").ends_with("faster"), "{text}");
    assert!(text.contains("1 cell: 1 better."), "{text}");

    let markdown = found.markdown();
    assert_eq!(
        markdown
            .lines()
            .filter(|line| line.starts_with('|'))
            .count(),
        3
    );

    let csv = found.csv();
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [15, 15]);
    assert!(csv.contains("redis,clients=1,millrace-bridge,bridge,operations_per_second,12,"));

    let read: Comparison =
        serde_json::from_str(&found.json()).expect("what was written can be read");
    assert_eq!(read.rows[0].verdict, Verdict::Faster);
    assert!(found.json().contains("\"verdict\": \"faster\""));
}

fn build(name: &str, checksum: &str) -> Build {
    Build {
        name: name.to_owned(),
        program: format!("/opt/{name}/millrace").into(),
        library: "/opt/l.so".into(),
        version: "millrace 0.1.0".to_owned(),
        checksums: [checksum, checksum].map(str::to_owned),
    }
}

/// Two builds on two roads; the second one is so many times as fast on the bridge.
fn of_builds(builds: [Build; 2], times: f64) -> Results {
    let mut results = set(vec![
        cell("millrace-loopback-A", 1, RATE, 100e3),
        cell("millrace-loopback-B", 1, RATE, 100e3),
        cell("millrace-bridge-A", 1, RATE, 80e3),
        cell("millrace-bridge-B", 1, RATE, 80e3 * times),
    ]);
    for (index, road) in results.roads.iter_mut().enumerate() {
        road.build = Some(builds[index % 2].clone());
    }
    results
}

#[test]
fn a_build_is_held_against_the_other_on_each_road() {
    let results = of_builds([build("A", "1"), build("B", "2")], 0.5);
    let found = super::builds(&results, &in_turns()).expect("two builds");
    let roads: Vec<&str> = found.rows.iter().map(|row| row.road.as_str()).collect();
    assert_eq!(roads, ["millrace-loopback", "millrace-bridge"]);
    assert_eq!(verdicts(&found), [Verdict::NoDifference, Verdict::Slower]);
    assert_eq!((found.warnings.len(), found.exit_status()), (0, 1));
    assert!(
        found
            .text()
            .contains("B is millrace 0.1.0, /opt/B/millrace."),
        "{}",
        found.text()
    );
}

#[test]
fn builds_of_the_same_bytes_are_told_and_results_without_builds_are_none() {
    let results = of_builds([build("A", "1"), build("B", "1")], 1.0);
    let found = super::builds(&results, &in_turns()).expect("two builds");
    assert!(
        found.warnings[0].contains("A and B are the same build"),
        "{:?}",
        found.warnings
    );
    assert!(super::builds(&set(vec![cell("bridge", 1, RATE, 1e3)]), &in_turns()).is_none());
}
