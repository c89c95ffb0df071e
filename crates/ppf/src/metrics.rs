//! The Prometheus text format (version 0.0.4) of what a function says of itself.

use std::fmt::Write;

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
    ];
    for (name, help, value) in figures {
        family(&mut text, name, "counter", help);
        line(&mut text, name, &[], value);
    }
    render_ports(&mut text, report);
    render_drops(&mut text, report);
    render_workers(&mut text, report);
    text
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
            "Questions and answers of the function's own.",
            |one| one.made,
        ),
        (
            "port_consumed_total",
            "Packets that were for the function itself.",
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
    let help = "Messages that were dropped, by the side that they came from and why.";
    family(text, "drops_total", "counter", help);
    let sides: [(&str, &[DropReport]); 2] =
        [("core", &report.core_drops), ("radio", &report.radio_drops)];
    for (side, drops) in sides {
        for drop in drops {
            let labels = [("side", side), ("cause", &drop.cause)];
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
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP millrace_ppf_{name} {help}");
    let _ = writeln!(text, "# TYPE millrace_ppf_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: u64) {
    let labels: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{value}\""))
        .collect();
    let labels = match labels.as_slice() {
        [] => String::new(),
        labels => format!("{{{}}}", labels.join(",")),
    };
    let _ = writeln!(text, "millrace_ppf_{name}{labels} {value}");
}
