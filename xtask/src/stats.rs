//! Order statistics of small samples.

/// The middle value; the lower one of two. NaN for nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value that `share` (0 to 1) of the values do not exceed. NaN for nothing.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// The least and the greatest value. NaN for nothing.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::NAN, f64::min);
    let high = values.iter().copied().fold(f64::NAN, f64::max);
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(median(&values), 3.0);
        assert_eq!(percentile(&values, 0.99), 5.0);
        assert_eq!(percentile(&values, 0.0), 1.0);
        assert_eq!(range(&values), (1.0, 5.0));
        assert!(median(&[]).is_nan());
    }
}
