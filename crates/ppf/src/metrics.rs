//! What a function says of itself, for Prometheus.

use millrace_switch::{Exposition, Figure};

use crate::report::{CountReport, DropReport, StageReport, StatusReport, WorkerReport};

/// Everything as Prometheus reads it.
pub(crate) fn render(report: &StatusReport) -> String {
    let mut text = Exposition::new("millrace_ppf_");
    let help = "Bearers that there are.";
    text.single("bearers", "gauge", help, report.bearers);
    let unsent = "Messages of the function's own that nobody sent, as too many waited.";
    let gone = "Events that are not kept any more.";
    let lost = "Events that there was no room for: nobody was told of them.";
    let held = "Packets that were held for bearers that are paused.";
    let released = "Packets that went on after they had been held.";
    let errors = "Error indications of peers.";
    let figures: [Figure<StatusReport>; 8] = [
        ("lost_tunnels_total", errors, |it| it.lost_tunnels),
        ("echo_responses_total", "Echo responses of peers.", |it| {
            it.echo_responses
        }),
        ("unsent_total", unsent, |it| it.unsent),
        ("events_total", "Events that were told of.", |it| {
            it.events.told
        }),
        ("events_gone_total", gone, |it| it.events.gone),
        ("events_lost_total", lost, |it| it.events.lost),
        ("held_packets_total", held, |it| it.held.taken_packets),
        ("released_packets_total", released, |it| {
            it.held.released_packets
        }),
    ];
    for (name, help, value) in figures {
        text.single(name, "counter", help, value(report));
    }
    render_state(&mut text, report);
    render_ports(&mut text, report);
    render_drops(&mut text, report);
    let workers = report.workers.iter();
    let workers = workers.map(|it| [it.turns, it.busy_turns, it.sleeps, it.processor_ns]);
    text.workers(&workers.collect::<Vec<_>>());
    render_scheduler(&mut text, report);
    text.finish()
}

/// What workers hand to each other.
fn render_scheduler(text: &mut Exposition, report: &StatusReport) {
    let numbers: Vec<String> = (0..report.workers.len()).map(|it| it.to_string()).collect();
    let workers = || numbers.iter().map(String::as_str).zip(&report.workers);
    let given = "Shards of bearers that a worker gave to others, to even out what they have to do.";
    let handed = "Packets that a worker handed over.";
    let figures: [Figure<WorkerReport>; 3] = [
        ("worker_shards_given_total", given, |it| it.shards_given),
        (
            "worker_shards_taken_total",
            "Shards of bearers that it got.",
            |it| it.shards_taken,
        ),
        ("worker_handed_over_total", handed, |it| it.handed_over),
    ];
    text.counters(&figures, "worker", workers());
    let help = "Shards of bearers that a worker has, of 1024.";
    text.family("worker_shards", "gauge", help);
    for (number, worker) in workers() {
        text.sample("worker_shards", &[("worker", number)], worker.shards);
    }
    let help = "Whether a worker has a part of the bearers.";
    text.family("worker_active", "gauge", help);
    for (number, worker) in workers() {
        let is_active = u64::from(worker.is_active);
        text.sample("worker_active", &[("worker", number)], is_active);
    }
    let help = "The share of a worker's time that packets take, of late.";
    text.family("worker_load_ratio", "gauge", help);
    for (number, worker) in workers() {
        let load = worker.load as f64 / 1000.0;
        text.sample("worker_load_ratio", &[("worker", number)], load);
    }
    let stages = || report.stages.iter().map(|it| (&it.name[..], it));
    let events = "Packets and questions that a stage of the scheduler has dealt with.";
    let figures: [Figure<StageReport>; 2] = [
        ("stage_events_total", events, |it| it.events),
        ("stage_batches_total", "Bursts that they came in.", |it| {
            it.batches
        }),
    ];
    text.counters(&figures, "stage", stages());
    text.family("stage_waiting", "gauge", "Those that wait at a stage.");
    for (name, stage) in stages() {
        text.sample("stage_waiting", &[("stage", name)], stage.waiting);
    }
    let help = "What one costs at a stage, of late.";
    text.family("stage_cost_seconds", "gauge", help);
    for (name, stage) in stages() {
        let cost = stage.cost_ns as f64 / 1e9;
        text.sample("stage_cost_seconds", &[("stage", name)], cost);
    }
}

