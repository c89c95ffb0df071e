//! Answers to `millrace ps` and `millrace doctor`: what they are, as JSON, and how connections are put together from the boards.
//!
//! Addresses, counters and reasons are what the clients say; who they are, and which ends belong together once they are paired, is
//! the agent's own knowledge. Callers other than root see only their own user's ends, and callers in a container, root or not, their
//! container's or pod's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use millrace_shm::board::RowView;
use millrace_shm::gate::Gate;
use millrace_wire::{Address, Reason};
use serde::{Deserialize, Serialize};

use crate::proof::Capabilities;
use crate::roads::{self, Absent};

/// Most connections in one answer.
const CONNECTIONS_MAX: usize = 100_000;

/// The answer to `Query::Connections`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionsReport {
    /// The agent's `CLOCK_MONOTONIC` in nanoseconds, to compute ages with.
    pub now_ns: u64,
    /// There were more connections than one answer holds.
    pub truncated: bool,
    /// The connections.
    pub connections: Vec<ConnectionReport>,
}

/// One connection, with the ends that the caller may see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// The agent's number; `None` while it is not paired.
    pub id: Option<u64>,
    /// The inode of its segment, as `/proc/PID/maps` names it.
    #[serde(default)]
    pub segment: Option<u64>,
    /// One or two ends, the connecting one first.
    pub ends: Vec<EndReport>,
}

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndReport {
    /// The process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its name, printable.
    pub program: String,
    /// The number of the container that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The unique id of the Kubernetes pod that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// That pod's namespace and name, where the machine's kubelet knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// Its descriptor's number.
    pub fd: i32,
    /// It connected; otherwise it accepted.
    pub active: bool,
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's address.
    pub remote: SocketAddr,
    /// `kernel` or `shm`: `shm` when it has joined the ring and may use it for one direction at least.
    pub road: String,
    /// Why it is on its road: a name of [`Reason`]. With `shm`: why one direction is not on the ring, or `none`.
    pub reason: String,
    /// `CLOCK_MONOTONIC` when the end was listed, in nanoseconds.
    pub since_ns: u64,
    /// Processes that hold this end.
    pub holders: u32,
    /// What it sent.
    pub sent: DirectionReport,
    /// What it received.
    pub received: DirectionReport,
}

/// One direction: its road, and bytes and messages by road since the connection began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct DirectionReport {
    /// The road that the next bytes take: `kernel` or `shm`.
    #[serde(default)]
    pub road: String,
    /// Why: a name of [`Reason`]. `sleeping` and `overflow` pass.
    #[serde(default)]
    pub reason: String,
    pub kernel_bytes: u64,
    pub kernel_messages: u64,
    pub shm_bytes: u64,
    pub shm_messages: u64,
}

/// The answer to `Query::Status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The program's version.
    pub version: String,
    /// Lowest and highest control protocol version.
    pub protocol: [u16; 2],
    /// The segment's layout version.
    pub segment_version: u16,
    /// The agent's process.
    pub pid: i32,
    /// The agent's user.
    pub uid: u32,
    /// It leaves when its last client has gone.
    pub background: bool,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Its network namespace, as `/proc/PID/ns/net` names it.
    pub network_namespace: String,
    /// What it can find out here.
    pub capabilities: Capabilities,
    /// It may look at the process that asks, so connections of it can be proved.
    pub sees_caller: bool,
    /// It may borrow descriptors of the process that asks, so connections of it can be brought back from a ring.
    #[serde(default = "yes")]
    pub may_trace_caller: bool,
    /// Programs that are connected.
    pub clients: usize,
    /// Those who take part in channels.
    #[serde(default)]
    pub participants: usize,
    /// Programs for which it stays, connected or not; only in the background.
    #[serde(default)]
    pub awaited: usize,
    /// Offers that wait for their other end, or for the word of either that it wants the segment still.
    pub offers_waiting: usize,
    /// Connections that were offered since it started.
    pub offers: u64,
    /// Connections that got a segment since it started.
    pub paired: u64,
    /// Offers that were declined, by reason.
    pub declined: BTreeMap<String, u64>,
    /// Memory of all segments.
    pub segment_bytes: u64,
    /// Memory that all segments may have.
    pub segment_bytes_limit: u64,
    /// Spin budget in microseconds.
    pub spin_us: u32,
    /// Size of each direction's ring.
    pub ring_bytes: u32,
    /// Size of each direction's ring when it carries bulk: what segments are laid out for.
    pub bulk_ring_bytes: u32,
}

/// What an agent does not say that is older than the question.
fn yes() -> bool {
    true
}

