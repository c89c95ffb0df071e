//! What `millrace switch top` shows: rates from two reports. No I/O.

use millrace_switch::{CountersReport, DropReport, PortReport, SwitchReport};
use serde_json::{Value, json};

use crate::top::board::{
    Choice, Dropped, PortRates, Rate, Sort, WorkerCounts, WorkerRow, drop_rates, rate, worker_rows,
    workers_json,
};

/// A port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PortRow {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) worker: usize,
    pub(super) state: String,
    pub(super) vlan: String,
    pub(super) mtu: Option<u16>,
    pub(super) stations: u64,
    pub(super) rates: PortRates,
    /// Frames that went to all ports, per second.
    pub(super) flooded: u64,
}

impl PortRow {
    /// Whether it is a way to another host.
    pub(super) fn is_tunnel(&self) -> bool {
        self.kind == "vxlan"
    }
}

/// A flow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FlowRow {
    pub(super) name: String,
    pub(super) priority: u32,
    pub(super) from: Option<String>,
    pub(super) wanted: Vec<String>,
    pub(super) out: Vec<String>,
    pub(super) rate: Rate,
}

/// Everything that is shown of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) pid: u32,
    pub(super) uptime_s: u64,
    pub(super) ports: Vec<PortRow>,
    pub(super) flows: Vec<FlowRow>,
    pub(super) workers: Vec<WorkerRow>,
    pub(super) stations: u64,
    pub(super) stations_max: u64,
}

/// The last report, and the one before it.
#[derive(Debug, Default)]
pub(super) struct Rates {
    now: Option<SwitchReport>,
    before: Option<SwitchReport>,
}

impl Rates {
    /// Takes a report in. One of another switch begins anew.
    pub(super) fn update(&mut self, report: SwitchReport) {
        let before = self.now.replace(report);
        self.before =
            before.filter(|before| self.now.as_ref().is_some_and(|now| now.pid == before.pid));
    }

    /// What there is to show of these ports, or of all. What is new has no rates, and nothing has where no time has passed.
    pub(super) fn view(&self, names: &[String], choice: &Choice) -> View {
        let Some(now) = &self.now else {
            return View::default();
        };
        let before = self.before.as_ref();
        let passed_ns = before.map_or(0, |before| now.uptime_ns.saturating_sub(before.uptime_ns));
        let shown = now.ports.iter();
        let shown = shown.filter(|port| names.is_empty() || names.contains(&port.name));
        let mut ports: Vec<PortRow> = shown
            .map(|port| {
                let mut all = before.iter().flat_map(|before| &before.ports);
                // Of a name that was given to another port meanwhile, counts go back: there is no rate.
                port_row(port, all.find(|then| then.name == port.name), passed_ns)
            })
            .collect();
        let flows = now.flows.iter().map(|flow| {
            let mut then = before.iter().flat_map(|before| &before.flows);
            let then = then.find(|then| then.name == flow.name).unwrap_or(flow);
            FlowRow {
                name: flow.name.clone(),
                priority: flow.priority,
                from: flow.from.clone(),
                wanted: flow.wanted.clone(),
                out: flow.out.clone(),
                rate: Rate {
                    packets: rate(flow.packets, then.packets, passed_ns),
                    bytes: rate(flow.bytes, then.bytes, passed_ns),
                },
            }
        });
        let mut flows: Vec<FlowRow> = flows.collect();
        arrange(&mut ports, &mut flows, choice);
        View {
            pid: now.pid,
            uptime_s: now.uptime_ns / 1_000_000_000,
            ports,
            flows,
            workers: worker_rows(
                &workers(now),
                &before.map(workers).unwrap_or_default(),
                passed_ns,
            ),
            stations: now.stations,
            stations_max: now.stations_max,
        }
    }
}

fn port_row(port: &PortReport, then: Option<&PortReport>, passed_ns: u64) -> PortRow {
    let now = &port.counters;
    let then = then.map_or(now, |then| &then.counters);
    let rate = |count: fn(&CountersReport) -> u64| rate(count(now), count(then), passed_ns);
    PortRow {
        name: port.name.clone(),
        kind: port.kind.clone(),
        worker: port.worker,
        state: port.state.clone(),
        vlan: port.vlan.clone(),
        mtu: port.mtu,
        stations: port.stations,
        rates: PortRates {
            received: Rate {
                packets: rate(|counters| counters.received_packets),
                bytes: rate(|counters| counters.received_bytes),
            },
            transmitted: Rate {
                packets: rate(|counters| counters.transmitted_packets),
                bytes: rate(|counters| counters.transmitted_bytes),
            },
            drops: drop_rates(drops(now), &drops(then).collect::<Vec<_>>(), passed_ns),
        },
        flooded: rate(|counters| counters.flooded),
    }
}

