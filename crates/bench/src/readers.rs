//! What the load generators print, and what is seen of programs that idle, as figures.

use anyhow::{Context, Error, Result, bail, ensure};
use serde::Deserialize;

use crate::load::Outcome;
use crate::results::{self, Clocks, Idle, Packets};

pub(crate) mod events;
mod names;
mod packets;

pub use names::{Figure, by_name, names, says};

/// A script by which wrk prints the line that [`result_line`] reads.
pub const WRK_SCRIPT: &str = include_str!("result.lua");
/// Percentiles that it tells.
const WRK_PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// Reads one program's output.
pub type Reader = fn(&str) -> Result<Reading>;

/// Memory for each connection.
fn idle_memory(idle: &Idle) -> f64 {
    idle.memory_bytes() as f64 / idle.connections.max(1) as f64
}

/// The share of one processor that all programs use together.
fn idle_processor(idle: &Idle) -> f64 {
    idle.processor_s() / idle.seconds
}

/// What one run of a client has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The row's figure: operations or bits in a second, or nanoseconds.
    pub value: f64,
    /// What the processor time is divided by; nothing where it is told as a share.
    pub operations: f64,
    /// Of its round trips.
    pub latency: Latency,
    /// All that there is to say of its round trips, where the program tells it.
    pub whole_latency: Option<results::Latency>,
    /// Where times were taken at both ends, whose.
    pub clocks: Option<Clocks>,
    /// Of a device that forwards packets, what was found.
    pub packets: Option<Packets>,
    /// Connections that were ready for each wake-up of the generator, where it tells that.
    pub ready_per_wake: Option<f64>,
    /// What a reader should know, in the program's words.
    pub notes: Vec<String>,
}

/// Of the round trips in nanoseconds, what the program tells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// The shortest.
    pub min: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
    /// Their mean.
    pub mean: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// The 95th percentile.
    pub p95: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
    /// The 99.9th percentile.
    pub p999: Option<f64>,
}

/// What a program has printed. A figure that is no number would be kept as `null`, and then nobody could read the results again.
pub(crate) fn read(reader: Reader, text: &str) -> Result<Reading> {
    let found = reader(text)?;
    let whole = found.whole_latency.iter();
    let figures = [found.value, found.operations]
        .into_iter()
        .chain(found.latency.mean)
        .chain(found.ready_per_wake)
        .chain(whole.flat_map(|latency| [latency.mean_ns, latency.deviation_ns]));
    for figure in figures {
        ensure!(figure.is_finite(), "a figure is {figure}, and no number");
    }
    Ok(found)
}

/// `redis-benchmark` with one command, without `-q`: rates, the summary, and the table of percentiles. Times are in
/// milliseconds there, in buckets of 8 µs. How far they deviate it does not tell.
pub fn redis_benchmark(text: &str) -> Result<Reading> {
    let summary = text
        .lines()
        .skip_while(|line| !line.contains("latency summary"))
        .nth(2)
        .context("redis-benchmark printed no latency summary")?;
    let columns: Vec<f64> = summary.split_whitespace().flat_map(str::parse).collect();
    let [mean, min, p50, p95, p99, max] = columns[..] else {
        bail!("redis-benchmark's summary has other columns: {summary}");
    };
    let ns = |milliseconds: f64| Some(milliseconds * 1e6);
    let p999 = text.lines().find_map(|line| {
        let (percentile, rest) = line.split_once("% <= ")?;
        let far_enough = percentile.trim().parse::<f64>().ok()? >= 99.9;
        far_enough.then(|| first_number(rest))?
    });
    Ok(Reading {
        value: number_before(text, " requests per second")?,
        operations: number_before(text, " requests completed")?,
        latency: Latency {
            min: ns(min),
            max: ns(max),
            mean: ns(mean),
            p50: ns(p50),
            p95: ns(p95),
            p99: ns(p99),
            p999: p999.and_then(ns),
        },
        ..Reading::default()
    })
}

