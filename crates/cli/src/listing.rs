//! Connections as people see them: what `millrace ps`, `top` and `dump` have in common.

use millrace_agent::{ConnectionReport, DirectionReport, EndReport};

/// Which connections are meant: every word must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    words: Vec<String>,
}

impl Filter {
    pub(crate) fn new(words: &[String]) -> Filter {
        let words = words.iter().flat_map(|text| text.split_whitespace());
        Filter {
            words: words.map(str::to_lowercase).collect(),
        }
    }

    pub(crate) fn fits(&self, connection: &ConnectionReport) -> bool {
        self.words.iter().all(|word| fits_word(connection, word))
    }
}

/// A number is a connection's or a process's; `:NUMBER` a port; `kernel` and `shm` a road. Else it is a part of a program's name
/// or of an address, or a reason.
fn fits_word(connection: &ConnectionReport, word: &str) -> bool {
    if let Ok(number) = word.parse::<u64>() {
        let is_process = |end: &EndReport| u64::try_from(end.pid) == Ok(number);
        return connection.id == Some(number) || connection.ends.iter().any(is_process);
    }
    if let Some(Ok(port)) = word.strip_prefix(':').map(str::parse::<u16>) {
        let has_port = |end: &EndReport| end.local.port() == port || end.remote.port() == port;
        return connection.ends.iter().any(has_port);
    }
    if matches!(word, "kernel" | "shm") {
        return connection.ends.iter().any(|end| end.road == word);
    }
    connection.ends.iter().any(|end| {
        let in_container = end
            .container
            .as_ref()
            .is_some_and(|number| number.starts_with(word));
        let in_pod = end.pod.as_ref().is_some_and(|uid| uid.starts_with(word))
            || end
                .pod_name
                .as_ref()
                .is_some_and(|name| name.contains(word));
        end.program.to_lowercase().contains(word)
            || in_container
            || in_pod
            || end.local.to_string().contains(word)
            || end.remote.to_string().contains(word)
            || whys(end).contains(&word)
    })
}

/// How one direction is doing: bytes and messages, by both roads together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) ring_bytes: u64,
}

impl Flow {
    fn of(direction: &DirectionReport) -> Flow {
        Flow {
            bytes: direction.kernel_bytes.saturating_add(direction.shm_bytes),
            messages: direction
                .kernel_messages
                .saturating_add(direction.shm_messages),
            ring_bytes: direction.shm_bytes,
        }
    }

    /// What has come since `before`.
    pub(crate) fn since(self, before: Flow) -> Flow {
        Flow {
            bytes: self.bytes.saturating_sub(before.bytes),
            messages: self.messages.saturating_sub(before.messages),
            ring_bytes: self.ring_bytes.saturating_sub(before.ring_bytes),
        }
    }
}

/// Of all bytes of these flows, the share that took the ring, in percent. `None`: there were none.
pub(crate) fn ring_share(flows: &[Flow]) -> Option<u64> {
    let sum = |what: fn(&Flow) -> u64| {
        flows
            .iter()
            .map(|flow| u128::from(what(flow)))
            .sum::<u128>()
    };
    let share = (sum(|flow| flow.ring_bytes) * 100).checked_div(sum(|flow| flow.bytes))?;
    u64::try_from(share).ok()
}

/// One connection, from the side of the end that connected where that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) id: Option<u64>,
    /// The end that the counts are of.
    pub(crate) seen: &'a EndReport,
    pub(crate) client: Option<&'a EndReport>,
    pub(crate) server: Option<&'a EndReport>,
    pub(crate) client_address: String,
    pub(crate) server_address: String,
    pub(crate) road: String,
    pub(crate) why: String,
    pub(crate) sent: Flow,
    pub(crate) received: Flow,
}

impl<'a> Line<'a> {
    /// `None` when no end is there.
    pub(crate) fn of(connection: &'a ConnectionReport) -> Option<Line<'a>> {
        let of = |active: bool| connection.ends.iter().find(|end| end.active == active);
        let (client, server) = (of(true), of(false));
        let seen = client.or(server)?;
        let (client_address, server_address) = if seen.active {
            (seen.local, seen.remote)
        } else {
            (seen.remote, seen.local)
        };
        let roads = connection.ends.iter().map(|end| end.road.as_str());
        Some(Line {
            id: connection.id,
            seen,
            client,
            server,
            client_address: client_address.to_string(),
            server_address: server_address.to_string(),
            road: distinct(roads),
            why: distinct(connection.ends.iter().flat_map(whys)),
            sent: Flow::of(&seen.sent),
            received: Flow::of(&seen.received),
        })
    }

    pub(crate) fn age_s(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.seen.since_ns) / 1_000_000_000
    }
}

