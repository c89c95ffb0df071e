//! `millrace ps`: every connection, its road, and why.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use millrace_agent::{ConnectionsReport, DirectionReport};
use millrace_wire::Query;

use crate::listing::{Filter, Line, ring_share, who};
use crate::locate;
use crate::table::{Table, human_bytes, human_seconds};

/// A report of many connections takes the agent a moment.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How connections are chosen: `ps`, `top` and `dump` have it in common.
pub(crate) const FILTERS: &str = "A filter is one or more words, all of which must fit a connection: its ID, a process number, a part \
of a program's name or of an address, :PORT, a road (kernel, shm), or a reason.";

/// List the connections of programs that run under Millrace, the road that each takes, and why.
///
/// Root sees the connections of every user, others see their own. The left end of each line is the one that connected;
/// SENT and RECEIVED, with the messages of each, are as that end sees them (or the other, where only that is known). RING is the
/// share of bytes that went through shared memory. ROAD is shm when the connection has joined the ring and may use it. WHY then
/// says what keeps a direction off the ring now: sleeping and overflow pass.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PsArguments {
    /// All that the agent says, for programs. Filters do not apply.
    #[arg(long)]
    json: bool,
    /// Bytes and messages of each direction on each road.
    #[arg(long, short)]
    long: bool,
    /// Only connections that all these words fit.
    #[arg(value_name = "FILTER", help = "Only connections that all these words fit", long_help = FILTERS)]
    filter: Vec<String>,
}

const EXAMPLES: &str = "Examples:
  millrace ps
  millrace ps redis kernel                  connections of redis that are on the kernel's road
  millrace ps --json | jq '.connections[] | select(.ends[0].road == \"kernel\") | .ends[0].reason'

Exit status: 0; 1 when no agent answers.";

/// Prints the list.
pub(crate) fn run(arguments: &PsArguments) -> anyhow::Result<u8> {
    let found = find_agent()?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let (text, _) = millrace_agent::ask(&found.socket, Query::Connections, PATIENCE)?;
        writeln!(out, "{text}")?;
        return Ok(0);
    }
    let mut report = millrace_agent::connections(&found.socket, PATIENCE)?;
    let filter = Filter::new(&arguments.filter);
    report
        .connections
        .retain(|connection| filter.fits(connection));
    let terminal = out.is_terminal();
    let text = if arguments.long {
        render_long(&report, terminal)
    } else {
        render(&report, terminal)
    };
    out.write_all(text.as_bytes())?;
    if report.truncated {
        complain!("millrace: there are more connections than are listed");
    }
    Ok(0)
}

/// The agent that has the list.
pub(crate) fn find_agent() -> anyhow::Result<locate::Found> {
    locate::agent().map_err(|errors| {
        anyhow!(
            "{}; programs that run without an agent are not listed (try: millrace doctor)",
            locate::explain(&errors)
        )
    })
}

fn bytes(count: u64, terminal: bool) -> String {
    if terminal {
        human_bytes(count)
    } else {
        count.to_string()
    }
}

fn render(report: &ConnectionsReport, terminal: bool) -> String {
    let heading = [
        "ID",
        "CONNECTED",
        "ADDRESS",
        "ACCEPTED",
        "ADDRESS",
        "ROAD",
        "WHY",
        "SENT",
        "MSGS",
        "RECEIVED",
        "MSGS",
        "RING",
        "AGE",
    ];
    let mut table = Table::new(&heading, &[0, 7, 8, 9, 10, 11, 12]);
    for line in report.connections.iter().filter_map(Line::of) {
        table.push(cells(&line, report.now_ns, terminal));
    }
    table.render(terminal)
}

fn cells(line: &Line<'_>, now_ns: u64, terminal: bool) -> Vec<String> {
    let mut cells = ends(line);
    let age_s = line.age_s(now_ns);
    let share = ring_share(&[line.sent, line.received]);
    cells.extend([
        bytes(line.sent.bytes, terminal),
        line.sent.messages.to_string(),
        bytes(line.received.bytes, terminal),
        line.received.messages.to_string(),
        share.map_or("-".to_owned(), |share| format!("{share}%")),
        if terminal {
            human_seconds(age_s)
        } else {
            age_s.to_string()
        },
    ]);
    cells
}

/// Who, where, which road, and why.
fn ends(line: &Line<'_>) -> Vec<String> {
    vec![
        line.id.map_or("-".to_owned(), |id| id.to_string()),
        who(line.client),
        line.client_address.clone(),
        who(line.server),
        line.server_address.clone(),
        line.road.clone(),
        line.why.clone(),
    ]
}

/// Two lines for each connection, one for each direction.
fn render_long(report: &ConnectionsReport, terminal: bool) -> String {
    let heading = [
        "ID", "FROM", "ADDRESS", "TO", "ADDRESS", "ROAD", "WHY", "SHM", "MSGS", "KERNEL", "MSGS",
    ];
    let mut table = Table::new(&heading, &[0, 7, 8, 9, 10]);
    for line in report.connections.iter().filter_map(Line::of) {
        let there = ends(&line);
        let mut back = there.clone();
        back.swap(1, 3);
        back.swap(2, 4);
        let (sent, received) = if line.seen.active {
            (&line.seen.sent, &line.seen.received)
        } else {
            (&line.seen.received, &line.seen.sent)
        };
        for (mut cells, direction) in [(there, sent), (back, received)] {
            cells.truncate(5);
            cells.extend(counts(direction, terminal));
            table.push(cells);
        }
    }
    table.render(terminal)
}

fn counts(direction: &DirectionReport, terminal: bool) -> [String; 6] {
    let why = match direction.reason.as_str() {
        "none" | "" => "-",
        reason => reason,
    };
    [
        direction.road.clone(),
        why.to_owned(),
        bytes(direction.shm_bytes, terminal),
        direction.shm_messages.to_string(),
        bytes(direction.kernel_bytes, terminal),
        direction.kernel_messages.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use millrace_agent::ConnectionReport;

    use super::*;
    use crate::listing::tests::{both, end};

    #[test]
    fn one_line_per_connection_with_both_ends_and_the_reason() {
        let joined = both("shm", "none");
        let text = cells(&Line::of(&joined).unwrap(), 5_000_000_000, false).join(" ");
        assert_eq!(
            text,
            "4 client/10 127.0.0.1:4000 server/20 127.0.0.1:6379 shm - 100 4 0 0 75% 5"
        );
        let one = ConnectionReport {
            id: None,
            segment: None,
            ends: vec![end(false, "kernel", "not_both_ends")],
        };
        let text = cells(&Line::of(&one).unwrap(), 0, false).join(" ");
        assert_eq!(
            text,
            "- - 127.0.0.1:4000 server/20 127.0.0.1:6379 kernel not_both_ends 100 4 0 0 75% 0"
        );
    }

    #[test]
    fn the_long_list_has_each_direction_on_each_road() {
        let mut connection = both("shm", "none");
        connection.ends[0].received.reason = "sleeping".into();
        connection.ends[0].received.road = "kernel".into();
        let report = ConnectionsReport {
            now_ns: 0,
            truncated: false,
            connections: vec![connection],
        };
        let text = render_long(&report, false);
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines[1],
            "4 client/10 127.0.0.1:4000 server/20 127.0.0.1:6379 shm - 75 3 25 1"
        );
        assert_eq!(
            lines[2],
            "4 server/20 127.0.0.1:6379 client/10 127.0.0.1:4000 kernel sleeping 0 0 0 0"
        );
    }
}
