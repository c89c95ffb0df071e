//! Answers: what the agent knows, as a report or as metrics.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use millrace_shm::board::{RowView, state};
use millrace_wire::{Answer, Query, Reason, SEGMENT_VERSION, ToClient, VERSION_MAX, VERSION_MIN};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{geteuid, getpid};
use tracing::warn;

use crate::addresses::Found;
use crate::clients::Client;
use crate::metrics::Gauges;
use crate::offers::ClientId;
use crate::proof::{Capabilities, Process};
use crate::quota::Payer;
use crate::report::{Connections, Holder, Known, Listed, StatusReport};
use crate::roads::{self, Absent};
use crate::segments::Refusal;
use crate::server::Server;
use crate::tenant::Tenant;

/// A connection that has no offer, only because it is too short, and is younger than this is not listed yet. Its addresses are in the table
/// of all sockets of its network namespace, also of those that have ended in the last minute: tens of thousands where connections are
/// short, and reading them takes tens of milliseconds of a processor that may be a program's.
const YOUNG_NS: u64 = 50_000_000;

impl Server {
    /// Answers a question.
    pub(crate) fn answer_query(&mut self, asker: ClientId, query: Query) {
        let text = match query {
            Query::Connections => self.report_connections(asker),
            Query::Channels => self.report_channels(asker),
            Query::Status | Query::StatusAndStay => self.report_status(asker),
        };
        let made = text
            .map_err(io::Error::from)
            .and_then(|text| to_memfd(&text));
        let charged = made.map_err(Refusal::from).and_then(|(memfd, bytes)| {
            let Payer { tenant, .. } = self.payer(asker);
            // Root is to see what is wrong when limits are reached.
            if tenant != Tenant::User(0) {
                let segments = &mut self.segments;
                segments.charge_answer(memfd.as_fd(), tenant, bytes.into())?;
            }
            Ok((memfd, bytes))
        });
        match charged {
            Ok((memfd, bytes)) => self.send(
                asker,
                ToClient::Answer(Answer { bytes }),
                Some(Rc::new(memfd)),
            ),
            Err(error) => {
                if self.log_limit.allows() {
                    warn!("cannot answer a question: {error:?}");
                }
            }
        }
    }

    fn report_connections(&mut self, asker: ClientId) -> serde_json::Result<String> {
        let mut addresses = std::mem::take(&mut self.addresses);
        let now_ns = monotonic_ns();
        let sees = |client: &Client| self.may_see(asker, client);
        let connections = self.connections(sees, |client, index, row| {
            let is_undescribed =
                row.state == state::KERNEL && row.local.1 == 0 && row.remote.1 == 0;
            if !is_undescribed {
                return true;
            }
            let is_young = now_ns.saturating_sub(row.since_ns) < YOUNG_NS;
            if is_young && roads::stated(row) == Reason::TooShort {
                return false;
            }
            let listing = (client.id, index, row.since_ns);
            let Some(process) = &client.process else {
                return false;
            };
            match addresses.find(listing, process, row.fd) {
                Found::Pair((local, remote)) => {
                    (row.local, row.remote) = ((local.ip, local.port), (remote.ip, remote.port));
                    true
                }
                Found::Nothing => false,
                Found::TooMuch => true,
            }
        });
        addresses.end_answer();
        self.addresses = addresses;
        serde_json::to_string(&connections.finish(monotonic_ns()))
    }

    /// Whether who asks may see what is this program's: root everybody's, others their user's, who is in a container or pod its own.
    pub(crate) fn may_see(&self, asker: ClientId, client: &Client) -> bool {
        let Some(asking) = self.clients.get(&asker) else {
            return false;
        };
        let place = asking.containment;
        let is_contained = place.is_contained() && !place.shares_container(&self.containment);
        match asking.tenant {
            Tenant::Nobody => client.id == asker,
            _ if is_contained => place.shares_container(&client.containment),
            Tenant::User(0) => true,
            Tenant::User(uid) => client.uid == uid,
            Tenant::Container(_) | Tenant::Pod(_) => false,
        }
    }

    /// Who a program is, for people.
    pub(crate) fn holder(&self, client: &Client) -> Holder {
        // A process may have changed its name since it connected.
        let program = client
            .process
            .as_ref()
            .and_then(Process::name)
            .unwrap_or_else(|| client.name.clone());
        let pod = client.containment.pod();
        Holder {
            pid: client.pid,
            uid: client.uid,
            program,
            container: client.containment.container(),
            pod_name: pod.as_ref().and_then(|pod| self.pods.find(pod)),
            pod,
        }
    }

