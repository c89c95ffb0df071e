//! `millrace ps`: every connection, its road, and why.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use millrace_agent::{ConnectionReport, ConnectionsReport, EndReport, RoadCounts};
use millrace_wire::Query;

use crate::locate;
use crate::table::{Table, human_bytes, human_seconds};

/// A report of many connections takes the agent a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// List the connections of programs that run under Millrace, the road that each takes, and why.
///
/// Root sees the connections of every user, others see their own. The left end of each line is the one that connected;
/// SENT and RECEIVED are as that end sees them (or the other, where only that is known). RING is the share of bytes that went
/// through shared memory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  millrace ps
  millrace ps --json | jq '.connections[] | select(.ends[0].road == \"kernel\") | .ends[0].reason'

Exit status: 0; 1 when no agent answers.")]
pub(crate) struct PsArguments {
    /// All that the agent says, for programs.
    #[arg(long)]
    json: bool,
}

/// Prints the list.
pub(crate) fn run(arguments: &PsArguments) -> anyhow::Result<u8> {
    let found = locate::agent().map_err(|errors| {
        anyhow!(
            "{}; programs that run without an agent are not listed (try: millrace doctor)",
            locate::explain(&errors)
        )
    })?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let (text, _) = millrace_agent::ask(&found.socket, Query::Connections, PATIENCE)?;
        writeln!(out, "{text}")?;
        return Ok(0);
    }
    let report = millrace_agent::connections(&found.socket, PATIENCE)?;
    let terminal = out.is_terminal();
    out.write_all(render(&report, terminal).as_bytes())?;
    if report.truncated {
        eprintln!("millrace: there are more connections than are listed");
    }
    Ok(0)
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
        "RECEIVED",
        "MESSAGES",
        "RING",
        "AGE",
    ];
    let mut table = Table::new(&heading, &[0, 7, 8, 9, 10, 11]);
    for connection in &report.connections {
        table.push(line(connection, report.now_ns, terminal));
    }
    table.render(terminal)
}

fn line(connection: &ConnectionReport, now_ns: u64, terminal: bool) -> Vec<String> {
    let of = |active: bool| connection.ends.iter().find(|end| end.active == active);
    let (active, passive) = (of(true), of(false));
    let Some(seen) = active.or(passive).or(connection.ends.first()) else {
        return Vec::new();
    };
    let who = |end: Option<&EndReport>| {
        end.map_or("-".to_owned(), |end| format!("{}/{}", end.program, end.pid))
    };
    let (client_address, server_address) = if seen.active {
        (seen.local, seen.remote)
    } else {
        (seen.remote, seen.local)
    };
    let bytes = |count: u64| {
        if terminal {
            human_bytes(count)
        } else {
            count.to_string()
        }
    };
    let age_s = now_ns.saturating_sub(seen.since_ns) / 1_000_000_000;
    vec![
        connection.id.map_or("-".to_owned(), |id| id.to_string()),
        who(active),
        client_address.to_string(),
        who(passive),
        server_address.to_string(),
        distinct(connection, |end| &end.road),
        distinct(connection, |end| {
            if end.reason == "none" {
                ""
            } else {
                &end.reason
            }
        }),
        bytes(total_bytes(&seen.sent)),
        bytes(total_bytes(&seen.received)),
        messages(&seen.sent)
            .saturating_add(messages(&seen.received))
            .to_string(),
        ring_share(seen),
        if terminal {
            human_seconds(age_s)
        } else {
            age_s.to_string()
        },
    ]
}

/// What the ends say, once when they agree.
fn distinct<'a>(
    connection: &'a ConnectionReport,
    what: impl Fn(&'a EndReport) -> &'a str,
) -> String {
    let mut said: Vec<&str> = connection
        .ends
        .iter()
        .map(what)
        .filter(|text| !text.is_empty())
        .collect();
    said.dedup();
    if said.is_empty() {
        "-".to_owned()
    } else {
        said.join("/")
    }
}

fn total_bytes(counts: &RoadCounts) -> u64 {
    counts.kernel_bytes.saturating_add(counts.shm_bytes)
}

fn messages(counts: &RoadCounts) -> u64 {
    counts.kernel_messages.saturating_add(counts.shm_messages)
}

fn ring_share(end: &EndReport) -> String {
    let ring = u128::from(end.sent.shm_bytes) + u128::from(end.received.shm_bytes);
    let all = u128::from(total_bytes(&end.sent)) + u128::from(total_bytes(&end.received));
    match (ring * 100).checked_div(all) {
        Some(share) => format!("{share}%"),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: RoadCounts = RoadCounts {
        kernel_bytes: 0,
        kernel_messages: 0,
        shm_bytes: 0,
        shm_messages: 0,
    };

    fn end(active: bool, road: &str, reason: &str) -> EndReport {
        let addresses = ["127.0.0.1:4000", "127.0.0.1:6379"].map(|text| text.parse().unwrap());
        let [local, remote] = if active {
            addresses
        } else {
            [addresses[1], addresses[0]]
        };
        EndReport {
            pid: if active { 10 } else { 20 },
            uid: 0,
            program: if active {
                "client".into()
            } else {
                "server".into()
            },
            fd: 3,
            active,
            local,
            remote,
            road: road.into(),
            reason: reason.into(),
            since_ns: 0,
            holders: 1,
            sent: RoadCounts {
                kernel_bytes: 25,
                shm_bytes: 75,
                kernel_messages: 1,
                shm_messages: 3,
            },
            received: NOTHING,
        }
    }

    #[test]
    fn one_line_per_connection_with_both_ends_and_the_reason() {
        let both = ConnectionReport {
            id: Some(4),
            ends: vec![end(true, "shm", "none"), end(false, "shm", "none")],
        };
        let text = line(&both, 5_000_000_000, false).join(" ");
        assert_eq!(
            text,
            "4 client/10 127.0.0.1:4000 server/20 127.0.0.1:6379 shm - 100 0 4 75% 5"
        );

        let one = ConnectionReport {
            id: None,
            ends: vec![end(false, "kernel", "not_both_ends")],
        };
        let text = line(&one, 0, false).join(" ");
        assert_eq!(
            text,
            "- - 127.0.0.1:4000 server/20 127.0.0.1:6379 kernel not_both_ends 100 0 4 75% 0"
        );
    }

    #[test]
    fn numbers_that_a_program_invented_do_not_overflow() {
        let mut invented = end(true, "shm", "none");
        invented.sent = RoadCounts {
            kernel_bytes: u64::MAX,
            kernel_messages: u64::MAX,
            shm_bytes: u64::MAX,
            shm_messages: u64::MAX,
        };
        invented.received = invented.sent;
        invented.since_ns = u64::MAX;
        let connection = ConnectionReport {
            id: Some(1),
            ends: vec![invented],
        };
        assert_eq!(line(&connection, 0, false)[7], u64::MAX.to_string());
    }
}
