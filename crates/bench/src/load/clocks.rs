//! The clocks of two ends: whether they are one, and if not, how far apart they are, with the error of that.
//!
//! A probe is a message of which four times are known: sent by the client (t1), received (t2) and answered (t3) by the server, received
//! by the client (t4). The server's clock is ahead by ((t2 − t1) + (t3 − t4)) / 2, in error by at most half of the round trip, (t4 − t1) −
//! (t3 − t2), however unlike the two ways were (RFC 5905 clause 8). Of several probes that of the least round trip is taken. They are made
//! before a run and after it, and what lies between follows from both: so a clock that is faster than the other one is allowed for. The
//! error of that is at most the greater one of the two, as long as the drift was even.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::address::Address;
use super::stamp::{HEAD_BYTES, Head, LENGTHS, MESSAGE, Stamps, WHO};
use super::sys;
use crate::results::{Clocks, Estimate};

/// Probes before a run, and after it; fewer where they take longer than this.
const PROBES: usize = 64;
const PROBING_NS: u64 = 1_000_000_000;
/// The Linux kernel changes the pace of a clock by no more (adjtimex(2), and RFC 5905 clause 11.3), and crystals are ten times better.
const DRIFT_MAX_PPM: f64 = 1_000.0;
/// What stands for the namespace where the kernel has none for time: before Linux 5.6.
const NO_NAMESPACE: &str = "time:[0]";

/// What a monotonic clock is known by: who has the same has the same clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Of the kernel's start.
    boot: String,
    /// The time namespace.
    namespace: String,
}

impl Name {
    pub(super) fn own() -> Name {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/time");
        let namespace = namespace.map(|name| name.to_string_lossy().into_owned());
        Name {
            boot: boot.trim().to_owned(),
            namespace: namespace.unwrap_or_else(|_| NO_NAMESPACE.to_owned()),
        }
    }

    /// Whether a server that calls itself so has this clock. Who could not find out his kernel's start has not said it.
    fn is(&self, server: &str) -> bool {
        !self.boot.is_empty() && server == self.to_string()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.boot, self.namespace)
    }
}

/// One probe's four times.
#[derive(Clone, Copy, Debug)]
struct Probe {
    sent_ns: u64,
    server: Stamps,
    received_ns: u64,
}

impl Probe {
    /// The least and the most that the server's clock can be ahead: its message was not received before it was sent, nor the answer.
    fn bounds_ns(&self) -> [i64; 2] {
        [
            self.server.sent_ns as i64 - self.received_ns as i64,
            self.server.received_ns as i64 - self.sent_ns as i64,
        ]
    }

    fn round_trip_ns(&self) -> i64 {
        let [least, most] = self.bounds_ns();
        most - least
    }
}

impl Estimate {
    fn of(probes: &[Probe]) -> Option<Estimate> {
        let best = probes.iter().min_by_key(|probe| probe.round_trip_ns())?;
        let [least, most] = best.bounds_ns();
        Some(Estimate {
            at_ns: best.sent_ns.midpoint(best.received_ns),
            offset_ns: least.midpoint(most),
            // Rounded up, as the middle may be off by one.
            error_ns: (most - least).unsigned_abs().div_ceil(2),
            probes: probes.len() as u64,
        })
    }
}

/// What was found out of a server's clock at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    is_ours: bool,
    estimate: Estimate,
}

impl Look {
    /// Asks a server whose clock it has, and makes probes.
    pub(super) fn at(address: &Address, timeout_seconds: f64) -> Result<Look> {
        let (socket, _) = sys::connect(address, true)
            .with_context(|| format!("cannot connect to {address}: does a server listen there?"))?;
        sys::set_receive_timeout(&socket, Duration::from_secs_f64(timeout_seconds))?;
        let asked = || -> Result<Look> {
            let (_, name) = ask(&socket, WHO)?;
            let begun_ns = sys::monotonic_ns();
            let mut probes = Vec::with_capacity(PROBES);
            while probes.len() < PROBES && sys::monotonic_ns() < begun_ns + PROBING_NS {
                probes.push(ask(&socket, MESSAGE)?.0);
            }
            Look::of(&probes, &Name::own(), &String::from_utf8_lossy(&name))
        };
        asked().with_context(|| format!("{address}, whose clock was asked for"))
    }

