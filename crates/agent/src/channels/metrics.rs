//! Metrics of channels, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;

use millrace_wire::Refusal;

use super::Channels;
use super::linking::Made;
use super::names::ChannelKey;
use super::report::FlowReport;
use crate::metrics::family;

/// Channels that have series of their own. Of the others there is one sum.
const SERIES_MAX: usize = 100;

/// What has gone by a channel: in its first direction, and how many replies came back.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) members: u32,
    messages: u64,
    bytes: u64,
    dropped: u64,
    redelivered: u64,
    full: u64,
    replies: u64,
    /// What there is now, of links that are there.
    queued: u64,
    held: u64,
    memory: u64,
}

impl Totals {
    /// What has gone by a link that is there still, or not any more.
    pub(super) fn add_link(&mut self, made: &Made) {
        if let Some(flow) = made.flow(0) {
            self.add(&flow);
        }
        let replies = made.flow(1).map_or(0, |flow| flow.messages);
        self.replies = self.replies.saturating_add(replies);
    }

    fn add_depth(&mut self, made: &Made) {
        for flow in (0..2).filter_map(|direction| made.flow(direction)) {
            self.queued += u64::from(flow.queued);
            self.held += u64::from(flow.held);
        }
        self.memory += made.bytes + made.replies_bytes;
    }

    fn add(&mut self, flow: &FlowReport) {
        self.messages = self.messages.saturating_add(flow.messages);
        self.bytes = self.bytes.saturating_add(flow.bytes);
        self.dropped = self.dropped.saturating_add(flow.dropped);
        self.redelivered = self.redelivered.saturating_add(flow.redelivered);
        self.full = self.full.saturating_add(flow.full);
    }
}

type Value = fn(&Totals) -> u64;

/// What each channel has series of: counters by their names, and gauges.
const FAMILIES: [(&str, &str, Value); 9] = [
    (
        "channel_messages_total",
        "Messages that were published on the channel, each for every subscriber that it went to, or requests that were sent.",
        |of| of.messages,
    ),
    (
        "channel_sent_bytes_total",
        "Bytes of these messages.",
        |of| of.bytes,
    ),
    (
        "channel_dropped_total",
        "Messages that were given up because a subscriber did not take them.",
        |of| of.dropped,
    ),
    (
        "channel_redelivered_total",
        "Messages that were published once more, after the death of who had them.",
        |of| of.redelivered,
    ),
    (
        "channel_full_total",
        "Times that a message found no room, and its publisher waited or was told so.",
        |of| of.full,
    ),
    (
        "channel_replies_total",
        "Replies to requests, and words that there is none.",
        |of| of.replies,
    ),
    (
        "channel_queued_messages",
        "Messages and replies that wait to be taken.",
        |of| of.queued,
    ),
    (
        "channel_held_messages",
        "Messages and replies that were taken and are in use.",
        |of| of.held,
    ),
    (
        "channel_memory_bytes",
        "Memory of the channel's pools and links.",
        |of| of.memory,
    ),
];

impl Channels {
    /// As Prometheus reads it.
    pub(crate) fn render(&self, bytes: u64, text: &mut String) {
        let mut roles: BTreeMap<&str, usize> = BTreeMap::new();
        for participant in self.participants.values() {
            *roles.entry(participant.open.role.as_str()).or_default() += 1;
        }
        family(
            text,
            "channel_participants",
            "gauge",
            "Those who take part in channels, by role.",
        );
        for (role, count) in roles {
            let _ = writeln!(
                text,
                "millrace_channel_participants{{role=\"{role}\"}} {count}"
            );
        }
        let values = [
            (
                "channel_links",
                "gauge",
                "Links that this agent has made and whose two ends are there.",
                self.links.len() as u64,
            ),
            (
                "channel_bytes",
                "gauge",
                "Memory of pools and links.",
                bytes,
            ),
            (
                "channel_links_total",
                "counter",
                "Links that were made.",
                self.links_made,
            ),
            (
                "channel_links_refused_total",
                "counter",
                "Times that there was no memory for a link, or a limit was reached.",
                self.links_refused,
            ),
        ];
        for (name, kind, help, value) in values {
            family(text, name, kind, help);
            let _ = writeln!(text, "millrace_{name} {value}");
        }
        family(
            text,
            "channel_refused_total",
            "counter",
            "Participants that were refused, by reason.",
        );
        for (reason, count) in Refusal::ALL.iter().zip(self.refused) {
            if count > 0 {
                let reason = reason.as_str();
                let _ = writeln!(
                    text,
                    "millrace_channel_refused_total{{reason=\"{reason}\"}} {count}"
                );
            }
        }
        self.render_channels(text);
    }

