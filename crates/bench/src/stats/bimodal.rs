//! Whether trials fall into two groups, so that their middle stands for neither.
//!
//! A road whose trials run either in one way or in another (a processor's other core, a buffer that was aligned by chance, a connection
//! that shared memory did not take up) has a median that says which group is larger, and no more. A report warns of it.

use super::sample;

/// A group smaller than this share of the trials is a few outliers.
const LEAST_SHARE: f64 = 0.2;
/// And so is one with fewer trials than these.
const LEAST_GROUP: usize = 3;
/// Fewer trials look as if in two groups too often by chance.
const LEAST_TRIALS: usize = 10;
/// Groups closer than this share are one for all who read the figures.
const LEAST_GAP: f64 = 0.05;

/// What a reader is told then.
pub const BIMODAL: &str = "the trials fall into two groups, and the median stands for neither";

/// Whether positive figures fall into two groups. False for fewer than 10 figures, or when one of them has no logarithm.
///
/// The logarithms are split in two so that the squares around the groups' means are least (two-means, of which the best split of sorted
/// values is found by trying all), each group with a fifth of the figures at least, and three. The distance of the means over the deviation
/// within the groups is the D of K. M. Ashman, C. M. Bird and S. E. Zepf (*Detecting bimodality in astronomical datasets*, The
/// Astronomical Journal 108, 1994), here with one deviation for both groups. They ask for more than 2, of groups that are known; the best
/// split of a single normal group has a D around 2.7, that of an even spread 3.5, and small samples have more by chance. So `4 + 30 / n` is
/// asked for, 7 for 10 figures and 5 for 30: one even spread in a hundred has that, and fewer normal groups. Two groups 20 % apart with
/// noise of 2 % are found in four of five cases from 10 figures, and nearly always from 20.
#[must_use]
pub fn is_bimodal(figures: &[f64]) -> bool {
    let count = figures.len();
    let has_logarithm = |value: &f64| value.is_finite() && *value > 0.0;
    if count < LEAST_TRIALS || !figures.iter().all(has_logarithm) {
        return false;
    }
    let logarithms: Vec<f64> = figures.iter().map(|figure| figure.ln()).collect();
    let split = best_split(&sample::sorted(&logarithms));
    let asked_for = 4.0 + 30.0 / count as f64;
    split.gap > LEAST_GAP.ln_1p() && split.gap > asked_for * split.deviation
}

/// Two groups of a sample.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// Between their means.
    gap: f64,
    /// Within the groups.
    deviation: f64,
}

/// The split of sorted values into two groups that are not too small, with the least squares within them.
fn best_split(sorted: &[f64]) -> Split {
    let share = (sorted.len() as f64 * LEAST_SHARE).ceil() as usize;
    let least = share.max(LEAST_GROUP);
    let splits = (least..=sorted.len() - least).map(|place| {
        let (low, high) = sorted.split_at(place);
        let (low_mean, low_squares) = mean_and_squares(low);
        let (high_mean, high_squares) = mean_and_squares(high);
        Split {
            gap: high_mean - low_mean,
            deviation: ((low_squares + high_squares) / (sorted.len() - 2) as f64).sqrt(),
        }
    });
    let best = splits.min_by(|one, other| one.deviation.total_cmp(&other.deviation));
    best.expect("ten figures and more have room for two groups")
}

/// The mean, and the sum of squares around it.
fn mean_and_squares(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, squares)
}

#[cfg(test)]
mod tests {
    use super::super::generator::Generator;
    use super::super::synthetic::{Noise, normal};
    use super::*;

    /// Of a thousand samples, how many are said to be bimodal. The seed and the place within the sample are what a figure is made of.
    fn alarms(count: usize, figure: impl Fn(&mut Generator, f64) -> f64) -> usize {
        let mut chance = Generator::new(3);
        let mut sample = || {
            let place = |at: usize| at as f64 / count as f64;
            let figures: Vec<f64> = (0..count)
                .map(|at| figure(&mut chance, place(at)))
                .collect();
            is_bimodal(&figures)
        };
        (0..1000).filter(|_| sample()).count()
    }

    #[test]
    fn single_groups_of_many_shapes_alarm_in_two_of_a_hundred_at_most() {
        type Figure = fn(&mut Generator, f64) -> f64;
        let shapes: [(&str, Figure); 6] = [
            ("normal", |chance, _| (0.03 * normal(chance)).exp()),
            ("wide", |chance, _| (0.3 * normal(chance)).exp()),
            ("even", |chance, _| 1.0 + 0.3 * chance.share()),
            ("skewed", |chance, _| (1.0 - chance.share()).powf(-0.1)),
            ("drifting", |chance, place| {
                (1.0 - 0.3 * place) * (0.02 * normal(chance)).exp()
            }),
            ("with outliers", |chance, _| {
                let noise = Noise {
                    outliers: 0.05,
                    ..Noise::of_trials(0.03)
                };
                noise.factor(chance)
            }),
        ];
        for count in [10, 16, 30] {
            for (name, figure) in shapes {
                let found = alarms(count, figure);
                assert!(found <= 20, "{name}, {count} figures: {found} of 1000");
            }
        }
    }

    #[test]
    fn two_groups_are_found_the_surer_the_more_figures() {
        let noise = Noise {
            second_mode: 0.4,
            ..Noise::of_trials(0.02)
        };
        let found = [10, 20, 40].map(|count| alarms(count, |chance, _| noise.factor(chance)));
        assert!(
            found[0] > 750 && found[1] > 950 && found[2] > 990,
            "{found:?}"
        );
    }

    #[test]
    fn groups_that_are_close_or_small_are_no_warning() {
        let groups = |small: usize, ratio: f64| {
            let mut figures = vec![ratio; small];
            figures.extend(vec![1.0; 20 - small]);
            is_bimodal(&figures)
        };
        assert!(groups(8, 0.8));
        assert!(groups(4, 0.8));
        assert!(!groups(3, 0.8), "three outliers of twenty");
        assert!(!groups(8, 0.97), "3 % apart");
    }

    #[test]
    fn few_equal_or_impossible_figures_are_no_warning() {
        assert!(!is_bimodal(&[]));
        assert!(!is_bimodal(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]));
        assert!(!is_bimodal(&[5.0; 12]));
        let mut figures = vec![1.0; 6];
        figures.extend([0.0; 6]);
        assert!(!is_bimodal(&figures));
    }
}
