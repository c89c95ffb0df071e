//! Percentiles of latency of a cell, as far as its samples carry them.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;

use super::summary::{median, to_float};
use crate::results::{Cell, Latency};
use crate::stats::percentiles::BEYOND;

/// Percentiles of the tables.
pub(super) const TABLE: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];
/// One sample in so many is beyond the last percentile that is drawn, 99.999.
pub(super) const LAST_RARITY: f64 = 1e5;
/// And beyond the first, the median.
pub(super) const FIRST_RARITY: f64 = 2.0;
/// Points of a curve for each power of ten of rarity: closer together than a reader sees.
const POINTS_PER_DECADE: i32 = 24;

/// Latency of a cell.
pub(super) struct Percentiles {
    pub(super) count: u64,
    pub(super) min_ns: f64,
    pub(super) max_ns: f64,
    pub(super) mean_ns: f64,
    /// 0: the generator does not tell it. So it is of the three before, of those that tell percentiles only.
    pub(super) deviation_ns: f64,
    /// Pairs of rarity, which is 1/(1-p), and nanoseconds; rising.
    pub(super) curve: Vec<(f64, f64)>,
    /// Nanoseconds at the percentiles of [`TABLE`]; `None` where too few samples are beyond.
    pub(super) table: [Option<f64>; TABLE.len()],
    /// From histograms of all trials together. Otherwise the curve has the medians over trials of what the generator told of each.
    pub(super) merged: bool,
}

/// One sample in so many is beyond a percentile.
fn rarity(percentile: f64) -> f64 {
    100.0 / (100.0 - percentile)
}

/// Whether so many samples carry a percentile.
fn carried(count: u64, rarity: f64) -> bool {
    // What is left beyond 99.9 of 100 000 is 99.99… in floating point.
    to_float(count) / rarity >= to_float(BEYOND) * (1.0 - 1e-9)
}

/// Where a curve of so many samples has its points.
fn rarities(count: u64) -> Vec<f64> {
    let last = LAST_RARITY.min(to_float(count) / to_float(BEYOND));
    let step =
        |index: i32| FIRST_RARITY * 10_f64.powf(f64::from(index) / f64::from(POINTS_PER_DECADE));
    let mut points: Vec<f64> = (0..).map(step).take_while(|point| *point < last).collect();
    if last >= FIRST_RARITY {
        points.push(last);
    }
    points
}

/// Percentiles of a cell, from its histograms, or from what its trials tell where a trial has none. Files that cannot be read are named
/// among the warnings.
pub(super) fn percentiles(
    directory: &Path,
    cell: &Cell,
    warnings: &mut Vec<String>,
) -> Option<Percentiles> {
    let names: Option<Vec<&str>> = cell
        .counted()
        .map(|trial| trial.histogram.as_deref())
        .collect();
    match names
        .filter(|names| !names.is_empty())
        .map(|names| merge(directory, &names))
    {
        Some(Ok(histogram)) if !histogram.is_empty() => return Some(of_histogram(&histogram)),
        Some(Err(error)) => warnings.push(format!(
            "{} on {}: {error:#}. Its percentiles are what the load generator told.",
            cell.scenario, cell.road
        )),
        _ => {}
    }
    of_trials(
        &cell
            .counted()
            .filter_map(|trial| trial.latency.as_ref())
            .collect::<Vec<_>>(),
    )
}

/// A file beside the results, and nowhere else.
pub(super) fn beside(directory: &Path, name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    let inside = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    ensure!(
        inside,
        "{name:?} is not the name of a file beside the results"
    );
    Ok(directory.join(path))
}

fn merge(directory: &Path, names: &[&str]) -> Result<Histogram<u64>> {
    // A digit more than the load generators record, so that adding does not round again; the range grows as needed.
    let mut all = Histogram::<u64>::new(4)?;
    for name in names {
        let path = beside(directory, name)?;
        let bytes = fs::read(&path).with_context(|| format!("{name} cannot be read"))?;
        let one: Histogram<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| {
                anyhow!("{name} is no histogram of HdrHistogram's V2 form: {error}")
            })?;
        all.add(&one)
            .with_context(|| format!("{name} cannot be added to the others"))?;
    }
    Ok(all)
}

fn of_histogram(histogram: &Histogram<u64>) -> Percentiles {
    let count = histogram.len();
    let at = |rarity: f64| to_float(histogram.value_at_quantile(1.0 - rarity.recip()));
    Percentiles {
        count,
        min_ns: to_float(histogram.min()),
        max_ns: to_float(histogram.max()),
        mean_ns: histogram.mean(),
        deviation_ns: histogram.stdev(),
        curve: rarities(count)
            .into_iter()
            .map(|point| (point, at(point)))
            .collect(),
        table: TABLE.map(|percentile| {
            let point = rarity(percentile);
            carried(count, point).then(|| at(point))
        }),
        merged: true,
    }
}