/// `sockperf ping-pong --full-rtt`: the median round trip. Times are in microseconds there.
pub fn sockperf_ping_pong(text: &str) -> Result<Reading> {
    let percentile = |label: &str| Ok::<_, Error>(number_after(text, label)? * 1e3);
    let p50 = percentile("percentile 50.000 =")?;
    Ok(Reading {
        value: p50,
        operations: number_after(text, "SentMessages=")?,
        latency: Latency {
            p50: Some(p50),
            p99: Some(percentile("percentile 99.000 =")?),
            p999: Some(percentile("percentile 99.900 =")?),
            ..Latency::default()
        },
        ..Reading::default()
    })
}

/// `sockperf throughput`: messages in a second.
pub fn sockperf_throughput(text: &str) -> Result<Reading> {
    Ok(Reading {
        value: number_after(text, "Message Rate is")?,
        operations: number_after(text, "Total of")?,
        ..Reading::default()
    })
}

/// `iperf3 -J`: what the receiver got; an operation is a MiB.
pub fn iperf3(text: &str) -> Result<Reading> {
    let report: serde_json::Value = serde_json::from_str(text)?;
    let received = |field: &str| report["end"]["sum_received"][field].as_f64();
    let bits = received("bits_per_second").context("iperf3 reports no bits_per_second")?;
    let bytes = received("bytes").context("iperf3 reports no bytes")?;
    Ok(Reading {
        value: bits,
        operations: bytes / f64::from(1 << 20),
        ..Reading::default()
    })
}

/// `millrace load --json`: answers in a second. Processor time is that of its whole run, and so are the operations that it is divided by.
pub fn millrace_load(text: &str) -> Result<Reading> {
    let outcome: Outcome = serde_json::from_str(text).context("millrace load printed no JSON")?;
    Ok(Reading {
        value: outcome.rate,
        operations: outcome.sent as f64,
        whole_latency: Some(outcome.latency),
        clocks: outcome.one_way.map(|ways| ways.clocks),
        ready_per_wake: Some(outcome.ready_per_wake).filter(|ready| *ready > 0.0),
        notes: outcome.notes,
        ..Reading::default()
    })
}

/// `millrace load --json`: the median round trip.
pub fn millrace_load_median(text: &str) -> Result<Reading> {
    let reading = millrace_load(text)?;
    Ok(Reading {
        value: median(reading.whole_latency.as_ref())?,
        ..reading
    })
}

/// The same with a connection for each request: the median time until the first byte of an answer.
pub fn millrace_load_first_byte(text: &str) -> Result<Reading> {
    let outcome: Outcome = serde_json::from_str(text)?;
    Ok(Reading {
        value: median(outcome.first_byte.as_ref())?,
        ..millrace_load(text)?
    })
}

/// What of the line of `millrace-peers ask` is read here.
#[derive(Deserialize)]
struct Messages {
    rate: f64,
    sent: u64,
    latency: Option<results::Latency>,
    notes: Vec<String>,
}

/// `millrace-peers ask`: messages in a second. Processor time is that of its whole run, and so are the messages that it is divided by.
pub fn millrace_peers(text: &str) -> Result<Reading> {
    let line = text.lines().find(|line| line.starts_with('{'));
    let line = line.context("millrace-peers printed no JSON")?;
    let messages: Messages = serde_json::from_str(line)?;
    Ok(Reading {
        value: messages.rate,
        operations: messages.sent as f64,
        whole_latency: messages.latency,
        notes: messages.notes,
        ..Reading::default()
    })
}

/// The same: the median, of round trips or of the way to somebody who slept.
pub fn millrace_peers_median(text: &str) -> Result<Reading> {
    let reading = millrace_peers(text)?;
    Ok(Reading {
        value: median(reading.whole_latency.as_ref())?,
        ..reading
    })
}

fn median(latency: Option<&results::Latency>) -> Result<f64> {
    let median = latency.and_then(|latency| latency.percentiles.iter().find(|(at, _)| *at == 50.0));
    let (_, median_ns) = median.context("too few round trips for a median")?;
    Ok(*median_ns as f64)
}

/// `pgbench`: transactions in a second.
pub fn pgbench(text: &str) -> Result<Reading> {
    Ok(Reading {
        value: number_after(text, "tps =")?,
        operations: number_after(text, "transactions actually processed:")?,
        ..Reading::default()
    })
}

