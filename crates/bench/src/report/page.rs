//! The page, from top to bottom.

use std::path::Path;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::charts::Charts;
use super::summary::{Scenario, remarks};
use super::verdicts::{self, Verdicts};
use super::{evidence, overview, packets, section};
use crate::results::{Cell, Results};

const UPLOT: &str = include_str!("../../assets/uPlot.iife.min.js");
/// Whoever passes a report on passes uPlot on, and so its licence.
const UPLOT_LICENCE: &str = include_str!("../../assets/LICENSE-uPlot");
const UPLOT_STYLE: &str = include_str!("../../assets/uPlot.min.css");
const SCRIPT: &str = include_str!("report.js");
const STYLE: &str = include_str!("report.css");
/// Canvases have at least two pixels for one of the page, so that they are sharp on paper too. uPlot reads this once, when it is loaded.
const SHARP: &str = r#"if (devicePixelRatio < 2) Object.defineProperty(window, "devicePixelRatio", { get: () => 2 });"#;
/// Nothing is loaded from anywhere, whatever a name in the results contains.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
/// Colours in report.css. Later roads begin again, with dashes.
const COLOURS: usize = 10;

/// The whole page.
pub(super) fn page(directory: &Path, results: &Results, scenarios: &[Scenario<'_>]) -> String {
    let verdicts = Verdicts::of(results);
    let mut warnings = results.warnings.clone();
    let mut charts = Charts::new(results.roads.iter().map(|road| road.name.clone()).collect());
    let mut drawing = section::Drawing::new(directory, results, &mut charts, &mut warnings);
    let sections: Vec<Markup> = scenarios
        .iter()
        .map(|scenario| section::section(&mut drawing, scenario))
        .collect();
    let json = charts.json().unwrap_or_else(|error| {
        warnings.push(format!("{error:#}: no chart is drawn"));
        "{}".to_owned()
    });
    // A long list of roads beside the text would leave half of the page empty.
    let beside = results.roads.len() <= overview::ROOMY;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { "Millrace bench, " (day(&results.started)) }
                style { (PreEscaped(UPLOT_STYLE)) (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (title(results))
                    (warned(&warnings))
                    div.opening {
                        (head(results, scenarios, beside))
                        (how_to_read(results))
                    }
                    @if !beside { (roads(results, "roads below")) }
                    (overview::table(results, scenarios, &verdicts))
                    (verdicts::table(results, scenarios, &verdicts))
                    noscript {
                        p.quiet { "Charts need JavaScript. Every figure that they show is also in the tables." }
                    }
                    @for section in &sections { (section) }
                    (evidence::trials(results, scenarios))
                    (evidence::roads(results))
                    (evidence::machine(results))
                }
                script type="application/json" #data { (PreEscaped(json)) }
                script { (PreEscaped(SHARP)) }
                script { (PreEscaped("/*\n")) (PreEscaped(UPLOT_LICENCE)) (PreEscaped("*/\n")) (PreEscaped(UPLOT)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

fn head(results: &Results, scenarios: &[Scenario<'_>], beside: bool) -> Markup {
    let fact = |name: &str| {
        results
            .machine
            .iter()
            .find(|fact| fact.name == name)
            .map(|fact| fact.value.as_str())
    };
    let plan = &results.plan;
    html! {
        header {
            p.lede {
                (count(scenarios.len(), "scenario")) " on "
                time datetime=(results.started) { (when(&results.started)) }
                @if let Some(processor) = fact("processor") { ", on " (processor) }
                @if let Some(kernel) = fact("kernel") { " with kernel " (kernel) }
                ". Millrace " (results.millrace) "; "
                (count(plan.repeats as usize, "trial")) " of " (plan.seconds) " s for each cell"
                @if plan.minutes_max.is_some() { ", more where they did not decide" } ", the roads interleaved; "
                @if packets::is_searched(results) { "rates searched to " (plan.width.words()) "; " }
                @if plan.pinned == "none" { "no program is pinned" } @else { "pinned to processors: " (plan.pinned) }
                "."
                @if plan.quick { " A quick run: intervals, no verdicts." }
            }
            p.lede { code { (plan.command.join(" ")) } }
            @if beside { (roads(results, "roads")) }
        }
    }
}

/// What the colours stand for.
fn roads(results: &Results, class: &str) -> Markup {
    html! {
        dl class=(class) {
            @for (index, road) in results.roads.iter().enumerate() {
                div {
                    dt { (swatch(index)) (road.name) }
                    dd { (road.about) @if index == 0 { " " em { "The baseline." } } }
                }
            }
        }
    }
}

fn title(results: &Results) -> Markup {
    html! { h1 { (count(results.roads.len(), "road")) ", measured side by side" } }
}

fn warned(warnings: &[String]) -> Markup {
    html! {
        @if !warnings.is_empty() {
            section.warnings aria-labelledby="warnings" {
                h2 #warnings { "Before you believe a figure" }
                ul { @for warning in warnings { li { (warning) } } }
            }
        }
    }
}

fn how_to_read(results: &Results) -> Markup {
    html! {
        section.how {
            h2 { "How to read this" }
            p {
                "A " i { "road" } " is a way for the bytes of two programs. Each figure is the median of its trials, with the smallest "
                "and the largest. The ratio compares a road of Millrace with the kernel's in the same place, and any other with "
                b { (overview::baseline(results)) } ", the other way round where less is better: above 1 is always better. "
                @if results.plan.quick || results.plan.repeats < 10 {
                    "So few trials cannot tell a small difference from chance; no verdict is given. "
                } @else {
                    "An arrow, ▲ or ▼, says that a paired test found it better or worse; the other ratios may be chance. "
                }
                "Beside each figure stands its price, "
                "processor time: a road that spins can be fast and dear. Averages hide what users wait for, so look at the curves: how "
                "long the slowest request in a hundred took, or in a hundred thousand. A percentile is shown only where at least 100 "
                "requests were slower."
            }
        }
    }
}

/// The colour of a road, beside its name.
pub(super) fn swatch(road: usize) -> Markup {
    let class = format!("swatch road-{}", road % COLOURS);
    html! { span class=(class) aria-hidden="true" {} }
}

/// The name of a scenario's part of the page, of letters and digits only.
pub(super) fn anchor(scenario: &Scenario<'_>) -> String {
    let name = scenario.name.chars();
    let name: String = name
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    format!("scenario-{name}")
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// The date of `2026-11-22T09:30:00Z`.
fn day(started: &str) -> &str {
    started.split('T').next().unwrap_or(started)
}

/// `2026-11-22T09:30:00Z` as `2026-11-22, 09:30 UTC`; anything else as it is.
fn when(started: &str) -> String {
    match started
        .strip_suffix('Z')
        .and_then(|text| text.split_once('T'))
    {
        Some((day, time)) => format!("{day}, {} UTC", time.get(..5).unwrap_or(time)),
        None => started.to_owned(),
    }
}

/// Remarks on cells, each told once and pointed at from its cells.
#[derive(Default)]
pub(super) struct Footnotes {
    texts: Vec<String>,
}

impl Footnotes {
    /// Numbers of a cell's remarks.
    pub(super) fn marks(&mut self, cell: &Cell) -> Markup {
        let numbers: Vec<usize> = remarks(cell)
            .into_iter()
            .map(|text| self.number(text))
            .collect();
        html! {
            @for number in numbers {
                sup { a href=(format!("#note-{number}")) { (number) } }
            }
        }
    }

    fn number(&mut self, text: String) -> usize {
        let known = self.texts.iter().position(|known| known == &text);
        1 + known.unwrap_or_else(|| {
            self.texts.push(text);
            self.texts.len() - 1
        })
    }

    /// What the numbers stand for.
    pub(super) fn list(&self) -> Markup {
        html! {
            @if !self.texts.is_empty() {
                ol.notes {
                    @for (index, text) in self.texts.iter().enumerate() {
                        li id=(format!("note-{}", index + 1)) { (text) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_included_does_not_end_its_element() {
        assert!(!UPLOT_LICENCE.contains("*/"));
        for script in [UPLOT, UPLOT_LICENCE, SCRIPT] {
            assert!(!script.to_lowercase().contains("</script"));
            assert!(!script.contains("<!--"));
        }
        for style in [UPLOT_STYLE, STYLE] {
            assert!(!style.to_lowercase().contains("</style"));
        }
    }

    #[test]
    fn an_instant_is_written_as_people_write_it() {
        assert_eq!(when("2026-11-22T09:30:00Z"), "2026-11-22, 09:30 UTC");
        assert_eq!(when("yesterday"), "yesterday");
        assert_eq!(when("T€Z"), ", € UTC");
    }
}
