//! The error rates that `verdict` claims, tried on synthetic rounds. All of it is seeded: a test that passes once passes always.

use super::generator::Generator;
use super::synthetic::{Noise, rounds};
use super::verdict::{Judged, Question, Verdict, is_decided, judge};
use super::{Pair, Settings};

/// Fewer samples than a report draws, so that hundreds of reports take a second.
fn settings() -> Settings {
    Settings {
        resamples: 200,
        ..Settings::default()
    }
}

fn question(pairs: Vec<Pair>) -> Question {
    Question {
        pairs,
        more_is_better: true,
        quick: false,
    }
}

/// How many of so many reports, each of a single cell with `count` pairs, get a verdict.
fn verdicts(reports: usize, count: usize, ratio: f64, noise: Noise) -> impl Fn(Verdict) -> usize {
    let mut chance = Generator::new(2026);
    let mut one = || {
        let questions = [question(rounds(count, ratio, noise, &mut chance))];
        judge(&questions, &settings())[0].verdict
    };
    let found: Vec<Verdict> = (0..reports).map(|_| one()).collect();
    move |verdict| found.iter().filter(|other| **other == verdict).count()
}

/// Noise of the kinds that are met, each with a name.
fn kinds() -> [(&'static str, Noise); 6] {
    let noise = Noise::of_trials(0.03);
    [
        ("calm", Noise::of_trials(0.01)),
        ("log-normal", noise),
        ("wide", Noise::of_trials(0.15)),
        (
            "drifting",
            Noise {
                drift: 0.4,
                round: 0.2,
                ..noise
            },
        ),
        (
            "with outliers",
            Noise {
                outliers: 0.1,
                ..noise
            },
        ),
        (
            "bimodal",
            Noise {
                second_mode: 0.4,
                ..noise
            },
        ),
    ]
}

/// The rate claimed is 5 % at most for noise of any kind. Over all kinds it has to be kept as it is, for which 3600 reports are enough;
/// for a single kind by no more than three standard deviations above it, of a count of 300 reports. In longer trials, of 3000 reports
/// a kind, the worst kind had 4.1 %.
#[test]
fn equal_roads_are_called_different_in_five_of_a_hundred_reports_at_most() {
    let mut all = 0;
    for (name, noise) in kinds() {
        for count in [10, 13] {
            let found = verdicts(300, count, 1.0, noise);
            let wrong = found(Verdict::Faster) + found(Verdict::Slower);
            assert!(wrong <= 26, "{name}, {count} pairs: {wrong} of 300");
            all += wrong;
        }
    }
    assert!(all <= 180, "{all} of 3600");
}

#[test]
fn equal_roads_are_found_equal_in_ninety_five_of_a_hundred_reports_where_noise_allows() {
    let kinds = kinds();
    for (name, noise, count) in [
        ("calm", kinds[0].1, 10),
        ("log-normal", kinds[1].1, 16),
        ("drifting", kinds[3].1, 16),
    ] {
        let found = verdicts(100, count, 1.0, noise);
        let equal = found(Verdict::NoDifference);
        assert!(equal >= 95, "{name}, {count} pairs: {equal} of 100");
    }
}

/// Disturbed trials ask for more pairs, and never make the road faster that is slower.
#[test]
fn a_road_slowed_by_ten_per_cent_is_found_slower() {
    let kinds = kinds();
    for (name, noise, count, least) in [
        ("log-normal", kinds[1].1, 10, 95),
        ("drifting", kinds[3].1, 10, 95),
        ("with outliers", kinds[4].1, 10, 50),
        ("with outliers", kinds[4].1, 16, 75),
        ("bimodal", kinds[5].1, 16, 40),
    ] {
        let found = verdicts(100, count, 0.9, noise);
        let slower = found(Verdict::Slower);
        assert!(slower >= least, "{name}, {count} pairs: {slower} of 100");
        assert_eq!(found(Verdict::Faster), 0, "{name}");
    }
}

/// Above 16 pairs flips are drawn instead of counted.
#[test]
fn more_pairs_find_what_ten_leave_undecided() {
    let noise = kinds()[5].1;
    let slower = |count| verdicts(25, count, 0.9, noise)(Verdict::Slower);
    let (few, many) = (slower(10), slower(40));
    assert!(few < 15 && many >= 20, "{few}, {many} of 25");
}

#[test]
fn pairing_is_what_removes_the_drift() {
    let noise = kinds()[3].1;
    let mut chance = Generator::new(5);
    let rounds = rounds(16, 0.9, noise, &mut chance);
    let shuffled = (0..16).map(|round| {
        let other = &rounds[(round + 8) % 16];
        Pair::new(rounds[round].measured, other.baseline).expect("both are positive")
    });
    let judged = judge(
        &[question(rounds.clone()), question(shuffled.collect())],
        &settings(),
    );
    let width = |judged: &Judged| {
        let interval = judged.paired.as_ref().expect("there are pairs").interval;
        interval.high / interval.low - 1.0
    };
    assert_eq!(judged[0].verdict, Verdict::Slower);
    assert_eq!(judged[1].verdict, Verdict::Undecided);
    assert!(width(&judged[1]) > 4.0 * width(&judged[0]));
}

/// Two one-sided tests at 5 %: a cell exactly at the margin is the hardest one.
#[test]
fn a_difference_of_the_margin_is_called_none_in_few_cases() {
    for noise in [0.01, 0.02] {
        for ratio in [1.05, 1.0 / 1.05] {
            let found = verdicts(200, 12, ratio, Noise::of_trials(noise));
            let equal = found(Verdict::NoDifference);
            // Three standard deviations of a count of 200 above 5 %.
            assert!(equal <= 19, "{noise}, {ratio}: {equal} of 200");
        }
    }
}

#[test]
fn of_many_equal_cells_hardly_one_is_found_to_differ() {
    let mut chance = Generator::new(77);
    let noise = Noise::of_trials(0.1);
    let mut report = || {
        let cells: Vec<Question> = (0..40)
            .map(|_| question(rounds(14, 1.0, noise, &mut chance)))
            .collect();
        let judged = judge(&cells, &settings());
        judged.iter().any(|cell| {
            let verdict = cell.verdict;
            verdict == Verdict::Faster || verdict == Verdict::Slower
        })
    };
    let wrong = (0..20).filter(|_| report()).count();
    assert!(wrong <= 2, "{wrong} of 20 reports");
}

#[test]
fn of_the_differences_that_a_report_claims_few_are_false() {
    let mut chance = Generator::new(78);
    let noise = Noise::of_trials(0.08);
    let (mut claimed, mut wrong, mut missed) = (0, 0, 0);
    for _ in 0..20 {
        // A third of the cells are slowed by a fifth.
        let ratio = |cell| if cell % 3 == 0 { 0.8 } else { 1.0 };
        let cells: Vec<Question> = (0..30)
            .map(|cell| question(rounds(12, ratio(cell), noise, &mut chance)))
            .collect();
        for (cell, judged) in judge(&cells, &settings()).iter().enumerate() {
            let differs = matches!(judged.verdict, Verdict::Faster | Verdict::Slower);
            claimed += usize::from(differs);
            wrong += usize::from(differs && cell % 3 != 0);
            missed += usize::from(!differs && cell % 3 == 0);
        }
    }
    assert!(
        claimed > 150 && wrong * 20 <= claimed && missed < 20,
        "{claimed}, {wrong}, {missed}"
    );
}

/// Of so many reports of cells alike, to which pairs are added until they are decided, `most` at most: the share of cells called different,
/// the share called equal, and the pairs that a cell took.
fn adaptive((reports, cells, most): (usize, usize, usize), ratio: f64, noise: Noise) -> [f64; 3] {
    let mut chance = Generator::new(31);
    let (mut different, mut equal, mut pairs) = (0, 0, 0);
    for _ in 0..reports {
        let all: Vec<Vec<Pair>> = (0..cells)
            .map(|_| rounds(most, ratio, noise, &mut chance))
            .collect();
        let mut counts = vec![10; cells];
        let judged = loop {
            let questions = all.iter().zip(&counts);
            let questions = questions.map(|(pairs, count)| question(pairs[..*count].to_vec()));
            let judged = judge(&questions.collect::<Vec<_>>(), &settings());
            let mut goes_on = false;
            for (judged, count) in judged.iter().zip(&mut counts) {
                let found = judged.paired.as_ref().expect("there are pairs");
                let p = judged.adjusted_p.expect("there are ten");
                if *count < most && !is_decided(found, p) {
                    *count += 1;
                    goes_on = true;
                }
            }
            if !goes_on {
                break judged;
            }
        };
        let is_different =
            |judged: &&Judged| matches!(judged.verdict, Verdict::Faster | Verdict::Slower);
        let is_equal = |judged: &&Judged| judged.verdict == Verdict::NoDifference;
        different += judged.iter().filter(is_different).count();
        equal += judged.iter().filter(is_equal).count();
        pairs += counts.iter().sum::<usize>();
    }
    [different, equal, pairs].map(|count| count as f64 / (reports * cells) as f64)
}

/// A cell alone has the highest rate of false verdicts: in reports of several, the adjustment keeps p values from the early bound. In
/// longer trials, of 1000 runs a kind with 30 pairs at most, 4.5 % were called different for the worst kind.
#[test]
fn adding_pairs_until_cells_are_decided_keeps_the_error_rates() {
    let kinds = kinds();
    let [different, equal, _] = adaptive((100, 1, 14), 1.0, kinds[1].1);
    assert!(different <= 0.05 && equal >= 0.9, "{different}, {equal}");
    for (name, noise) in [kinds[2], kinds[3], kinds[5]] {
        let [different, ..] = adaptive((100, 1, 14), 1.0, noise);
        // Three standard deviations of a count of 100 above 5 %, here and below.
        assert!(different <= 0.115, "{name}: {different}");
    }
    let [_, equal, _] = adaptive((100, 1, 14), 1.05, kinds[1].1);
    assert!(equal <= 0.115, "{equal}");
    let [different, ..] = adaptive((10, 12, 14), 1.0, kinds[2].1);
    assert!(different <= 0.05, "{different}");
}

/// Cells at the margin, with as much noise as makes ten pairs just enough, or half as many as are needed: where stopping at the first
/// narrow interval called 5.0 %, 6.4 % and 6.8 % equal.
#[test]
#[ignore = "12 000 runs with up to 30 pairs each take minutes"]
fn a_difference_of_the_margin_is_called_none_as_seldom_when_pairs_are_added() {
    let equal = [0.03, 0.04, 0.05].map(|noise| {
        let [_, equal, _] = adaptive((4000, 1, 30), 1.05, Noise::of_trials(noise));
        // Three standard deviations of a count of 4000 above 5 %.
        assert!(equal <= 0.0603, "{noise}: {equal}");
        equal
    });
    // The same of 12 000.
    let mean = equal.iter().sum::<f64>() / 3.0;
    assert!(mean <= 0.056, "{equal:?}");
}

#[test]
fn pairs_are_added_only_where_they_are_needed() {
    let kinds = kinds();
    let pairs = |ratio, noise| adaptive((20, 1, 14), ratio, noise)[2];
    assert!(pairs(1.0, kinds[0].1) < 10.5, "precise at once");
    assert!(pairs(3.0, kinds[2].1) < 10.5, "wide, and past doubt");
    assert!(pairs(1.0, kinds[2].1) > 13.0, "wide, and equal");
}
