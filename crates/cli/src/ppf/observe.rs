//! `millrace ppf events`, `paths` and `trace`: what the function has met, and a bearer's frames.

use std::fs::File;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use millrace_ppf::{AskError, BearerId, EventList, EventReport, PathList, PathReport};
use millrace_wire::pcap::{STATISTICS_BYTES, parse_statistics};

use super::show::incomplete;
use super::{client, get, is_terminal, parsed, print};
use crate::table::Table;

/// Paths that are asked for at once, and for how long an event is waited for.
const PAGE: usize = 10_000;
const WAIT_S: u64 = 20;

/// Show what the function has met: peers that answer no more or again, tunnels that peers have lost, thresholds, and more.
///
/// Events have numbers, from 0 since the process began, and the last 16384 are kept. EVENT is path_up or path_down (a peer answers
/// echoes, or does not), lost (a peer has the bearer's tunnel no more: TS 29.281, 7.3.1), end_marker (the last message of a tunnel
/// came), extensions (a peer's list of extension headers that it understands), tunnel_status (charging pauses, or goes on), first_held
/// (a packet is held for a paused bearer, where none was), usage (a threshold was reached).
#[derive(Debug, Args)]
pub(super) struct EventsArguments {
    /// As the function gives them, for programs: with --follow an event a line.
    #[arg(long)]
    json: bool,
    /// Go on, and show events as they come.
    #[arg(long, short)]
    follow: bool,
    /// Begin with this number; otherwise with the oldest that is kept.
    #[arg(long, value_name = "N")]
    from: Option<u64>,
}

/// Show the paths to peers, and whether these answer.
///
/// Peers are asked only where the configuration has a section `supervision`; STATE is up, down, or unknown. TUNNELS are those that go by
/// the path. ASKED are echo requests, repetitions among them, and ANSWERED those that were answered in time. RESTARTS is what the peer said
/// last of its restarts, which nobody is to act on (TS 29.281, 8.2).
#[derive(Debug, Args)]
pub(super) struct PathsArguments {
    /// The same, for programs.
    #[arg(long)]
    json: bool,
}

/// Write a bearer's frames to a file, as they come and as they leave, for Wireshark.
///
/// The file is pcapng with an interface for each port, and is whole whenever it is read. Frames are looked at where ports are: what waited
/// is seen when it leaves. What there is no room for is not traced, passes all the same, and is counted at the end.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  millrace ppf trace 513 -w bearer.pcapng --count 100
  millrace ppf trace 513 --seconds 3600 -w - | wireshark -k -i -")]
pub(super) struct TraceArguments {
    /// The bearer's number, or, if there is no such bearer, the TEID that one of its peers sends to.
    #[arg(value_name = "ID|TEID")]
    id: u32,
    /// Where to write; - is standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    write: PathBuf,
    /// So many frames, and no more.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// For so long; otherwise for a minute.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    seconds: Option<u64>,
    /// What is given is a TEID.
    #[arg(long)]
    teid: bool,
}

/// Write the stages that packets are handed over by, with what passes between them, as a picture (SVG).
///
/// Packets that are dealt with where they came take none of the ways between stages; where there are several workers they are counted at
/// the stage `bearer`, and where there is one nobody hands anything over. What stages cost is of late, and rates are of so many seconds
/// from now on.
#[derive(Debug, Args)]
pub(super) struct GraphArguments {
    /// Where to write; - is standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    write: PathBuf,
    /// For so long packets are counted.
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=20))]
    seconds: u64,
}

pub(super) fn graph(control: Option<&Path>, graph: &GraphArguments) -> anyhow::Result<()> {
    let svg = get(control, &format!("/v1/graph?seconds={}", graph.seconds))?;
    if graph.write.as_os_str() == "-" {
        return print(&svg);
    }
    let shown = graph.write.display();
    std::fs::write(&graph.write, svg).with_context(|| format!("cannot write {shown}"))
}

