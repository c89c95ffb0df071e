//! Answers to `millrace ps` and `millrace doctor`: what they are, as JSON, and how connections are put together from the boards.
//!
//! Addresses, counters and reasons are what the clients say; who they are, and which ends belong together once they are paired, is
//! the agent's own knowledge. Callers other than root see only their own user's ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use millrace_shm::board::{RowView, state};
use millrace_wire::{Address, Reason};
use serde::{Deserialize, Serialize};

use crate::proof::Capabilities;

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
    /// Its descriptor's number.
    pub fd: i32,
    /// It connected; otherwise it accepted.
    pub active: bool,
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's address.
    pub remote: SocketAddr,
    /// `kernel` or `shm`.
    pub road: String,
    /// Why it is on its road: a name of [`Reason`].
    pub reason: String,
    /// `CLOCK_MONOTONIC` when the end was listed, in nanoseconds.
    pub since_ns: u64,
    /// Processes that hold this end.
    pub holders: u32,
    /// What it sent.
    pub sent: RoadCounts,
    /// What it received.
    pub received: RoadCounts,
}

/// Bytes and messages of one direction, by road.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct RoadCounts {
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
    /// Programs that are connected.
    pub clients: usize,
    /// Programs for which it stays, connected or not; only in the background.
    #[serde(default)]
    pub awaited: usize,
    /// Offers that wait for their other end.
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
}

/// The road and the reason that a row states.
pub(crate) fn road_and_reason(row: &RowView) -> (&'static str, &'static str) {
    // An end that has attached a segment and states no reason is on the ring.
    let reason = Reason::from_u8(row.reason).unwrap_or(Reason::Unsupported);
    let road = if row.state == state::ATTACHED {
        "shm"
    } else {
        "kernel"
    };
    (road, reason.as_str())
}

/// The process that an end is of.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) program: String,
}

/// Puts ends together to connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    paired: BTreeMap<u64, Vec<EndReport>>,
    /// Ends without a number, by their addresses in order: here the addresses are all there is to go by.
    loose: BTreeMap<(Address, Address), Vec<EndReport>>,
    count: usize,
    truncated: bool,
}

impl Connections {
    /// Adds an end. `id` is the connection's number when the agent knows that this end belongs to it.
    pub(crate) fn add(&mut self, holder: &Holder, row: &RowView, id: Option<u64>) {
        if self.count >= CONNECTIONS_MAX {
            self.truncated = true;
            return;
        }
        self.count += 1;
        let [local, remote] = [row.local, row.remote].map(|(ip, port)| Address { ip, port });
        let end = end_report(holder, row, local, remote);
        match id {
            Some(id) => self.paired.entry(id).or_default().push(end),
            None => self
                .loose
                .entry((local.min(remote), local.max(remote)))
                .or_default()
                .push(end),
        }
    }

    /// All of them, paired ones first.
    pub(crate) fn finish(self, now_ns: u64) -> ConnectionsReport {
        let mut connections = Vec::new();
        for (id, mut ends) in self.paired {
            ends.sort_by_key(|end| !end.active);
            connections.push(ConnectionReport { id: Some(id), ends });
        }
        for (_, ends) in self.loose {
            let (active, passive): (Vec<_>, Vec<_>) = ends.into_iter().partition(|end| end.active);
            let mut passive = passive.into_iter();
            for end in active {
                let other = passive.next();
                connections.push(ConnectionReport {
                    id: None,
                    ends: std::iter::once(end).chain(other).collect(),
                });
            }
            connections.extend(passive.map(|end| ConnectionReport {
                id: None,
                ends: vec![end],
            }));
        }
        ConnectionsReport {
            now_ns,
            truncated: self.truncated,
            connections,
        }
    }
}

fn end_report(holder: &Holder, row: &RowView, local: Address, remote: Address) -> EndReport {
    let (road, reason) = road_and_reason(row);
    EndReport {
        pid: holder.pid,
        uid: holder.uid,
        program: holder.program.clone(),
        fd: row.fd,
        active: row.active,
        local: local.into(),
        remote: remote.into(),
        road: road.to_owned(),
        reason: reason.to_owned(),
        since_ns: row.since_ns,
        holders: row.holders,
        sent: RoadCounts {
            kernel_bytes: row.sent_kernel_bytes,
            kernel_messages: row.sent_kernel_messages,
            shm_bytes: row.sent_ring_bytes,
            shm_messages: row.sent_ring_messages,
        },
        received: RoadCounts {
            kernel_bytes: row.received_kernel_bytes,
            kernel_messages: row.received_kernel_messages,
            shm_bytes: row.received_ring_bytes,
            shm_messages: row.received_ring_messages,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(port: u16, peer: u16, active: bool) -> RowView {
        let ip = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
        RowView {
            state: state::KERNEL,
            active,
            local: (ip, port),
            remote: (ip, peer),
            ..RowView::default()
        }
    }

    #[test]
    fn ends_are_put_together_by_number_or_by_address() {
        let holder = Holder {
            pid: 1,
            uid: 0,
            program: "x".into(),
        };
        let mut connections = Connections::default();
        connections.add(&holder, &row(80, 4000, false), None);
        connections.add(&holder, &row(4000, 80, true), None);
        connections.add(&holder, &row(5000, 80, true), None);
        connections.add(&holder, &row(80, 6000, false), Some(9));
        connections.add(&holder, &row(6000, 80, true), Some(9));
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
    fn what_a_client_invents_is_still_reported_as_something() {
        let invented = RowView {
            state: 200,
            reason: 200,
            fd: -5,
            ..RowView::default()
        };
        assert_eq!(road_and_reason(&invented), ("kernel", "unsupported"));
    }
}
