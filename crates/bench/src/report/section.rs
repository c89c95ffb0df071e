//! A scenario's part of the page, and what its charts have in common.

use std::path::Path;

use maud::{Markup, html};

use super::charts::Charts;
use super::page::anchor;
use super::requests::typical;
use super::summary::Scenario;
use super::{curves, details, evidence, packets, processor, requests, sweeps};
use crate::results::Results;

/// Points of one road's requests that a chart shows.
const POINTS: usize = 20_000;
/// Points of all of them: with more, a page is slow to open, and each road gets fewer.
const ALL_POINTS: usize = 1_000_000;
const FEWEST_POINTS: usize = 2_000;

/// Sets of parameters whose curves are seen at once; those of the others are unfolded.
pub(super) const CURVES_SEEN: usize = 6;

/// What the parts of a page have in common.
pub(super) struct Drawing<'a> {
    pub(super) directory: &'a Path,
    pub(super) results: &'a Results,
    pub(super) charts: &'a mut Charts,
    pub(super) warnings: &'a mut Vec<String>,
    /// Requests that are drawn of one trace, at most.
    pub(super) points: usize,
}

impl<'a> Drawing<'a> {
    /// Shares the points out among all traces.
    pub(super) fn new(
        directory: &'a Path,
        results: &'a Results,
        charts: &'a mut Charts,
        warnings: &'a mut Vec<String>,
    ) -> Self {
        let traces = results
            .cells
            .iter()
            .filter(|cell| typical(cell).is_some())
            .count();
        Self {
            directory,
            results,
            charts,
            warnings,
            points: (ALL_POINTS / traces.max(1)).clamp(FEWEST_POINTS, POINTS),
        }
    }

    /// Name of a road.
    pub(super) fn road(&self, index: usize) -> &'a str {
        &self.results.roads[index].name
    }
}

/// The part of one scenario.
pub(super) fn section(drawing: &mut Drawing<'_>, scenario: &Scenario<'_>) -> Markup {
    html! {
        section.scenario id=(anchor(scenario)) {
            h2 { (scenario.title) @if !scenario.fixed.is_empty() { ", " (scenario.fixed) } }
            (curves::by_percentile(drawing, scenario))
            (requests::by_request(drawing, scenario))
            (sweeps::sweeps(drawing, scenario))
            (packets::packets(drawing, scenario))
            (processor::processor(drawing.results, scenario))
            (details::ready(drawing.results, scenario))
            (details::idle_table(drawing.results, scenario))
            (evidence::commands(drawing.results, &scenario.sets))
        }
    }
}

/// Figures beside each other.
pub(super) fn grid(figures: &[Markup]) -> Markup {
    let class = if figures.len() == 1 {
        "figures one"
    } else {
        "figures"
    };
    html! { div class=(class) { @for figure in figures { (figure) } } }
}

/// The first ones at once, the others folded.
pub(super) fn folded(figures: &[Markup], seen: usize, what: &str) -> Markup {
    let (first, rest) = figures.split_at(seen.min(figures.len()));
    html! {
        (grid(first))
        @if !rest.is_empty() {
            details {
                summary { (what) " at " (rest.len()) " more sets of parameters" }
                (grid(rest))
            }
        }
    }
}
