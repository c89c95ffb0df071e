//! `millrace channels`: who sends messages to whom by name, and how that goes.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use millrace_agent::{
    AskError, ChannelEndReport, ChannelLinkReport, ChannelReport, ChannelsReport, FlowReport,
};
use millrace_wire::Query;
use serde_json::Value;

use crate::listing::program_at;
use crate::ps::{PATIENCE, find_agent};
use crate::rates::{LinkRate, LinkRates};
use crate::table::{Table, human_seconds, human_short};

/// List the channels of programs that send messages by name, who takes part, and what goes from whom to whom.
///
/// Channels are for programs that are written for them; connections are listed by `millrace ps`. A channel is of publishers
/// and subscribers (KIND messages) or of clients and servers (requests). Each line is a link from one that sends to one that
/// receives, or one who takes part and has no link. WHOSE is the tenant whose own the name is, or `rule` where the agent's
/// configuration says who may take part. Subscribers of one GROUP share the messages among them; others get each message.
/// MSG/s and BYTES/s are of half a second, for which the command looks. QUEUED messages wait to be taken, HELD ones are in use
/// by who took them; DROPS were given up because a subscriber did not take them in time. FULL counts how often a message found
/// no room, and its sender waited or was told so; AGAIN, messages that were sent to another when who had them died. MEM is
/// the sender's pool and what the link has of its own, with its pool for replies; a sender of several links has one pool, and
/// each of their lines counts it. On a terminal numbers are short: 1.5K is 1536. Root sees the channels of every user, others
/// see their own.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChannelsArguments {
    /// All that the agent says, for programs: counts since a link was made, now_ns, and per_second, which is of the same half
    /// second: messages, bytes and dropped. Filters do not apply.
    #[arg(long)]
    json: bool,
    /// Only what all these words fit: a process number, a role, or a part of a channel's or program's name.
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

const EXAMPLES: &str = "Examples:
  millrace channels
  millrace channels upf/ worker             links of workers on channels whose names have upf/ in them
  millrace channels --json | jq '.channels[] | {name, participants: (.ends | length)}'
  millrace channels --json | jq -c '.channels[].ends[].links[] | [.id, .per_second]'
  millrace top                              channels live, below connections

A name that two programs both use and that does not bring them together is each tenant's own: let the agent's configuration
say who may send and receive there ([[channel]]).

Exit status: 0; 1 when no agent answers, or one that is older than channels.";

/// Between the two looks that rates are of.
const INTERVAL: Duration = Duration::from_millis(500);

/// Prints the list.
pub(crate) fn run(arguments: &ChannelsArguments) -> anyhow::Result<u8> {
    let found = find_agent()?;
    let mut out = std::io::stdout().lock();
    let mut rates = LinkRates::default();
    let first = look(&found.socket, PATIENCE)?;
    rates.update(&first);
    // Where there is nobody, nothing is waited for.
    if !first.channels.is_empty() {
        std::thread::sleep(INTERVAL);
    }
    let (text, _) = understood(millrace_agent::ask(
        &found.socket,
        Query::Channels,
        PATIENCE,
    ))?;
    let report: ChannelsReport = serde_json::from_str(&text)?;
    rates.update(&report);
    if arguments.json {
        writeln!(out, "{}", with_rates(&text, &rates)?)?;
        return Ok(0);
    }
    let lines = lines(&report);
    if lines.is_empty() {
        complain!("millrace: no program that you may see takes part in a channel");
        return Ok(0);
    }
    let words: Vec<String> = arguments
        .filter
        .iter()
        .map(|word| word.to_lowercase())
        .collect();
    let fitting = lines.iter().filter(|line| line.fits(&words));
    let terminal = out.is_terminal();
    out.write_all(render(fitting, &rates, terminal).as_bytes())?;
    if report.truncated {
        complain!("millrace: there are more participants and links than are listed");
    }
    Ok(0)
}

