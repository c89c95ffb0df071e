//! What the function says, in columns.

use millrace_ppf::{
    BearerList, BearerReport, BearerSpec, DropReport, FarEnd, Flows, Gates, Marking,
    NeighbourReport, StatusReport, UsageReport,
};

use crate::table::{Table, human_seconds, human_short};

fn number(count: u64, terminal: bool) -> String {
    match terminal {
        true => human_short(count),
        false => count.to_string(),
    }
}

/// Causes with their counts, the most frequent first.
fn why(drops: &[DropReport]) -> String {
    let mut drops: Vec<&DropReport> = drops.iter().collect();
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
    let causes = drops
        .iter()
        .map(|drop| format!("{}/{}={}", drop.at, drop.cause, drop.packets));
    match drops.as_slice() {
        [] => "-".to_owned(),
        _ => causes.collect::<Vec<_>>().join(","),
    }
}

fn sum(drops: &[DropReport]) -> u64 {
    drops.iter().map(|drop| drop.packets).sum()
}

/// That figures are not all there is.
pub(super) fn incomplete(unanswered: &[usize]) -> String {
    match unanswered {
        [] => String::new(),
        workers => {
            format!("workers {workers:?} have not answered in time: what they have is not in it\n")
        }
    }
}

/// Ports, and what there is.
pub(super) fn ports(report: &StatusReport, terminal: bool) -> String {
    let heading = [
        "PORT",
        "SIDE",
        "KIND",
        "WORKER",
        "STATE",
        "MAC",
        "VLAN",
        "MTU",
        "RX",
        "TX",
        "DROPS",
        "ADDRESSES",
    ];
    let mut table = Table::new(&heading, &[3, 6, 7, 8, 9, 10]);
    for port in &report.ports {
        let counters = &port.counters;
        table.push(vec![
            port.name.clone(),
            port.side.clone(),
            port.kind.clone(),
            port.worker.to_string(),
            port.state.clone(),
            port.mac.clone(),
            port.vlan.map_or("-".to_owned(), |vlan| vlan.to_string()),
            port.mtu.to_string(),
            number(counters.received_packets, terminal),
            number(counters.transmitted_packets, terminal),
            number(sum(&counters.drops), terminal),
            port.addresses.join(","),
        ]);
    }
    let store = report.store.as_deref().unwrap_or("nowhere");
    format!(
        "{}\n{}{} bearers of at most {}, kept in {store}; for {}\n",
        table.render(terminal),
        incomplete(&report.unanswered),
        report.bearers,
        report.bearers_max,
        human_seconds(report.uptime_ns / 1_000_000_000)
    )
}

/// What passed.
pub(super) fn stats(report: &StatusReport, terminal: bool) -> String {
    let heading = [
        "PORT", "RX", "RX-BYTES", "TX", "TX-BYTES", "MADE", "CONSUMED", "DROPS", "WHY",
    ];
    let mut table = Table::new(&heading, &[1, 2, 3, 4, 5, 6, 7]);
    for port in &report.ports {
        let counters = &port.counters;
        let figures = [
            counters.received_packets,
            counters.received_bytes,
            counters.transmitted_packets,
            counters.transmitted_bytes,
            counters.made,
            counters.consumed,
            sum(&counters.drops),
        ];
        let figures = figures.map(|figure| number(figure, terminal));
        let line = [port.name.clone()].into_iter().chain(figures);
        table.push(line.chain([why(&counters.drops)]).collect());
    }
    let mut sides = Table::new(&["FROM", "DROPS", "WHY"], &[1]);
    for (side, drops) in [("core", &report.core_drops), ("radio", &report.radio_drops)] {
        let total = number(sum(drops), terminal);
        sides.push(vec![side.to_owned(), total, why(drops)]);
    }
    format!(
        "{}\n{}{}",
        table.render(terminal),
        sides.render(terminal),
        incomplete(&report.unanswered)
    )
}

/// Stations.
pub(super) fn neighbours(report: &[NeighbourReport], terminal: bool) -> String {
    let mut table = Table::new(&["PORT", "ADDRESS", "MAC", "STATE", "WORKER"], &[4]);
    for one in report {
        table.push(vec![
            one.port.clone(),
            one.address.to_string(),
            one.mac.clone(),
            one.state.clone(),
            one.worker.to_string(),
        ]);
    }
    table.render(terminal)
}

