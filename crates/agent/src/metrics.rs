//! Counters, and the Prometheus text format (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write;

use millrace_wire::Reason;

/// What has happened since the agent started.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) clients: u64,
    pub(crate) clients_refused: u64,
    pub(crate) clients_dropped: u64,
    pub(crate) messages_malformed: u64,
    pub(crate) messages_of_strangers: u64,
    pub(crate) offers: u64,
    pub(crate) paired: u64,
    /// Looks at the sockets of one program, and how many these were.
    pub(crate) distant_looks: u64,
    pub(crate) distant_sockets: u64,
    pub(crate) queries: u64,
    pub(crate) grown: u64,
    pub(crate) recalls: u64,
    pub(crate) recalls_failed: u64,
    pub(crate) workers_left: u64,
    pub(crate) descriptors_exhausted: u64,
    declined: [u64; Reason::ALL.len()],
}

/// What is now.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) clients: usize,
    pub(crate) offers_waiting: usize,
    pub(crate) connections: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) segment_bytes_limit: u64,
    /// Ends that clients list, by road and reason: what they say, as `millrace ps` shows it.
    pub(crate) ends: BTreeMap<(String, String), u64>,
    /// The same of each Kubernetes pod, by `NAMESPACE/NAME`, road and reason.
    pub(crate) pod_ends: BTreeMap<(String, String, String), u64>,
    /// What the connections that a pod has now have sent, by `NAMESPACE/NAME` and road.
    pub(crate) pod_bytes: BTreeMap<(String, &'static str), u64>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            clients: 0,
            clients_refused: 0,
            clients_dropped: 0,
            messages_malformed: 0,
            messages_of_strangers: 0,
            offers: 0,
            paired: 0,
            distant_looks: 0,
            distant_sockets: 0,
            queries: 0,
            grown: 0,
            recalls: 0,
            recalls_failed: 0,
            workers_left: 0,
            descriptors_exhausted: 0,
            declined: [0; Reason::ALL.len()],
        }
    }

    pub(crate) fn count_declined(&mut self, reason: Reason) {
        self.declined[reason as usize] += 1;
    }

    /// Reasons for which offers were declined, and how often.
    pub(crate) fn declined(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Reason::ALL
            .iter()
            .zip(self.declined)
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| (reason.as_str(), count))
    }

    /// Everything as Prometheus reads it.
    pub(crate) fn render(&self, gauges: &Gauges) -> String {
        let mut text = String::with_capacity(4096);
        for (name, help, value) in self.counters() {
            family(&mut text, name, "counter", help);
            let _ = writeln!(text, "millrace_{name} {value}");
        }
        let help = "Offers that were declined, by reason.";
        family(&mut text, "declined_total", "counter", help);
        for (reason, count) in self.declined() {
            let _ = writeln!(
                text,
                "millrace_declined_total{{reason=\"{reason}\"}} {count}"
            );
        }
        for (name, help, value) in gauges.values() {
            family(&mut text, name, "gauge", help);
            let _ = writeln!(text, "millrace_{name} {value}");
        }
        let help = "Ends of connections that programs list, by road and reason.";
        family(&mut text, "ends", "gauge", help);
        for ((road, reason), count) in &gauges.ends {
            let _ = writeln!(
                text,
                "millrace_ends{{road=\"{road}\",reason=\"{reason}\"}} {count}"
            );
        }
        gauges.render_pods(&mut text);
        text
    }

    fn counters(&self) -> [(&'static str, &'static str, u64); 15] {
        let refused = "Programs that were refused: another user, a limit, or another version.";
        let strangers = "Messages of another process than the one that connected.";
        let exhausted = "Programs turned away because no file descriptor was left.";
        let (offered, answered) = (
            "Connections that were offered.",
            "Questions that were answered.",
        );
        [
            ("clients_total", "Programs that connected.", self.clients),
            ("clients_refused_total", refused, self.clients_refused),
            (
                "clients_dropped_total",
                "Programs that were dropped: nonsense, or not reading.",
                self.clients_dropped,
            ),
            (
                "messages_malformed_total",
                "Messages that made no sense.",
                self.messages_malformed,
            ),
            (
                "messages_of_strangers_total",
                strangers,
                self.messages_of_strangers,
            ),
            ("offers_total", offered, self.offers),
            (
                "paired_total",
                "Connections that got a segment.",
                self.paired,
            ),
            (
                "distant_looks_total",
                "Looks at one program's sockets, to recognise connections between network namespaces.",
                self.distant_looks,
            ),
            (
                "distant_sockets_total",
                "Sockets that these looks read.",
                self.distant_sockets,
            ),
            ("queries_total", answered, self.queries),
            (
                "rings_grown_total",
                "Times that a ring got more memory.",
                self.grown,
            ),
            (
                "recalls_total",
                "Times that an end asked to have bytes of its ring sent by the kernel.",
                self.recalls,
            ),
            (
                "recalls_failed_total",
                "Recalls that left bytes in the ring.",
                self.recalls_failed,
            ),
            (
                "workers_left_total",
                "Processes that brought bytes back, and got stuck on a program's socket.",
                self.workers_left,
            ),
            (
                "descriptors_exhausted_total",
                exhausted,
                self.descriptors_exhausted,
            ),
        ]
    }
}

