//! Answers: what the agent knows, as a report or as metrics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use millrace_wire::{Answer, Query, SEGMENT_VERSION, ToClient, VERSION_MAX, VERSION_MIN};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{geteuid, getpid};
use tracing::warn;

use crate::metrics::Gauges;
use crate::offers::ClientId;
use crate::proof::{Capabilities, Process};
use crate::report::{Connections, Holder, StatusReport, road_and_reason};
use crate::server::Server;

impl Server {
    /// Answers a question.
    pub(crate) fn handle_query(&mut self, asker: ClientId, query: Query) {
        self.metrics.queries += 1;
        let text = match query {
            Query::Connections => self.report_connections(asker),
            Query::Status | Query::StatusAndStay => self.report_status(asker),
        };
        match text
            .map_err(io::Error::from)
            .and_then(|text| to_memfd(&text))
        {
            Ok((memfd, bytes)) => self.send(
                asker,
                ToClient::Answer(Answer { bytes }),
                Some(Rc::new(memfd)),
            ),
            Err(error) => {
                if self.log_limit.allows() {
                    warn!("cannot answer a question: {error}");
                }
            }
        }
    }

    fn report_connections(&self, asker: ClientId) -> serde_json::Result<String> {
        let asker_uid = self
            .clients
            .get(&asker)
            .map_or(u32::MAX, |client| client.uid);
        let mut connections = Connections::default();
        for client in self.clients.values() {
            if asker_uid != 0 && client.uid != asker_uid {
                continue;
            }
            // A process may have changed its name since it connected.
            let program = client
                .process
                .as_ref()
                .and_then(Process::name)
                .unwrap_or_else(|| client.name.clone());
            let holder = Holder {
                pid: client.pid,
                uid: client.uid,
                program,
            };
            for (_, row) in client.rows() {
                let ends = self.introduced.get(&row.connection_id);
                let id = ends
                    .filter(|ends| ends.contains(&client.id))
                    .map(|_| row.connection_id);
                connections.add(&holder, &row, id);
            }
        }
        serde_json::to_string(&connections.finish(monotonic_ns()))
    }

    fn report_status(&mut self, asker: ClientId) -> serde_json::Result<String> {
        let asker = self.clients.get(&asker);
        let sees_caller = asker.is_some_and(|client| client.process.is_some());
        let capabilities = Capabilities {
            peer_pidfd: asker.is_some_and(crate::clients::Client::has_pidfd),
            sock_diag: self.prover.can_ask(),
            other_users: geteuid().is_root(),
            other_namespaces: self.distant.can_prove(),
        };
        let (segment_bytes, segment_bytes_limit) = self.segments.bytes();
        serde_json::to_string(&StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: [VERSION_MIN, VERSION_MAX],
            segment_version: SEGMENT_VERSION,
            pid: getpid().as_raw(),
            uid: geteuid().as_raw(),
            background: self.background,
            uptime_s: self.since.elapsed().as_secs(),
            network_namespace: self.prover.namespace().to_owned(),
            capabilities,
            sees_caller,
            clients: self.welcome_clients(),
            awaited: self.awaited.count(),
            offers_waiting: self.offers.count(),
            offers: self.metrics.offers,
            paired: self.metrics.paired,
            declined: self
                .metrics
                .declined()
                .map(|(reason, count)| (reason.to_owned(), count))
                .collect(),
            segment_bytes,
            segment_bytes_limit,
            spin_us: self.config.spin_us,
            ring_bytes: self.config.ring_bytes,
        })
    }

    pub(crate) fn render_metrics(&self) -> String {
        let mut ends: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for client in self.clients.values() {
            for (_, row) in client.rows() {
                *ends.entry(road_and_reason(&row)).or_default() += 1;
            }
        }
        let (segment_bytes, segment_bytes_limit) = self.segments.bytes();
        self.metrics.render(&Gauges {
            clients: self.welcome_clients(),
            offers_waiting: self.offers.count(),
            connections: self.introduced.len(),
            segment_bytes,
            segment_bytes_limit,
            ends: ends
                .into_iter()
                .map(|((road, reason), count)| (road, reason, count))
                .collect(),
        })
    }

    fn welcome_clients(&self) -> usize {
        self.clients
            .values()
            .filter(|client| client.is_welcome())
            .count()
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map(std::time::Duration::from)
        .unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Text in memory that its reader can rely on: nobody can change it any more.
fn to_memfd(text: &str) -> io::Result<(OwnedFd, u32)> {
    let bytes = u32::try_from(text.len()).map_err(io::Error::other)?;
    let mut file = File::from(memfd_create(
        "millrace-answer",
        MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )?);
    file.write_all(text.as_bytes())?;
    io::Seek::rewind(&mut file)?;
    let seals = SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok((file.into(), bytes))
}