/// The line that `wrk` prints by [`WRK_SCRIPT`], and others may print. Times are in microseconds there.
pub fn result_line(text: &str) -> Result<Reading> {
    let line = text.lines().find_map(|line| line.strip_prefix("result:"));
    let line = line.context("there is no line with the result")?;
    let requests = number_after(line, "requests")?;
    let errors = number_after(line, "errors")?;
    ensure!(errors == 0.0, "{errors} of {requests} requests failed");
    let percentile = |label: &str| Ok::<_, Error>(number_after(line, label)? * 1e3);
    Ok(Reading {
        value: requests / (number_after(line, "microseconds")? / 1e6),
        operations: requests,
        latency: Latency {
            p50: Some(percentile("p50")?),
            p99: Some(percentile("p99")?),
            p999: Some(percentile("p99.9")?),
            ..Latency::default()
        },
        whole_latency: whole_latency(line, requests),
        ..Reading::default()
    })
}

/// All that such a line may have.
fn whole_latency(line: &str, requests: f64) -> Option<results::Latency> {
    let ns = |label: &str| Some(number_after(line, label).ok()? * 1e3);
    let told = |percentile: f64| {
        let is_told = (100.0 - percentile) / 100.0 * requests >= 100.0;
        let value = ns(&format!("p{percentile}")).filter(|_| is_told)?;
        Some((percentile, value.round() as u64))
    };
    Some(results::Latency {
        count: requests as u64,
        min_ns: ns("min")?.round() as u64,
        max_ns: ns("max")?.round() as u64,
        mean_ns: ns("mean")?,
        deviation_ns: ns("deviation")?,
        percentiles: WRK_PERCENTILES.into_iter().filter_map(told).collect(),
    })
}

/// The number that follows the first `label` that is a word of its own.
fn number_after(text: &str, label: &str) -> Result<f64> {
    let number = text.match_indices(label).find_map(|(at, _)| {
        let rest = &text[at + label.len()..];
        let parted = label.ends_with(['=', ':']) || rest.starts_with(' ');
        parted.then(|| first_number(rest))?
    });
    number.with_context(|| format!("no number after '{label}'"))
}

fn first_number(text: &str) -> Option<f64> {
    let word = text.split_whitespace().next()?;
    word.trim_end_matches([';', ',', ')']).parse().ok()
}

