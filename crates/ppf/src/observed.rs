//! What the function says of events, paths and packets that wait, as JSON.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::bearer::{BearerId, Side};
use crate::event::{Due, Event};
use crate::hold::HeldCounts;
use crate::paths::PathState;
use crate::report::UsageReport;
use crate::told::Told;

/// Something that whoever controls the function should know. What an event has nothing of is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EventReport {
    /// From 0, since this process began.
    pub number: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The worker that met it.
    pub worker: usize,
    /// `path_up`, `path_down`, `extensions`, `lost`, `end_marker`, `tunnel_status`, `first_held` or `usage`.
    pub event: String,
    /// `core` or `radio`: where the peer is; of what is held, where it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side: Option<String>,
    /// A peer's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// A bearer's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer: Option<u32>,
    /// Kinds of extension headers that the peer understands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extensions: Option<Vec<u8>>,
    /// Of a tunnel: charging pauses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<bool>,
    /// It goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<bool>,
    /// Which threshold was reached: `bytes`, `packets` or `seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// What passed since the last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageReport>,
}

/// Some of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventList {
    /// When the process began, in milliseconds since 1970: numbers are its own.
    pub began_ms: u64,
    /// In their order.
    pub events: Vec<EventReport>,
    /// What to ask `from` for those that follow.
    pub next: u64,
    /// How many of those that were asked for are not kept any more.
    pub missed: u64,
}

/// What is known of the way to a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathReport {
    /// `core` or `radio`: where the peer is.
    pub side: String,
    /// Its address.
    pub peer: IpAddr,
    /// `up`, `down`, or `unknown`: it was not asked, or has not answered yet.
    pub state: String,
    /// Tunnels that go by it.
    pub tunnels: u32,
    /// The worker that asks.
    pub worker: usize,
    /// Echo requests that were sent, repetitions among them.
    pub requests: u64,
    /// Those that were answered in time.
    pub responses: u64,
    /// What the peer said last of its restarts; 0 since TS 29.281 has nobody look at it.
    pub restart_counter: Option<u8>,
}

/// A part of all paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathList {
    /// Some of them.
    pub paths: Vec<PathReport>,
    /// What to ask `from` for those that follow.
    pub next: Option<u64>,
    /// Workers that have not answered in time: their paths are not among these.
    #[serde(default)]
    pub unanswered: Vec<usize>,
}

/// How many paths there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathCounts {
    /// Whose peers answer.
    pub up: u64,
    /// Whose peers do not.
    pub down: u64,
    /// Whose peers were not asked, or have not answered yet.
    pub unknown: u64,
}

/// Packets of bearers that are paused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReport {
    /// That wait.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// That were taken in.
    pub taken_packets: u64,
    /// That were given out.
    pub released_packets: u64,
}

/// How many events there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventCounts {
    /// That were told of.
    pub told: u64,
    /// That are not kept any more.
    pub gone: u64,
    /// That a worker had no room for: nobody was told.
    pub lost: u64,
}

impl PathCounts {
    pub(crate) fn count(&mut self, is_up: Option<bool>) {
        match is_up {
            Some(true) => self.up += 1,
            Some(false) => self.down += 1,
            None => self.unknown += 1,
        }
    }

    pub(crate) fn add(&mut self, other: PathCounts) {
        self.up += other.up;
        self.down += other.down;
        self.unknown += other.unknown;
    }
}

impl HeldReport {
    pub(crate) fn add(&mut self, counts: HeldCounts) {
        self.packets += counts.packets;
        self.bytes += counts.bytes;
        self.taken_packets += counts.taken;
        self.released_packets += counts.released;
    }
}

impl PathReport {
    pub(crate) fn new(worker: usize, path: &PathState) -> PathReport {
        PathReport {
            side: path.side.name().to_owned(),
            peer: path.address,
            state: match path.is_up {
                Some(true) => "up",
                Some(false) => "down",
                None => "unknown",
            }
            .to_owned(),
            tunnels: path.tunnels,
            worker,
            requests: path.requests,
            responses: path.responses,
            restart_counter: path.restart_counter,
        }
    }
}