fn of_trials(trials: &[&Latency]) -> Option<Percentiles> {
    let count = trials.iter().map(|latency| latency.count).sum::<u64>();
    if count == 0 {
        return None;
    }
    let weighted = |what: &dyn Fn(&Latency) -> f64| {
        let sum: f64 = trials.iter().map(|l| to_float(l.count) * what(l)).sum();
        sum / to_float(count)
    };
    let mean_ns = weighted(&|latency| latency.mean_ns);
    // Where one does not tell it, nobody knows it of all.
    let is_told = trials.iter().all(|latency| latency.deviation_ns > 0.0);
    let variance =
        weighted(&|latency| latency.deviation_ns.powi(2) + (latency.mean_ns - mean_ns).powi(2));
    // A percentile that only some of the trials tell is not drawn: it would be of other trials than its neighbours.
    let at = |percentile: f64| {
        let tells = |latency: &&Latency| {
            let found = latency
                .percentiles
                .iter()
                .find(|(p, _)| (p - percentile).abs() < 1e-9);
            found
                .filter(|_| carried(latency.count, rarity(percentile)))
                .map(|(_, ns)| to_float(*ns))
        };
        median(&mut trials.iter().map(tells).collect::<Option<Vec<f64>>>()?)
    };
    let told = trials
        .first()?
        .percentiles
        .iter()
        .map(|(percentile, _)| *percentile);
    let curve = told
        .filter(|percentile| (FIRST_RARITY..=LAST_RARITY * 1.000_1).contains(&rarity(*percentile)))
        .filter_map(|percentile| Some((rarity(percentile), at(percentile)?)));
    Some(Percentiles {
        count,
        min_ns: to_float(trials.iter().map(|latency| latency.min_ns).min()?),
        max_ns: to_float(trials.iter().map(|latency| latency.max_ns).max()?),
        mean_ns,
        deviation_ns: if is_told { variance.sqrt() } else { 0.0 },
        curve: curve.collect(),
        table: TABLE.map(at),
        merged: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_needs_a_hundred_samples_beyond_it() {
        assert!(carried(100_000, rarity(99.9)));
        assert!(!carried(99_999, rarity(99.9)));
        assert!(carried(10_000_000, rarity(99.999)));
        assert!(!carried(9_999_990, rarity(99.999)));
        assert!(!carried(0, rarity(50.0)));
    }

    #[test]
    fn a_curve_ends_where_its_samples_do() {
        assert!(rarities(199).is_empty());
        assert_eq!(rarities(200), [2.0]);
        assert_eq!(rarities(1_000_000).last(), Some(&1e4));
        assert_eq!(rarities(u64::MAX).last(), Some(&LAST_RARITY));
        assert!(rarities(u64::MAX).is_sorted());
    }

    #[test]
    fn a_curve_of_a_histogram_agrees_with_sorted_samples() {
        let mut histogram = Histogram::<u64>::new(4).unwrap();
        let mut samples: Vec<u64> = (0..100_000_u64).map(|i| 1000 + i * i % 1_000_003).collect();
        samples
            .iter()
            .for_each(|sample| histogram.record(*sample).unwrap());
        samples.sort_unstable();
        let found = of_histogram(&histogram);
        for (percentile, index) in [
            (0, 50_000),
            (1, 90_000),
            (2, 95_000),
            (3, 99_000),
            (4, 99_900),
        ] {
            let (found, true_one) = (
                found.table[percentile].unwrap(),
                to_float(samples[index - 1]),
            );
            assert!((found / true_one - 1.0).abs() < 1e-3, "{found} {true_one}");
        }
        assert_eq!(found.table[5], None);
        assert_eq!(found.curve.last().unwrap().0, 1000.0);
    }

    #[test]
    fn what_trials_tell_is_taken_by_the_median_and_only_as_far_as_all_tell_it() {
        let trial = |ns, count| Latency {
            count,
            min_ns: ns,
            max_ns: ns * 9,
            mean_ns: to_float(ns),
            deviation_ns: 0.0,
            percentiles: vec![(50.0, ns), (99.0, ns * 2), (99.9, ns * 3)],
        };
        let trials = [trial(10, 100_000), trial(30, 100_000), trial(20, 50_000)];
        let found = of_trials(&trials.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(
            (found.table[0], found.table[3], found.table[4]),
            (Some(20.0), Some(40.0), None)
        );
        assert_eq!(
            (found.count, found.min_ns, found.max_ns, found.mean_ns),
            (250_000, 10.0, 270.0, 20.0)
        );
        assert_eq!(found.curve.len(), 2);
        assert!(of_trials(&[]).is_none());
        // A deviation that is not told is not made of the means.
        assert_eq!(found.deviation_ns, 0.0);
        let told = trials.map(|trial| Latency {
            deviation_ns: 5.0,
            ..trial
        });
        let found = of_trials(&told.iter().collect::<Vec<_>>()).unwrap();
        assert!(found.deviation_ns > 5.0, "{}", found.deviation_ns);
    }

    #[test]
    fn only_files_beside_the_results_are_read() {
        assert!(beside(Path::new("d"), "a/b.hdr").is_ok());
        for name in ["../secret", "/etc/passwd", "a/../../b", "./a"] {
            assert!(beside(Path::new("d"), name).is_err(), "{name}");
        }
    }
}