fn drops(counters: &CountersReport) -> impl Iterator<Item = Dropped> {
    let dropped = |drop: &DropReport| Dropped {
        at: drop.at.clone(),
        cause: drop.cause.clone(),
        clause: None,
        packets: drop.packets,
    };
    counters.drops.iter().map(dropped)
}

fn workers(report: &SwitchReport) -> Vec<WorkerCounts> {
    let workers = report.workers.iter().enumerate();
    let counts = workers.map(|(number, worker)| WorkerCounts {
        processor: worker.processor,
        ports: report
            .ports
            .iter()
            .filter(|port| port.worker == number)
            .count(),
        turns: worker.turns,
        busy_turns: worker.busy_turns,
        sleeps: worker.sleeps,
        processor_ns: worker.processor_ns,
    });
    counts.collect()
}

/// The most, or the first of the alphabet, comes first; equals stay as the switch has them. Flows drop nothing that they count.
fn arrange(ports: &mut [PortRow], flows: &mut [FlowRow], choice: &Choice) {
    let sort = choice.sort;
    ports.sort_by(|a, b| {
        choice.turned(PortRates::order(
            (&a.name, &a.rates),
            (&b.name, &b.rates),
            sort,
        ))
    });
    flows.sort_by(|a, b| {
        choice.turned(match sort {
            Sort::Packets => b.rate.packets.cmp(&a.rate.packets),
            Sort::Bytes => b.rate.bytes.cmp(&a.rate.bytes),
            Sort::Name => a.name.cmp(&b.name),
            Sort::Drops | Sort::None => std::cmp::Ordering::Equal,
        })
    });
}