pub(super) fn events(control: Option<&Path>, events: &EventsArguments) -> anyhow::Result<()> {
    if events.follow {
        return follow(control, events);
    }
    let mut next = events.from;
    let mut table = Table::new(&["NUMBER", "TIME", "EVENT", "SIDE", "OF", "WHAT"], &[0]);
    loop {
        let from = next.map_or(String::new(), |from| format!("&from={from}"));
        let said = get(control, &format!("/v1/events?limit=10000{from}"))?;
        if events.json {
            return print(&[&said[..], b"\n"].concat());
        }
        let list: EventList = parsed(&said)?;
        tell_of_missed(&list);
        if list.events.is_empty() {
            return print(table.render(is_terminal()).as_bytes());
        }
        next = Some(list.next);
        for event in &list.events {
            table.push(cells(event).into());
        }
    }
}

fn follow(control: Option<&Path>, events: &EventsArguments) -> anyhow::Result<()> {
    let mut next = events.from;
    let mut began_ms = None;
    loop {
        let from = next.map_or(String::new(), |from| format!("&from={from}"));
        let said = get(control, &format!("/v1/events?wait={WAIT_S}{from}"))?;
        let list: EventList = parsed(&said)?;
        if began_ms
            .replace(list.began_ms)
            .is_some_and(|before| before != list.began_ms)
        {
            // Another process, whose events have numbers of their own.
            complain!("millrace: the function was started anew");
            next = None;
            continue;
        }
        tell_of_missed(&list);
        let mut lines = String::new();
        for event in &list.events {
            match events.json {
                true => lines.push_str(&serde_json::to_string(event)?),
                false => lines.push_str(cells(event).join("  ").trim_end()),
            }
            lines.push('\n');
        }
        print(lines.as_bytes())?;
        stdout().flush()?;
        next = Some(list.next);
    }
}

fn tell_of_missed(list: &EventList) {
    if list.missed > 0 {
        complain!("millrace: {} events are not kept any more", list.missed);
    }
}

fn cells(event: &EventReport) -> [String; 6] {
    let peer = event.peer.map(|peer| peer.to_string());
    let bearer = event.bearer.map(|bearer| format!("bearer {bearer}"));
    let mut what = Vec::new();
    if let Some(kinds) = &event.extensions {
        what.extend(kinds.iter().map(|kind| format!("{kind:#04x}")));
    }
    what.extend((event.pause == Some(true)).then(|| "pause".to_owned()));
    what.extend((event.resume == Some(true)).then(|| "resume".to_owned()));
    what.extend(event.due.clone());
    if let Some(usage) = &event.usage {
        what.push(format!(
            "core={}/{} radio={}/{} active={}s",
            usage.core_packets,
            usage.core_bytes,
            usage.radio_packets,
            usage.radio_bytes,
            usage.active_s
        ));
    }
    [
        event.number.to_string(),
        stamp(event.time_ms),
        event.event.clone(),
        event.side.clone().unwrap_or_else(|| "-".to_owned()),
        peer.or(bearer).unwrap_or_else(|| "-".to_owned()),
        what.join(" "),
    ]
}

