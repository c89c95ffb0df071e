//! The Prometheus text format (version 0.0.4) of what a switch says of itself.

use std::fmt::{Display, Write};

use crate::report::{CountersReport, SwitchReport, WorkerReport};

/// What a metric is called, what it says, and where that is.
type Figure<Of> = (&'static str, &'static str, fn(&Of) -> u64);

/// Everything as Prometheus reads it.
pub(crate) fn render(report: &SwitchReport) -> String {
    let mut text = String::with_capacity(4096);
    render_passed(&mut text, report);
    render_switch(&mut text, report);
    render_drops(&mut text, report);
    let help = "Frames of a flow.";
    family(&mut text, "flow_packets_total", "counter", help);
    for flow in &report.flows {
        line(
            &mut text,
            "flow_packets_total",
            &[("flow", &flow.name)],
            flow.packets,
        );
    }
    family(&mut text, "flow_bytes_total", "counter", "Their bytes.");
    for flow in &report.flows {
        line(
            &mut text,
            "flow_bytes_total",
            &[("flow", &flow.name)],
            flow.bytes,
        );
    }
    render_workers(&mut text, report);
    text
}

fn render_passed(text: &mut String, report: &SwitchReport) {
    let help = "Packets that ports received and transmitted.";
    family(text, "port_packets_total", "counter", help);
    for port in &report.ports {
        let counters = &port.counters;
        let both = [
            ("received", counters.received_packets),
            ("transmitted", counters.transmitted_packets),
        ];
        for (direction, value) in both {
            let labels = [("port", &port.name[..]), ("direction", direction)];
            line(text, "port_packets_total", &labels, value);
        }
    }
    family(text, "port_bytes_total", "counter", "Their bytes.");
    for port in &report.ports {
        let counters = &port.counters;
        let both = [
            ("received", counters.received_bytes),
            ("transmitted", counters.transmitted_bytes),
        ];
        for (direction, value) in both {
            let labels = [("port", &port.name[..]), ("direction", direction)];
            line(text, "port_bytes_total", &labels, value);
        }
    }
}

fn render_switch(text: &mut String, report: &SwitchReport) {
    let made = "Packets made: copies for further ports and mirrors, segments, answers.";
    let unlearnt = "Stations that were not learnt, because there were too many.";
    let connections = "Connections that a port had.";
    let wakes = "Times that a port's peer was woken.";
    let entered = "Packets that the switch looked at.";
    let figures: [Figure<CountersReport>; 6] = [
        ("port_entered_total", entered, |one| one.entered),
        ("port_made_total", made, |one| one.made),
        (
            "port_flooded_total",
            "Frames that went to all ports.",
            |one| one.flooded,
        ),
        ("port_unlearnt_total", unlearnt, |one| one.unlearnt),
        ("port_connections_total", connections, |one| one.connections),
        ("port_wakes_total", wakes, |one| one.wakes),
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
    family(
        text,
        "port_stations",
        "gauge",
        "Stations that are known at a port.",
    );
    for port in &report.ports {
        line(
            text,
            "port_stations",
            &[("port", &port.name)],
            port.stations,
        );
    }
    family(text, "stations", "gauge", "Stations that are known.");
    line(text, "stations", &[], report.stations);
    family(
        text,
        "stations_limit",
        "gauge",
        "Stations that can be known.",
    );
    line(text, "stations_limit", &[], report.stations_max);
}

fn render_drops(text: &mut String, report: &SwitchReport) {
    let help = "Packets that were dropped, by where and why.";
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
    family(
        text,
        "mirror_packets_total",
        "counter",
        "Copies that were written.",
    );
    for mirror in &report.mirrors {
        line(
            text,
            "mirror_packets_total",
            &[("mirror", &mirror.name)],
            mirror.packets,
        );
    }
    family(
        text,
        "mirror_drops_total",
        "counter",
        "Copies that were not written, by why.",
    );
    for mirror in &report.mirrors {
        for drop in &mirror.drops {
            let labels = [("mirror", &mirror.name[..]), ("cause", &drop.cause)];
            line(text, "mirror_drops_total", &labels, drop.packets);
        }
    }
}

fn render_workers(text: &mut String, report: &SwitchReport) {
    let figures: [Figure<WorkerReport>; 3] = [
        ("worker_turns_total", "Looks at all ports.", |one| one.turns),
        (
            "worker_busy_turns_total",
            "Those that found packets.",
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
    let _ = writeln!(text, "# HELP millrace_switch_{name} {help}");
    let _ = writeln!(text, "# TYPE millrace_switch_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl Display) {
    let labels: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{value}\""))
        .collect();
    let labels = match labels.as_slice() {
        [] => String::new(),
        labels => format!("{{{}}}", labels.join(",")),
    };
    let _ = writeln!(text, "millrace_switch_{name}{labels} {value}");
}
