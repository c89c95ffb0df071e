//! What a worker says of itself, and hands over of what others should know.

use millrace_switch::processor;

use super::serving::Serving;
use super::{Report, Work};
use crate::bearer::Side;
use crate::cause::Cause;
use crate::observed::PathCounts;
use crate::report::{NeighbourReport, drops_of};

impl Serving {
    pub(super) fn report(&self) -> Report {
        let node = &self.node;
        let ports = self.ports.iter().map(|attached| {
            let port = &attached.port;
            (attached.number, port.counters(), port.state().to_string())
        });
        let drops = |side| {
            let drops = node.drops(side);
            drops_of(
                "function",
                Cause::ALL.map(|cause| (cause.name(), drops.of(cause))),
            )
        };
        let names = node.interfaces();
        let neighbours = node.neighbours();
        let neighbours = neighbours.map(|(port, address, mac, known)| NeighbourReport {
            port: names[usize::from(port)].name.clone(),
            address,
            mac: mac.to_string(),
            state: known.name().to_owned(),
            worker: self.number,
        });
        let (lost, alive) = node.heard();
        let mut paths = PathCounts::default();
        for path in node.function.bearers.paths() {
            paths.count(path.is_up);
        }
        Report {
            worker: self.number,
            ports: ports.collect(),
            counts: node.counts().to_vec(),
            drops: [drops(Side::Core), drops(Side::Radio)],
            neighbours: neighbours.collect(),
            lost,
            alive,
            work: Work {
                processor_ns: processor::used_ns(),
                shards: node.shards() as u64,
                ..self.counted
            },
            paths,
            held: node.function.bearers.held_counts(),
            overflows: node.function.overflows(),
        }
    }

    /// Hands over what others should know; a patient worker all of it.
    #[inline]
    pub(super) fn tell(&mut self, is_patient: bool) {
        while self.node.has_event() {
            let (events, node) = (&self.events, &mut self.node);
            events.put(self.number, is_patient, || node.poll_event());
            if !is_patient {
                break;
            }
        }
    }
}