    fn of(probes: &[Probe], own: &Name, server: &str) -> Result<Look> {
        let estimate = Estimate::of(probes).context("no probe was answered")?;
        // Machines that were copied while they ran have names in common, and no clock.
        let agrees = |probe: &Probe| {
            let [least, most] = probe.bounds_ns();
            (least..=most).contains(&0)
        };
        Ok(Look {
            is_ours: own.is(server) && probes.iter().all(agrees),
            estimate,
        })
    }
}

/// Sends a message without contents, and waits for its answer: the times, and what it has for contents.
fn ask(socket: &OwnedFd, kind: u32) -> Result<(Probe, Vec<u8>)> {
    let message = Head {
        kind,
        bytes: HEAD_BYTES,
        stamps: Stamps::default(),
    }
    .emit();
    let sent_ns = sys::monotonic_ns();
    let mut rest = &message[..];
    while !rest.is_empty() {
        rest = &rest[sys::send(socket, rest)?..];
    }
    let mut head = [0; HEAD_BYTES];
    receive(socket, &mut head)?;
    let mut received_ns = sys::monotonic_ns();
    let head = Head::parse(&head);
    let is_answer = head.kind == kind && LENGTHS.contains(&head.bytes);
    ensure!(
        is_answer && head.stamps.received_ns > 0,
        "it does not answer with its times: is this `millrace load serve stamp`?"
    );
    let mut contents = vec![0; head.bytes - HEAD_BYTES];
    if !contents.is_empty() {
        receive(socket, &mut contents)?;
        received_ns = sys::monotonic_ns();
    }
    let probe = Probe {
        sent_ns,
        server: head.stamps,
        received_ns,
    };
    Ok((probe, contents))
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match sys::receive(socket, &mut buffer[filled..]) {
            Ok(0) => bail!("it ended the connection: is this `millrace load serve stamp`?"),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bail!("it does not answer: is this `millrace load serve stamp`?")
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Clocks {
    /// What two looks, before and after a run, say of it.
    pub(super) fn between(before: Look, after: Look) -> Clocks {
        if before.is_ours && after.is_ours {
            return Clocks {
                one_clock: true,
                before: None,
                after: None,
                drift_ppm: 0.0,
                drift_error_ppm: 0.0,
            };
        }
        let (before, after) = (before.estimate, after.estimate);
        let millions = after.at_ns.saturating_sub(before.at_ns).max(1) as f64 / 1e6;
        Clocks {
            one_clock: false,
            before: Some(before),
            after: Some(after),
            drift_ppm: (after.offset_ns - before.offset_ns) as f64 / millions,
            drift_error_ppm: (after.error_ns + before.error_ns) as f64 / millions,
        }
    }

    /// How far the server's is ahead at a time of the client's.
    pub(super) fn offset_ns_at(&self, client_ns: u64) -> i64 {
        let Some(before) = self.before else {
            return 0;
        };
        let millions = (client_ns as i64 - before.at_ns as i64) as f64 / 1e6;
        before.offset_ns + (self.drift_ppm * millions).round() as i64
    }

    /// How far the offset may be from the truth at any time of the run, as long as the drift was even.
    #[must_use]
    pub fn error_ns(&self) -> u64 {
        let estimates = self.before.into_iter().chain(self.after);
        let errors = estimates.map(|estimate| estimate.error_ns);
        errors.max().unwrap_or_default()
    }

    /// What makes them doubtful.
    pub(super) fn note(&self) -> Option<String> {
        let is_doubtful = self.drift_ppm.abs() > DRIFT_MAX_PPM + self.drift_error_ppm;
        is_doubtful.then(|| {
            "the clocks of both ends drifted apart as clocks do not: one stood still or was changed, and the ways are not known".to_owned()
        })
    }
}

impl fmt::Display for Clocks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(before) = self.before else {
            return write!(formatter, "one clock, nothing is estimated");
        };
        let ahead = if before.offset_ns < 0 {
            "behind"
        } else {
            "ahead"
        };
        write!(
            formatter,
            "two clocks: the server's is {:.6} s {ahead} ± {:.1} µs, drift {:+.1} ± {:.1} ppm, of {} probes before and {} after",
            before.offset_ns.unsigned_abs() as f64 / 1e9,
            self.error_ns() as f64 / 1e3,
            self.drift_ppm,
            self.drift_error_ppm,
            before.probes,
            self.after.map_or(0, |after| after.probes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::content::mix;

    /// A probe at a time of the client's, whose ways and answering took so long, to a server whose clock is ahead.
    fn probe(sent_ns: u64, offset_ns: i64, [there_ns, answering_ns, back_ns]: [u64; 3]) -> Probe {
        let at_server = |client_ns: u64| client_ns.checked_add_signed(offset_ns).unwrap();
        Probe {
            sent_ns,
            server: Stamps {
                received_ns: at_server(sent_ns + there_ns),
                sent_ns: at_server(sent_ns + there_ns + answering_ns),
            },
            received_ns: sent_ns + there_ns + answering_ns + back_ns,
        }
    }

    fn name(boot: &str) -> Name {
        Name {
            boot: boot.to_owned(),
            namespace: "time:[1]".to_owned(),
        }
    }

    #[test]
    fn the_truth_is_within_the_error_however_unlike_the_ways_are() {
        for round in 0..2_000 {
            let chance = |which: u64, most: u64| mix(round, which) % most;
            let offset_ns = chance(0, 2_000_000_000) as i64 - 1_000_000_000;
            let probes: Vec<Probe> = (1..=8)
                .map(|at| {
                    let took = [1, 2, 3].map(|part| chance(10 * at + part, 1 << (part * at)));
                    probe(10_000_000_000 + at * 1_000_000, offset_ns, took)
                })
                .collect();
            let found = Estimate::of(&probes).unwrap();
            let off_ns = (found.offset_ns - offset_ns).unsigned_abs();
            assert!(off_ns <= found.error_ns, "{round}: {found:?}, {offset_ns}");
            for probe in &probes {
                let round_trip_ns = probe.round_trip_ns() as u64;
                assert!(found.error_ns <= round_trip_ns.div_ceil(2), "{round}");
            }
        }
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn what_lies_between_two_estimates_follows_from_their_drift() {
        let look = |at_ns: u64, offset_ns: i64| {
            let probes = [probe(at_ns, offset_ns, [20_000, 1_000, 20_000])];
            Look::of(&probes, &name("a"), "b time:[1]").unwrap()
        };
        // A minute, in which the server's clock gains 20 millionths.
        let clocks = Clocks::between(
            look(1_000_000_000, 5_000_000_000),
            look(61_000_000_000, 5_001_200_000),
        );
        assert!(!clocks.one_clock);
        assert!((clocks.drift_ppm - 20.0).abs() < 1e-6, "{clocks}");
        assert_eq!(clocks.error_ns(), 20_000);
        let middle_ns = clocks.offset_ns_at(31_000_020_500);
        assert_eq!(middle_ns, 5_000_600_000);
        assert_eq!(clocks.note(), None);
        let told = "two clocks: the server's is 5.000000 s ahead ± 20.0 µs, drift +20.0 ± 0.7 ppm, of 1 probes before and 1 after";
        assert_eq!(clocks.to_string(), told);
        let stopped = Clocks::between(look(1_000_000_000, 0), look(2_000_000_000, 7_000_000));
        assert!(
            stopped
                .note()
                .is_some_and(|note| note.contains("as clocks do not"))
        );
    }

    #[test]
    fn one_clock_is_one_name_that_no_probe_contradicts() {
        let look = |offset_ns: i64, own: &Name, server: &str| {
            let probes = [9_000_000_000, 9_000_100_000]
                .map(|at_ns| probe(at_ns, offset_ns, [30_000, 0, 10_000]));
            Look::of(&probes, own, server).unwrap()
        };
        let same = look(0, &name("a"), "a time:[1]");
        assert!(same.is_ours);
        let clocks = Clocks::between(same, same);
        assert!(clocks.one_clock && clocks.error_ns() == 0);
        assert_eq!(clocks.offset_ns_at(5), 0);
        assert!(clocks.to_string().starts_with("one clock"));
        assert!(!look(0, &name("a"), "b time:[1]").is_ours);
        assert!(!look(0, &name("a"), "a time:[2]").is_ours);
        assert!(
            !look(50_000, &name("a"), "a time:[1]").is_ours,
            "a copy of a machine"
        );
        assert!(!look(0, &name(""), " time:[1]").is_ours, "unknown on both");
        assert!(Name::own().is(&Name::own().to_string()));
    }
}
