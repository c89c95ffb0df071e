//! The graph as a picture (SVG): stages from top to bottom, and on each way between them how many events take it.
//!
//! A way to the next stage is a line between the boxes; one that passes stages over is at the right of them, one that goes back at the
//! left, each in a lane of its own.

use std::fmt::Write as _;

use crate::snapshot::{Snapshot, StageFigures};
use crate::{Fused, Kind};

const BOX_WIDTH: usize = 340;
const BOX_HEIGHT: usize = 66;
const ROW: usize = BOX_HEIGHT + 52;
const LANE: usize = 78;
const MARGIN: usize = 20;
/// Letters of a stage's name that are shown, at most.
const NAME: usize = 32;

const STYLE: &str = "<style>\
text{font:13px system-ui,sans-serif;fill:#1f2328}\
.paper{fill:#ffffff}\
.box{fill:#f6f8fa;stroke:#8c959f}\
.end{fill:none;stroke:#8c959f;stroke-dasharray:4 3}\
.name{font-weight:600}\
.small{font-size:11.5px;fill:#59636e}\
.bad{font-size:11.5px;fill:#b42318}\
.way{fill:none;stroke:#0969da;stroke-linejoin:round}\
.head{fill:#0969da}\
@media (prefers-color-scheme:dark){\
text{fill:#e6edf3}\
.paper{fill:#0d1117}\
.box{fill:#161b22;stroke:#6e7681}\
.end{stroke:#6e7681}\
.small{fill:#9198a1}\
.bad{fill:#ff7b72}\
.way{stroke:#58a6ff}\
.head{fill:#58a6ff}}\
</style>";

/// A way from one row to another. Rows are: what comes in, the stages, what goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    from: usize,
    to: usize,
    events: u64,
}

/// Where a way is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Between,
    Right(usize),
    Left(usize),
}

