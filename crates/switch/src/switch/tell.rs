//! What workers say when they are asked.

use std::collections::HashMap;

use millrace_port::Counters;

use super::*;
use crate::counters::{Hits, Tally};
use crate::report::{
    CountersReport, FlowReport, MirrorReport, PortReport, StationReport, SwitchReport, WorkerReport,
};
use crate::worker::Report;

impl Switch {
    /// Names of ports that begin so.
    pub(crate) fn port_names(&self, stem: &str) -> Vec<String> {
        let names = self.ports.iter().flatten().map(|port| &port.config.name);
        names
            .filter(|name| name.starts_with(stem))
            .cloned()
            .collect()
    }

    /// What it is, does and counts.
    ///
    /// # Errors
    /// When a worker does not answer.
    pub fn report(&mut self) -> Result<SwitchReport, String> {
        let reports: Vec<Report> = (0..self.workers.len())
            .map(|worker| self.asked(worker, Command::Report))
            .collect::<Result<_, _>>()?;
        let stations = self.stations()?;
        // Once, and not for each port.
        let mut at: HashMap<&str, u64> = HashMap::new();
        for station in &stations {
            *at.entry(station.port.as_str()).or_default() += 1;
        }
        let ports = (0..).zip(&self.ports);
        let ports = ports.filter_map(|(number, record)| {
            let record = record.as_ref()?;
            let (state, counters) = counted(&reports, number);
            Some(PortReport {
                name: record.config.name.clone(),
                kind: record.kind.to_owned(),
                worker: record.plan.worker,
                state,
                vlan: vlan(&record.config),
                mtu: in_force(&reports, number).or(record.plan.mtu),
                stations: at.get(record.config.name.as_str()).copied().unwrap_or(0),
                counters,
            })
        });
        let ports = ports.collect();
        let mirrors = self.mirrors.iter().map(|mirror| {
            let (state, counters) = counted(&reports, mirror.to);
            MirrorReport {
                name: mirror.config.name.clone(),
                file: mirror.config.file.display().to_string(),
                ports: mirror.config.ports.clone(),
                direction: format!("{:?}", mirror.config.direction).to_lowercase(),
                state,
                packets: counters.transmitted_packets,
                bytes: counters.transmitted_bytes,
                drops: counters.drops,
            }
        });
        let workers = reports.iter().zip(&self.workers).enumerate();
        let workers = workers.map(|(number, (report, handle))| WorkerReport {
            processor: handle.processor,
            files: number == self.files(),
            turns: report.work.turns,
            busy_turns: report.work.busy_turns,
            sleeps: report.work.sleeps,
            processor_ns: report.work.processor_ns,
        });
        Ok(SwitchReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            // In 584 years.
            uptime_ns: self.began.elapsed().as_nanos() as u64,
            ports,
            flows: self.flow_reports(&reports),
            mirrors: mirrors.collect(),
            devices: Vec::new(),
            workers: workers.collect(),
            stations: stations.len() as u64,
            stations_max: self.limits.entries as u64,
        })
    }

    fn flow_reports(&self, reports: &[Report]) -> Vec<FlowReport> {
        let records = self.flows.iter().enumerate();
        let flows = records.filter_map(|(place, record)| {
            let config = &record.as_ref()?.config;
            let hits = reports.iter().filter_map(|report| report.hits.get(place));
            let hits = hits.fold(Hits::default(), |sum, one| Hits {
                packets: sum.packets + one.packets,
                bytes: sum.bytes + one.bytes,
            });
            Some(FlowReport {
                name: config.name.clone(),
                priority: config.priority,
                from: config.from.clone(),
                wanted: config.wanted.fields(),
                out: config.out.clone(),
                packets: hits.packets,
                bytes: hits.bytes,
            })
        });
        let mut flows: Vec<FlowReport> = flows.collect();
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.priority));
        flows
    }

    /// Which stations are known, by VLAN and address.
    ///
    /// # Errors
    /// When a worker does not answer.
    pub fn stations(&mut self) -> Result<Vec<StationReport>, String> {
        // Each worker knows all; the one that a station's port belongs to knows it first.
        let mut stations = Vec::new();
        for worker in 0..self.workers.len() {
            for (station, port, silent_ns) in self.asked(worker, Command::Stations)? {
                let record = self.ports.get(usize::from(port)).and_then(Option::as_ref);
                let Some(record) = record.filter(|record| record.plan.worker == worker) else {
                    continue;
                };
                stations.push(StationReport {
                    vlan: station.vlan(),
                    mac: station.mac().to_string(),
                    port: record.config.name.clone(),
                    silent_s: silent_ns / 1_000_000_000,
                });
            }
        }
        stations.sort();
        Ok(stations)
    }

    /// Forgets all stations.
    ///
    /// # Errors
    /// When a worker does not answer.
    pub fn forget_stations(&mut self) -> Result<(), String> {
        (0..self.workers.len()).try_for_each(|worker| self.asked(worker, Command::Forget))
    }
}

/// What was counted of a port: by it, and by all workers.
fn counted(reports: &[Report], number: u16) -> (String, CountersReport) {
    let mut tally = Tally::default();
    let (mut state, mut counters) = ("unknown".to_owned(), Counters::default());
    for report in reports {
        if let Some(more) = report.tallies.get(usize::from(number)) {
            tally.add(more);
        }
        if let Some(found) = report.ports.iter().find(|port| port.0 == number) {
            counters = found.1;
            state.clone_from(&found.2);
        }
    }
    (state, CountersReport::new(&counters, &tally))
}

/// What fits by a tunnel now.
fn in_force(reports: &[Report], number: u16) -> Option<u16> {
    let mut mtus = reports.iter().flat_map(|report| &report.mtus);
    mtus.find(|mtu| mtu.0 == number).map(|mtu| mtu.1)
}

fn vlan(config: &PortConfig) -> String {
    let join = |vlans: &[u16]| {
        let vlans = vlans.iter().map(u16::to_string);
        vlans.collect::<Vec<_>>().join(",")
    };
    if let Some(vxlan) = config.vxlan.as_ref().filter(|one| !one.vnis.is_empty()) {
        let vlans: Vec<u16> = vxlan.networks().into_iter().map(|pair| pair.0).collect();
        return format!("trunk {}", join(&vlans));
    }
    let Some(vlan) = &config.vlan else {
        return "any".to_owned();
    };
    match (vlan.access, &vlan.trunk, vlan.native) {
        (Some(access), _, _) => format!("access {access}"),
        (None, trunk, None) => format!("trunk {}", join(trunk.as_deref().unwrap_or_default())),
        (None, trunk, Some(native)) => format!(
            "trunk {} native {native}",
            join(trunk.as_deref().unwrap_or_default())
        ),
    }
}