    /// What has gone by each channel since it is there, as the ends say.
    fn render_channels(&self, text: &mut String) {
        let mut totals = self.totals.clone();
        for made in self.links.values() {
            if let Some(totals) = totals.get_mut(&made.key) {
                totals.add_link(made);
                totals.add_depth(made);
            }
        }
        for (client, participant) in &self.participants {
            let key = self.matching.get(*client).map(|member| member.key);
            if let Some(totals) = key.and_then(|key| totals.get_mut(&key)) {
                totals.memory += participant.open.pool_bytes;
            }
        }
        let mut channels: Vec<_> = totals.into_iter().collect();
        channels.sort_by(|a, b| a.0.place().cmp(&b.0.place()));
        let others = channels.split_off(channels.len().min(SERIES_MAX));
        let name = "channels_without_series";
        family(
            text,
            name,
            "gauge",
            "Channels that only the sum of the others has, below the name (others).",
        );
        let _ = writeln!(text, "millrace_{name} {}", others.len());
        let mut series: Vec<(String, Totals)> = channels
            .into_iter()
            .map(|(key, totals)| (labels(&key), totals))
            .collect();
        if !others.is_empty() {
            let sum = others
                .iter()
                .fold(Totals::default(), |sum, (_, of)| sum.and(of));
            series.push(("channel=\"(others)\"".to_owned(), sum));
        }
        for (name, help, value) in FAMILIES {
            let is_counter = name.ends_with("_total");
            let kind = if is_counter { "counter" } else { "gauge" };
            family(text, name, kind, help);
            for (labels, totals) in &series {
                let _ = writeln!(text, "millrace_{name}{{{labels}}} {}", value(totals));
            }
        }
    }
}

impl Totals {
    fn and(mut self, other: &Totals) -> Totals {
        self.add(&FlowReport {
            messages: other.messages,
            bytes: other.bytes,
            dropped: other.dropped,
            redelivered: other.redelivered,
            full: other.full,
            ..FlowReport::default()
        });
        self.replies = self.replies.saturating_add(other.replies);
        self.queued += other.queued;
        self.held += other.held;
        self.memory += other.memory;
        self
    }
}

/// A name has no character that would have to be escaped.
fn labels(key: &ChannelKey) -> String {
    format!(
        "channel=\"{}\",kind=\"{}\",scope=\"{}\"",
        key.name,
        key.kind(),
        key.scope_name()
    )
}

#[cfg(test)]
mod tests {
    use millrace_wire::ChannelName;

    use super::super::names::Scope;
    use super::*;
    use crate::tenant::Tenant;

    #[test]
    fn few_channels_have_series_those_of_rules_first_and_the_others_a_sum() {
        let mut channels = Channels::default();
        for number in 0..150u32 {
            let key = ChannelKey {
                scope: if number >= 100 {
                    Scope::Rule
                } else {
                    Scope::Tenant(Tenant::User(number))
                },
                two_way: number % 2 == 1,
                name: ChannelName::new(&format!("n{number:03}")).unwrap(),
            };
            let flow = FlowReport {
                messages: 10,
                dropped: u64::from(number),
                full: 2,
                ..FlowReport::default()
            };
            channels.totals.entry(key).or_default().add(&flow);
        }
        channels.refused[Refusal::Quota as usize] = 3;
        let mut text = String::new();
        channels.render(7, &mut text);
        for shown in [
            "millrace_channel_messages_total{channel=\"n149\",kind=\"requests\",scope=\"rule\"} 10\n",
            "millrace_channel_dropped_total{channel=\"n049\",kind=\"requests\",scope=\"user 49\"} 49\n",
            "millrace_channel_messages_total{channel=\"(others)\"} 500\n",
            "millrace_channel_full_total{channel=\"(others)\"} 100\n",
            "millrace_channels_without_series 50\n",
            "millrace_channel_refused_total{reason=\"quota\"} 3\n",
            "millrace_channel_bytes 7\n",
        ] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
        assert_eq!(
            text.matches("millrace_channel_messages_total{").count(),
            101
        );
        for line in text.lines() {
            let sample = line.rsplit_once(' ').is_some_and(|(name, value)| {
                name.starts_with("millrace_") && value.parse::<u64>().is_ok()
            });
            assert!(line.starts_with("# ") || sample, "{line}");
        }
    }
}
