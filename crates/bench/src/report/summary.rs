//! What a report says of a cell: one figure and one split of processor time, of all trials that count.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::figures;
use crate::results::{Cell, Clocks, Outcome, Results, Unit};
use crate::stats;

/// All cells of a scenario.
pub(super) struct Scenario<'a> {
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    /// Parameters that are the same everywhere, as `64 B`; may be empty.
    pub(super) fixed: String,
    pub(super) sets: Vec<Set<'a>>,
}

/// The cells of a scenario that differ in nothing but the road.
pub(super) struct Set<'a> {
    pub(super) parameters: &'a BTreeMap<String, u64>,
    /// Those of them that vary within the scenario, as `8 clients`; empty where none does.
    pub(super) label: String,
    pub(super) unit: Unit,
    /// What the figure is in words, and which way is better.
    pub(super) counts: String,
    /// One for each of the roads, in their order; `None`: this road was not measured.
    pub(super) cells: Vec<Option<&'a Cell>>,
}

impl<'a> Set<'a> {
    /// The cells that there are, with the index of their road.
    pub(super) fn on_roads(&self) -> impl Iterator<Item = (usize, &'a Cell)> {
        let cells = self.cells.iter().enumerate();
        cells.filter_map(|(road, cell)| cell.map(|cell| (road, cell)))
    }
}

/// Below this, a length that is no whole number of KiB is told to the byte, as that of a frame.
const WHOLE_KIB_FROM: u64 = 10_000;

/// A parameter as people say it: `8 clients`, `1 client`, `4 KiB`, `1 518 B`.
pub(super) fn parameter(name: &str, value: u64) -> String {
    if name == "bytes" || name == "size" {
        if value < WHOLE_KIB_FROM && !value.is_multiple_of(1024) {
            return format!("{}\u{a0}B", thousands(value));
        }
        return figures::show(Unit::Bytes, to_float(value)).replace(' ', "\u{a0}");
    }
    let name = match name.strip_suffix('s') {
        Some(one) if value == 1 => one,
        _ => name,
    };
    format!("{}\u{a0}{name}", thousands(value))
}

/// The cells in groups, in the order in which they are first met.
pub(super) fn scenarios(results: &Results) -> Result<Vec<Scenario<'_>>> {
    let mut scenarios: Vec<Scenario<'_>> = Vec::new();
    for cell in &results.cells {
        let road = results.roads.iter().position(|road| road.name == cell.road);
        let road = road.with_context(|| {
            format!(
                "the results have a cell of {} on the road {:?}, which is not among their roads",
                cell.scenario, cell.road
            )
        })?;
        let place = scenarios.iter().position(|s| s.name == cell.scenario);
        let place = place.unwrap_or_else(|| {
            scenarios.push(Scenario {
                name: &cell.scenario,
                title: &cell.title,
                fixed: String::new(),
                sets: Vec::new(),
            });
            scenarios.len() - 1
        });
        let sets = &mut scenarios[place].sets;
        let place = sets
            .iter()
            .position(|set| set.parameters == &cell.parameters);
        let place = place.unwrap_or_else(|| {
            sets.push(Set {
                parameters: &cell.parameters,
                label: String::new(),
                unit: cell.unit,
                counts: counts(cell),
                cells: vec![None; results.roads.len()],
            });
            sets.len() - 1
        });
        let former = sets[place].cells[road].replace(cell);
        ensure!(
            former.is_none(),
            "the results have two cells of {} with {:?} on the road {:?}",
            cell.scenario,
            cell.parameters,
            cell.road
        );
    }
    scenarios.iter_mut().for_each(label);
    Ok(scenarios)
}

/// What the figure of a cell is, and which way is better.
fn counts(cell: &Cell) -> String {
    let of_unit = match cell.unit {
        Unit::OperationsPerSecond => "operations per second",
        Unit::BitsPerSecond => "bits per second",
        Unit::Nanoseconds => "time",
        Unit::ProcessorShare => "share of one processor",
        Unit::Bytes => "memory",
    };
    let figure = Some(cell.figure.as_str()).filter(|figure| !figure.is_empty());
    let better = if cell.unit.more_is_better() {
        "more"
    } else {
        "less"
    };
    format!("{}; {better} is better", figure.unwrap_or(of_unit))
}

