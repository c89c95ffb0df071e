//! The Prometheus text format (version 0.0.4).

use std::fmt::{Display, Write};

/// What a metric is called, what it says, and where that is.
pub type Figure<Of> = (&'static str, &'static str, fn(&Of) -> u64);

/// Metrics, as a text that grows.
#[derive(Debug)]
pub struct Exposition {
    /// Before every name.
    prefix: &'static str,
    text: String,
}

impl Exposition {
    /// An empty one of metrics whose names begin with `prefix`.
    #[must_use]
    pub fn new(prefix: &'static str) -> Exposition {
        Exposition {
            prefix,
            text: String::with_capacity(4096),
        }
    }

    /// Begins a metric: `kind` is `counter` or `gauge`. Its samples come next.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let Exposition { prefix, text } = self;
        let _ = writeln!(text, "# HELP {prefix}{name} {help}");
        let _ = writeln!(text, "# TYPE {prefix}{name} {kind}");
    }

    /// A sample of a metric.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
            .collect();
        let labels = match labels.as_slice() {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.text, "{}{name}{labels} {value}", self.prefix);
    }

    /// A metric that has one sample.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Counters of each of several things, which `label` tells apart.
    pub fn counters<'a, Of: 'a>(
        &mut self,
        figures: &[Figure<Of>],
        label: &str,
        things: impl Iterator<Item = (&'a str, &'a Of)> + Clone,
    ) {
        for (name, help, value) in figures {
            self.family(name, "counter", help);
            for (which, thing) in things.clone() {
                self.sample(name, &[(label, which)], value(thing));
            }
        }
    }

    /// What ports received, and what they transmitted.
    pub fn both_ways<'a>(
        &mut self,
        (name, help): (&str, &str),
        ports: impl Iterator<Item = (&'a str, [u64; 2])>,
    ) {
        self.family(name, "counter", help);
        for (port, values) in ports {
            for (direction, value) in ["received", "transmitted"].into_iter().zip(values) {
                self.sample(name, &[("port", port), ("direction", direction)], value);
            }
        }
    }

    /// What each of several threads has done: looks at all ports, those that found something, times that it went to sleep, and nanoseconds
    /// of processor time.
    pub fn workers(&mut self, figures: &[[u64; 4]]) {
        let counts = [
            ("worker_turns_total", "Looks at all ports."),
            ("worker_busy_turns_total", "Those that found something."),
            ("worker_sleeps_total", "Times that a worker went to sleep."),
        ];
        let numbers: Vec<String> = (0..figures.len()).map(|it| it.to_string()).collect();
        for (at, (name, help)) in counts.into_iter().enumerate() {
            self.family(name, "counter", help);
            for (number, figures) in numbers.iter().zip(figures) {
                self.sample(name, &[("worker", number)], figures[at]);
            }
        }
        let name = "worker_processor_seconds_total";
        self.family(name, "counter", "Processor time that a worker has used.");
        for (number, [.., ns]) in numbers.iter().zip(figures) {
            self.sample(name, &[("worker", number)], *ns as f64 / 1e9);
        }
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }
}

/// A name may have anything in it.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_a_line() {
        let mut text = Exposition::new("millrace_");
        text.family("port_up", "gauge", "Whether packets pass.");
        text.sample("port_up", &[("port", "a\"\\\nb"), ("kind", "tap")], 1);
        text.single("ports", "gauge", "Ports.", 2);
        let wanted = [
            "# HELP millrace_port_up Whether packets pass.",
            "# TYPE millrace_port_up gauge",
            "millrace_port_up{port=\"a\\\"\\\\\\nb\",kind=\"tap\"} 1",
            "# HELP millrace_ports Ports.",
            "# TYPE millrace_ports gauge",
            "millrace_ports 2\n",
        ];
        assert_eq!(text.finish(), wanted.join("\n"));
    }
}
