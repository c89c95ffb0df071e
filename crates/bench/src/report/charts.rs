//! What `report.js` draws, as JSON within the page.

use anyhow::{Context, Result};
use maud::{Markup, html};
use serde::Serialize;

use crate::results::Unit;

/// A chart. Roads are indices of the results' roads; `low` and `high` are the range of the vertical axis, which charts beside each other
/// have in common.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Chart {
    /// Latency in nanoseconds by rarity.
    Percentiles {
        curves: Vec<Curve>,
        low: f64,
        high: f64,
    },
    /// Each request of a trial.
    Requests {
        road: usize,
        /// Sending times in microseconds, each as its distance from the one before.
        at_us: Vec<u64>,
        took_ns: Vec<u64>,
        seconds: f64,
        low: f64,
        high: f64,
    },
    /// Figures against a parameter.
    Sweep {
        unit: Unit,
        parameter: String,
        lines: Vec<Line>,
        low: f64,
        high: f64,
    },
}

/// Latency of a road.
#[derive(Serialize)]
pub(super) struct Curve {
    pub(super) road: usize,
    pub(super) merged: bool,
    /// Pairs of rarity and nanoseconds.
    pub(super) points: Vec<(f64, f64)>,
}

/// Figures of a road.
#[derive(Serialize)]
pub(super) struct Line {
    pub(super) road: usize,
    /// The parameter, the median, the smallest and the largest.
    pub(super) points: Vec<(u64, f64, f64, f64)>,
}

/// All charts of a page.
#[derive(Default, Serialize)]
pub(super) struct Charts {
    roads: Vec<String>,
    charts: Vec<Chart>,
}

impl Charts {
    /// None yet.
    pub(super) fn new(roads: Vec<String>) -> Self {
        Self {
            roads,
            charts: Vec::new(),
        }
    }

    /// The place where a chart is drawn. `says` is for those who cannot see it.
    pub(super) fn add(&mut self, chart: Chart, says: &str) -> Markup {
        self.charts.push(chart);
        html! {
            div.chart role="img" aria-label=(says) data-chart=(self.charts.len() - 1) {}
            p.readout aria-hidden="true" { "\u{a0}" }
        }
    }

    /// Data within a script element: no `<` in it can end the element, or begin a comment.
    pub(super) fn json(&self) -> Result<String> {
        let text = serde_json::to_string(self).context("charts cannot be written as JSON")?;
        Ok(text.replace('<', "\\u003c"))
    }
}

/// The range of a logarithmic axis around these values: down and up to the next 1, 2 or 5. `None` without any above zero.
pub(super) fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let values = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if high == 0.0 {
        return None;
    }
    let steps = |value: f64| {
        let power = 10_f64.powf(value.log10().floor());
        [0.5, 1.0, 2.0, 5.0, 10.0, 20.0].map(|step| step * power)
    };
    // A value at the edge is half hidden, so the next step has to be a little away.
    let below = steps(low).into_iter().rfind(|step| *step <= low / 1.02);
    let above = steps(high).into_iter().find(|step| *step >= high * 1.02);
    Some((below.unwrap_or(low / 2.0), above.unwrap_or(high * 2.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_the_script_element() {
        let charts = Charts::new(vec!["</script><!--<script>".to_owned()]);
        let text = charts.json().unwrap();
        assert!(!text.contains('<'), "{text}");
        let back: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(back["roads"][0], "</script><!--<script>");
    }

    #[test]
    fn a_range_has_round_ends_around_all_values() {
        assert_eq!(
            range([380.0, 54_321.0].into_iter()),
            Some((200.0, 100_000.0))
        );
        assert_eq!(range([100.0].into_iter()), Some((50.0, 200.0)));
        assert_eq!(range([0.0, f64::NAN, 3.0].into_iter()), Some((2.0, 5.0)));
        assert_eq!(range([0.0].into_iter()), None);
    }
}
