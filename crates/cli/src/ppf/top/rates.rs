//! What `millrace ppf top` shows: rates from two reports. No I/O.

use millrace_ppf::{
    DropReport, HeldReport, PathCounts, PortReport, StageReport, StatusReport, WorkerReport,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::top::board::{
    Choice, Dropped, PortRates, Rate, WorkerCounts, WorkerRow, drop_rates, rate, worker_rows,
    workers_json,
};

/// A port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PortRow {
    pub(super) name: String,
    pub(super) side: String,
    pub(super) worker: usize,
    pub(super) state: String,
    pub(super) rates: PortRates,
}

/// Everything that is shown of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) pid: u32,
    pub(super) uptime_s: u64,
    pub(super) bearers: u64,
    pub(super) bearers_max: u64,
    pub(super) paths: PathCounts,
    pub(super) held: HeldReport,
    /// Per second.
    pub(super) events: u64,
    pub(super) ports: Vec<PortRow>,
    /// What the function drops in a second, by the side that it came from.
    pub(super) drops: Vec<(&'static str, Dropped)>,
    pub(super) workers: Vec<WorkerRow>,
    /// What workers have of bearers, and stages of the scheduler. One worker shares nothing.
    pub(super) shares: Vec<ShareRow>,
    pub(super) stages: Vec<StageRow>,
}

/// What a worker has of bearers, and hands over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct ShareRow {
    pub(super) worker: usize,
    /// Thousandths of its time.
    pub(super) load: u64,
    pub(super) is_active: bool,
    pub(super) shards: u64,
    /// Since the function began.
    pub(super) given: u64,
    pub(super) taken: u64,
    /// Per second.
    pub(super) handed_over: u64,
}

/// A stage of the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct StageRow {
    pub(super) name: String,
    /// Per second.
    pub(super) events: u64,
    pub(super) batches: u64,
    pub(super) cost_ns: u64,
    pub(super) waiting: u64,
}

/// The last report, and the one before it.
#[derive(Debug, Default)]
pub(super) struct Rates {
    now: Option<StatusReport>,
    before: Option<StatusReport>,
}

impl Rates {
    /// Takes a report in. One of another process begins anew.
    pub(super) fn update(&mut self, report: StatusReport) {
        let before = self.now.replace(report);
        self.before =
            before.filter(|before| self.now.as_ref().is_some_and(|now| now.pid == before.pid));
    }

    /// What there is to show of these ports, or of all. What is new has no rates, and nothing has where no time has passed.
    pub(super) fn view(&self, names: &[String], choice: &Choice) -> View {
        let Some(now) = &self.now else {
            return View::default();
        };
        let then = self.before.as_ref().unwrap_or(now);
        let passed_ns = now.uptime_ns.saturating_sub(then.uptime_ns);
        let shown = now.ports.iter();
        let shown = shown.filter(|port| names.is_empty() || names.contains(&port.name));
        let mut ports: Vec<PortRow> = shown
            .map(|port| {
                let mut all = then.ports.iter();
                port_row(port, all.find(|then| then.name == port.name), passed_ns)
            })
            .collect();
        ports.sort_by(|a, b| {
            let order = PortRates::order((&a.name, &a.rates), (&b.name, &b.rates), choice.sort);
            choice.turned(order)
        });
        let sides = [
            ("core", &now.core_drops, &then.core_drops),
            ("radio", &now.radio_drops, &then.radio_drops),
        ];
        let drops = sides.into_iter().flat_map(|(side, now, then)| {
            let drops = drop_rates(dropped(now), &dropped(then).collect::<Vec<_>>(), passed_ns);
            drops.into_iter().map(move |drop| (side, drop))
        });
        let mut drops: Vec<(&str, Dropped)> = drops.collect();
        drops.sort_by_key(|(_, drop)| std::cmp::Reverse(drop.packets));
        View {
            pid: now.pid,
            uptime_s: now.uptime_ns / 1_000_000_000,
            bearers: now.bearers,
            bearers_max: now.bearers_max,
            paths: now.paths,
            held: now.held,
            events: rate(now.events.told, then.events.told, passed_ns),
            ports,
            drops,
            workers: worker_rows(&workers(now), &workers(then), passed_ns),
            shares: shares(now, then, passed_ns),
            stages: stages(now, then, passed_ns),
        }
    }
}

fn dropped(drops: &[DropReport]) -> impl Iterator<Item = Dropped> {
    drops.iter().map(|drop| Dropped {
        at: drop.at.clone(),
        cause: drop.cause.clone(),
        clause: drop.clause.clone(),
        packets: drop.packets,
    })
}