/// The number before `label`.
fn number_before(text: &str, label: &str) -> Result<f64> {
    let (before, _) = text
        .split_once(label)
        .with_context(|| format!("no '{label}'"))?;
    let word = before.split_whitespace().next_back();
    word.and_then(|word| word.parse().ok())
        .with_context(|| format!("no number before '{label}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDIS: &str = "\
SET: rps=19342.6 (overall: 27606.4) avg_msec=0.048 (overall: 0.033)\r====== SET ======
  50000 requests completed in 1.84 seconds
Latency by percentile distribution:
0.000% <= 0.023 milliseconds (cumulative count 25363)
99.805% <= 0.103 milliseconds (cumulative count 49906)
99.902% <= 0.127 milliseconds (cumulative count 49954)
Cumulative distribution of latencies:
99.964% <= 0.207 milliseconds (cumulative count 49982)
Summary:
  throughput summary: 27247.96 requests per second
  latency summary (msec):
          avg       min       p50       p95       p99       max
        0.034     0.016     0.023     0.055     0.071     1.087
";

    #[test]
    fn figures_that_are_no_numbers_are_refused() {
        let line = |microseconds: u64, mean: &str| {
            format!(
                "result: requests 5 microseconds {microseconds} errors 0 min 1 mean {mean} deviation 1 max 9 p50 1 p99 2 p99.9 3"
            )
        };
        let refused = |text: &str| read(result_line, text).unwrap_err().to_string();
        assert!(read(result_line, &line(5, "2")).is_ok());
        assert_eq!(refused(&line(0, "2")), "a figure is inf, and no number");
        assert_eq!(refused(&line(5, "nan")), "a figure is NaN, and no number");
        let kept = serde_json::to_string(&f64::INFINITY).unwrap();
        assert!(serde_json::from_str::<f64>(&kept).is_err(), "{kept}");
    }

    #[test]
    fn millrace_peers_gives_rates_and_medians() {
        let latency = r#"{"count":4000,"min_ns":1,"max_ns":9,"mean_ns":5.0,"deviation_ns":1.0,"percentiles":[[50.0,5],[99.0,8]]}"#;
        let line = |latency: &str| {
            format!(
                r#"{{"rate":2e6,"sent":5000,"latency":{latency},"notes":["even"],"shares":[]}}"#
            )
        };
        let reading = millrace_peers_median(&line(latency)).unwrap();
        assert_eq!((reading.value, reading.operations), (5.0, 5000.0));
        assert_eq!(reading.notes, ["even"]);
        assert_eq!(millrace_peers(&line("null")).unwrap().value, 2e6);
        assert!(millrace_peers_median(&line("null")).is_err());
        assert!(millrace_peers("nothing").is_err());
    }

    #[test]
    fn redis_benchmark_gives_rate_and_percentiles() {
        let reading = redis_benchmark(REDIS).unwrap();
        assert_eq!((reading.value, reading.operations), (27_247.96, 50_000.0));
        assert_eq!(
            reading.latency,
            Latency {
                min: Some(16e3),
                max: Some(1_087e3),
                mean: Some(34e3),
                p50: Some(23e3),
                p95: Some(55e3),
                p99: Some(71e3),
                p999: Some(127e3)
            }
        );
    }

    #[test]
    fn sockperf_gives_round_trips_and_rates() {
        let text = "\
sockperf: [Total Run] RunTime=2.000 sec; Warm up time=400 msec; SentMessages=97917; ReceivedMessages=97916
sockperf: [Valid Duration] RunTime=1.550 sec; SentMessages=68450; ReceivedMessages=68450
sockperf: ---> percentile 99.990 = 2850.460
sockperf: ---> percentile 99.900 =   97.323
sockperf: ---> percentile 99.000 =   72.887
sockperf: ---> percentile 50.000 =   13.419
";
        let reading = sockperf_ping_pong(text).unwrap();
        assert_eq!((reading.value, reading.operations), (13_419.0, 97_917.0));
        assert_eq!(reading.latency.p999, Some(97_323.0));
        let text = "sockperf: Total of 2327020 messages sent in 2.000 sec\n\
                    sockperf: Summary: Message Rate is 1163240 [msg/sec]\n";
        let reading = sockperf_throughput(text).unwrap();
        assert_eq!(
            (reading.value, reading.operations),
            (1_163_240.0, 2_327_020.0)
        );
    }

    #[test]
    fn iperf3_counts_what_was_received() {
        let text = r#"{"end": {"sum_received": {"bytes": 2097152, "bits_per_second": 3e10}}}"#;
        let reading = iperf3(text).unwrap();
        assert_eq!((reading.value, reading.operations), (3e10, 2.0));
    }

    #[test]
    fn pgbench_gives_transactions() {
        let text = "number of transactions actually processed: 60000\n\
                    latency average = 0.050 ms\ntps = 20000.5 (without initial connection time)\n";
        let reading = pgbench(text).unwrap();
        assert_eq!((reading.value, reading.operations), (20_000.5, 60_000.0));
    }

    #[test]
    fn the_result_line_is_refused_when_requests_failed() {
        let line = "result: requests 200 microseconds 2000000 errors 0 p50 79 p99 138 p99.9 1841\n";
        let reading = result_line(line).unwrap();
        assert_eq!(reading.value, 100.0);
        assert_eq!(reading.latency.p999, Some(1_841e3));
        assert!(result_line(&line.replace("errors 0", "errors 1")).is_err());
        assert_eq!(reading.whole_latency, None);
        let whole = "result: requests 20000 microseconds 2000000 errors 0 min 20 mean 81.5 deviation 12.5 max 1900 \
                     p50 79 p75 85 p90 90 p95 99 p99 138 p99.9 1841 p99.99 1890\n";
        let latency = result_line(whole).unwrap().whole_latency.unwrap();
        assert_eq!((latency.min_ns, latency.max_ns), (20_000, 1_900_000));
        assert_eq!(
            (latency.mean_ns, latency.deviation_ns),
            (81_500.0, 12_500.0)
        );
        // Fewer than 100 were slower than the 99.9th percentile.
        assert_eq!(latency.percentiles.last(), Some(&(99.0, 138_000)));
    }
}