/// The process that an end is of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holder {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) program: String,
    pub(crate) container: Option<String>,
    pub(crate) pod: Option<String>,
    pub(crate) pod_name: Option<String>,
}

/// What the agent knows of a connection that it introduced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) id: u64,
    pub(crate) segment: u64,
    /// The gates of both directions, while both ends are there.
    pub(crate) gates: Option<[Gate; 2]>,
    /// What became of an end that no row shows.
    pub(crate) absent: Absent,
}

/// An end as it is listed.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) holder: Rc<Holder>,
    pub(crate) row: RowView,
    /// Whoever asks may see it.
    pub(crate) visible: bool,
}

/// Puts ends together to connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    paired: BTreeMap<u64, (Known, Vec<Listed>)>,
    /// Ends without a number, by their addresses in order: here the addresses are all there is to go by.
    loose: BTreeMap<(Address, Address), Vec<Listed>>,
    count: usize,
    truncated: bool,
}

impl Connections {
    /// Adds an end. `known`: what the agent knows of the connection that this end belongs to.
    pub(crate) fn add(&mut self, end: Listed, known: Option<Known>) {
        if self.count >= CONNECTIONS_MAX {
            self.truncated = true;
            return;
        }
        self.count += 1;
        match known {
            Some(known) => {
                let place = self.paired.entry(known.id).or_insert((known, Vec::new()));
                place.1.push(end);
            }
            None => {
                let [local, remote] = addresses(&end.row);
                let key = (local.min(remote), local.max(remote));
                self.loose.entry(key).or_default().push(end);
            }
        }
    }

    /// All of them, paired ones first.
    pub(crate) fn finish(self, now_ns: u64) -> ConnectionsReport {
        let mut connections = Vec::new();
        for (id, (known, mut ends)) in self.paired {
            ends.sort_by_key(|end| !end.row.active);
            connections.push(connection_report(Some(id), &ends, Some(&known)));
        }
        for ((first, second), ends) in self.loose {
            if first.port == 0 && second.port == 0 {
                // What has no addresses belongs to nothing that is known.
                connections.extend(
                    ends.into_iter()
                        .map(|end| connection_report(None, &[end], None)),
                );
                continue;
            }
            let (active, passive): (Vec<_>, Vec<_>) =
                ends.into_iter().partition(|end| end.row.active);
            let mut passive = passive.into_iter();
            for end in active {
                let ends: Vec<Listed> = std::iter::once(end).chain(passive.next()).collect();
                connections.push(connection_report(None, &ends, None));
            }
            connections.extend(passive.map(|end| connection_report(None, &[end], None)));
        }
        connections.retain(|connection| !connection.ends.is_empty());
        ConnectionsReport {
            now_ns,
            truncated: self.truncated,
            connections,
        }
    }
}

fn addresses(row: &RowView) -> [Address; 2] {
    [row.local, row.remote].map(|(ip, port)| Address { ip, port })
}

/// Of the first two ends that are there, each is the other's peer.
fn connection_report(id: Option<u64>, ends: &[Listed], known: Option<&Known>) -> ConnectionReport {
    let gate = |direction: usize| {
        known
            .and_then(|known| known.gates)
            .map(|gates| gates[direction])
    };
    let absent = known.map_or(Absent::Held, |known| known.absent);
    let reports = ends.iter().enumerate().map(|(index, end)| {
        let own = &end.row;
        let peer = ends.get(1 - index.min(1)).map(|peer| &peer.row);
        let direction = usize::from(!own.active);
        let sent = roads::of_direction(Some(own), peer, absent, gate(direction));
        let received = roads::of_direction(peer, Some(own), absent, gate(1 - direction));
        (end.visible, end_report(end, sent, received))
    });
    let ends = reports.filter(|(visible, _)| *visible).map(|(_, end)| end);
    ConnectionReport {
        id,
        segment: known.map(|known| known.segment),
        ends: ends.collect(),
    }
}

