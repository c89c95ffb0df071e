//! What a reader has to know of all trials of a run together, told at its end.

use crate::processors;
use crate::results::{Cell, Outcome, Results, Trial};
use crate::stats;

/// Below that, steal is what the account may be wrong by in a trial of a second.
const STEAL_TOLD: f64 = 0.02;
/// Above that share of trials that were disturbed, the machine had something else to do.
const DISTURBED_TOLD: f64 = 0.05;
/// Where a cache line took so many times as long as in the fast trials, its processors were elsewhere. Figures of that kind differ as much.
const FAR: f64 = 2.0;
/// And more than this share of trials makes a speed of its own; fewer are chance.
const FAR_TOLD: f64 = 0.05;
/// What the notes of a trial begin with that counts although it was disturbed.
pub(crate) const COUNTS_ALTHOUGH: &str = "counts although it was disturbed";
/// And why one is void that was not disturbed itself.
pub(crate) const ANOTHER_ROAD: &str = "another road of the same round";
/// What these warnings begin with: they are made anew when a run goes on.
const BEGINNINGS: [&str; 5] = [
    INTERRUPTED,
    "the hypervisor took processors away",
    "trials were disturbed",
    "trials fall into two groups",
    "the processors of server and client",
];
const INTERRUPTED: &str = "the run was interrupted";

/// Whether a warning is one of those.
pub(crate) fn is_of_the_end(line: &str) -> bool {
    let mut all = BEGINNINGS.into_iter().chain(processors::WARNINGS);
    all.any(|beginning| line.starts_with(beginning))
}

/// All of them.
pub(crate) fn warnings(results: &Results, is_interrupted: bool) -> Vec<String> {
    let cells = &results.cells;
    let trials = cells.iter().flat_map(|cell| &cell.trials);
    let mut found = processors::warnings(trials);
    found.extend(steal(cells));
    found.extend(disturbed(cells));
    found.extend(two_groups(cells));
    found.extend(two_speeds(cells));
    if is_interrupted {
        found.push(format!(
            "{INTERRUPTED}: the same command goes on where it stopped"
        ));
    }
    found
}

/// The trial that counts from which the hypervisor took most.
fn steal(cells: &[Cell]) -> Option<String> {
    let of = |trial: &Trial| {
        let took = &trial.processor;
        took.steal_s / (took.steal_s + took.busy_s).max(f64::MIN_POSITIVE)
    };
    let trials = || {
        let of_cell = |cell| Cell::counted(cell).map(move |trial| (of(trial), cell));
        cells.iter().flat_map(of_cell)
    };
    let (worst, cell) = trials().max_by(|one, other| one.0.total_cmp(&other.0))?;
    let many = trials().filter(|(share, _)| *share > STEAL_TOLD).count();
    let [_, what, ..] = BEGINNINGS;
    (many > 0).then(|| {
        format!(
            "{what} in trials that count: more than {:.0} % of the time in {many} of {}, {:.1} % at worst, in {} on {}. Such trials look \
             slower, and their tails longer",
            100.0 * STEAL_TOLD,
            trials().count(),
            100.0 * worst,
            cell.scenario,
            cell.road
        )
    })
}

/// How many trials were disturbed, and what became of them.
fn disturbed(cells: &[Cell]) -> Option<String> {
    let trials = || cells.iter().flat_map(|cell| &cell.trials);
    let is_void = |trial: &&Trial| match &trial.outcome {
        Outcome::Void(why) => !why.starts_with(ANOTHER_ROAD),
        _ => false,
    };
    let counts_although = |trial: &&Trial| {
        let mut notes = trial.notes.iter();
        trial.outcome == Outcome::Counts && notes.any(|note| note.starts_with(COUNTS_ALTHOUGH))
    };
    let (void, counted) = (
        trials().filter(is_void).count(),
        trials().filter(counts_although).count(),
    );
    let all = trials().count();
    let share = (void + counted) as f64 / all.max(1) as f64;
    let others =
        trials().map(|trial| trial.processor.others_s / trial.seconds.max(f64::MIN_POSITIVE));
    let others = others.fold(0.0, f64::max);
    let by_whom = if others > 0.1 {
        format!("; other programs had up to {others:.1} of the processors of server and client")
    } else {
        String::new()
    };
    let [_, _, what, ..] = BEGINNINGS;
    (share > DISTURBED_TOLD).then(|| {
        format!(
            "{what}: {} of {all} ({:.0} %), of which {counted} count all the same{by_whom}. Measure again when the machine has nothing \
             else to do",
            void + counted,
            100.0 * share
        )
    })
}

/// Cells whose median stands for neither of two groups.
fn two_groups(cells: &[Cell]) -> Option<String> {
    let is_one = |cell: &&Cell| {
        let values: Vec<f64> = cell.counted().map(|trial| trial.value).collect();
        stats::is_bimodal(&values)
    };
    let count = cells.iter().filter(is_one).count();
    let [_, _, _, what, _] = BEGINNINGS;
    (count > 0).then(|| {
        format!(
            "{what} in {count} of {} cells, whose medians stand for neither (their notes say so): the machine, or a road, has two speeds",
            cells.len()
        )
    })
}

