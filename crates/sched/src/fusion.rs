//! Which stages stay together: a flow's later stages are done by another worker only where that takes more off the first one than handing
//! over costs.

/// What it costs both workers to hand an event from one to the other, in bursts, in nanoseconds: an estimate, not measured yet.
pub const HAND_OVER_NS: u64 = 30;

/// What the user has said of each stage.
#[derive(Debug)]
pub(crate) struct Fusion(pub(crate) Vec<Option<bool>>);

impl Fusion {
    /// Of each stage, whether it may be apart from the one before it, by what its events cost.
    pub(crate) fn is_apart(&self, costs: &[u64]) -> Vec<bool> {
        let stages = self.0.iter().zip(costs).enumerate();
        let is_apart = |(stage, (pinned, cost)): (usize, (&Option<bool>, &u64))| {
            stage > 0 && !pinned.unwrap_or(*cost < HAND_OVER_NS)
        };
        stages.map(is_apart).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_less_than_handing_over_stays() {
        let fusion = Fusion(vec![None, None, None, Some(true), Some(false)]);
        let apart = fusion.is_apart(&[900, 5, 200, 200, 5]);
        assert_eq!(apart, [false, false, true, false, true]);
    }
}
