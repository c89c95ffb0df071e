//! What the table of workloads is made of.

use anyhow::Result;
use millrace_bench::readers;

use super::probe;
use super::site::Site;

/// Where the bytes of a run's connections travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Road {
    Kernel,
    Millrace,
}

/// A server, the two ways of running it that are compared, and what is measured on it.
pub(crate) struct Scenario {
    /// For `--only`.
    pub(crate) name: &'static str,
    pub(crate) server: Server,
    /// The baseline, then ours.
    pub(crate) sides: [Side; 2],
    pub(crate) placement: Placement,
    pub(crate) steps: &'static [Step],
}

/// How a server is started. In commands `{port}`, `{dir}`, `{helper}`, `{seconds}` and `{count}` are
/// filled in, and `{extra}` by the words of the side.
pub(crate) struct Server {
    /// Empty: the steps need none.
    pub(crate) command: &'static str,
    /// Writes files, makes a database cluster; called before every start, in the scenario's directory.
    pub(crate) prepare: fn(&Site) -> Result<()>,
    /// Who runs it when we are root.
    pub(crate) user: Option<&'static str>,
}

/// One of the two columns.
pub(crate) struct Side {
    pub(crate) label: &'static str,
    pub(crate) road: Road,
    /// More words for the commands.
    pub(crate) extra: &'static str,
    pub(crate) beside: &'static [Beside],
}

/// What runs beside the measured pair.
pub(crate) enum Beside {
    /// An endless loop on each of the two processors.
    Hogs,
    /// This many connections that have talked and are silent now, on the side's road.
    Idle(usize),
}

/// Which processors the two ends are pinned to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    Apart,
    Together,
}

/// One row of the table.
pub(crate) struct Step {
    pub(crate) title: &'static str,
    pub(crate) measure: Measure,
    pub(crate) unit: Unit,
    pub(crate) must: Option<Bar>,
    pub(crate) aim: Option<Bar>,
    /// The 99.9th percentile of the round trips has to be this many times lower.
    pub(crate) tail: Option<f64>,
}

impl Step {
    pub(crate) const fn must(self, bar: Bar) -> Self {
        Self {
            must: Some(bar),
            ..self
        }
    }

    pub(crate) const fn aim(self, bar: Bar) -> Self {
        Self {
            aim: Some(bar),
            ..self
        }
    }

    pub(crate) const fn tail(self, times: f64) -> Self {
        Self {
            tail: Some(times),
            ..self
        }
    }
}

/// How a row gets its figure.
pub(crate) enum Measure {
    /// A client's command, and the reader of what it prints.
    Client(&'static str, readers::Reader),
    /// Something that no public program measures.
    Probe(probe::Probe),
}

/// What a row's figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    PerSecond,
    BitsPerSecond,
    Nanoseconds,
    Milliseconds,
    Percent,
    Mebibytes,
}

/// What our side's figure has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    /// This many times better than the baseline's.
    Times(f64),
    /// At least this.
    AtLeast(f64),
    /// Below this.
    Below(f64),
    /// Above the baseline's by less than this.
    LessMore(f64),
}

impl Unit {
    /// Whether more is better.
    pub(crate) fn rising(self) -> bool {
        matches!(self, Self::PerSecond | Self::BitsPerSecond)
    }

    /// A figure with its unit, for people.
    pub(crate) fn show(self, value: f64) -> String {
        let (divisor, decimals, name) = self.scale(value);
        format!("{:.decimals$} {name}", value / divisor)
    }

    /// A median with the range around it, all in the median's unit.
    pub(crate) fn show_interval(self, median: f64, (low, high): (f64, f64)) -> String {
        let (divisor, decimals, name) = self.scale(median);
        let [median, low, high] = [median, low, high].map(|value| value / divisor);
        format!("{median:.decimals$} {name} ({low:.decimals$} … {high:.decimals$})")
    }

    /// By what to divide, how many decimals to show, and the name of the unit.
    fn scale(self, value: f64) -> (f64, usize, &'static str) {
        match self {
            Self::PerSecond if value >= 1e6 => (1e6, 2, "M/s"),
            Self::PerSecond => (1e3, 1, "k/s"),
            Self::BitsPerSecond => (1e9, 1, "Gb/s"),
            Self::Nanoseconds => (1e3, 2, "µs"),
            Self::Milliseconds => (1.0, 2, "ms"),
            Self::Percent => (1.0, 3, "%"),
            Self::Mebibytes => (1.0, 1, "MiB"),
        }
    }
}

impl Bar {
    /// Whether the medians of both sides reach the bar.
    pub(crate) fn reached(self, unit: Unit, baseline: f64, ours: f64) -> bool {
        match self {
            Self::Times(times) => times_better(unit, baseline, ours) >= times,
            Self::AtLeast(value) => ours >= value,
            Self::Below(value) => ours < value,
            Self::LessMore(value) => ours - baseline < value,
        }
    }

    /// The bar in words.
    pub(crate) fn show(self, unit: Unit) -> String {
        match self {
            Self::Times(times) => format!("{times} ×"),
            Self::AtLeast(value) => format!("≥ {}", unit.show(value)),
            Self::Below(value) => format!("< {}", unit.show(value)),
            Self::LessMore(value) => format!("< {} more", unit.show(value)),
        }
    }
}

/// How many times better ours is: above 1 is a win, whatever the unit.
pub(crate) fn times_better(unit: Unit, baseline: f64, ours: f64) -> f64 {
    if unit.rising() {
        ours / baseline
    } else {
        baseline / ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_round_trip_and_a_higher_rate_are_both_better() {
        assert!(Bar::Times(7.0).reached(Unit::PerSecond, 30e3, 210e3));
        assert!(!Bar::Times(7.0).reached(Unit::PerSecond, 30e3, 209e3));
        assert!(Bar::Times(30.0).reached(Unit::Nanoseconds, 24e3, 800.0));
        assert!(!Bar::Times(30.0).reached(Unit::Nanoseconds, 800.0, 24e3));
    }

    #[test]
    fn absolute_bars_look_at_ours_and_differences_at_both() {
        assert!(Bar::Below(0.5).reached(Unit::Percent, 0.0, 0.1));
        assert!(Bar::LessMore(2.0).reached(Unit::Milliseconds, 1.0, 2.9));
        assert!(!Bar::LessMore(2.0).reached(Unit::Milliseconds, 1.0, 3.1));
        assert!(Bar::AtLeast(15e6).reached(Unit::PerSecond, 0.0, 15e6));
    }
}