impl Snapshot {
    /// The graph as an SVG document, for light and dark: what stages cost, and rates on all ways, over the time that the figures are of.
    /// See [`Snapshot::since`] for how it was of late.
    #[must_use]
    pub fn svg(&self) -> String {
        let ways = self.ways();
        let sides = sides(&ways);
        let lanes = |of: fn(&Side) -> Option<usize>| {
            let most = sides.iter().filter_map(of).max();
            most.map_or(0, |most| most + 1)
        };
        let left = lanes(|side| match side {
            Side::Left(lane) => Some(*lane),
            _ => None,
        });
        let right = lanes(|side| match side {
            Side::Right(lane) => Some(*lane),
            _ => None,
        });
        let at = MARGIN + left * LANE;
        let width = at + BOX_WIDTH + right * LANE + MARGIN;
        let height = 2 * MARGIN + (self.stages.len() + 1) * ROW + BOX_HEIGHT + 20;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"flow graph with measured rates\">{STYLE}\
             <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
             markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"head\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n"
        );
        let most = ways.iter().map(|way| way.events).max().unwrap_or(0);
        for (way, side) in ways.iter().zip(&sides) {
            self.draw_way(&mut svg, *way, *side, at, most);
        }
        self.draw_ends(&mut svg, at);
        for (row, stage) in self.stages.iter().enumerate() {
            self.draw_stage(&mut svg, stage, at, top(row + 1));
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn ways(&self) -> Vec<Way> {
        let mut ways = Vec::new();
        let out = self.stages.len() + 1;
        for stage in 0..self.stages.len() {
            let events = self.entries.iter().map(|entry| entry.entered[stage]).sum();
            ways.push(Way {
                from: 0,
                to: stage + 1,
                events,
            });
            let of_it = self.flows.iter().filter(|flow| flow.from == stage);
            let handed_on: u64 = of_it.map(|flow| flow.events).sum();
            let work = &self.stages[stage].work;
            let ended = handed_on + work.dropped + work.lost;
            ways.push(Way {
                from: stage + 1,
                to: out,
                events: work.events.saturating_sub(ended),
            });
        }
        ways.extend(self.flows.iter().map(|flow| Way {
            from: flow.from + 1,
            to: flow.to + 1,
            events: flow.events,
        }));
        ways.retain(|way| way.events > 0);
        ways.sort_unstable_by_key(|way| (way.from.abs_diff(way.to), way.from, way.to));
        ways
    }

    fn draw_way(&self, svg: &mut String, way: Way, side: Side, at: usize, most: u64) {
        let label = rate(way.events, self.at_ns);
        let thick = 1.0 + 3.0 * (way.events as f64 / most.max(1) as f64).sqrt();
        let begin = top(way.from) + BOX_HEIGHT / 2 + 14;
        let end = top(way.to) + BOX_HEIGHT / 2 - 14;
        let (path, x, y, anchor) = match side {
            Side::Between => {
                let (x, from, to) = (at + BOX_WIDTH / 2, top(way.from) + BOX_HEIGHT, top(way.to));
                (
                    format!("M{x} {from}V{to}"),
                    x + 8,
                    usize::midpoint(from, to) + 4,
                    "start",
                )
            }
            Side::Right(lane) => {
                let (side, x) = (at + BOX_WIDTH, at + BOX_WIDTH + 14 + lane * LANE);
                let path = format!("M{side} {begin}H{x}V{end}H{side}");
                (path, x + 4, usize::midpoint(begin, end) + 4, "start")
            }
            Side::Left(lane) => {
                let x = at - 14 - lane * LANE;
                let path = format!("M{at} {begin}H{x}V{end}H{at}");
                (path, x - 4, usize::midpoint(begin, end) + 4, "end")
            }
        };
        let _ = writeln!(
            svg,
            "<path class=\"way\" stroke-width=\"{thick:.1}\" marker-end=\"url(#head)\" d=\"{path}\"/>\
             <text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{label}</text>"
        );
    }

    fn draw_ends(&self, svg: &mut String, at: usize) {
        let refused: u64 = self.entries.iter().map(|entry| entry.refused).sum();
        let inside: u64 = self.entries.iter().map(|entry| entry.inside).sum();
        let active = self
            .workers
            .iter()
            .filter(|worker| worker.is_active)
            .count();
        let came = self
            .entries
            .iter()
            .flat_map(|entry| &entry.entered)
            .sum::<u64>();
        draw_box(svg, "end", at, top(0));
        text(
            svg,
            "name",
            at,
            top(0) + 22,
            &format!("in: {}", rate(came, self.at_ns)),
        );
        let about = format!(
            "{} entry points, {inside} events inside",
            self.entries.len()
        );
        text(svg, "small", at, top(0) + 40, &about);
        if refused > 0 {
            let refused = format!("refused: {}", rate(refused, self.at_ns));
            text(svg, "bad", at, top(0) + 57, &refused);
        }
        let below = top(self.stages.len() + 1);
        draw_box(svg, "end", at, below);
        text(svg, "name", at, below + 22, "out");
        let about = format!(
            "{active} of {} workers active, a hand-over costs {} ns",
            self.workers.len(),
            self.hand_over_ns
        );
        text(svg, "small", at, below + 40, &about);
        let time = format!("over {:.3} s", self.at_ns as f64 / 1e9);
        text(svg, "small", at, below + 57, &time);
    }

    fn draw_stage(&self, svg: &mut String, stage: &StageFigures, at: usize, y: usize) {
        draw_box(svg, "box", at, y);
        let name: String = stage.name.chars().take(NAME).collect();
        let kind = match stage.kind {
            Kind::Atomic => "atomic",
            Kind::Ordered => "ordered",
            Kind::Parallel => "parallel",
        };
        text(
            svg,
            "name",
            at,
            y + 20,
            &format!("{}, {kind}", escape(&name)),
        );
        let work = &stage.work;
        let figures = format!(
            "{} ns an event, batches of {:.1}, {} wait",
            work.cost_ns,
            work.batch(),
            work.waiting
        );
        text(svg, "small", at, y + 38, &figures);
        let fused = match stage.fused {
            Fused::First => "",
            Fused::Pinned(true) => "with the stage before it: pinned",
            Fused::Pinned(false) => "may be another worker's: pinned",
            Fused::Cheap => "with the stage before it: less than a hand-over",
            Fused::Dear => "may be another worker's: more than a hand-over",
        };
        if work.dropped + work.lost == 0 {
            text(svg, "small", at, y + 56, fused);
        } else {
            let lost = format!("{} dropped, {} lost", work.dropped, work.lost);
            text(svg, "bad", at, y + 56, &lost);
        }
    }
}

/// Where each way is drawn; the shortest are nearest to the boxes.
fn sides(ways: &[Way]) -> Vec<Side> {
    let mut lanes: [Vec<Vec<(usize, usize)>>; 2] = [Vec::new(), Vec::new()];
    let mut lane_of = |is_right: bool, from: usize, to: usize| {
        let lanes = &mut lanes[usize::from(is_right)];
        let is_free = |lane: &Vec<(usize, usize)>| {
            lane.iter().all(|(begin, end)| to <= *begin || from >= *end)
        };
        let lane = lanes.iter().position(is_free).unwrap_or(lanes.len());
        if lane == lanes.len() {
            lanes.push(Vec::new());
        }
        lanes[lane].push((from, to));
        lane
    };
    let side = |way: &Way| {
        if way.to == way.from + 1 {
            Side::Between
        } else if way.to > way.from {
            Side::Right(lane_of(true, way.from, way.to))
        } else {
            // One that comes back to its own stage needs room as well.
            Side::Left(lane_of(false, way.to, way.from.max(way.to + 1)))
        }
    };
    ways.iter().map(side).collect()
}

fn top(row: usize) -> usize {
    MARGIN + row * ROW
}

fn draw_box(svg: &mut String, class: &str, at: usize, y: usize) {
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{at}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"6\"/>"
    );
}