/// Tells the parameters that are the same in all sets once, and the others of each set.
fn label(scenario: &mut Scenario<'_>) {
    let Some(first) = scenario.sets.first() else {
        return;
    };
    let mut fixed = first.parameters.clone();
    fixed.retain(|name, value| {
        scenario
            .sets
            .iter()
            .all(|set| set.parameters.get(name) == Some(value))
    });
    for set in &mut scenario.sets {
        let varied = set
            .parameters
            .iter()
            .filter(|(name, _)| !fixed.contains_key(*name));
        set.label = join(varied);
    }
    scenario.fixed = join(fixed.iter());
}

/// As `64 B, 8 clients`.
pub(super) fn join<'a>(parameters: impl Iterator<Item = (&'a String, &'a u64)>) -> String {
    let parts = parameters.map(|(name, value)| parameter(name, *value));
    parts.collect::<Vec<_>>().join(", ")
}

/// The figure of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// The median of the trials that count, between the smallest and the largest of them.
pub(super) fn figure(cell: &Cell) -> Option<Figure> {
    middle(cell.counted().map(|trial| trial.value))
}

/// The median of what trials tell, between the smallest and the largest.
pub(super) fn middle(values: impl Iterator<Item = f64>) -> Option<Figure> {
    let mut values: Vec<f64> = values.collect();
    values.retain(|value| value.is_finite());
    let median = median(&mut values)?;
    Some(Figure {
        median,
        min: *values.first()?,
        max: *values.last()?,
    })
}

/// Sorts the values.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 {
        upper
    } else {
        f64::midpoint(values[middle - 1], upper)
    })
}

/// What processor time is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Per {
    /// Nanoseconds for each operation.
    Operation,
    /// The share of one processor: nothing was counted that it could be divided by.
    Second,
}

impl Per {
    /// The unit of the parts.
    pub(super) fn unit(self) -> Unit {
        match self {
            Per::Operation => Unit::Nanoseconds,
            Per::Second => Unit::ProcessorShare,
        }
    }
}

/// Names of the parts of processor time, in their order.
pub(super) const PARTS: [&str; 6] = [
    "server user",
    "server kernel",
    "client user",
    "client kernel",
    "softirq",
    "steal",
];
/// The first of them are the programs' own.
pub(super) const OWN_PARTS: usize = 4;

/// Processor time of all trials that count, divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Split {
    pub(super) per: Per,
    pub(super) parts: [f64; 6],
}

impl Split {
    /// What server and client took.
    pub(super) fn own(&self) -> f64 {
        self.parts.iter().take(OWN_PARTS).sum()
    }

    /// As `12.3 µs`.
    pub(super) fn show(&self, value: f64) -> String {
        show(self.per.unit(), value)
    }
}

/// Sums over trials are divided, and not each trial's: so the parts add up.
pub(super) fn split(cell: &Cell) -> Option<Split> {
    let mut parts = [0.0; 6];
    let (mut operations, mut seconds) = (0.0, 0.0);
    for trial in cell.counted() {
        let took = &trial.processor;
        let of_trial = [
            took.server_user_s,
            took.server_system_s,
            took.client_user_s,
            took.client_system_s,
            took.softirq_s,
            took.steal_s,
        ];
        parts
            .iter_mut()
            .zip(of_trial)
            .for_each(|(sum, part)| *sum += part);
        operations += trial.operations;
        seconds += trial.seconds;
    }
    let (per, scale) = if operations > 0.0 {
        (Per::Operation, 1e9 / operations)
    } else {
        (Per::Second, seconds.recip())
    };
    scale.is_finite().then(|| Split {
        per,
        parts: parts.map(|part| part * scale),
    })
}

/// The median share of bytes by shared memory, as `ring 99.8 %`.
pub(super) fn show_ring_share(cell: &Cell) -> Option<String> {
    ring_share(cell).map(|share| format!("ring\u{a0}{}", show(Unit::ProcessorShare, share)))
}