fn port_row(port: &PortReport, then: Option<&PortReport>, passed_ns: u64) -> PortRow {
    let now = &port.counters;
    let then = then.map_or(now, |then| &then.counters);
    let of = |packets: [u64; 2], bytes: [u64; 2]| Rate {
        packets: rate(packets[0], packets[1], passed_ns),
        bytes: rate(bytes[0], bytes[1], passed_ns),
    };
    let then_dropped: Vec<Dropped> = dropped(&then.drops).collect();
    PortRow {
        name: port.name.clone(),
        side: port.side.clone(),
        worker: port.worker,
        state: port.state.clone(),
        rates: PortRates {
            received: of(
                [now.received_packets, then.received_packets],
                [now.received_bytes, then.received_bytes],
            ),
            transmitted: of(
                [now.transmitted_packets, then.transmitted_packets],
                [now.transmitted_bytes, then.transmitted_bytes],
            ),
            drops: drop_rates(dropped(&now.drops), &then_dropped, passed_ns),
        },
    }
}

fn shares(now: &StatusReport, then: &StatusReport, passed_ns: u64) -> Vec<ShareRow> {
    if now.workers.len() < 2 {
        return Vec::new();
    }
    let workers = now.workers.iter().zip(&then.workers).enumerate();
    let row = |(worker, (now, then)): (usize, (&WorkerReport, &WorkerReport))| ShareRow {
        worker,
        load: now.load,
        is_active: now.is_active,
        shards: now.shards,
        given: now.shards_given,
        taken: now.shards_taken,
        handed_over: rate(now.handed_over, then.handed_over, passed_ns),
    };
    workers.map(row).collect()
}

fn stages(now: &StatusReport, then: &StatusReport, passed_ns: u64) -> Vec<StageRow> {
    if now.workers.len() < 2 {
        return Vec::new();
    }
    let row = |(now, then): (&StageReport, &StageReport)| StageRow {
        name: now.name.clone(),
        events: rate(now.events, then.events, passed_ns),
        batches: rate(now.batches, then.batches, passed_ns),
        cost_ns: now.cost_ns,
        waiting: now.waiting,
    };
    now.stages.iter().zip(&then.stages).map(row).collect()
}

fn workers(report: &StatusReport) -> Vec<WorkerCounts> {
    let workers = report.workers.iter().enumerate();
    let counts = workers.map(|(number, worker)| {
        let own = report.ports.iter().filter(|port| port.worker == number);
        WorkerCounts {
            processor: worker.processor,
            ports: own.count(),
            turns: worker.turns,
            busy_turns: worker.busy_turns,
            sleeps: worker.sleeps,
            processor_ns: worker.processor_ns,
        }
    });
    counts.collect()
}

