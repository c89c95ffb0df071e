//! The false discovery rate over the cells of a report.

/// p values adjusted for how many there are: calling what is at or below `q` a discovery, at most the share `q` of the discoveries is
/// false on average.
///
/// The step-up procedure of Y. Benjamini and Y. Hochberg, *Controlling the false discovery rate*, Journal of the Royal Statistical
/// Society B 57(1), 1995. It holds for cells whose noise is independent or goes together (Benjamini and Yekutieli, 2001), as that of the
/// cells of one run does.
#[must_use]
pub fn adjusted(p_values: &[f64]) -> Vec<f64> {
    let count = p_values.len();
    let mut falling: Vec<usize> = (0..count).collect();
    falling.sort_by(|&one, &other| p_values[other].total_cmp(&p_values[one]));
    let mut adjusted = vec![1.0; count];
    let mut least = 1.0_f64;
    for (above, &place) in falling.iter().enumerate() {
        let rank = count - above;
        // The least of those above, so that a smaller p value never has a greater adjusted one.
        least = least.min(p_values[place] * (count as f64 / rank as f64));
        adjusted[place] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::super::generator::Generator;
    use super::*;

    #[test]
    fn adjusted_values_are_those_worked_out_by_hand() {
        let close = |found: Vec<f64>, expected: &[f64]| {
            assert!(
                found.len() == expected.len()
                    && found
                        .iter()
                        .zip(expected)
                        .all(|(found, expected)| (found - expected).abs() < 1e-12),
                "{found:?}"
            );
        };
        close(adjusted(&[0.01, 0.02, 0.03, 0.04, 0.05]), &[0.05; 5]);
        close(adjusted(&[0.3, 0.001, 0.02, 0.9]), &[0.4, 0.004, 0.04, 0.9]);
        close(adjusted(&[0.04]), &[0.04]);
        close(adjusted(&[]), &[]);
    }

    /// The procedure as its authors wrote it: all up to the greatest rank `k` with `p(k) <= k / m * q`.
    fn discoveries(p_values: &[f64], rate: f64) -> Vec<bool> {
        let mut sorted = p_values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let bar = (1..)
            .zip(&sorted)
            .filter(|&(rank, p)| p * sorted.len() as f64 / f64::from(rank) <= rate)
            .map(|(_, p)| *p)
            .last();
        p_values
            .iter()
            .map(|p| bar.is_some_and(|bar| *p <= bar))
            .collect()
    }

    #[test]
    fn adjusted_values_decide_as_the_step_up_procedure_does() {
        let mut generator = Generator::new(8);
        for count in 1..40 {
            let p_values: Vec<f64> = (0..count).map(|_| generator.share().powi(3)).collect();
            let adjusted = adjusted(&p_values);
            for rate in [0.01, 0.05, 0.2, 0.7] {
                let found: Vec<bool> = adjusted.iter().map(|p| *p <= rate).collect();
                assert_eq!(found, discoveries(&p_values, rate), "{p_values:?}");
            }
            for (one, p) in adjusted.iter().zip(&p_values) {
                assert!(one >= p && *one <= 1.0);
                let greater = adjusted.iter().zip(&p_values).filter(|(_, q)| *q > p);
                greater.for_each(|(other, _)| assert!(one <= other));
            }
        }
    }
}