/// The agent's answer, also what this version knows nothing of, and the rate of each link that has one.
fn with_rates(answer: &str, rates: &LinkRates) -> serde_json::Result<String> {
    let mut report: Value = serde_json::from_str(answer)?;
    let channels = members(&mut report, "channels");
    let ends = channels.flat_map(|channel| members(channel, "ends"));
    let links = ends.flat_map(|end| members(end, "links"));
    for link in links.filter_map(Value::as_object_mut) {
        let id = link.get("id").and_then(Value::as_str);
        let rate = id.and_then(|id| rates.of_link(id));
        link.insert("per_second".to_owned(), serde_json::to_value(rate)?);
    }
    serde_json::to_string(&report)
}

fn members<'a>(whole: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    let members = whole.get_mut(list).and_then(Value::as_array_mut);
    members.into_iter().flatten()
}

/// What the agent says of channels.
pub(crate) fn look(agent: &Path, patience: Duration) -> anyhow::Result<ChannelsReport> {
    understood(millrace_agent::channels(agent, patience))
}

/// An agent that does not know the question hangs up.
fn understood<T>(answer: Result<T, AskError>) -> anyhow::Result<T> {
    match answer {
        Err(AskError::NoAnswer(error)) if error.kind() == ErrorKind::UnexpectedEof => {
            bail!(
                "the agent hangs up: it is older than channels (start it again with this version)"
            )
        }
        other => other.context("channels"),
    }
}

/// One link, or one end without any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) channel: &'a ChannelReport,
    pub(crate) sender: Option<&'a ChannelEndReport>,
    pub(crate) receiver: Option<&'a ChannelEndReport>,
    pub(crate) link: Option<&'a ChannelLinkReport>,
    /// In the direction of messages, or of requests.
    pub(crate) flow: Option<FlowReport>,
    /// In that of replies.
    pub(crate) back: Option<FlowReport>,
}

/// Each link once: as its sender has it or, where only the receiver may be seen, as that has it.
pub(crate) fn lines(report: &ChannelsReport) -> Vec<Line<'_>> {
    report.channels.iter().flat_map(lines_of).collect()
}

fn lines_of(channel: &ChannelReport) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for end in &channel.ends {
        let sends = matches!(end.role.as_str(), "publisher" | "client");
        let peer = |link: &ChannelLinkReport| {
            let id = link.peer.as_ref()?;
            channel.ends.iter().find(|end| end.id == *id)
        };
        let shown = end
            .links
            .iter()
            .filter(|link| sends || peer(link).is_none())
            .map(Some);
        let alone = end.links.is_empty().then_some(None);
        for link in shown.chain(alone) {
            let (own, other) = (Some(end), link.and_then(peer));
            let (sent, received) = link.map_or((None, None), |link| (link.sent, link.received));
            let (sender, receiver, flow, back) = if sends {
                (own, other, sent, received)
            } else {
                (other, own, received, sent)
            };
            lines.push(Line {
                channel,
                sender,
                receiver,
                link,
                flow,
                back,
            });
        }
    }
    lines
}

impl Line<'_> {
    /// The number of its link.
    pub(crate) fn id(&self) -> Option<&str> {
        self.link?.id.as_deref()
    }

    fn ends(&self) -> impl Iterator<Item = &ChannelEndReport> {
        self.sender.into_iter().chain(self.receiver)
    }

    fn fits(&self, words: &[String]) -> bool {
        words.iter().all(|word| {
            let is_its = |end: &ChannelEndReport| {
                word.parse() == Ok(end.pid)
                    || end.role == *word
                    || who(Some(end)).to_lowercase().contains(word)
            };
            self.channel.name.to_lowercase().contains(word) || self.ends().any(is_its)
        })
    }

    /// Bytes of what is there for it alone, and of the sender's pool. `None`: there is none that may be seen.
    fn memory(&self) -> Option<u64> {
        let pool = self.sender.map(|end| end.pool_bytes);
        let link = self
            .link
            .map(|link| link.bytes.saturating_add(link.replies_bytes));
        pool.into_iter().chain(link).reduce(u64::saturating_add)
    }

    fn cells(&self, rate: Option<LinkRate>, terminal: bool) -> Vec<String> {
        let number = |count: Option<u64>| match count {
            None => "-".to_owned(),
            Some(count) if terminal => human_short(count),
            Some(count) => count.to_string(),
        };
        let of = |value: fn(&FlowReport) -> u64| number(self.flow.as_ref().map(value));
        let age_s = self.link.map_or_else(
            || self.ends().map(|end| end.age_s).max().unwrap_or(0),
            |link| link.age_s,
        );
        let group = self.receiver.and_then(|end| end.group.as_deref());
        vec![
            self.channel.name.clone(),
            self.channel.kind.clone(),
            self.channel.scope.replacen(' ', "/", 1),
            who(self.sender),
            who(self.receiver),
            group.unwrap_or("-").to_owned(),
            of(|flow| flow.messages),
            number(rate.map(|rate| rate.messages)),
            of(|flow| flow.bytes),
            number(rate.map(|rate| rate.bytes)),
            number(self.back.map(|back| back.messages)),
            of(|flow| flow.queued.into()),
            of(|flow| flow.held.into()),
            of(|flow| flow.dropped),
            of(|flow| flow.full),
            of(|flow| flow.redelivered),
            number(self.memory()),
            if terminal {
                human_seconds(age_s)
            } else {
                age_s.to_string()
            },
        ]
    }
}

