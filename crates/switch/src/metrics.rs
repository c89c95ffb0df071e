//! What a switch says of itself, for Prometheus.

use crate::exposition::{Exposition, Figure};
use crate::report::{CountersReport, FlowReport, SwitchReport};

/// Everything as Prometheus reads it.
pub(crate) fn render(report: &SwitchReport) -> String {
    let mut text = Exposition::new("millrace_switch_");
    render_passed(&mut text, report);
    render_switch(&mut text, report);
    render_drops(&mut text, report);
    let figures: [Figure<FlowReport>; 2] = [
        ("flow_packets_total", "Frames of a flow.", |one| one.packets),
        ("flow_bytes_total", "Their bytes.", |one| one.bytes),
    ];
    let flows = report.flows.iter().map(|flow| (&flow.name[..], flow));
    text.counters(&figures, "flow", flows);
    let workers = report.workers.iter();
    let workers = workers.map(|it| [it.turns, it.busy_turns, it.sleeps, it.processor_ns]);
    text.workers(&workers.collect::<Vec<_>>());
    text.finish()
}

fn render_passed(text: &mut Exposition, report: &SwitchReport) {
    let ports = || {
        report
            .ports
            .iter()
            .map(|port| (&port.name[..], &port.counters))
    };
    let packets = "Packets that ports received and transmitted.";
    let of =
        |(name, one): (_, &CountersReport)| (name, [one.received_packets, one.transmitted_packets]);
    text.both_ways(("port_packets_total", packets), ports().map(of));
    let of =
        |(name, one): (_, &CountersReport)| (name, [one.received_bytes, one.transmitted_bytes]);
    text.both_ways(("port_bytes_total", "Their bytes."), ports().map(of));
}

fn render_switch(text: &mut Exposition, report: &SwitchReport) {
    let made = "Packets made: copies for further ports and mirrors, segments, answers.";
    let unlearnt = "Stations that were not learnt, because there were too many.";
    let connections = "Connections that a port had.";
    let wakes = "Times that a port's peer was woken.";
    let entered = "Packets that the switch looked at.";
    let flooded = "Frames that went to all ports.";
    let figures: [Figure<CountersReport>; 6] = [
        ("port_entered_total", entered, |one| one.entered),
        ("port_made_total", made, |one| one.made),
        ("port_flooded_total", flooded, |one| one.flooded),
        ("port_unlearnt_total", unlearnt, |one| one.unlearnt),
        ("port_connections_total", connections, |one| one.connections),
        ("port_wakes_total", wakes, |one| one.wakes),
    ];
    let ports = report.ports.iter();
    let ports = ports.map(|port| (&port.name[..], &port.counters));
    text.counters(&figures, "port", ports);
    text.family("port_up", "gauge", "Whether packets pass by a port.");
    for port in &report.ports {
        let is_up = u8::from(port.state == "connected");
        text.sample("port_up", &[("port", &port.name)], is_up);
    }
    let help = "Stations that are known at a port.";
    text.family("port_stations", "gauge", help);
    for port in &report.ports {
        text.sample("port_stations", &[("port", &port.name)], port.stations);
    }
    let help = "Stations that are known.";
    text.single("stations", "gauge", help, report.stations);
    let help = "Stations that can be known.";
    text.single("stations_limit", "gauge", help, report.stations_max);
}

fn render_drops(text: &mut Exposition, report: &SwitchReport) {
    let help = "Packets that were dropped, by where and why.";
    text.family("port_drops_total", "counter", help);
    for port in &report.ports {
        for drop in &port.counters.drops {
            let labels = [
                ("port", &port.name[..]),
                ("at", &drop.at),
                ("cause", &drop.cause),
            ];
            text.sample("port_drops_total", &labels, drop.packets);
        }
    }
    let help = "Copies that were written.";
    text.family("mirror_packets_total", "counter", help);
    for mirror in &report.mirrors {
        let labels = [("mirror", &mirror.name[..])];
        text.sample("mirror_packets_total", &labels, mirror.packets);
    }
    let help = "Copies that were not written, by why.";
    text.family("mirror_drops_total", "counter", help);
    for mirror in &report.mirrors {
        for drop in &mirror.drops {
            let labels = [("mirror", &mirror.name[..]), ("cause", &drop.cause)];
            text.sample("mirror_drops_total", &labels, drop.packets);
        }
    }
}
