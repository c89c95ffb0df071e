//! What a switch says of itself, as JSON: what `millrace switch show`, `stats`, `flow list`, `mac` and `mirror list` print.

use millrace_port::{Cause as PortCause, Counters};
use serde::{Deserialize, Serialize};

use crate::counters::{Cause, Tally};

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchReport {
    /// Of the program that it is of.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since it began.
    pub uptime_ns: u64,
    /// Ports, in the order in which they came.
    pub ports: Vec<PortReport>,
    /// Flows, the highest priority first.
    pub flows: Vec<FlowReport>,
    /// Mirrors.
    pub mirrors: Vec<MirrorReport>,
    /// What containers may have.
    #[serde(default)]
    pub devices: Vec<DeviceReport>,
    /// Workers.
    pub workers: Vec<WorkerReport>,
    /// Stations that are known now.
    pub stations: u64,
    /// Stations that can be known.
    pub stations_max: u64,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Of which kind.
    pub kind: String,
    /// The worker that has it.
    pub worker: usize,
    /// `connected`, `connecting`, `closed`, and why.
    pub state: String,
    /// `any`, `access 10`, `trunk 10,20 native 1`.
    pub vlan: String,
    /// Bytes of a packet that leaves by it, where there is a limit.
    pub mtu: Option<u16>,
    /// Stations that are known to be there.
    pub stations: u64,
    /// What was counted.
    pub counters: CountersReport,
}

/// What was counted of a port. Over all ports, `received` (of the switch: `entered`) and `made` together are what was transmitted and
/// dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CountersReport {
    /// Packets that came by it.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that left by it.
    pub transmitted_packets: u64,
    /// Their bytes.
    pub transmitted_bytes: u64,
    /// Packets that the switch looked at.
    pub entered: u64,
    /// Packets more than entered: copies for further ports and mirrors, segments, answers.
    pub made: u64,
    /// Frames that went to all ports.
    pub flooded: u64,
    /// Stations that were not learnt, because there were too many.
    pub unlearnt: u64,
    /// Connections that were made.
    pub connections: u64,
    /// How often a sleeping peer was woken.
    pub wakes: u64,
    /// What was dropped: by the port, receiving or transmitting, and by the switch. Causes of none are left out.
    pub drops: Vec<DropReport>,
}

/// Packets that were dropped for one cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropReport {
    /// `receive`, `switch` or `transmit`: where.
    pub at: String,
    /// Why.
    pub cause: String,
    /// How many.
    pub packets: u64,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowReport {
    /// Its name.
    pub name: String,
    /// Of two that a frame is of, the higher counts.
    pub priority: u32,
    /// The port that frames come from.
    #[serde(rename = "in")]
    pub from: Option<String>,
    /// Which frames, as `field=value`.
    #[serde(rename = "match")]
    pub wanted: Vec<String>,
    /// Where they go; nowhere: they are dropped.
    pub out: Vec<String>,
    /// Frames that were of it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorReport {
    /// Its name.
    pub name: String,
    /// Where copies go.
    pub file: String,
    /// Of which ports; none: of all.
    pub ports: Vec<String>,
    /// `in`, `out` or `both`.
    pub direction: String,
    /// Whether the file can be written.
    pub state: String,
    /// Copies that were written.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies that were not written.
    pub drops: Vec<DropReport>,
}

/// What containers may have by a device: `millrace.dev/packet=NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// Of which kind its ports are.
    pub kind: String,
    /// How many ports a container gets.
    pub ports: u32,
    /// Containers that have it.
    pub containers: u64,
    /// How many may have it, where there is a limit.
    pub containers_max: Option<u32>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Its processor, if it has one of its own.
    pub processor: Option<usize>,
    /// Whether it has the files.
    pub files: bool,
    /// Looks at all its ports.
    pub turns: u64,
    /// Those that found packets.
    pub busy_turns: u64,
    /// How often it went to sleep.
    pub sleeps: u64,
    /// Processor time that its thread has used.
    #[serde(default)]
    pub processor_ns: u64,
}

/// A station.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StationReport {
    /// Its VLAN; 0: none.
    pub vlan: u16,
    /// Its address.
    pub mac: String,
    /// The port that it is at.
    pub port: String,
    /// For how long nothing was heard of it.
    pub silent_s: u64,
}

impl CountersReport {
    /// Of a port's figures and the switch's.
    pub(crate) fn new(counters: &Counters, tally: &Tally) -> CountersReport {
        let (received, transmitted) = (&counters.received, &counters.transmitted);
        let mut drops = Vec::new();
        for (at, side) in [("receive", received), ("transmit", transmitted)] {
            let causes = PortCause::ALL.map(|cause| (cause.name(), side.dropped(cause)));
            drops.extend(dropped(at, &causes));
        }
        let causes = Cause::ALL.map(|cause| (cause.name(), tally.dropped(cause)));
        drops.extend(dropped("switch", &causes));
        CountersReport {
            received_packets: received.packets,
            received_bytes: received.bytes,
            transmitted_packets: transmitted.packets,
            transmitted_bytes: transmitted.bytes,
            entered: tally.entered,
            made: tally.made,
            flooded: tally.flooded,
            unlearnt: tally.unlearnt,
            connections: counters.connections,
            wakes: counters.wakes,
            drops,
        }
    }

    /// Packets that were dropped somewhere.
    #[must_use]
    pub fn dropped(&self, at: &str) -> u64 {
        let drops = self.drops.iter().filter(|drop| drop.at == at);
        drops.map(|drop| drop.packets).sum()
    }
}

fn dropped(at: &str, causes: &[(&str, u64)]) -> Vec<DropReport> {
    let some = causes.iter().filter(|cause| cause.1 > 0);
    some.map(|(cause, packets)| DropReport {
        at: at.to_owned(),
        cause: (*cause).to_owned(),
        packets: *packets,
    })
    .collect()
}