/// How far the processors were apart, where they were moved meanwhile.
fn two_speeds(cells: &[Cell]) -> Option<String> {
    let trials = cells.iter().flat_map(Cell::counted);
    let told = trials.filter_map(|trial| trial.processor.line_ns);
    let mut told: Vec<f64> = told.collect();
    told.sort_by(f64::total_cmp);
    // The fast ones are those at the twentieth part from below: a single one may be chance.
    let fast = *told.get(told.len() / 20)?;
    let far = told.iter().filter(|ns| **ns > FAR * fast).count();
    let [.., what] = BEGINNINGS;
    (far as f64 > FAR_TOLD * told.len() as f64).then(|| {
        format!(
            "{what} were not always equally near: a cache line between them took {:.0} ns there and back at best, {:.0} ns at worst, and \
             more than {FAR:.0} times the best in {far} of {} trials. The hypervisor moves them; medians are of the more frequent place",
            told[0],
            told[told.len() - 1],
            told.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Processor, Unit};

    fn cell(trials: Vec<Trial>) -> Cell {
        Cell {
            scenario: "redis/mix".to_owned(),
            title: String::new(),
            road: "bridge".to_owned(),
            parameters: Default::default(),
            unit: Unit::OperationsPerSecond,
            figure: String::new(),
            trials,
        }
    }

    fn trial(value: f64, steal_s: f64) -> Trial {
        Trial {
            value,
            seconds: 1.0,
            processor: Processor {
                steal_s,
                busy_s: 2.0 - steal_s,
                ..Processor::default()
            },
            ..Trial::begun(1)
        }
    }

    #[test]
    fn calm_trials_are_no_warning() {
        let calm = cell((0..12).map(|_| trial(5.0, 0.02)).collect());
        let cells = [calm];
        assert_eq!(
            (steal(&cells), disturbed(&cells), two_groups(&cells)),
            (None, None, None)
        );
        assert_eq!(
            (steal(&[]), disturbed(&[]), two_groups(&[])),
            (None, None, None)
        );
    }

    #[test]
    fn the_worst_steal_is_told_of_trials_that_count() {
        let void = Trial {
            outcome: Outcome::Void("the hypervisor took 30 % of the processors' time".to_owned()),
            ..trial(5.0, 0.6)
        };
        let told = steal(&[cell(vec![trial(5.0, 0.0), trial(5.0, 0.08), void])]).unwrap();
        let begin = "the hypervisor took processors away in trials that count: more than 2 % of the time in 1 of 2, 4.0 % at worst, in \
                     redis/mix on bridge.";
        assert!(told.starts_with(begin) && is_of_the_end(&told), "{told}");
    }

    #[test]
    fn the_share_of_disturbed_trials_is_told() {
        let mut void = trial(5.0, 0.0);
        void.outcome = Outcome::Void("other programs had 40 % of the processors".to_owned());
        void.processor.others_s = 0.8;
        let mut beside = trial(5.0, 0.0);
        beside.outcome = Outcome::Void(format!("{ANOTHER_ROAD}: other programs had 40 %"));
        let mut counted = trial(5.0, 0.0);
        counted.notes.push(format!("{COUNTS_ALTHOUGH}, as others"));
        let told = disturbed(&[cell(vec![void, beside, counted, trial(5.0, 0.0)])]).unwrap();
        let wanted = "2 of 4 (50 %), of which 1 count all the same; other programs had up to 0.8 of the processors";
        assert!(told.contains(wanted), "{told}");
        assert!(is_of_the_end(&told));
    }

    #[test]
    fn processors_that_were_moved_are_told() {
        let of = |lines: &[f64]| {
            let mut trials: Vec<Trial> = lines.iter().map(|_| trial(5.0, 0.0)).collect();
            for (trial, ns) in trials.iter_mut().zip(lines) {
                trial.processor.line_ns = Some(*ns);
            }
            two_speeds(&[cell(trials), cell(vec![trial(5.0, 0.0)])])
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[90.0; 12]), None);
        let mut single = [90.0; 40];
        single[7] = 600.0;
        assert_eq!(of(&single), None, "one of forty is chance");
        let told = of(&[95.0, 100.0, 96.0, 610.0, 99.0, 600.0]).unwrap();
        assert!(
            told.contains("took 95 ns there and back at best, 610 ns at worst"),
            "{told}"
        );
        assert!(
            told.contains("in 2 of 6 trials") && is_of_the_end(&told),
            "{told}"
        );
    }

    #[test]
    fn cells_of_two_groups_are_counted() {
        let of = |second: f64| {
            let value =
                |at: usize| if at.is_multiple_of(2) { 100.0 } else { second } + at as f64 * 0.1;
            cell((0..12).map(|at| trial(value(at), 0.0)).collect())
        };
        let told = two_groups(&[of(100.0), of(200.0), of(50.0)]).unwrap();
        assert!(
            told.starts_with("trials fall into two groups in 2 of 3 cells"),
            "{told}"
        );
        assert!(is_of_the_end(&told) && !is_of_the_end("the machine was busy before the run"));
    }
}