/// `redis-server/4711`, or `-` for an end that nobody has offered.
pub(crate) fn who(end: Option<&EndReport>) -> String {
    end.map_or("-".to_owned(), |end| {
        let container = end.container.as_deref();
        program_at(&end.program, end.pid, end.pod_name.as_deref(), container)
    })
}

/// `redis-server/4711@shop/cache-0`: with a pod's name, or a container's number as engines shorten it.
pub(crate) fn program_at(
    program: &str,
    pid: i32,
    pod: Option<&str>,
    container: Option<&str>,
) -> String {
    let number = container.and_then(|number| number.get(..12));
    let place = pod.or(number);
    let place = place.map_or(String::new(), |place| format!("@{place}"));
    format!("{program}/{pid}{place}")
}

/// Why an end is on its road. On the ring: why one of its directions is not, should that be so.
fn whys(end: &EndReport) -> Vec<&str> {
    let reasons: &[&str] = if end.reason != "none" {
        &[&end.reason]
    } else {
        &[&end.sent.reason, &end.received.reason]
    };
    let said = reasons.iter().copied();
    said.filter(|reason| !matches!(*reason, "" | "none"))
        .collect()
}

/// Each text once, in the order in which they come; `-` for none.
fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut said: Vec<&str> = Vec::new();
    for text in texts {
        if !said.contains(&text) {
            said.push(text);
        }
    }
    if said.is_empty() {
        "-".to_owned()
    } else {
        said.join("/")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One end of a connection from 127.0.0.1:4000 to 127.0.0.1:6379 that has sent 100 bytes in 4 messages.
    pub(crate) fn end(active: bool, road: &str, reason: &str) -> EndReport {
        let addresses = ["127.0.0.1:4000", "127.0.0.1:6379"].map(|text| text.parse().unwrap());
        let [local, remote] = if active {
            addresses
        } else {
            [addresses[1], addresses[0]]
        };
        EndReport {
            pid: if active { 10 } else { 20 },
            uid: 0,
            program: if active { "client" } else { "server" }.into(),
            container: None,
            pod: None,
            pod_name: None,
            fd: 3,
            active,
            local,
            remote,
            road: road.into(),
            reason: reason.into(),
            since_ns: 0,
            holders: 1,
            sent: DirectionReport {
                road: road.into(),
                reason: reason.into(),
                kernel_bytes: 25,
                shm_bytes: 75,
                kernel_messages: 1,
                shm_messages: 3,
            },
            received: DirectionReport::default(),
        }
    }

    pub(crate) fn both(road: &str, reason: &str) -> ConnectionReport {
        ConnectionReport {
            id: Some(4),
            segment: Some(77),
            ends: vec![end(true, road, reason), end(false, road, reason)],
        }
    }

    #[test]
    fn a_filter_fits_by_number_port_name_address_road_and_reason() {
        let connection = both("kernel", "passed_fd");
        let fits = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            Filter::new(&words).fits(&connection)
        };
        for good in [
            "",
            "4",
            "10",
            "20",
            ":6379",
            "SERV",
            "127.0.0.1:4",
            "kernel",
            "passed_fd",
        ] {
            assert!(fits(&[good]), "{good}");
        }
        for bad in ["5", ":63", "redis", "shm", "passed", "10.0.0.1"] {
            assert!(!fits(&[bad]), "{bad}");
        }
        assert!(fits(&["client :6379", "kernel"]));
        assert!(!fits(&["client", "shm"]));
    }

    #[test]
    fn what_passes_on_the_ring_is_said_once() {
        let mut connection = both("shm", "none");
        assert_eq!(Line::of(&connection).unwrap().why, "-");
        connection.ends[0].received.reason = "sleeping".into();
        connection.ends[1].sent.reason = "sleeping".into();
        connection.ends[1].received.reason = "overflow".into();
        assert_eq!(Line::of(&connection).unwrap().why, "sleeping/overflow");
    }

    #[test]
    fn numbers_that_a_program_invented_do_not_overflow() {
        let mut invented = end(true, "shm", "none");
        invented.sent = DirectionReport {
            kernel_bytes: u64::MAX,
            kernel_messages: u64::MAX,
            shm_bytes: u64::MAX,
            shm_messages: u64::MAX,
            ..DirectionReport::default()
        };
        invented.received = invented.sent.clone();
        invented.since_ns = u64::MAX;
        let connection = ConnectionReport {
            id: Some(1),
            segment: None,
            ends: vec![invented],
        };
        let line = Line::of(&connection).unwrap();
        assert_eq!((line.sent.bytes, line.age_s(5)), (u64::MAX, 0));
        assert_eq!(ring_share(&[line.sent, line.received]), Some(100));
        assert_eq!(ring_share(&[Flow::default()]), None);
    }
}
