//! What a function says of itself and of its bearers, as JSON: answers of its API, and what `millrace ppf` prints.

use std::net::IpAddr;

use millrace_port::{Cause as PortCause, Counters, Tally};
use serde::{Deserialize, Serialize};

use crate::bearer::{Bearer, BearerId, Side, Usage};
use crate::cause::Cause;
use crate::delivery::Delivery;
use crate::link::{LinkCause, LinkCounts};
use crate::observed::{EventCounts, HeldReport, PathCounts};
use crate::spec::{BearerSpec, UeSpec};
use crate::table::Table;

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Of the program that it is of.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since it began.
    pub uptime_ns: u64,
    /// How many there are.
    pub bearers: u64,
    /// How many there can be.
    pub bearers_max: u64,
    /// Where they are kept.
    pub store: Option<String>,
    /// Ports, as in the configuration.
    pub ports: Vec<PortReport>,
    /// Messages that the function dropped, by the side that they came from.
    pub core_drops: Vec<DropReport>,
    /// The same of the other side.
    pub radio_drops: Vec<DropReport>,
    /// How often a peer said that it has a tunnel no more.
    pub lost_tunnels: u64,
    /// How often a peer answered an echo.
    pub echo_responses: u64,
    /// Messages of the function's own that nobody sent, as too many waited.
    pub unsent: u64,
    /// Whether peers answer.
    pub paths: PathCounts,
    /// What paused bearers hold.
    pub held: HeldReport,
    /// What was told.
    pub events: EventCounts,
    /// Workers.
    pub workers: Vec<WorkerReport>,
    /// Those that have not answered in time: what they count is in none of the figures here.
    #[serde(default)]
    pub unanswered: Vec<usize>,
    /// Stages of the scheduler.
    pub stages: Vec<StageReport>,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Of which kind.
    pub kind: String,
    /// `core` or `radio`.
    pub side: String,
    /// The worker that has it.
    pub worker: usize,
    /// `connected`, `connecting`, `closed`, and why.
    pub state: String,
    /// Its station's address.
    pub mac: String,
    /// Its VLAN.
    pub vlan: Option<u16>,
    /// Its addresses with their networks.
    pub addresses: Vec<String>,
    /// Bytes of a packet that leaves by it, at most.
    pub mtu: u64,
    /// What was counted.
    pub counters: CountReport,
}

/// What was counted of a port. Over all ports, `received` and `made` together are what was transmitted, consumed and dropped, the drops of
/// both sides among it, but for what waits: for a station, for its bearer, or for the rest of its packet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CountReport {
    /// Packets that came by it.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that left by it.
    pub transmitted_packets: u64,
    /// Their bytes.
    pub transmitted_bytes: u64,
    /// Questions and answers of the function's own, packets that were put together, and what cutting made more.
    pub made: u64,
    /// Packets that were for the function itself, and parts of those that were put together.
    pub consumed: u64,
    /// Connections that were made.
    pub connections: u64,
    /// How often a sleeping peer was woken.
    pub wakes: u64,
    /// What was dropped: by the port, receiving or transmitting, and by the link. Causes of none are left out.
    pub drops: Vec<DropReport>,
}

/// Packets that were dropped for one cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropReport {
    /// `receive`, `link`, `function` or `transmit`: where.
    pub at: String,
    /// Why.
    pub cause: String,
    /// What demands it, where a standard does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clause: Option<String>,
    /// How many.
    pub packets: u64,
}