/// A time as RFC 3339 has it, in UTC; the day by Howard Hinnant's `civil_from_days`.
fn stamp(time_ms: u64) -> String {
    let (days, of_day_ms) = (time_ms / 86_400_000, time_ms % 86_400_000);
    let since_march = days + 719_468;
    let (era, of_era) = (since_march / 146_097, since_march % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (seconds, milliseconds) = (of_day_ms / 1000, of_day_ms % 1000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{:02}.{milliseconds:03}Z",
        seconds % 60
    )
}

pub(super) fn paths(control: Option<&Path>, paths: &PathsArguments) -> anyhow::Result<()> {
    let mut all = PathList {
        paths: Vec::new(),
        next: Some(0),
        unanswered: Vec::new(),
    };
    while let Some(from) = all.next {
        let said = get(control, &format!("/v1/paths?from={from}&limit={PAGE}"))?;
        let page: PathList = parsed(&said)?;
        all.paths.extend(page.paths);
        all.next = page.next;
        all.unanswered.extend(page.unanswered);
    }
    if paths.json {
        return print(format!("{}\n", serde_json::to_string(&all)?).as_bytes());
    }
    let table = path_table(&all.paths, is_terminal());
    print((table + &incomplete(&all.unanswered)).as_bytes())
}

fn path_table(paths: &[PathReport], terminal: bool) -> String {
    let heading = [
        "SIDE", "PEER", "STATE", "TUNNELS", "WORKER", "ASKED", "ANSWERED", "RESTARTS",
    ];
    let mut table = Table::new(&heading, &[3, 4, 5, 6, 7]);
    for path in paths {
        let restarts = path.restart_counter;
        table.push(vec![
            path.side.clone(),
            path.peer.to_string(),
            path.state.clone(),
            path.tunnels.to_string(),
            path.worker.to_string(),
            path.requests.to_string(),
            path.responses.to_string(),
            restarts.map_or("-".to_owned(), |restarts| restarts.to_string()),
        ]);
    }
    table.render(terminal)
}

/// The bearer that a number is of, or a TEID.
fn bearer_of(control: Option<&Path>, trace: &TraceArguments) -> anyhow::Result<u32> {
    let is_there =
        |id: u32| match client(control)?.ask("GET", &format!("/v1/bearers/{id}"), "", &[]) {
            Ok(_) => Ok(true),
            Err(AskError::Refused(404, _)) => Ok(false),
            Err(error) => Err(anyhow::Error::from(error)),
        };
    if !trace.teid && is_there(trace.id)? {
        return Ok(trace.id);
    }
    let (id, _) = BearerId::of(trace.id);
    match is_there(id.number())? {
        true => Ok(id.number()),
        false => bail!(
            "{} is neither a bearer's number nor a TEID of one",
            trace.id
        ),
    }
}

pub(super) fn trace(control: Option<&Path>, trace: &TraceArguments) -> anyhow::Result<()> {
    let id = bearer_of(control, trace)?;
    let mut words = Vec::new();
    words.extend(trace.count.map(|count| format!("count={count}")));
    words.extend(trace.seconds.map(|seconds| format!("seconds={seconds}")));
    let target = format!("/v1/bearers/{id}/trace?{}", words.join("&"));
    let mut pieces = client(control)?.follow(&target)?;
    let shown = trace.write.display();
    // Only now: a file that is there is not replaced by nothing.
    let mut to: Box<dyn Write> = match trace.write.as_os_str() == "-" {
        true => Box::new(stdout()),
        false => {
            Box::new(File::create(&trace.write).with_context(|| format!("cannot write {shown}"))?)
        }
    };
    let mut last = Vec::new();
    while let Some(piece) = pieces.poll_next()? {
        // Each is of whole blocks: whoever reads the file meanwhile, or after an interruption, finds nothing torn.
        let written = to.write_all(&piece).and_then(|()| to.flush());
        written.with_context(|| format!("cannot write {shown}"))?;
        last = piece;
    }
    let statistics: Option<&[u8; STATISTICS_BYTES]> = last.last_chunk();
    let Some(statistics) = statistics.and_then(parse_statistics) else {
        bail!("the function ended before the trace did");
    };
    complain!(
        "{} frames were written, and {} found no room",
        statistics.delivered,
        statistics.dropped
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (time_ms, wanted) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_709_251_200_001, "2024-03-01T00:00:00.001Z"),
            (4_102_444_799_000, "2099-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(stamp(time_ms), wanted);
        }
    }

    #[test]
    fn events_and_paths_are_lines() {
        let event = EventReport {
            number: 7,
            event: "tunnel_status".to_owned(),
            side: Some("core".to_owned()),
            bearer: Some(513),
            pause: Some(true),
            resume: Some(false),
            ..EventReport::default()
        };
        let line = cells(&event).join(" ");
        assert_eq!(
            line,
            "7 1970-01-01T00:00:00.000Z tunnel_status core bearer 513 pause"
        );
        let event = EventReport {
            event: "extensions".to_owned(),
            peer: Some([192, 0, 2, 9].into()),
            extensions: Some(vec![0x85, 3]),
            ..EventReport::default()
        };
        assert_eq!(cells(&event)[3..], ["-", "192.0.2.9", "0x85 0x03"]);
        let path = PathReport {
            side: "radio".to_owned(),
            peer: [192, 0, 2, 9].into(),
            state: "up".to_owned(),
            tunnels: 2,
            worker: 1,
            requests: 4,
            responses: 3,
            restart_counter: None,
        };
        let text = path_table(&[path], false);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[1],
            ["radio", "192.0.2.9", "up", "2", "1", "4", "3", "-"]
        );
    }
}