    /// What the boards show, put together. Who asks `sees` the rows of some programs: those `complete` makes whole, or leaves out. What
    /// the others are called is not looked up.
    fn connections(
        &self,
        sees: impl Fn(&Client) -> bool,
        mut complete: impl FnMut(&Client, u32, &mut RowView) -> bool,
    ) -> Connections {
        let mut connections = Connections::default();
        let stranger = Rc::new(Holder::default());
        for client in self.clients.values() {
            let visible = sees(client);
            let holder = if visible {
                Rc::new(self.holder(client))
            } else {
                Rc::clone(&stranger)
            };
            for (index, mut row) in client.rows() {
                if client.excluded && roads::stated(&row) == Reason::TooShort {
                    row.reason = Reason::Excluded as u8;
                }
                if visible && !complete(client, index, &mut row) {
                    continue;
                }
                let known = self.known(client.id, row.connection_id);
                let end = Listed {
                    holder: Rc::clone(&holder),
                    row,
                    visible,
                };
                connections.add(end, known);
            }
        }
        connections
    }

    /// What the agent knows of a connection that it introduced to this client.
    fn known(&self, client: ClientId, id: u64) -> Option<Known> {
        let introduced = self.introduced.get(&id)?;
        if !introduced.clients.contains(&client) {
            return None;
        }
        let gates = self
            .pairings
            .by_id(id)
            .map(|pairing| [0, 1].map(|direction| pairing.segment.words(direction).gate.load()));
        // Whoever has no row any more has closed.
        let absent = introduced
            .absent
            .unwrap_or(Absent::Left(Reason::NotEstablished));
        Some(Known {
            id,
            segment: introduced.inode,
            gates,
            absent,
        })
    }

    /// A client is lost: notes what that means for the other ends of its connections.
    pub(crate) fn note_lost(&mut self, client: &Client) {
        let program = client.process.as_ref().and_then(Process::program);
        for (_, row) in client.rows() {
            let Some(introduced) = self.introduced.get_mut(&row.connection_id) else {
                continue;
            };
            let is_its = introduced.clients.contains(&client.id);
            if !is_its || introduced.absent.is_some() || row.state != state::ATTACHED {
                continue;
            }
            introduced.absent = if row.holders > 1 {
                Some(Absent::Held)
            } else {
                // A process that ends has no program any more when its descriptors are closed.
                program.as_ref().map(|_| Absent::Left(Reason::Exec))
            };
        }
    }

    fn report_status(&mut self, asker: ClientId) -> serde_json::Result<String> {
        let asker = self.clients.get(&asker);
        let sees_caller = asker.is_some_and(|client| client.process.is_some());
        let may_trace_caller = asker.is_some_and(|client| self.may_borrow(client.id));
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
            may_trace_caller,
            clients: self.welcome_clients(),
            participants: self.channels.participants(),
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
            bulk_ring_bytes: self.config.bulk_ring_bytes,
        })
    }

    pub(crate) fn render_metrics(&self) -> String {
        let report = self
            .connections(|_| true, |_, _, _| true)
            .finish(monotonic_ns());
        let (segment_bytes, segment_bytes_limit) = self.segments.bytes();
        let mut gauges = Gauges {
            clients: self.welcome_clients(),
            offers_waiting: self.offers.count(),
            connections: self.introduced.len(),
            segment_bytes,
            segment_bytes_limit,
            ..Gauges::default()
        };
        for end in report.connections.into_iter().flat_map(|found| found.ends) {
            if let Some(pod) = end.pod_name {
                for (road, bytes) in [
                    ("shm", end.sent.shm_bytes),
                    ("kernel", end.sent.kernel_bytes),
                ] {
                    *gauges.pod_bytes.entry((pod.clone(), road)).or_default() += bytes;
                }
                let of_pod = (pod, end.road.clone(), end.reason.clone());
                *gauges.pod_ends.entry(of_pod).or_default() += 1;
            }
            *gauges.ends.entry((end.road, end.reason)).or_default() += 1;
        }
        let mut text = self.metrics.render(&gauges);
        self.channels
            .render(self.segments.channel_bytes(), &mut text);
        text
    }

    fn welcome_clients(&self) -> usize {
        self.clients
            .values()
            .filter(|client| client.is_welcome())
            .count()
    }
}

pub(crate) fn monotonic_ns() -> u64 {
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
