//! The Prometheus text format (version 0.0.4) of what a function says of itself.

use std::fmt::{Display, Write};

use crate::report::{CountReport, DropReport, StatusReport, WorkerReport};

/// What a metric is called, what it says, and where that is.
type Figure<Of> = (&'static str, &'static str, fn(&Of) -> u64);

/// Everything as Prometheus reads it.
pub(crate) fn render(report: &StatusReport) -> String {
    let mut text = String::with_capacity(4096);
    family(&mut text, "bearers", "gauge", "Bearers that there are.");
    line(&mut text, "bearers", &[], report.bearers);
    let figures = [
        (
            "lost_tunnels_total",
            "Error indications of peers.",
            report.lost_tunnels,
        ),
        (
            "echo_responses_total",
            "Echo responses of peers.",
            report.echo_responses,
        ),
        (
            "unsent_total",
            "Messages of the function's own that nobody sent, as too many waited.",
            report.unsent,
        ),
        (
            "events_total",
            "Events that were told of.",
            report.events.told,
        ),
        (
            "events_gone_total",
            "Events that are not kept any more.",
            report.events.gone,
        ),
        (
            "events_lost_total",
            "Events that there was no room for: nobody was told of them.",
            report.events.lost,
        ),
        (
            "held_packets_total",
            "Packets that were held for bearers that are paused.",
            report.held.taken_packets,
        ),
        (
            "released_packets_total",
            "Packets that went on after they had been held.",
            report.held.released_packets,
        ),
    ];
    for (name, help, value) in figures {
        family(&mut text, name, "counter", help);
        line(&mut text, name, &[], value);
    }
    render_state(&mut text, report);
    render_ports(&mut text, report);
    render_drops(&mut text, report);
    render_workers(&mut text, report);
    text
}

/// What there is now of paths and of what is held.
fn render_state(text: &mut String, report: &StatusReport) {
    let help = "Paths to peers, by whether these answer.";
    family(text, "paths", "gauge", help);
    let paths = &report.paths;
    for (state, count) in [
        ("up", paths.up),
        ("down", paths.down),
        ("unknown", paths.unknown),
    ] {
        line(text, "paths", &[("state", state)], count);
    }
    let held = &report.held;
    for (name, help, value) in [
        ("held_packets", "Packets that are held now.", held.packets),
        ("held_bytes", "Their bytes.", held.bytes),
    ] {
        family(text, name, "gauge", help);
        line(text, name, &[], value);
    }
}

fn render_ports(text: &mut String, report: &StatusReport) {
    let help = "Packets that ports received and transmitted.";
    render_both(text, report, "port_packets_total", help, |counters| {
        [counters.received_packets, counters.transmitted_packets]
    });
    render_both(
        text,
        report,
        "port_bytes_total",
        "Their bytes.",
        |counters| [counters.received_bytes, counters.transmitted_bytes],
    );
    let figures: [Figure<CountReport>; 4] = [
        (
            "port_made_total",
            "Questions and answers of the function's own, packets that were put together, and what cutting made more.",
            |one| one.made,
        ),
        (
            "port_consumed_total",
            "Packets that were for the function itself, and parts of those that were put together.",
            |one| one.consumed,
        ),
        (
            "port_connections_total",
            "Connections that a port had.",
            |one| one.connections,
        ),
        (
            "port_wakes_total",
            "Times that a port's peer was woken.",
            |one| one.wakes,
        ),
    ];
    for (name, help, value) in figures {
        family(text, name, "counter", help);
        for port in &report.ports {
            line(text, name, &[("port", &port.name)], value(&port.counters));
        }
    }
    let help = "Whether packets pass by a port.";
    family(text, "port_up", "gauge", help);
    for port in &report.ports {
        let is_up = port.state == "connected";
        line(text, "port_up", &[("port", &port.name)], u64::from(is_up));
    }
}

fn render_both(
    text: &mut String,
    report: &StatusReport,
    name: &str,
    help: &str,
    values: fn(&CountReport) -> [u64; 2],
) {
    family(text, name, "counter", help);
    for port in &report.ports {
        let values = values(&port.counters);
        for (direction, value) in ["received", "transmitted"].into_iter().zip(values) {
            let labels = [("port", &port.name[..]), ("direction", direction)];
            line(text, name, &labels, value);
        }
    }
}