fn end(end: FarEnd) -> String {
    match end {
        FarEnd::Tunnel(address, teid) => format!("{address}/{teid}"),
        FarEnd::User(user) => format!("user {user}"),
    }
}

fn gates(gates: Gates) -> &'static str {
    match (gates.core, gates.radio) {
        (true, true) => "core,radio",
        (true, false) => "core",
        (false, true) => "radio",
        (false, false) => "none",
    }
}

/// What else is not as it usually is; JSON has the details.
fn more(spec: &BearerSpec) -> String {
    let mut more = Vec::new();
    for (side, treatment) in [("core", &spec.to_core), ("radio", &spec.to_radio)] {
        let Some(treatment) = treatment else { continue };
        if treatment.paused {
            more.push(format!("{side}.paused"));
        }
        match &treatment.flow {
            Flows::Kept => {}
            Flows::Removed => more.push(format!("{side}.flow=removed")),
            Flows::Set(flow) => more.push(format!("{side}.flow={flow}")),
            Flows::Mapped(_) => more.push(format!("{side}.flow=mapped")),
        }
        if treatment.rqi {
            more.push(format!("{side}.rqi"));
        }
        if let Some(policy) = treatment.ppi {
            more.push(format!("{side}.ppi={policy}"));
        }
        match treatment.dscp {
            Marking::Fixed(0) => {}
            Marking::Fixed(dscp) => more.push(format!("{side}.dscp={dscp}")),
            Marking::Copied => more.push(format!("{side}.dscp=copied")),
        }
        if !treatment.limit.is_none() {
            more.push(format!("{side}.limit"));
        }
    }
    if spec.report.is_some() {
        more.push("report".to_owned());
    }
    if more.is_empty() {
        more.push("-".to_owned());
    }
    more.join(",")
}

/// Bearers.
pub(super) fn bearers(bearers: &[BearerReport], terminal: bool) -> String {
    let heading = [
        "BEARER", "CORE", "TEID", "RADIO", "TEID", "GATES", "MORE", "TO-CORE", "BYTES", "TO-RADIO",
        "BYTES",
    ];
    let mut table = Table::new(&heading, &[0, 2, 4, 7, 8, 9, 10]);
    let teid = |teid: Option<u32>| teid.map_or("-".to_owned(), |teid| teid.to_string());
    for bearer in bearers {
        // Of a worker that has not answered in time it is not known.
        let used = |of: fn(&UsageReport) -> u64| {
            let usage = bearer.usage.as_ref().map(of);
            usage.map_or("?".to_owned(), |usage| number(usage, terminal))
        };
        table.push(vec![
            bearer.id.to_string(),
            end(bearer.spec.core),
            teid(bearer.teids.core),
            end(bearer.spec.radio),
            teid(bearer.teids.radio),
            gates(bearer.spec.gates).to_owned(),
            more(&bearer.spec),
            used(|usage| usage.core_packets),
            used(|usage| usage.core_bytes),
            used(|usage| usage.radio_packets),
            used(|usage| usage.radio_bytes),
        ]);
    }
    table.render(terminal)
}

/// One, and what became of its packets on the radio.
pub(super) fn bearer(report: &BearerReport, terminal: bool) -> String {
    let mut text = bearers(std::slice::from_ref(report), terminal);
    let Some(delivery) = &report.delivery else {
        return text;
    };
    let said = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
    let heading = [
        "DELIVERY",
        "NEXT",
        "MISSING",
        "SENT",
        "CAME",
        "WANTED",
        "RATE",
        "TRANSMITTED",
        "DELIVERED",
        "LOST",
        "FINAL",
    ];
    let mut table = Table::new(&heading, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    table.push(vec![
        report.id.to_string(),
        said(delivery.next),
        number(delivery.missing, terminal),
        number(delivery.statuses_sent, terminal),
        number(delivery.statuses, terminal),
        number(delivery.desired_bytes.into(), terminal),
        said(delivery.desired_rate),
        said(delivery.transmitted),
        said(delivery.delivered),
        number(delivery.lost, terminal),
        delivery.is_final.to_string(),
    ]);
    text.push('\n');
    text.push_str(&table.render(terminal));
    text
}

/// A page of them.
pub(super) fn page(page: &BearerList, terminal: bool) -> String {
    let mut text = bearers(&page.bearers, terminal);
    if let Some(next) = page.next {
        text.push_str(&format!("more: --from {next}\n"));
    }
    text
}