/// A stage of the scheduler: what was handed over to it, at all workers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StageReport {
    /// `bearer`: what is asked of bearers, and, where there are several workers, their packets, also those that were dealt with where they
    /// came; `worker`: what a certain worker is to hear of; `port`: what leaves by another worker's port.
    pub name: String,
    /// Packets and questions that it has dealt with.
    pub events: u64,
    /// Bursts that they came in.
    pub batches: u64,
    /// What one costs of late, in nanoseconds.
    pub cost_ns: u64,
    /// Those that wait.
    pub waiting: u64,
    /// How many have waited at a worker, at most.
    pub waiting_max: u64,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The processor that it stays on.
    pub processor: Option<usize>,
    /// Looks at all ports.
    pub turns: u64,
    /// Those that found something.
    pub busy_turns: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Processor time that its thread has used.
    pub processor_ns: u64,
    /// The share of time that packets take, in thousandths, of late.
    pub load: u64,
    /// Whether it has a part of the bearers: where a latency is given, as many workers do as are needed.
    #[serde(default)]
    pub is_active: bool,
    /// Shards of bearers that it has: of 1024, each with the bearers whose places are equal modulo that.
    pub shards: u64,
    /// Shards that it gave to other workers, to even out what they have to do.
    pub shards_given: u64,
    /// Shards that it got from others.
    pub shards_taken: u64,
    /// Packets that it handed over, to other workers or behind those that waited.
    pub handed_over: u64,
}

/// A station that something was sent to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourReport {
    /// By which port it is reached.
    pub port: String,
    /// Its address.
    pub address: IpAddr,
    /// Its station's; zeros when that is not known.
    pub mac: String,
    /// `incomplete`, `reachable`, `probing` or `failed`.
    pub state: String,
    /// The worker that knows it: each looks for stations by itself.
    pub worker: usize,
}

/// A bearer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BearerReport {
    /// Its number.
    pub id: u32,
    /// As it was asked for.
    pub spec: BearerSpec,
    /// By what numbers peers are to name its tunnels.
    pub teids: TeidReport,
    /// What passed towards either side, since this process began. None: it is not known, as its worker has not answered in time.
    pub usage: Option<UsageReport>,
    /// What became of packets on the radio, where that is followed, and known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryReport>,
}

/// What became of packets on the radio (TS 38.425), as far as this process has met it: by their numbers here, and by what the node that has
/// the radio said. Numbers of PDCP are the last that were said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryReport {
    /// The number that the next packet has; none came yet, if there is none.
    pub next: Option<u32>,
    /// How many before it did not come, of those that are remembered, and were not said to be missing yet.
    pub missing: u64,
    /// Statuses that were sent.
    pub statuses_sent: u64,
    /// Statuses that came.
    pub statuses: u64,
    /// So many bytes are wanted.
    pub desired_bytes: u32,
    /// So many in a second.
    pub desired_rate: Option<u32>,
    /// The highest PDCP number that was transmitted.
    pub transmitted: Option<u32>,
    /// The highest that was delivered in sequence.
    pub delivered: Option<u32>,
    /// How many packets were said to be lost, in all.
    pub lost: u64,
    /// There will be no more statuses.
    pub is_final: bool,
}

impl DeliveryReport {
    fn new(delivery: &Delivery) -> DeliveryReport {
        let told = &delivery.told;
        DeliveryReport {
            next: delivery.next(),
            missing: delivery.missing(),
            statuses_sent: delivery.said(),
            statuses: told.statuses,
            desired_bytes: told.desired_bytes,
            desired_rate: told.desired_rate,
            transmitted: told.transmitted,
            delivered: told.delivered,
            lost: told.lost,
            is_final: told.is_final,
        }
    }
}

/// A tunnel's number on either side; none where there is no tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TeidReport {
    /// For peers at the core network's side.
    pub core: Option<u32>,
    /// For peers at the radio network's.
    pub radio: Option<u32>,
}

/// What passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// Users' packets towards the core network.
    pub core_packets: u64,
    /// Their bytes, without outer headers.
    pub core_bytes: u64,
    /// The same towards the radio network.
    pub radio_packets: u64,
    /// And their bytes.
    pub radio_bytes: u64,
    /// Seconds in which any passed.
    pub active_s: u32,
}

/// A part of all bearers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BearerList {
    /// Some of them, by their places.
    pub bearers: Vec<BearerReport>,
    /// What to ask `from` for those that follow.
    pub next: Option<u32>,
}

/// A user equipment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UeReport {
    /// Its number.
    pub ue: u32,
    /// As it was asked for.
    pub spec: UeSpec,
    /// How many bearers it has.
    pub bearers: u32,
}