/// The median share of bytes by shared memory.
pub(super) fn ring_share(cell: &Cell) -> Option<f64> {
    median(
        &mut cell
            .counted()
            .filter_map(|trial| trial.ring_share)
            .collect::<Vec<_>>(),
    )
}

/// What a reader has to know of a cell: how many of its trials count, and what was noted about these.
pub(super) fn remarks(cell: &Cell) -> Vec<String> {
    let of_kind =
        |kind: fn(&Outcome) -> bool| cell.trials.iter().filter(|t| kind(&t.outcome)).count();
    let failed = of_kind(|outcome| matches!(outcome, Outcome::Failed(_)));
    let void = of_kind(|outcome| matches!(outcome, Outcome::Void(_)));
    let counted = cell.counted().count();
    let mut remarks = Vec::new();
    if failed + void > 0 {
        let counted = match counted {
            0 => "no trial counts".to_owned(),
            1 => "one trial counts".to_owned(),
            _ => format!("{counted} trials count"),
        };
        let others = [(void, "void"), (failed, "failed")]
            .into_iter()
            .filter(|(count, _)| *count > 0);
        let others: Vec<String> = others
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        remarks.push(format!("{counted}; {}", others.join(", ")));
    }
    let values: Vec<f64> = cell.counted().map(|trial| trial.value).collect();
    if stats::is_bimodal(&values) {
        remarks.push(stats::BIMODAL.to_owned());
    }
    remarks.extend(clocks(cell));
    remarks.extend(noted(
        cell.counted().flat_map(|trial| &trial.notes),
        counted,
    ));
    remarks
}

/// Notes of so many trials, each kind once. Those that differ by their figures only are of one kind, and the one with the greatest is told.
fn noted<'a>(notes: impl Iterator<Item = &'a String>, trials: usize) -> Vec<String> {
    let mut kinds: Vec<(String, &str, usize)> = Vec::new();
    for note in notes {
        let kind = note.replace(|letter: char| letter.is_ascii_digit() || letter == '.', "");
        match kinds.iter_mut().find(|(known, ..)| *known == kind) {
            Some((_, told, times)) => {
                if first_number(note) > first_number(told) {
                    *told = note;
                }
                *times += 1;
            }
            None => kinds.push((kind, note, 1)),
        }
    }
    let tell = |(_, note, times): (String, &str, usize)| match times {
        _ if times == trials => note.to_owned(),
        1 => format!("{note} (in one trial of {trials})"),
        _ => format!("{note} (in {times} trials of {trials})"),
    };
    kinds.into_iter().map(tell).collect()
}

fn first_number(text: &str) -> f64 {
    let begin = text.find(|letter: char| letter.is_ascii_digit());
    let text = begin.map_or("", |begin| &text[begin..]);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    text[..end.unwrap_or(text.len())].parse().unwrap_or(0.0)
}

/// Whose times a cell's are, where they were taken at both ends: of one clock, or of two, with what their estimate leaves in doubt.
fn clocks(cell: &Cell) -> Option<String> {
    let all: Vec<Clocks> = cell.counted().filter_map(|trial| trial.clocks).collect();
    all.first()?;
    let before = all.iter().filter_map(|clocks| clocks.before);
    let mut offsets: Vec<f64> = before.map(|before| before.offset_ns as f64 / 1e9).collect();
    let Some(offset) = median(&mut offsets) else {
        return Some("one clock for both ends".to_owned());
    };
    let two = all.iter().filter(|clocks| !clocks.one_clock);
    let drift = median(&mut two.map(|clocks| clocks.drift_ppm).collect::<Vec<_>>())?;
    let error_ns = all.iter().map(Clocks::error_ns).max()?;
    Some(format!(
        "two clocks, the server's {:.6} s {}, which is allowed for: times are in error by up to {}; drift {drift:+.1} ppm",
        offset.abs(),
        if offset < 0.0 { "behind" } else { "ahead" },
        show(Unit::Nanoseconds, to_float(error_ns)),
    ))
}

