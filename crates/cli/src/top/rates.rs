//! What `millrace top` shows: rates from two reports, in an order that the user chooses. No I/O.

use std::collections::HashMap;

use millrace_agent::{ConnectionReport, ConnectionsReport};

use crate::listing::{Filter, Flow, Line, ring_share, who};
use crate::rates;

/// What the lines are ordered by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// Bytes per second, both ways
    #[default]
    Bytes,
    /// Messages per second, both ways
    Messages,
    /// Share of bytes on the ring
    Ring,
    /// Age, youngest first
    Age,
    /// Names of the programs
    Name,
    /// Reason
    Why,
}

impl Sort {
    const ALL: [Sort; 6] = [
        Sort::Bytes,
        Sort::Messages,
        Sort::Ring,
        Sort::Age,
        Sort::Name,
        Sort::Why,
    ];

    pub(crate) fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Sort::Bytes => "bytes",
            Sort::Messages => "messages",
            Sort::Ring => "ring",
            Sort::Age => "age",
            Sort::Name => "name",
            Sort::Why => "why",
        }
    }
}

/// One connection. Flows are per second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: Option<u64>,
    pub(crate) client: String,
    pub(crate) server: String,
    pub(crate) client_address: String,
    pub(crate) server_address: String,
    pub(crate) road: String,
    pub(crate) why: String,
    pub(crate) sent: Flow,
    pub(crate) received: Flow,
    /// Of the bytes since the last report, those that took the ring, in percent.
    pub(crate) ring: Option<u64>,
    pub(crate) age_s: u64,
}

/// Everything that is shown of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) rows: Vec<Row>,
    /// Connections whose road is the ring.
    pub(crate) on_ring: usize,
    /// Connections, before the filter.
    pub(crate) all: usize,
    /// The sum of the rows' flows.
    pub(crate) flow: Flow,
    pub(crate) truncated: bool,
}

/// By number and addresses.
type Key = (Option<u64>, String, String);

/// The last report, with the rates since the one before.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    at_ns: u64,
    counts: HashMap<Key, (Flow, Flow)>,
    connections: Vec<(ConnectionReport, Row)>,
    truncated: bool,
}

impl Rates {
    /// Takes a report in. The rates of a connection that is new are zero.
    pub(crate) fn update(&mut self, report: ConnectionsReport) {
        let passed_ns = report.now_ns.saturating_sub(self.at_ns);
        let before = std::mem::take(&mut self.counts);
        self.connections.clear();
        for connection in report.connections {
            let Some(line) = Line::of(&connection) else {
                continue;
            };
            let key = (
                line.id,
                line.client_address.clone(),
                line.server_address.clone(),
            );
            let now = (line.sent, line.received);
            let (sent, received) = *before.get(&key).unwrap_or(&now);
            let sent = line.sent.since(sent);
            let received = line.received.since(received);
            self.counts.insert(key, now);
            let row = Row {
                id: line.id,
                client: who(line.client),
                server: who(line.server),
                ring: ring_share(&[sent, received]),
                sent: per_second(sent, passed_ns),
                received: per_second(received, passed_ns),
                age_s: line.age_s(report.now_ns),
                client_address: line.client_address,
                server_address: line.server_address,
                road: line.road,
                why: line.why,
            };
            self.connections.push((connection, row));
        }
        self.at_ns = report.now_ns;
        self.truncated = report.truncated;
    }

    /// What there is to show.
    pub(crate) fn view(&self, filter: &Filter, sort: Sort, reversed: bool) -> View {
        let fitting = self
            .connections
            .iter()
            .filter(|(connection, _)| filter.fits(connection));
        let mut rows: Vec<Row> = fitting.map(|(_, row)| row.clone()).collect();
        arrange(&mut rows, sort, reversed);
        View {
            on_ring: rows.iter().filter(|row| row.road == "shm").count(),
            all: self.connections.len(),
            flow: rows.iter().fold(Flow::default(), |all, row| {
                sum(all, sum(row.sent, row.received))
            }),
            rows,
            truncated: self.truncated,
        }
    }
}

fn per_second(flow: Flow, passed_ns: u64) -> Flow {
    Flow {
        bytes: rates::per_second(flow.bytes, passed_ns),
        messages: rates::per_second(flow.messages, passed_ns),
        ring_bytes: rates::per_second(flow.ring_bytes, passed_ns),
    }
}

fn sum(one: Flow, other: Flow) -> Flow {
    Flow {
        bytes: one.bytes.saturating_add(other.bytes),
        messages: one.messages.saturating_add(other.messages),
        ring_bytes: one.ring_bytes.saturating_add(other.ring_bytes),
    }
}

