//! Where the bytes of a server's connections went: by shared memory or by the kernel, as Millrace's agent lists them.
//!
//! A connection is listed while it is open, with its bytes since it began. What is asked for repeatedly while a client runs is therefore
//! nearly all that it carries, of connections that live longer than it takes to ask again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use millrace_agent::{AskError, ConnectionReport, EndReport};

const PATIENCE: Duration = Duration::from_secs(1);
/// With a smaller share, a figure is rather the kernel's than Millrace's.
const RING_SHARE_MIN: f64 = 0.5;

/// The connections of a server that have been seen.
#[derive(Debug)]
pub struct Carried {
    /// Where the server listens, and what is behind it.
    ports: Vec<u16>,
    /// Bytes by shared memory and by the kernel of each, when it was seen last. Ports are used again, and not at the same time.
    seen: BTreeMap<(SocketAddr, SocketAddr, u64), [u64; 2]>,
}

impl Carried {
    /// Of servers that listen at these ports, and nothing else does.
    #[must_use]
    pub fn at(ports: &[u16]) -> Carried {
        Carried {
            ports: ports.to_vec(),
            seen: BTreeMap::new(),
        }
    }

    /// Asks an agent.
    ///
    /// # Errors
    /// It does not answer.
    pub fn look(&mut self, agent: &Path) -> Result<(), AskError> {
        let report = millrace_agent::connections(agent, PATIENCE)?;
        for connection in &report.connections {
            self.add(connection);
        }
        Ok(())
    }

    /// The server's end has both directions. Of a connection that is not paired, its other end is listed apart.
    fn add(&mut self, connection: &ConnectionReport) {
        let is_ours = |end: &&EndReport| self.ports.contains(&end.local.port());
        let Some(end) = connection.ends.iter().find(is_ours) else {
            return;
        };
        let directions = [&end.sent, &end.received];
        let ring = directions.map(|direction| direction.shm_bytes);
        let kernel = directions.map(|direction| direction.kernel_bytes);
        self.seen.insert(
            (end.local, end.remote, end.since_ns),
            [ring, kernel].map(|each| each.iter().sum()),
        );
    }

    /// Of all bytes, those that took shared memory; between 0 and 1. None: no byte was seen.
    #[must_use]
    pub fn ring_share(&self) -> Option<f64> {
        let sum = |road: usize| self.seen.values().map(|bytes| bytes[road]).sum::<u64>();
        let (ring, kernel) = (sum(0), sum(1));
        (ring + kernel > 0).then(|| ring as f64 / (ring + kernel) as f64)
    }
}

/// What a reader of a figure on a road of Millrace has to know, by the share of its bytes.
#[must_use]
pub fn note(ring_share: Option<f64>) -> Option<&'static str> {
    match ring_share {
        None => Some(
            "which road the bytes took is not known: no connection stayed long enough to be seen",
        ),
        Some(share) if share < RING_SHARE_MIN => {
            Some("most bytes took the kernel's road: this is no figure of Millrace's")
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use millrace_agent::DirectionReport;

    use super::*;

    fn end(local: &str, remote: &str, shm_bytes: u64, kernel_bytes: u64) -> EndReport {
        EndReport {
            pid: 1,
            uid: 0,
            program: "redis".to_owned(),
            container: None,
            pod: None,
            pod_name: None,
            fd: 3,
            active: false,
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            road: "shm".to_owned(),
            reason: "none".to_owned(),
            since_ns: 7,
            holders: 1,
            sent: DirectionReport {
                shm_bytes,
                ..DirectionReport::default()
            },
            received: DirectionReport {
                kernel_bytes,
                ..DirectionReport::default()
            },
        }
    }

    fn connection(ends: Vec<EndReport>) -> ConnectionReport {
        ConnectionReport {
            id: None,
            segment: None,
            ends,
        }
    }

    #[test]
    fn connections_of_the_ports_count_once_with_what_they_had_last() {
        let mut carried = Carried::at(&[7000, 7001]);
        assert_eq!(carried.ring_share(), None);
        let (server, client) = ("10.0.0.2:7000", "10.0.0.3:4000");
        // Seen twice, with both ends, and with an end that says the same elsewhere.
        carried.add(&connection(vec![end(server, client, 10, 10)]));
        carried.add(&connection(vec![
            end(client, server, 9, 1000),
            end(server, client, 60, 20),
        ]));
        carried.add(&connection(vec![end(client, server, 9, 1000)]));
        assert_eq!(carried.ring_share(), Some(0.75));
        carried.add(&connection(vec![end("10.0.0.2:7001", client, 0, 40)]));
        assert_eq!(carried.ring_share(), Some(0.5));
        carried.add(&connection(vec![end("10.0.0.2:7002", client, 0, 1000)]));
        assert_eq!(carried.ring_share(), Some(0.5));
    }

    #[test]
    fn a_figure_of_the_kernel_is_told() {
        assert_eq!(note(Some(0.99)), None);
        assert!(note(Some(0.01)).is_some_and(|text| text.contains("kernel's road")));
        assert!(note(None).is_some_and(|text| text.contains("not known")));
    }
}