impl View {
    /// For programs: everything of it is per second, but for what is there now.
    pub(super) fn json(&self) -> Value {
        let ports = self.ports.iter().map(|port| {
            json!({
                "name": port.name, "side": port.side, "worker": port.worker, "state": port.state,
                "received": port.rates.received, "transmitted": port.rates.transmitted, "drops": port.rates.drops,
            })
        });
        let drops = |wanted: &str| {
            let drops = self.drops.iter().filter(|(side, _)| *side == wanted);
            drops.map(|(_, drop)| drop).collect::<Vec<_>>()
        };
        json!({
            "pid": self.pid, "uptime_s": self.uptime_s, "bearers": self.bearers, "bearers_max": self.bearers_max,
            "paths": self.paths, "held": self.held, "events": self.events, "ports": ports.collect::<Vec<_>>(),
            "core_drops": drops("core"), "radio_drops": drops("radio"), "workers": workers_json(&self.workers),
            "shares": self.shares, "stages": self.stages,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::top::board::Sort;

    /// A function with ports `n3` and `n6`, by which so many packets of 100 bytes have come, at a time.
    pub(in super::super) fn report(at_s: u64, packets: u64) -> StatusReport {
        let drop = |at: &str, cause: &str, packets| json!({ "at": at, "cause": cause, "packets": packets });
        let port = |name: &str, side: &str, times: u64| {
            json!({
                "name": name, "kind": "memif", "side": side, "worker": 0, "state": "connected", "mac": "02:00:00:00:00:01",
                "vlan": null, "addresses": [], "mtu": 1500,
                "counters": {
                    "received_packets": packets * times, "received_bytes": packets * times * 100,
                    "transmitted_packets": packets, "transmitted_bytes": packets * 100,
                    "made": 0, "consumed": 0, "connections": 1, "wakes": 0,
                    "drops": [drop("link", "fragment", packets / 10)],
                },
            })
        };
        let clause = "TS 29.281, 7.3.1";
        let unknown = json!({ "at": "function", "cause": "unknown_teid", "clause": clause, "packets": packets / 2 });
        let report = json!({
            "version": "1", "pid": 77, "uptime_ns": at_s * 1_000_000_000, "bearers": 5, "bearers_max": 10, "store": null,
            "ports": [port("n3", "radio", 1), port("n6", "core", 2)],
            "core_drops": [], "radio_drops": [drop("function", "zero_teid", 7), unknown],
            "lost_tunnels": 0, "echo_responses": 0, "unsent": 0, "paths": { "up": 1, "down": 2, "unknown": 3 },
            "held": { "packets": 4, "bytes": 400, "taken_packets": 9, "released_packets": 5 },
            "events": { "told": packets, "gone": 0, "lost": 0 },
            "workers": [{
                "processor": 1, "turns": packets, "busy_turns": packets / 4, "sleeps": packets / 100,
                "processor_ns": at_s * 250_000_000,
                "load": 0, "shards": 1024, "shards_given": 0, "shards_taken": 0, "handed_over": 0,
            }],
            "stages": [{
                "name": "bearer", "events": packets, "batches": packets / 10, "cost_ns": 200, "waiting": 3, "waiting_max": 4,
            }],
        });
        serde_json::from_value(report).unwrap()
    }

    pub(in super::super) fn view_of(reports: &[StatusReport], choice: &Choice) -> View {
        let mut rates = Rates::default();
        for report in reports {
            rates.update(report.clone());
        }
        rates.view(&[], choice)
    }

    #[test]
    fn rates_are_what_came_between_two_reports() {
        let first = view_of(&[report(5, 1000)], &Choice::default());
        assert!(
            first
                .ports
                .iter()
                .all(|port| port.rates == PortRates::default())
        );
        assert!(first.drops.is_empty() && first.workers[0].used.is_none());
        let view = view_of(&[report(5, 1000), report(7, 5000)], &Choice::default());
        assert_eq!(view.ports[0].name, "n6", "more passes there");
        let wanted = Rate {
            packets: 4000,
            bytes: 400_000,
        };
        assert_eq!(view.ports[0].rates.received, wanted);
        assert_eq!(view.ports[0].rates.dropped(), 200);
        // What was dropped before is no rate.
        let [(side, drop)] = &view.drops[..] else {
            panic!("{:?}", view.drops);
        };
        assert_eq!((*side, drop.packets), ("radio", 1000));
        assert_eq!(view.events, 2000);
        let json = view.json();
        assert_eq!(json["ports"][0]["received"]["packets"], 4000);
        assert_eq!(json["radio_drops"][0]["clause"], "TS 29.281, 7.3.1");
        assert_eq!(json["core_drops"], json!([]));
        assert_eq!(json["workers"][0]["busy_share"], 0.25);
        assert_eq!(json["paths"]["down"], 2);
    }

    #[test]
    fn what_several_workers_share_is_shown() {
        let of_two = |at_s, packets| {
            let mut report = report(at_s, packets);
            let second = WorkerReport {
                load: 250,
                is_active: true,
                shards: 24,
                shards_given: 7,
                shards_taken: packets / 1000,
                handed_over: packets / 2,
                ..report.workers[0].clone()
            };
            report.workers.push(second);
            report
        };
        let view = view_of(&[of_two(1, 1000), of_two(3, 5000)], &Choice::default());
        let wanted = ShareRow {
            worker: 1,
            load: 250,
            is_active: true,
            shards: 24,
            given: 7,
            taken: 5,
            handed_over: 1000,
        };
        assert_eq!(view.shares[1], wanted);
        let stage = &view.stages[0];
        assert_eq!((stage.events, stage.batches), (2000, 200));
        let json = view.json();
        assert_eq!(json["stages"][0]["cost_ns"], 200);
        assert_eq!(json["shares"][1]["taken"], 5);
        let alone = view_of(&[report(1, 1000), report(3, 5000)], &Choice::default());
        assert!(alone.shares.is_empty() && alone.stages.is_empty());
    }

    #[test]
    fn ports_are_ordered_and_chosen_and_another_process_begins_anew() {
        let reports = [report(0, 0), report(1, 1000)];
        let names = |choice: &Choice| {
            let ports = view_of(&reports, choice).ports.into_iter();
            ports.map(|port| port.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&Choice::new(Sort::Packets, true)), ["n3", "n6"]);
        assert_eq!(names(&Choice::new(Sort::Name, true)), ["n6", "n3"]);
        let other = StatusReport {
            pid: 78,
            ..report(2, 9000)
        };
        let view = view_of(&[report(1, 1000), other], &Choice::default());
        assert!(
            view.ports
                .iter()
                .all(|port| port.rates == PortRates::default())
        );
        let mut rates = Rates::default();
        rates.update(report(1, 1));
        let chosen = rates.view(&["n3".to_owned()], &Choice::default());
        assert_eq!((chosen.ports.len(), chosen.workers[0].ports), (1, 2));
    }
}
