//! What the switch says, in columns.

use millrace_switch::{DropReport, StationReport, SwitchReport};

use crate::table::{Table, human_bytes, human_seconds, human_short};

fn number(count: u64, terminal: bool) -> String {
    if terminal {
        human_short(count)
    } else {
        count.to_string()
    }
}

fn joined(names: &[String]) -> String {
    match names {
        [] => "-".to_owned(),
        names => names.join(","),
    }
}

/// Causes with their counts, the most frequent first.
fn why(drops: &[DropReport]) -> String {
    let mut drops: Vec<&DropReport> = drops.iter().collect();
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
    let causes = drops
        .iter()
        .map(|drop| format!("{}/{}={}", drop.at, drop.cause, drop.packets));
    joined(&causes.collect::<Vec<_>>())
}

/// Ports.
fn ports(report: &SwitchReport, terminal: bool) -> String {
    let heading = [
        "PORT", "KIND", "WORKER", "STATE", "VLAN", "MTU", "STATIONS", "RX", "TX", "DROPS",
    ];
    let mut table = Table::new(&heading, &[2, 5, 6, 7, 8, 9]);
    for port in &report.ports {
        let counters = &port.counters;
        let drops = counters.drops.iter().map(|drop| drop.packets).sum();
        table.push(vec![
            port.name.clone(),
            port.kind.clone(),
            port.worker.to_string(),
            port.state.clone(),
            port.vlan.clone(),
            port.mtu.map_or("-".to_owned(), |mtu| mtu.to_string()),
            port.stations.to_string(),
            number(counters.received_packets, terminal),
            number(counters.transmitted_packets, terminal),
            number(drops, terminal),
        ]);
    }
    table.render(terminal)
}

/// What containers may have.
fn devices(report: &SwitchReport, terminal: bool) -> String {
    let mut table = Table::new(
        &["DEVICE", "KIND", "PORTS", "CONTAINERS", "MOST"],
        &[2, 3, 4],
    );
    for device in &report.devices {
        let most = device.containers_max;
        table.push(vec![
            format!("millrace.dev/packet={}", device.name),
            device.kind.clone(),
            device.ports.to_string(),
            device.containers.to_string(),
            most.map_or("-".to_owned(), |most| most.to_string()),
        ]);
    }
    table.render(terminal)
}

/// Ports, and what containers may have.
pub(super) fn all(report: &SwitchReport, terminal: bool) -> String {
    let mut text = ports(report, terminal);
    if !report.devices.is_empty() {
        text.push('\n');
        text.push_str(&devices(report, terminal));
    }
    text
}

/// What passed.
pub(super) fn stats(report: &SwitchReport, terminal: bool) -> String {
    let heading = [
        "PORT", "RX", "RX-BYTES", "TX", "TX-BYTES", "MADE", "FLOODED", "DROPS", "WHY",
    ];
    let mut table = Table::new(&heading, &[1, 2, 3, 4, 5, 6, 7]);
    for port in &report.ports {
        let counters = &port.counters;
        let drops = counters.drops.iter().map(|drop| drop.packets).sum();
        let figures = [
            counters.received_packets,
            counters.received_bytes,
            counters.transmitted_packets,
            counters.transmitted_bytes,
            counters.made,
            counters.flooded,
            drops,
        ];
        let figures = figures.map(|figure| number(figure, terminal));
        let name = [port.name.clone()];
        let line = name.into_iter().chain(figures);
        table.push(line.chain([why(&counters.drops)]).collect());
    }
    table.render(terminal)
}

/// Flows.
pub(super) fn flows(report: &SwitchReport, terminal: bool) -> String {
    let heading = ["FLOW", "PRIORITY", "IN", "MATCH", "OUT", "PACKETS", "BYTES"];
    let mut table = Table::new(&heading, &[1, 5, 6]);
    for flow in &report.flows {
        let out = match flow.out[..] {
            [] => "drop".to_owned(),
            _ => joined(&flow.out),
        };
        table.push(vec![
            flow.name.clone(),
            flow.priority.to_string(),
            flow.from.clone().unwrap_or_else(|| "any".to_owned()),
            joined(&flow.wanted),
            out,
            number(flow.packets, terminal),
            number(flow.bytes, terminal),
        ]);
    }
    table.render(terminal)
}

/// Mirrors.
pub(super) fn mirrors(report: &SwitchReport, terminal: bool) -> String {
    let heading = [
        "MIRROR",
        "FILE",
        "PORTS",
        "DIRECTION",
        "STATE",
        "PACKETS",
        "BYTES",
        "LOST",
    ];
    let mut table = Table::new(&heading, &[5, 6, 7]);
    for mirror in &report.mirrors {
        let lost = mirror.drops.iter().map(|drop| drop.packets).sum();
        let bytes = if terminal {
            human_bytes(mirror.bytes)
        } else {
            mirror.bytes.to_string()
        };
        table.push(vec![
            mirror.name.clone(),
            mirror.file.clone(),
            joined(&mirror.ports),
            mirror.direction.clone(),
            mirror.state.clone(),
            number(mirror.packets, terminal),
            bytes,
            number(lost, terminal),
        ]);
    }
    table.render(terminal)
}

/// Stations.
pub(super) fn stations(stations: &[StationReport], terminal: bool) -> String {
    let mut table = Table::new(&["VLAN", "MAC", "PORT", "SILENT"], &[0, 3]);
    for station in stations {
        let silent = if terminal {
            human_seconds(station.silent_s)
        } else {
            station.silent_s.to_string()
        };
        table.push(vec![
            station.vlan.to_string(),
            station.mac.clone(),
            station.port.clone(),
            silent,
        ]);
    }
    table.render(terminal)
}