fn render_drops(text: &mut String, report: &StatusReport) {
    let help = "Packets that were dropped at a port, by where and why.";
    family(text, "port_drops_total", "counter", help);
    for port in &report.ports {
        for drop in &port.counters.drops {
            let labels = [
                ("port", &port.name[..]),
                ("at", &drop.at),
                ("cause", &drop.cause),
            ];
            line(text, "port_drops_total", &labels, drop.packets);
        }
    }
    let help =
        "Messages that were dropped, by the side that they came from, why, and what demands it.";
    family(text, "drops_total", "counter", help);
    let sides: [(&str, &[DropReport]); 2] =
        [("core", &report.core_drops), ("radio", &report.radio_drops)];
    for (side, drops) in sides {
        for drop in drops {
            let clause = drop.clause.as_deref().unwrap_or_default();
            let labels = [("side", side), ("cause", &drop.cause), ("clause", clause)];
            line(text, "drops_total", &labels, drop.packets);
        }
    }
}

fn render_workers(text: &mut String, report: &StatusReport) {
    let figures: [Figure<WorkerReport>; 3] = [
        ("worker_turns_total", "Looks at all ports.", |one| one.turns),
        (
            "worker_busy_turns_total",
            "Those that found something.",
            |one| one.busy_turns,
        ),
        (
            "worker_sleeps_total",
            "Times that a worker went to sleep.",
            |one| one.sleeps,
        ),
    ];
    for (name, help, value) in figures {
        family(text, name, "counter", help);
        for (number, worker) in report.workers.iter().enumerate() {
            let number = number.to_string();
            line(text, name, &[("worker", &number)], value(worker));
        }
    }
    let help = "Processor time that a worker has used.";
    family(text, "worker_processor_seconds_total", "counter", help);
    for (number, worker) in report.workers.iter().enumerate() {
        let (number, seconds) = (number.to_string(), worker.processor_ns as f64 / 1e9);
        let labels = [("worker", &number[..])];
        line(text, "worker_processor_seconds_total", &labels, seconds);
    }
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP millrace_ppf_{name} {help}");
    let _ = writeln!(text, "# TYPE millrace_ppf_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl Display) {
    let labels: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
        .collect();
    let labels = match labels.as_slice() {
        [] => String::new(),
        labels => format!("{{{}}}", labels.join(",")),
    };
    let _ = writeln!(text, "millrace_ppf_{name}{labels} {value}");
}

/// A name may have anything in it.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::{EventCounts, HeldReport, PathCounts};
    use crate::report::PortReport;

    #[test]
    fn what_there_is_is_told_and_names_cannot_break_a_line() {
        let drop = DropReport {
            at: "function".to_owned(),
            cause: "zero_teid".to_owned(),
            clause: Some("TS 29.281, 7.3.1".to_owned()),
            packets: 3,
        };
        let report = StatusReport {
            version: "1".to_owned(),
            pid: 7,
            uptime_ns: 1,
            bearers: 2,
            bearers_max: 3,
            store: None,
            ports: vec![PortReport {
                name: "a\"\\\nb".to_owned(),
                kind: "memif".to_owned(),
                side: "core".to_owned(),
                worker: 0,
                state: "connected".to_owned(),
                mac: "02:00:00:00:00:01".to_owned(),
                vlan: None,
                addresses: Vec::new(),
                mtu: 1500,
                counters: CountReport::default(),
            }],
            core_drops: vec![drop],
            radio_drops: Vec::new(),
            lost_tunnels: 0,
            echo_responses: 0,
            unsent: 0,
            paths: PathCounts {
                up: 4,
                down: 5,
                unknown: 6,
            },
            held: HeldReport {
                packets: 7,
                bytes: 800,
                taken_packets: 90,
                released_packets: 80,
            },
            events: EventCounts {
                told: 11,
                gone: 12,
                lost: 13,
            },
            workers: vec![WorkerReport {
                processor: None,
                turns: 1,
                busy_turns: 1,
                sleeps: 1,
                processor_ns: 1_500_000_000,
            }],
        };
        let text = render(&report);
        for wanted in [
            "millrace_ppf_paths{state=\"down\"} 5",
            "millrace_ppf_held_bytes 800",
            "millrace_ppf_released_packets_total 80",
            "millrace_ppf_events_lost_total 13",
            "millrace_ppf_drops_total{side=\"core\",cause=\"zero_teid\",clause=\"TS 29.281, 7.3.1\"} 3",
            "millrace_ppf_port_up{port=\"a\\\"\\\\\\nb\"} 1",
            "millrace_ppf_worker_processor_seconds_total{worker=\"0\"} 1.5",
        ] {
            assert!(text.lines().any(|line| line == wanted), "{wanted}: {text}");
        }
    }
}
