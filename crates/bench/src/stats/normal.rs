//! The normal distribution and Student's, as far as intervals need them.

use std::f64::consts::TAU;

/// The share of a standard normal distribution below `z`, with an error below 1e-7.
///
/// Formula 26.2.17 of M. Abramowitz and I. A. Stegun, *Handbook of Mathematical Functions*, 1964.
#[must_use]
pub(super) fn below(z: f64) -> f64 {
    const COEFFICIENTS: [f64; 5] = [
        0.319_381_530,
        -0.356_563_782,
        1.781_477_937,
        -1.821_255_978,
        1.330_274_429,
    ];
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let polynomial = COEFFICIENTS
        .iter()
        .rev()
        .fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    let beyond = (-z * z / 2.0).exp() / TAU.sqrt() * polynomial;
    if z < 0.0 { beyond } else { 1.0 - beyond }
}

/// The value below which a share (between 0 and 1, ends not included) of a standard normal distribution lies.
#[must_use]
pub(super) fn quantile(share: f64) -> f64 {
    // By halving: it is computed a few times per comparison, and needs no coefficients of its own.
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        if below(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// The same for Student's distribution, with an error below 1e-3 from 5 degrees of freedom on and shares from 0.005 to 0.995.
///
/// Formula 26.7.5 of Abramowitz and Stegun, an expansion in the inverse of the degrees of freedom.
#[must_use]
pub(super) fn student_quantile(share: f64, degrees: f64) -> f64 {
    let z = quantile(share);
    let square = z * z;
    let terms = [
        z * (square + 1.0) / 4.0,
        z * ((5.0 * square + 16.0) * square + 3.0) / 96.0,
        z * (((3.0 * square + 19.0) * square + 17.0) * square - 15.0) / 384.0,
        z * ((((79.0 * square + 776.0) * square + 1482.0) * square - 1920.0) * square - 945.0)
            / 92_160.0,
    ];
    z + terms
        .iter()
        .rev()
        .fold(0.0, |sum, term| (sum + term) / degrees)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_shares_are_those_of_the_tables() {
        for (z, share) in [
            (0.0, 0.5),
            (1.0, 0.841_344_7),
            (-1.0, 0.158_655_3),
            (1.959_964, 0.975),
            (-3.0, 0.001_349_9),
        ] {
            assert!((below(z) - share).abs() < 2e-7, "{z}: {}", below(z));
        }
    }

    #[test]
    fn quantiles_and_shares_are_inverse() {
        for share in [0.001, 0.025, 0.3, 0.5, 0.9, 0.999] {
            assert!((below(quantile(share)) - share).abs() < 1e-9, "{share}");
        }
    }

    #[test]
    fn student_quantiles_are_those_of_the_tables() {
        for (share, degrees, expected) in [
            (0.975, 5.0, 2.5706),
            (0.975, 9.0, 2.2622),
            (0.95, 9.0, 1.8331),
            (0.025, 29.0, -2.0452),
            (0.995, 9.0, 3.2498),
            (0.5, 9.0, 0.0),
        ] {
            let found = student_quantile(share, degrees);
            assert!(
                (found - expected).abs() < 1e-3,
                "{share}, {degrees}: {found}"
            );
        }
    }
}