impl From<Told> for EventReport {
    fn from(told: Told) -> EventReport {
        let mut report = EventReport {
            number: told.number,
            time_ms: told.time_ms,
            worker: told.worker,
            ..EventReport::default()
        };
        match told.event {
            Event::PathUp(side, peer) => report.of_peer("path_up", side, peer),
            Event::PathDown(side, peer) => report.of_peer("path_down", side, peer),
            Event::Extensions(side, peer, kinds) => {
                report.of_peer("extensions", side, peer);
                report.extensions = Some(kinds.into_vec());
            }
            Event::Lost(id, side) => report.of_bearer("lost", id, Some(side)),
            Event::EndMarker(id, side) => report.of_bearer("end_marker", id, Some(side)),
            Event::TunnelStatus(id, side, status) => {
                report.of_bearer("tunnel_status", id, Some(side));
                (report.pause, report.resume) = (Some(status.pause), Some(status.resume));
            }
            Event::FirstHeld(id, side) => report.of_bearer("first_held", id, Some(side)),
            Event::Usage(usage) => {
                report.of_bearer("usage", usage.bearer, None);
                let due = match usage.due {
                    Due::Bytes => "bytes",
                    Due::Packets => "packets",
                    Due::Seconds => "seconds",
                };
                report.due = Some(due.to_owned());
                let [core, radio] = usage.usage;
                report.usage = Some(UsageReport {
                    core_packets: core.packets,
                    core_bytes: core.bytes,
                    radio_packets: radio.packets,
                    radio_bytes: radio.bytes,
                    active_s: usage.active_s,
                });
            }
        }
        report
    }
}

impl EventReport {
    fn of_peer(&mut self, event: &str, side: Side, peer: IpAddr) {
        event.clone_into(&mut self.event);
        self.side = Some(side.name().to_owned());
        self.peer = Some(peer);
    }

    fn of_bearer(&mut self, event: &str, id: BearerId, side: Option<Side>) {
        event.clone_into(&mut self.event);
        self.side = side.map(|side| side.name().to_owned());
        self.bearer = Some(id.number());
    }
}

#[cfg(test)]
mod tests {
    use millrace_wire::gtpu::path::TunnelStatus;
    use serde_json::json;

    use super::*;
    use crate::bearer::Usage;
    use crate::event::Report;

    #[test]
    fn an_event_says_what_it_has_and_nothing_else() {
        let id = BearerId::from_number(513);
        let peer = IpAddr::from([192, 0, 2, 9]);
        let usage = Usage {
            packets: 1,
            bytes: 2,
        };
        let report = Report {
            bearer: id,
            usage: [usage, Usage::default()],
            active_s: 3,
            due: Due::Bytes,
        };
        let status = TunnelStatus {
            pause: true,
            resume: false,
        };
        for (event, wanted) in [
            (
                Event::PathDown(Side::Radio, peer),
                json!({ "event": "path_down", "side": "radio", "peer": "192.0.2.9" }),
            ),
            (
                Event::Extensions(Side::Core, peer, Box::new([133])),
                json!({ "event": "extensions", "side": "core", "peer": "192.0.2.9", "extensions": [133] }),
            ),
            (
                Event::FirstHeld(id, Side::Radio),
                json!({ "event": "first_held", "side": "radio", "bearer": 513 }),
            ),
            (
                Event::TunnelStatus(id, Side::Core, status),
                json!({ "event": "tunnel_status", "side": "core", "bearer": 513, "pause": true, "resume": false }),
            ),
            (
                Event::Usage(report),
                json!({
                    "event": "usage", "bearer": 513, "due": "bytes",
                    "usage": { "core_packets": 1, "core_bytes": 2, "radio_packets": 0, "radio_bytes": 0, "active_s": 3 },
                }),
            ),
        ] {
            let told = Told {
                number: 7,
                time_ms: 8,
                worker: 1,
                event,
            };
            let mut wanted = wanted;
            (wanted["number"], wanted["time_ms"]) = (json!(7), json!(8));
            wanted["worker"] = json!(1);
            let report = serde_json::to_value(EventReport::from(told)).unwrap();
            assert_eq!(report, wanted);
        }
    }
}