/// A part of all user equipments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UeList {
    /// Some of them, by their numbers.
    pub ues: Vec<UeReport>,
    /// What to ask `from` for those that follow.
    pub next: Option<u32>,
}

/// What became of several that were to be added, or changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// How many were added.
    pub added: u64,
    /// How many were there, and are otherwise now.
    #[serde(default)]
    pub changed: u64,
    /// How many were not.
    pub refused: u64,
    /// The number of each, in the order that they came in; none for those that were refused.
    pub ids: Vec<Option<u32>>,
    /// Why, of the first few.
    pub refusals: Vec<Refusal>,
}

/// Why one of several was not added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Which one, from 1.
    pub line: u64,
    /// Why.
    pub error: String,
}

/// What passed by a bearer, as its worker says it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passed {
    pub(crate) usage: [Usage; 2],
    pub(crate) active_s: u32,
    pub(crate) delivery: Option<DeliveryReport>,
}

impl Passed {
    /// None: the bearer is not here.
    pub(crate) fn of(bearers: &Table, id: BearerId) -> Option<Passed> {
        let hot = bearers.hot(id)?;
        Some(Passed {
            usage: hot.usage,
            active_s: hot.active_s,
            delivery: bearers.delivery(id).map(DeliveryReport::new),
        })
    }
}

impl BearerReport {
    /// Of a bearer as it was asked for, and what passed, if its worker has said so.
    pub(crate) fn new(id: BearerId, bearer: &Bearer, passed: Option<Passed>) -> BearerReport {
        let teid = |side| (!bearer.peer(side).is_plain()).then_some(id.teid(side));
        let usage = |Passed {
                         usage: [core, radio],
                         active_s,
                         ..
                     }| UsageReport {
            core_packets: core.packets,
            core_bytes: core.bytes,
            radio_packets: radio.packets,
            radio_bytes: radio.bytes,
            active_s,
        };
        BearerReport {
            id: id.number(),
            spec: BearerSpec::of(bearer),
            teids: TeidReport {
                core: teid(Side::Core),
                radio: teid(Side::Radio),
            },
            usage: passed.map(usage),
            delivery: passed.and_then(|passed| passed.delivery),
        }
    }
}

/// Causes that dropped something.
pub(crate) fn drops_of(
    at: &str,
    causes: impl IntoIterator<Item = (&'static str, u64)>,
) -> Vec<DropReport> {
    let some = causes.into_iter().filter(|(_, packets)| *packets > 0);
    let clause = |cause| Cause::clause_of(cause).filter(|_| at == "function");
    let report = some.map(|(cause, packets)| DropReport {
        at: at.to_owned(),
        cause: cause.to_owned(),
        clause: clause(cause).map(str::to_owned),
        packets,
    });
    report.collect()
}

/// Adds what another worker dropped.
pub(crate) fn add_drops(to: &mut Vec<DropReport>, more: Vec<DropReport>) {
    for one in more {
        let known = to.iter_mut();
        match known
            .into_iter()
            .find(|known| known.at == one.at && known.cause == one.cause)
        {
            Some(known) => known.packets += one.packets,
            None => to.push(one),
        }
    }
}

impl CountReport {
    pub(crate) fn new(port: &Counters, link: &LinkCounts) -> CountReport {
        let of = |tally: &Tally| PortCause::ALL.map(|cause| (cause.name(), tally.dropped(cause)));
        let mut drops = drops_of("receive", of(&port.received));
        let causes = LinkCause::ALL.map(|cause| (cause.name(), link.dropped(cause)));
        drops.extend(drops_of("link", causes));
        drops.extend(drops_of("transmit", of(&port.transmitted)));
        CountReport {
            received_packets: port.received.packets,
            received_bytes: port.received.bytes,
            transmitted_packets: port.transmitted.packets,
            transmitted_bytes: port.transmitted.bytes,
            made: link.made,
            consumed: link.consumed,
            connections: port.connections,
            wakes: port.wakes,
            drops,
        }
    }
}
