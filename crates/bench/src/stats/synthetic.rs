//! Rounds of two roads as they would be measured, with noise of kinds that machines have. The tests of the statistics compare these.

use std::f64::consts::TAU;

use super::generator::Generator;
use super::paired::Pair;

/// What makes the figures of equal trials differ. Shares are of the figure.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Noise {
    /// Standard deviation of the logarithm, of each trial for itself.
    pub(crate) trial: f64,
    /// What the figures have lost at the run's end, all roads alike.
    pub(crate) drift: f64,
    /// Standard deviation of the logarithm, of each round, all roads alike.
    pub(crate) round: f64,
    /// Share of trials that are disturbed: they lose up to half of their figure.
    pub(crate) outliers: f64,
    /// Share of trials that run in another mode, 20 % below the first.
    pub(crate) second_mode: f64,
}

impl Noise {
    pub(crate) fn of_trials(trial: f64) -> Noise {
        Noise {
            trial,
            ..Noise::default()
        }
    }

    /// The figure of one trial, around 1.
    pub(crate) fn factor(&self, chance: &mut Generator) -> f64 {
        let disturbed = chance.share() < self.outliers;
        let lost = if disturbed { chance.share() / 2.0 } else { 0.0 };
        let second = chance.share() < self.second_mode;
        let mode = if second { 0.8 } else { 1.0 };
        (self.trial * normal(chance)).exp() * (1.0 - lost) * mode
    }
}

/// A value of the standard normal distribution, by the method of Box and Muller.
pub(crate) fn normal(chance: &mut Generator) -> f64 {
    let radius = (-2.0 * (1.0 - chance.share()).ln()).sqrt();
    radius * (TAU * chance.share()).cos()
}

/// Rounds in which the measured road has `ratio` times the figure of the baseline.
pub(crate) fn rounds(count: usize, ratio: f64, noise: Noise, chance: &mut Generator) -> Vec<Pair> {
    let mut one = |round: usize| {
        let drifted = 1.0 - noise.drift * round as f64 / count as f64;
        let shared = 1e5 * drifted * (noise.round * normal(chance)).exp();
        let measured = shared * ratio * noise.factor(chance);
        Pair::new(measured, shared * noise.factor(chance)).expect("noise leaves figures positive")
    };
    (0..count).map(&mut one).collect()
}