/// The most, the youngest, or the first of the alphabet comes first; equals stay in the order of their numbers and addresses.
fn arrange(rows: &mut [Row], sort: Sort, reversed: bool) {
    let both = |row: &Row| sum(row.sent, row.received);
    rows.sort_by(|a, b| {
        let order = match sort {
            Sort::Bytes => both(b).bytes.cmp(&both(a).bytes),
            Sort::Messages => both(b).messages.cmp(&both(a).messages),
            Sort::Ring => b.ring.cmp(&a.ring),
            Sort::Age => a.age_s.cmp(&b.age_s),
            Sort::Name => (&a.client, &a.server).cmp(&(&b.client, &b.server)),
            Sort::Why => (&a.road, &a.why).cmp(&(&b.road, &b.why)),
        };
        let order = if reversed { order.reverse() } else { order };
        order.then_with(|| place(a).cmp(&place(b)))
    });
}

fn place(row: &Row) -> (bool, Option<u64>, &str) {
    (row.id.is_none(), row.id, &row.client_address)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::listing::tests::both;

    /// Connections whose sending end has sent so many bytes, all by the ring, at `now_ns`.
    pub(crate) fn report(now_ns: u64, sent: &[u64]) -> ConnectionsReport {
        let connections = sent.iter().enumerate().map(|(index, bytes)| {
            let mut connection = both("shm", "none");
            connection.id = Some(index as u64 + 1);
            connection.ends[0].sent.shm_bytes = *bytes;
            connection.ends[0].sent.kernel_bytes = 0;
            connection.ends[0].sent.shm_messages = *bytes / 100;
            connection
        });
        ConnectionsReport {
            now_ns,
            truncated: false,
            connections: connections.collect(),
        }
    }

    /// The view after these reports, in the usual order.
    fn view_of(reports: &[ConnectionsReport]) -> View {
        let mut rates = Rates::default();
        for report in reports {
            rates.update(report.clone());
        }
        rates.view(&Filter::default(), Sort::Bytes, false)
    }

    #[test]
    fn rates_are_what_came_between_two_reports() {
        let first = report(1_000_000_000, &[5000, 0]);
        let view = view_of(std::slice::from_ref(&first));
        assert!(view.rows.iter().all(|row| row.sent == Flow::default()));
        assert_eq!(view.rows[0].ring, None);

        let view = view_of(&[first, report(3_000_000_000, &[6000, 4000, 700])]);
        let shown: Vec<(Option<u64>, u64, u64)> = view
            .rows
            .iter()
            .map(|row| (row.id, row.sent.bytes, row.sent.messages))
            .collect();
        // The third is new: what it carried before is not a rate.
        let expected = [(Some(2), 2000, 20), (Some(1), 500, 5), (Some(3), 0, 0)];
        assert_eq!(shown, expected);
        assert_eq!((view.flow.bytes, view.flow.ring_bytes), (2500, 2500));
        let first = &view.rows[0];
        assert_eq!((view.on_ring, view.all, first.ring), (3, 3, Some(100)));
    }

    #[test]
    fn counts_that_go_back_and_clocks_that_stand_still_are_borne() {
        for (counts, now_ns) in [([u64::MAX, 3], 5), ([3, u64::MAX], 4)] {
            let view = view_of(&[report(5, &counts[..1]), report(now_ns, &counts[1..])]);
            assert_eq!(view.flow, Flow::default());
        }
    }

    #[test]
    fn every_order_can_be_had_and_turned_round() {
        let mut rates = Rates::default();
        rates.update(report(0, &[0, 0, 0]));
        rates.update(report(1_000_000_000, &[1, 3, 2]));
        let ids = |sort, reversed| {
            let rows = rates.view(&Filter::default(), sort, reversed).rows;
            rows.iter().filter_map(|row| row.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(Sort::Bytes, false), [2, 3, 1]);
        assert_eq!(ids(Sort::Bytes, true), [1, 3, 2]);
        let mut sort = Sort::default();
        for _ in Sort::ALL {
            sort = sort.next();
            assert_eq!(ids(sort, false).len(), 3, "{}", sort.name());
        }
        assert_eq!(sort, Sort::default());
    }

    #[test]
    fn a_filter_hides_lines() {
        let mut rates = Rates::default();
        rates.update(report(0, &[0, 0]));
        rates.update(report(1_000_000_000, &[10, 20]));
        let first = Filter::new(&["1".to_owned()]);
        let view = rates.view(&first, Sort::Bytes, false);
        assert_eq!((view.rows.len(), view.all, view.flow.bytes), (1, 2, 10));
    }
}