fn end_report(end: &Listed, sent: Reason, received: Reason) -> EndReport {
    let Listed { holder, row, .. } = end;
    let [local, remote] = addresses(row);
    let (road, reason) = roads::of_end(row, sent, received);
    EndReport {
        pid: holder.pid,
        uid: holder.uid,
        program: holder.program.clone(),
        container: holder.container.clone(),
        pod: holder.pod.clone(),
        pod_name: holder.pod_name.clone(),
        fd: row.fd,
        active: row.active,
        local: local.into(),
        remote: remote.into(),
        road: road.to_owned(),
        reason: reason.as_str().to_owned(),
        since_ns: row.since_ns,
        holders: row.holders,
        sent: DirectionReport {
            road: roads::name(sent).to_owned(),
            reason: sent.as_str().to_owned(),
            kernel_bytes: row.sent_kernel_bytes,
            kernel_messages: row.sent_kernel_messages,
            shm_bytes: row.sent_ring_bytes,
            shm_messages: row.sent_ring_messages,
        },
        received: DirectionReport {
            road: roads::name(received).to_owned(),
            reason: received.as_str().to_owned(),
            kernel_bytes: row.received_kernel_bytes,
            kernel_messages: row.received_kernel_messages,
            shm_bytes: row.received_ring_bytes,
            shm_messages: row.received_ring_messages,
        },
    }
}

#[cfg(test)]
mod tests {
    use millrace_shm::board::{flags, state};

    use super::*;

    fn listed(port: u16, peer: u16, active: bool) -> Listed {
        let ip = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
        let holder = Holder {
            pid: 1,
            uid: 0,
            program: "x".into(),
            container: None,
            pod: None,
            pod_name: None,
        };
        Listed {
            holder: Rc::new(holder),
            row: RowView {
                state: state::KERNEL,
                active,
                local: (ip, port),
                remote: (ip, peer),
                ..RowView::default()
            },
            visible: true,
        }
    }

    const KNOWN: Known = Known {
        id: 9,
        segment: 5,
        gates: None,
        absent: Absent::Left(Reason::Exec),
    };

    #[test]
    fn ends_are_put_together_by_number_or_by_address() {
        let mut connections = Connections::default();
        connections.add(listed(80, 4000, false), None);
        connections.add(listed(4000, 80, true), None);
        connections.add(listed(5000, 80, true), None);
        connections.add(listed(80, 6000, false), Some(KNOWN));
        connections.add(listed(6000, 80, true), Some(KNOWN));
        let report = connections.finish(0);
        let shape: Vec<(Option<u64>, Vec<u16>)> = report
            .connections
            .iter()
            .map(|connection| {
                (
                    connection.id,
                    connection.ends.iter().map(|end| end.local.port()).collect(),
                )
            })
            .collect();
        assert_eq!(
            shape,
            [
                (Some(9), vec![6000, 80]),
                (None, vec![4000, 80]),
                (None, vec![5000])
            ]
        );
    }

    #[test]
    fn ends_without_addresses_are_not_put_together() {
        let mut connections = Connections::default();
        connections.add(listed(0, 0, false), None);
        connections.add(listed(0, 0, true), None);
        assert_eq!(connections.finish(0).connections.len(), 2);
    }

    #[test]
    fn an_answer_that_would_be_too_long_says_so() {
        let mut connections = Connections::default();
        let end = listed(80, 4000, false);
        for _ in 0..=CONNECTIONS_MAX {
            connections.add(end.clone(), None);
        }
        let report = connections.finish(0);
        let ends = report
            .connections
            .iter()
            .map(|connection| connection.ends.len());
        assert_eq!((ends.sum(), report.truncated), (CONNECTIONS_MAX, true));
    }

    #[test]
    fn an_end_that_may_not_be_seen_still_decides_the_road() {
        let mut seen = listed(6000, 80, true);
        seen.row.state = state::ATTACHED;
        let mut hidden = listed(80, 6000, false);
        hidden.row = RowView {
            state: state::ATTACHED,
            reason: Reason::Ktls as u8,
            flags: flags::SEND_PINNED | flags::RECEIVE_PINNED,
            ..hidden.row
        };
        hidden.visible = false;
        let mut connections = Connections::default();
        connections.add(seen, Some(KNOWN));
        connections.add(hidden.clone(), Some(KNOWN));
        connections.add(hidden, None);
        let report = connections.finish(0);
        let [connection] = report.connections.as_slice() else {
            panic!("{report:?}");
        };
        let [end] = connection.ends.as_slice() else {
            panic!("{connection:?}");
        };
        assert_eq!((end.road.as_str(), end.reason.as_str()), ("kernel", "ktls"));
    }

    #[test]
    fn an_end_that_is_left_alone_says_what_became_of_the_other() {
        let mut end = listed(6000, 80, true);
        end.row.state = state::ATTACHED;
        let mut connections = Connections::default();
        connections.add(end, Some(KNOWN));
        let end = &connections.finish(0).connections[0].ends[0];
        assert_eq!((end.road.as_str(), end.reason.as_str()), ("kernel", "exec"));
        assert_eq!(end.sent.reason, "exec");
    }
}
