//! What has arrived: of each flow which numbers, by which worker, and how late.

use std::collections::HashMap;

use crate::packet::Tag;

const SEEN: u8 = 1;
/// At least one of its copies said that another may have been forwarded.
const MARKED: u8 = 2;

/// A flow of one run of a balancer.
#[derive(Debug, Default)]
struct Flow {
    /// Of each number, what is known.
    seen: Vec<u8>,
    newest: Option<u64>,
    /// The last number by each worker.
    workers: Vec<(u32, u64)>,
}

/// All flows.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    flows: HashMap<(u64, u64), Flow>,
    latencies_ns: Vec<u64>,
    /// Each packet once.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Those that were not as they should be.
    pub(crate) damaged: u64,
    /// Copies of what had come already, one of which says so.
    pub(crate) repeated: u64,
    /// Copies that nobody announced.
    pub(crate) doubled: u64,
    /// Came after a later one of its flow, by another worker.
    pub(crate) overtaken: u64,
    /// Came after a later one of its flow, by the same worker.
    pub(crate) disordered: u64,
}

/// A flow may have so many packets: a number beyond is damage.
const SEQUENCE_MAX: u64 = 1 << 32;

impl Ledger {
    /// A packet of so many bytes has come, after so long.
    pub(crate) fn note(&mut self, tag: &Tag, bytes: usize, latency_ns: u64) {
        if tag.sequence >= SEQUENCE_MAX {
            self.damaged += 1;
            return;
        }
        let flow = self.flows.entry((tag.run, tag.flow)).or_default();
        let index = tag.sequence as usize;
        if flow.seen.len() <= index {
            flow.seen.resize(index + 1, 0);
        }
        let mark = if tag.is_redelivered { MARKED } else { 0 };
        let before = flow.seen[index];
        flow.seen[index] = before | SEEN | mark;
        if before & SEEN != 0 {
            if flow.seen[index] & MARKED != 0 {
                self.repeated += 1;
            } else {
                self.doubled += 1;
            }
            return;
        }
        let known = flow
            .workers
            .iter()
            .position(|(worker, _)| *worker == tag.worker);
        let place = known.unwrap_or_else(|| {
            flow.workers.push((tag.worker, tag.sequence));
            flow.workers.len() - 1
        });
        let last = &mut flow.workers[place].1;
        if tag.sequence < *last {
            self.disordered += 1;
        } else if flow.newest.is_some_and(|newest| tag.sequence < newest) {
            self.overtaken += 1;
        }
        *last = tag.sequence.max(*last);
        flow.newest = flow.newest.max(Some(tag.sequence));
        self.packets += 1;
        self.bytes += bytes as u64;
        self.latencies_ns.push(latency_ns);
    }

    pub(crate) fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Numbers that are missing before later ones of their flows.
    pub(crate) fn missing(&self) -> u64 {
        let missing = |flow: &Flow| flow.seen.iter().filter(|seen| **seen == 0).count() as u64;
        self.flows.values().map(missing).sum()
    }

    /// The latencies below which these parts of all are, in nanoseconds.
    pub(crate) fn latencies_ns(&mut self, parts: &[f64]) -> Vec<u64> {
        self.latencies_ns.sort_unstable();
        let all = &self.latencies_ns;
        let at = |part: &f64| ((all.len() as f64 * part) as usize).min(all.len().saturating_sub(1));
        parts
            .iter()
            .map(|part| all.get(at(part)).copied().unwrap_or_default())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(sequence: u64, worker: u32, is_redelivered: bool) -> Tag {
        Tag {
            sequence,
            worker,
            is_redelivered,
            ..Tag::default()
        }
    }

    #[test]
    fn what_is_missing_doubled_or_out_of_order_is_counted_once() {
        let mut ledger = Ledger::default();
        for (sequence, worker, is_redelivered) in [
            (0, 1, false),
            (2, 1, false),
            (1, 1, false), // disordered
            (5, 2, false),
            (4, 1, false), // overtaken
            (4, 2, true),  // repeated
            (6, 2, true),
            (6, 1, false), // repeated: the first one had the mark
            (5, 1, false), // doubled
        ] {
            ledger.note(&tag(sequence, worker, is_redelivered), 10, 1000 + sequence);
        }
        ledger.note(&tag(u64::MAX, 1, false), 10, 0);
        let counts = [
            ledger.packets,
            ledger.bytes,
            ledger.disordered,
            ledger.overtaken,
            ledger.repeated,
            ledger.doubled,
            ledger.damaged,
            ledger.missing(),
        ];
        assert_eq!(counts, [6, 60, 1, 1, 2, 1, 1, 1]);
        assert_eq!(ledger.latencies_ns(&[0.0, 0.5, 1.0]), [1000, 1004, 1006]);
        assert_eq!(ledger.flows(), 1);
    }
}