impl Gauges {
    fn render_pods(&self, text: &mut String) {
        let help = "Ends of connections that a pod's programs list, by road and reason.";
        family(text, "pod_ends", "gauge", help);
        for ((pod, road, reason), count) in &self.pod_ends {
            let labels = format!("{},road=\"{road}\",reason=\"{reason}\"", pod_labels(pod));
            let _ = writeln!(text, "millrace_pod_ends{{{labels}}} {count}");
        }
        let help = "Bytes that the connections which a pod has now have sent, by road.";
        family(text, "pod_sent_bytes", "gauge", help);
        for ((pod, road), bytes) in &self.pod_bytes {
            let labels = format!("{},road=\"{road}\"", pod_labels(pod));
            let _ = writeln!(text, "millrace_pod_sent_bytes{{{labels}}} {bytes}");
        }
    }

    fn values(&self) -> [(&'static str, &'static str, u64); 5] {
        let limit = "Memory that all segments together may have.";
        [
            (
                "clients",
                "Programs that are connected.",
                self.clients as u64,
            ),
            (
                "offers_waiting",
                "Offers that wait for their other end, or for its word.",
                self.offers_waiting as u64,
            ),
            ("segments", "Segments that exist.", self.connections as u64),
            (
                "segment_bytes",
                "Memory of all segments.",
                self.segment_bytes,
            ),
            ("segment_bytes_limit", limit, self.segment_bytes_limit),
        ]
    }
}

/// Of `NAMESPACE/NAME`, which the kubelet gave to a directory: escaped as the text format wants it all the same.
fn pod_labels(pod: &str) -> String {
    let escaped = pod.replace('\\', r"\\").replace('"', "\\\"");
    let (namespace, name) = escaped.split_once('/').unwrap_or(("", &escaped));
    format!("namespace=\"{namespace}\",pod=\"{name}\"")
}

pub(crate) fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(
        text,
        "# HELP millrace_{name} {help}\n# TYPE millrace_{name} {kind}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_comment_or_a_sample() {
        let mut metrics = Metrics::new();
        metrics.paired = 3;
        metrics.count_declined(Reason::Unproven);
        let gauges = Gauges {
            ends: [(("shm".into(), "none".into()), 2)].into(),
            pod_ends: [((r#"shop/cache"0"#.into(), "shm".into(), "none".into()), 1)].into(),
            pod_bytes: [(("shop/cache-0".into(), "shm"), 7)].into(),
            ..Gauges::default()
        };
        let text = metrics.render(&gauges);
        assert!(text.contains("millrace_paired_total 3\n"));
        assert!(text.contains("millrace_declined_total{reason=\"unproven\"} 1\n"));
        assert!(text.contains("millrace_ends{road=\"shm\",reason=\"none\"} 2\n"));
        assert!(text.contains(
            "millrace_pod_ends{namespace=\"shop\",pod=\"cache\\\"0\",road=\"shm\",reason=\"none\"} 1\n"
        ));
        assert!(text.contains(
            "millrace_pod_sent_bytes{namespace=\"shop\",pod=\"cache-0\",road=\"shm\"} 7\n"
        ));
        for line in text.lines() {
            let sample = line.rsplit_once(' ').is_some_and(|(name, value)| {
                name.starts_with("millrace_") && value.parse::<u64>().is_ok()
            });
            assert!(line.starts_with("# ") || sample, "{line}");
        }
    }

    #[test]
    fn the_board_shows_only_what_there_is() {
        let text = Metrics::new().render(&Gauges::default());
        let board = include_str!("../../../deploy/grafana/millrace.json");
        let mut shown = 0;
        for rest in board.split("millrace_").skip(1) {
            let end = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
            let name = &rest[..end.unwrap_or(rest.len())];
            assert!(text.contains(&format!("# TYPE millrace_{name} ")), "{name}");
            shown += 1;
        }
        assert!(shown > 10, "{shown}");
    }
}