fn text(svg: &mut String, class: &str, at: usize, y: usize, text: &str) {
    let x = at + 12;
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>"
    );
}

fn rate(events: u64, time_ns: u64) -> String {
    let rate = events as f64 * 1e9 / time_ns.max(1) as f64;
    if rate >= 1e6 {
        format!("{:.2} M/s", rate / 1e6)
    } else if rate >= 1e3 {
        format!("{:.1} k/s", rate / 1e3)
    } else {
        format!("{rate:.0} /s")
    }
}

fn escape(name: &str) -> String {
    let of = |letter: char| match letter {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        letter if letter.is_control() => " ".to_owned(),
        letter => letter.to_string(),
    };
    name.chars().map(of).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ways_that_would_cross_have_lanes_of_their_own() {
        let way = |from, to| Way {
            from,
            to,
            events: 1,
        };
        let ways = [
            way(0, 1),
            way(0, 2),
            way(2, 4),
            way(1, 3),
            way(0, 4),
            way(3, 1),
            way(2, 2),
        ];
        let (between, right, left) = (Side::Between, Side::Right, Side::Left);
        assert_eq!(
            sides(&ways),
            [
                between,
                right(0),
                right(0),
                right(1),
                right(2),
                left(0),
                left(1)
            ]
        );
    }

    #[test]
    fn rates_and_names_can_be_read() {
        assert_eq!(rate(12_340_000, 1_000_000_000), "12.34 M/s");
        assert_eq!(rate(50, 1_000_000), "50.0 k/s");
        assert_eq!(rate(0, 0), "0 /s");
        assert_eq!(escape("a<b>&\n"), "a&lt;b&gt;&amp; ");
    }

    #[test]
    fn a_graph_is_drawn_with_its_figures() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU64, Ordering};

        use crate::{Config, Event, Graph, Out, build_in_virtual_time};

        let mut graph = Graph::new();
        let first = graph.stage("de<code", Kind::Atomic, |_| {
            |events: &[Event], out: &mut Out| {
                for event in events {
                    match event.value % 10 {
                        0 => out.drop(7),
                        1 => out.forward(event.to(event.stage.plus(2))),
                        _ => out.forward(event.to(event.stage.after())),
                    }
                }
            }
        });
        graph.stage("cipher", Kind::Ordered, |_| {
            |events: &[Event], out: &mut Out| out.forward_all(events, events[0].stage.after())
        });
        graph.stage("send", Kind::Parallel, |_| |_: &[Event], _: &mut Out| {});
        let now = Arc::new(AtomicU64::new(0));
        let built = build_in_virtual_time(&graph, &Config::new(2), &now);
        let (mut workers, mut entries) = built.unwrap();
        for value in 0..1000 {
            let event = entries[0].event(first, value as u32, value);
            assert_eq!(entries[0].enter(&[event]), 1);
        }
        for _ in 0..20 {
            workers.iter_mut().for_each(|worker| {
                worker.turn(8);
            });
            now.fetch_add(50_000_000, Ordering::Relaxed);
        }
        let shown = entries[0].control().snapshot();
        assert_eq!(
            (shown.at_ns, shown.stages[0].drops.clone()),
            (1_000_000_000, vec![(7, 100)])
        );
        let svg = shown.svg();
        for part in [
            "de&lt;code, atomic",
            "cipher, ordered",
            "800 /s",
            "100 /s",
            "900 /s",
            "1.0 k/s",
            "100 dropped",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("class=\"way\"").count(), 5);
        // A second in which nothing happened has no ways.
        now.fetch_add(1_000_000_000, Ordering::Relaxed);
        let later = entries[0].control().snapshot().since(&shown);
        assert_eq!(later.at_ns, 1_000_000_000);
        assert_eq!(later.svg().matches("class=\"way\"").count(), 0);
    }
}