fn who(end: Option<&ChannelEndReport>) -> String {
    end.map_or("-".to_owned(), |end| {
        let container = end.container.as_deref();
        program_at(&end.program, end.pid, end.pod_name.as_deref(), container)
    })
}

/// What the columns are called.
const HEADING: [&str; 18] = [
    "CHANNEL", "KIND", "WHOSE", "FROM", "TO", "GROUP", "MSGS", "MSG/s", "BYTES", "BYTES/s",
    "REPLIES", "QUEUED", "HELD", "DROPS", "FULL", "AGAIN", "MEM", "AGE",
];

fn render<'a>(
    lines: impl Iterator<Item = &'a Line<'a>>,
    rates: &LinkRates,
    terminal: bool,
) -> String {
    let mut table = Table::new(&HEADING, &[6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]);
    for line in lines {
        table.push(line.cells(rates.of(line), terminal));
    }
    table.render(terminal)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn end(role: &str, pid: i32, links: Vec<ChannelLinkReport>) -> ChannelEndReport {
        ChannelEndReport {
            role: role.to_owned(),
            pid,
            uid: 0,
            program: format!("a-{role}"),
            container: None,
            pod: None,
            pod_name: None,
            id: format!("{pid:016x}"),
            group: (role == "subscriber").then(|| "workers".to_owned()),
            age_s: 75,
            pool_bytes: if matches!(role, "publisher" | "client") {
                1 << 20
            } else {
                0
            },
            huge: false,
            slots: 16,
            links,
        }
    }

    pub(crate) fn flow(messages: u64) -> FlowReport {
        FlowReport {
            messages,
            bytes: messages * 100,
            dropped: 1,
            redelivered: 2,
            full: 6,
            queued: 3,
            held: 4,
        }
    }

    fn link(
        peer: Option<i32>,
        sent: Option<FlowReport>,
        received: Option<FlowReport>,
    ) -> ChannelLinkReport {
        ChannelLinkReport {
            id: Some("1".to_owned()),
            peer: peer.map(|pid| format!("{pid:016x}")),
            peer_pid: peer,
            sent,
            received,
            bytes: 8192,
            replies_bytes: 0,
            age_s: 9,
        }
    }

    /// At that time a publisher with one subscriber, and another one that has nobody.
    pub(crate) fn news(messages: u64, now_ns: u64) -> ChannelsReport {
        let flow = Some(flow(messages));
        let ends = vec![
            end("publisher", 1, vec![link(Some(2), flow, None)]),
            end("publisher", 3, vec![]),
            end("subscriber", 2, vec![link(Some(1), None, flow)]),
        ];
        let channel = ChannelReport {
            name: "news".to_owned(),
            kind: "messages".to_owned(),
            scope: "user 7".to_owned(),
            ends,
        };
        ChannelsReport {
            now_ns,
            truncated: false,
            channels: vec![channel],
        }
    }

    fn shown(report: &ChannelsReport) -> Vec<String> {
        let lines = lines(report);
        lines
            .iter()
            .map(|line| line.cells(None, false).join(" "))
            .collect()
    }

    #[test]
    fn each_link_has_one_line_and_so_has_who_has_none() {
        let expected = [
            "news messages user/7 a-publisher/1 a-subscriber/2 workers 5 - 500 - - 3 4 1 6 2 1056768 9",
            "news messages user/7 a-publisher/3 - - - - - - - - - - - - 1048576 75",
        ];
        assert_eq!(shown(&news(5, 0)), expected);
    }

    #[test]
    fn a_link_whose_sender_may_not_be_seen_is_listed_by_its_receiver() {
        let mut report = news(5, 0);
        let ends = &mut report.channels[0].ends;
        ends.drain(..2);
        ends[0].links[0].peer = None;
        let expected =
            ["news messages user/7 - a-subscriber/2 workers 5 - 500 - - 3 4 1 6 2 8192 9"];
        assert_eq!(shown(&report), expected);
    }

    #[test]
    fn replies_are_counted_and_a_link_of_an_earlier_agent_has_no_counts() {
        let ends = vec![
            end(
                "client",
                1,
                vec![
                    link(Some(2), Some(flow(7)), Some(flow(6))),
                    link(Some(2), None, None),
                ],
            ),
            end(
                "server",
                2,
                vec![link(Some(1), Some(flow(6)), Some(flow(7)))],
            ),
        ];
        let mut report = news(0, 0);
        report.channels[0].ends = ends;
        for link in &mut report.channels[0].ends[0].links {
            link.replies_bytes = 1 << 20;
        }
        let lines = shown(&report);
        assert!(
            lines[0].ends_with("a-client/1 a-server/2 - 7 - 700 - 6 3 4 1 6 2 2105344 9"),
            "{lines:?}"
        );
        assert!(
            lines[1].ends_with("a-client/1 a-server/2 - - - - - - - - - - - 2105344 9"),
            "{lines:?}"
        );
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn a_terminal_of_160_columns_has_room_for_large_numbers() {
        let mut rates = LinkRates::default();
        let [before, mut report] = [news(7_000_000_000, 1), news(7_030_000_000, 1_000_000_001)];
        rates.update(&before);
        rates.update(&report);
        let channel = &mut report.channels[0];
        (channel.name, channel.scope) = ("upf/downlink".to_owned(), "user 1000".to_owned());
        for end in &mut channel.ends {
            end.program = "worker".to_owned();
            end.pid += 1_000_000;
        }
        let text = render(lines(&report).iter(), &rates, true);
        // All but the heading, in which there are marks for bold letters.
        let mut lines = text.lines().skip(1);
        assert!(lines.all(|line| line.len() <= 160), "{text}");
        for shown in ["MSG/s", "BYTES/s", "29M", "2.8G", "1.0M"] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
    }

    #[test]
    fn json_has_the_rate_of_each_link_and_what_a_newer_agent_says() {
        let mut rates = LinkRates::default();
        for report in [news(100, 1_000_000_000), news(300, 1_500_000_000)] {
            rates.update(&report);
        }
        let answer = r#"{"news":7,"channels":[{"ends":[{"links":[{"id":"1"},{"id":null},{"id":"2"},0]},{}]}]}"#;
        let text = with_rates(answer, &rates).unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        let rate = json!({"messages": 400, "bytes": 40_000, "dropped": 0});
        let link = |id: Value, rate: Value| json!({"id": id, "per_second": rate});
        let links = [
            link(json!("1"), rate),
            link(Value::Null, Value::Null),
            link(json!("2"), Value::Null),
            json!(0),
        ];
        assert_eq!(
            answer,
            json!({"news": 7, "channels": [{"ends": [{"links": links}, {}]}]})
        );
    }

    #[test]
    fn words_choose_lines_by_channel_program_role_and_process() {
        let report = news(5, 0);
        let lines = lines(&report);
        let count = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            lines.iter().filter(|line| line.fits(&words)).count()
        };
        assert_eq!(
            [
                count(&[]),
                count(&["news"]),
                count(&["2"]),
                count(&["subscriber"])
            ],
            [2, 2, 1, 1]
        );
        assert_eq!(
            [count(&["news", "3"]), count(&["other"]), count(&["server"])],
            [1, 0, 0]
        );
    }
}
