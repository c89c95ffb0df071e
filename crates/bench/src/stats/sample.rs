//! Order statistics of small samples, as the trials of a cell are one.

/// The values from the least to the greatest.
#[must_use]
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The middle value, or the mean of the two that are nearest to the middle. NaN for nothing.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// The quantile of a sorted sample at a share from 0 to 1, between two values in proportion. NaN for nothing.
///
/// Definition 7 of R. J. Hyndman and Y. Fan, *Sample quantiles in statistical packages*, The American Statistician 50(4), 1996: the
/// value at place `(n - 1) * share`, from 0. It is the one that R, NumPy and spreadsheets compute where nothing else is said, so that a
/// reader who takes the figures there gets the same.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = sorted[place.floor() as usize];
    let above = sorted[place.ceil() as usize];
    // Written so that two equal values give that value, and not one beside it.
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_or_between_the_middle_two() {
        assert_eq!(median(&[5.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn quantiles_are_those_of_definition_seven() {
        // Worked out by hand from the definition.
        let values = [1.0, 2.0, 4.0, 8.0, 16.0];
        let expected = [
            (0.0, 1.0),
            (0.1, 1.4),
            (0.25, 2.0),
            (0.5, 4.0),
            (0.9, 12.8),
            (1.0, 16.0),
        ];
        for (share, value) in expected {
            let found = quantile(&values, share);
            assert!((found - value).abs() < 1e-12, "{share}: {found}");
        }
    }

    #[test]
    fn quantiles_outside_of_the_scale_are_the_ends() {
        assert_eq!(quantile(&[1.0, 2.0], -1.0), 1.0);
        assert_eq!(quantile(&[1.0, 2.0], 2.0), 2.0);
    }
}