impl View {
    /// For programs: everything of it is per second, but for what is there now.
    pub(super) fn json(&self) -> Value {
        let ports = self.ports.iter().map(|port| {
            json!({
                "name": port.name, "kind": port.kind, "worker": port.worker, "state": port.state, "vlan": port.vlan,
                "mtu": port.mtu, "stations": port.stations, "received": port.rates.received,
                "transmitted": port.rates.transmitted, "flooded": port.flooded, "drops": port.rates.drops,
            })
        });
        let flows = self.flows.iter().map(|flow| {
            json!({
                "name": flow.name, "priority": flow.priority, "in": flow.from, "match": flow.wanted, "out": flow.out,
                "packets": flow.rate.packets, "bytes": flow.rate.bytes,
            })
        });
        json!({
            "pid": self.pid, "uptime_s": self.uptime_s, "stations": self.stations, "stations_max": self.stations_max,
            "ports": ports.collect::<Vec<_>>(), "flows": flows.collect::<Vec<_>>(), "workers": workers_json(&self.workers),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use millrace_switch::{FlowReport, WorkerReport};

    use super::*;

    /// A switch with ports `a0`, `a1`, … and the tunnel `host`, each of which has carried so many packets of 100 bytes, at a time.
    pub(in super::super) fn report(at_s: u64, ports: usize, packets: u64) -> SwitchReport {
        let port = |name: String, kind: &str, times: u64| PortReport {
            name,
            kind: kind.to_owned(),
            worker: 0,
            state: "connected".to_owned(),
            vlan: "any".to_owned(),
            mtu: (kind == "vxlan").then_some(1450),
            stations: 3,
            counters: CountersReport {
                received_packets: packets * times,
                received_bytes: packets * times * 100,
                transmitted_packets: packets,
                transmitted_bytes: packets * 100,
                drops: vec![
                    DropReport {
                        at: "transmit".to_owned(),
                        cause: "full".to_owned(),
                        packets: 7,
                    },
                    DropReport {
                        at: "switch".to_owned(),
                        cause: "policed".to_owned(),
                        packets: packets / 10 * times,
                    },
                ],
                ..CountersReport::default()
            },
        };
        let plain = (0..ports).map(|number| port(format!("a{number}"), "memif", number as u64));
        SwitchReport {
            version: "1".to_owned(),
            pid: 77,
            uptime_ns: at_s * 1_000_000_000,
            ports: plain.chain([port("host".to_owned(), "vxlan", 1)]).collect(),
            flows: vec![FlowReport {
                name: "straight".to_owned(),
                priority: 100,
                from: Some("a0".to_owned()),
                wanted: vec!["ip_proto=6".to_owned()],
                out: vec!["a1".to_owned()],
                packets,
                bytes: packets * 100,
            }],
            mirrors: Vec::new(),
            devices: Vec::new(),
            workers: vec![WorkerReport {
                processor: Some(1),
                files: true,
                turns: packets,
                busy_turns: packets / 4,
                sleeps: packets / 100,
                processor_ns: at_s * 250_000_000,
            }],
            stations: 6,
            stations_max: 65_536,
        }
    }

    fn view_of(reports: &[SwitchReport], sort: Sort, reversed: bool) -> View {
        let mut rates = Rates::default();
        for report in reports {
            rates.update(report.clone());
        }
        rates.view(&[], &Choice::new(sort, reversed))
    }

    #[test]
    fn rates_are_what_came_between_two_reports() {
        let first = view_of(&[report(5, 2, 1000)], Sort::None, false);
        assert!(
            first
                .ports
                .iter()
                .all(|port| port.rates == PortRates::default())
        );
        assert_eq!(first.workers[0].used, None);
        let view = view_of(&[report(5, 2, 1000), report(7, 3, 5000)], Sort::None, false);
        let [_, second, new, tunnel] = &view.ports[..] else {
            panic!("{view:?}");
        };
        let expected = Rate {
            packets: 2000,
            bytes: 200_000,
        };
        assert_eq!(
            (second.rates.received, second.rates.transmitted),
            (expected, expected)
        );
        // What it had dropped before is no rate.
        assert_eq!((second.rates.dropped(), second.rates.drops.len()), (200, 1));
        assert_eq!(second.rates.drops[0].cause, "policed");
        assert_eq!(new.rates.received, Rate::default(), "it was not there");
        assert!(tunnel.is_tunnel() && !second.is_tunnel());
        assert_eq!(view.flows[0].rate, expected);
        let worker = &view.workers[0];
        assert_eq!((worker.used, worker.busy), (Some(250), Some(250)));
        assert_eq!((worker.ports, worker.turns, worker.sleeps), (4, 2000, 20));
        let json = view.json();
        assert_eq!(json["ports"][1]["received"]["packets"], 2000);
        assert_eq!(json["ports"][1]["drops"][0]["packets"], 200);
        assert_eq!(json["workers"][0]["processor_share"], 0.25);
        assert_eq!(json["flows"][0]["bytes"], 200_000);
    }

    #[test]
    fn counts_that_go_back_clocks_that_stand_still_and_another_switch_are_borne() {
        let other = SwitchReport {
            pid: 78,
            ..report(9, 2, 9000)
        };
        for reports in [
            [report(5, 2, 5000), report(6, 2, 1000)],
            [report(5, 2, 1000), report(5, 2, 5000)],
            [report(5, 2, 1000), other],
        ] {
            let view = view_of(&reports, Sort::None, false);
            assert!(
                view.ports
                    .iter()
                    .all(|port| port.rates.received == Rate::default()),
                "{view:?}"
            );
            assert_eq!(view.flows[0].rate, Rate::default());
        }
        assert_eq!(view_of(&[], Sort::None, false), View::default());
    }

    #[test]
    fn every_order_can_be_had_and_turned_round_and_ports_be_chosen() {
        let reports = [report(0, 3, 0), report(1, 3, 1000)];
        let names = |sort, reversed| {
            let ports = view_of(&reports, sort, reversed).ports.into_iter();
            ports.map(|port| port.name).collect::<Vec<_>>()
        };
        assert_eq!(names(Sort::Packets, false), ["a2", "a1", "host", "a0"]);
        assert_eq!(names(Sort::Packets, true)[0], "a0");
        assert_eq!(names(Sort::Name, true)[0], "host");
        assert_eq!(names(Sort::Drops, false)[0], "a2");
        assert_eq!(names(Sort::None, false), ["a0", "a1", "a2", "host"]);
        let mut sort = Sort::default();
        for _ in Sort::ALL {
            sort = sort.next();
            assert_eq!(names(sort, false).len(), 4, "{}", sort.name());
        }
        assert_eq!(sort, Sort::default());
        let mut rates = Rates::default();
        rates.update(reports[1].clone());
        let chosen = rates.view(&["a1".to_owned()], &Choice::new(Sort::None, false));
        assert_eq!((chosen.ports.len(), chosen.workers[0].ports), (1, 4));
    }
}