/// A figure with its unit, which stay on one line.
pub(super) fn show(unit: Unit, value: f64) -> String {
    figures::show(unit, value).replace(' ', "\u{a0}")
}

/// `455–489 k/s`; the unit is told once where both have the same.
pub(super) fn show_range(unit: Unit, low: f64, high: f64) -> String {
    let (low, high) = (show(unit, low), show(unit, high));
    let suffix = |text: &str| text.split_once('\u{a0}').map(|(_, unit)| unit.to_owned());
    match low.split_once('\u{a0}') {
        Some((number, _)) if suffix(&low) == suffix(&high) => format!("{number}–{high}"),
        _ => format!("{low}\u{a0}–\u{a0}{high}"),
    }
}

/// Counts and sizes in files are far below what a float holds exactly, 2^53.
pub(super) fn to_float(count: u64) -> f64 {
    count as f64
}

/// Thin blanks between groups of three digits.
pub(super) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Estimate, Trial};

    #[test]
    fn a_cell_of_two_clocks_tells_the_greatest_error_and_one_of_one_clock_says_so() {
        let at = |offset_ns, error_ns| Estimate {
            at_ns: 0,
            offset_ns,
            error_ns,
            probes: 64,
        };
        let of = |offsets: &[(i64, u64)]| {
            let trial = |round, &(offset_ns, error_ns): &(i64, u64)| Trial {
                clocks: Some(Clocks {
                    one_clock: offset_ns == 0,
                    before: (offset_ns != 0).then(|| at(offset_ns, error_ns)),
                    after: (offset_ns != 0).then(|| at(offset_ns, 1_000)),
                    drift_ppm: 0.0,
                    drift_error_ppm: 0.0,
                }),
                ..Trial::begun(round)
            };
            let trials = (1..)
                .zip(offsets)
                .map(|(round, offset)| trial(round, offset));
            remarks(&Cell {
                scenario: "one-way/blocking".to_owned(),
                title: String::new(),
                road: "veth".to_owned(),
                parameters: BTreeMap::new(),
                unit: Unit::Nanoseconds,
                figure: String::new(),
                trials: trials.collect(),
            })
        };
        assert_eq!(of(&[(0, 0), (0, 0)]), ["one clock for both ends"]);
        assert_eq!(
            of(&[(-2_000_000_000, 3_000), (-2_000_000_000, 25_000)]),
            [
                "two clocks, the server's 2.000000 s behind, which is allowed for: times are in error by up to 25.0\u{a0}µs; drift +0.0 ppm"
            ]
        );
    }

    #[test]
    fn notes_that_differ_by_their_figures_are_one() {
        let notes = [
            "1.5 ms late",
            "9.867 ms late",
            "alone",
            "4.9 ms late",
            "31 µs late",
        ];
        let notes = notes.map(str::to_owned);
        assert_eq!(
            noted(notes.iter(), 5),
            [
                "9.867 ms late (in 3 trials of 5)",
                "alone (in one trial of 5)",
                "31 µs late (in one trial of 5)"
            ]
        );
        assert_eq!(noted(notes[..2].iter(), 2), ["9.867 ms late"]);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn parameters_and_ranges_are_written_as_people_say_them() {
        assert_eq!(parameter("clients", 1), "1\u{a0}client");
        assert_eq!(
            parameter("connections", 10_000),
            "10\u{202f}000\u{a0}connections"
        );
        assert_eq!(parameter("bytes", 4096), "4\u{a0}KiB");
        assert_eq!(parameter("bytes", 64), "64\u{a0}B");
        assert_eq!(parameter("bytes", 1518), "1\u{202f}518\u{a0}B");
        assert_eq!(parameter("bytes", 65_000), "63.5\u{a0}KiB");
        assert_eq!(
            show_range(Unit::Nanoseconds, 1200.0, 1300.0),
            "1.20–1.30\u{a0}µs"
        );
        assert_eq!(
            show_range(Unit::Nanoseconds, 962.0, 1010.0),
            "962\u{a0}ns\u{a0}–\u{a0}1.01\u{a0}µs"
        );
    }
}