/// What there is now of paths and of what is held.
fn render_state(text: &mut Exposition, report: &StatusReport) {
    let help = "Paths to peers, by whether these answer.";
    text.family("paths", "gauge", help);
    let paths = &report.paths;
    for (state, count) in [
        ("up", paths.up),
        ("down", paths.down),
        ("unknown", paths.unknown),
    ] {
        text.sample("paths", &[("state", state)], count);
    }
    let held = &report.held;
    let help = "Packets that are held now.";
    text.single("held_packets", "gauge", help, held.packets);
    text.single("held_bytes", "gauge", "Their bytes.", held.bytes);
}

fn render_ports(text: &mut Exposition, report: &StatusReport) {
    let ports = || {
        report
            .ports
            .iter()
            .map(|port| (&port.name[..], &port.counters))
    };
    let packets = "Packets that ports received and transmitted.";
    let of =
        |(name, one): (_, &CountReport)| (name, [one.received_packets, one.transmitted_packets]);
    text.both_ways(("port_packets_total", packets), ports().map(of));
    let of = |(name, one): (_, &CountReport)| (name, [one.received_bytes, one.transmitted_bytes]);
    text.both_ways(("port_bytes_total", "Their bytes."), ports().map(of));
    let made = "Questions and answers of the function's own, packets that were put together, and what cutting made more.";
    let consumed =
        "Packets that were for the function itself, and parts of those that were put together.";
    let connections = "Connections that a port had.";
    let wakes = "Times that a port's peer was woken.";
    let figures: [Figure<CountReport>; 4] = [
        ("port_made_total", made, |one| one.made),
        ("port_consumed_total", consumed, |one| one.consumed),
        ("port_connections_total", connections, |one| one.connections),
        ("port_wakes_total", wakes, |one| one.wakes),
    ];
    text.counters(&figures, "port", ports());
    text.family("port_up", "gauge", "Whether packets pass by a port.");
    for port in &report.ports {
        let is_up = u8::from(port.state == "connected");
        text.sample("port_up", &[("port", &port.name)], is_up);
    }
}

fn render_drops(text: &mut Exposition, report: &StatusReport) {
    let help = "Packets that were dropped at a port, by where and why.";
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
    let help =
        "Messages that were dropped, by the side that they came from, why, and what demands it.";
    text.family("drops_total", "counter", help);
    let sides: [(&str, &[DropReport]); 2] =
        [("core", &report.core_drops), ("radio", &report.radio_drops)];
    for (side, drops) in sides {
        for drop in drops {
            let clause = drop.clause.as_deref().unwrap_or_default();
            let labels = [("side", side), ("cause", &drop.cause), ("clause", clause)];
            text.sample("drops_total", &labels, drop.packets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::{EventCounts, HeldReport, PathCounts};
    use crate::report::PortReport;

    fn report() -> StatusReport {
        let drop = DropReport {
            at: "function".to_owned(),
            cause: "zero_teid".to_owned(),
            clause: Some("TS 29.281, 7.3.1".to_owned()),
            packets: 3,
        };
        StatusReport {
            version: "1".to_owned(),
            pid: 7,
            uptime_ns: 1,
            bearers: 2,
            bearers_max: 3,
            store: None,
            ports: vec![PortReport {
                name: "n3".to_owned(),
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
                load: 250,
                is_active: true,
                shards: 1024,
                shards_given: 1,
                shards_taken: 2,
                handed_over: 3,
            }],
            unanswered: Vec::new(),
            stages: vec![StageReport {
                name: "bearer".to_owned(),
                events: 5,
                cost_ns: 250,
                ..StageReport::default()
            }],
        }
    }

    #[test]
    fn what_there_is_is_told() {
        let text = render(&report());
        for wanted in [
            "millrace_ppf_paths{state=\"down\"} 5",
            "millrace_ppf_held_bytes 800",
            "millrace_ppf_released_packets_total 80",
            "millrace_ppf_events_lost_total 13",
            "millrace_ppf_drops_total{side=\"core\",cause=\"zero_teid\",clause=\"TS 29.281, 7.3.1\"} 3",
            "millrace_ppf_port_up{port=\"n3\"} 1",
            "millrace_ppf_worker_processor_seconds_total{worker=\"0\"} 1.5",
            "millrace_ppf_worker_shards_taken_total{worker=\"0\"} 2",
            "millrace_ppf_worker_load_ratio{worker=\"0\"} 0.25",
            "millrace_ppf_worker_active{worker=\"0\"} 1",
            "millrace_ppf_stage_events_total{stage=\"bearer\"} 5",
            "millrace_ppf_stage_cost_seconds{stage=\"bearer\"} 0.00000025",
        ] {
            assert!(text.lines().any(|line| line == wanted), "{wanted}: {text}");
        }
    }
}
