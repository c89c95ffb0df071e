//! What `millrace load packets` tells of a device, and those who take packets of what they took.

use anyhow::{Context, Result, ensure};

use super::{Reading, first_number, median};
use crate::packets::{At, Found, Limit, Outcome, Quiet, Received};
use crate::results::{PacketLatency, PacketRate, Packets};

/// The first of the rates: that without loss, where it is asked for first. Runs at many rates make no processor time for each packet.
pub(super) fn found(text: &str) -> Result<Reading> {
    let limit: Limit =
        serde_json::from_str(text).context("millrace load packets printed no JSON")?;
    ensure!(!limit.found.is_empty(), "no rate was looked for");
    let mut notes = limit.notes();
    for Found { loss, .. } in limit.found.iter().filter(|found| found.rate == 0.0) {
        let share = loss * 100.0;
        notes.push(format!(
            "no rate was found at which at most {share} % is lost"
        ));
    }
    let rates = limit.found.iter().map(|found| PacketRate {
        loss: found.loss,
        rate: found.rate,
    });
    let latencies = limit
        .latencies
        .iter()
        .map(|At { share, outcome }| PacketLatency {
            share: *share,
            rate: outcome.asked_rate.unwrap_or_default(),
            loss: outcome.loss(),
            latency: outcome.latency.clone(),
        });
    Ok(Reading {
        value: limit.rate(),
        packets: Some(Packets {
            rates: rates.collect(),
            latencies: latencies.collect(),
            most: limit.most.rate,
            most_loss: limit.most.loss(),
            own: limit.own,
            runs: (limit.steps.len() + limit.latencies.len()) as u64,
            disturbed: limit.disturbed,
            sizes: limit.most.sizes,
        }),
        notes,
        ..Reading::default()
    })
}

/// `millrace load packets --rate R --latency`: the median of what packets took that were due at this rate.
pub(super) fn timed(text: &str) -> Result<Reading> {
    let outcome: Outcome =
        serde_json::from_str(text).context("millrace load packets printed no JSON")?;
    let percent = outcome.loss() * 100.0;
    let lost = (percent > 0.0).then(|| format!("{percent:.4} % of the packets were lost"));
    Ok(Reading {
        value: median(Some(&outcome.latency))?,
        whole_latency: Some(outcome.latency),
        notes: outcome.notes.into_iter().chain(lost).collect(),
        ..Reading::default()
    })
}

/// `millrace load packets --receive`, or `dpdk-testpmd` that prints its statistics each second: packets a second, alike for both. Processor
/// time is of the whole run, and not that of so many packets.
pub(super) fn received(text: &str) -> Result<Reading> {
    let (rates, notes) = match serde_json::from_str::<Received>(text) {
        Ok(received) => {
            let dropped = (received.drops > 0).then(|| {
                let drops = received.drops;
                format!("{drops} packets were dropped by the port that received them")
            });
            (received.rates, dropped.into_iter().collect())
        }
        Err(_) => (testpmd_rates(text), Vec::new()),
    };
    ensure!(!rates.is_empty(), "nobody has counted packets");
    Ok(Reading {
        value: rates.iter().sum::<f64>() / rates.len() as f64,
        notes,
        ..Reading::default()
    })
}

/// Of one second after the other, but for the first in which packets came: they began within it. A quiet second behind that counts.
fn testpmd_rates(text: &str) -> Vec<f64> {
    let told = text.split("Rx-pps:").skip(1).filter_map(first_number);
    told.skip_while(|rate| *rate == 0.0).skip(1).collect()
}

/// `millrace load packets --idle`: the share of a processor.
pub(super) fn idle(text: &str) -> Result<Reading> {
    let quiet: Quiet =
        serde_json::from_str(text).context("millrace load packets printed no JSON")?;
    Ok(Reading {
        value: quiet.share(),
        ..Reading::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::{Figure, by_name};

    #[test]
    fn packets_are_counted_alike_whoever_took_them() {
        let ours = r#"{"port":"memif-server:/a","seconds":2.0,"packets":60,"bytes":3840,"drops":3,"rates":[2e7,4e7],"preempted":0,
            "stolen":0.0}"#;
        let reading = received(ours).unwrap();
        assert_eq!(reading.value, 3e7);
        assert_eq!(reading.notes.len(), 1);
        let second = |rate: u64| {
            format!(
                "\x1b[2J\x1b[1;1H\nPort statistics ====\n  RX-packets: 9 RX-missed: 0\n\n  Throughput (since last show)\n  \
                 Rx-pps: {rate:12}          Rx-bps:   9\n  Tx-pps:    7          Tx-bps: 0\n"
            )
        };
        let theirs = [0, 5_000_000, 20_000_000, 0, 40_000_000].map(second);
        let reading = received(&theirs.concat()).unwrap();
        assert_eq!((reading.value, reading.notes.len()), (2e7, 0));
        for nothing in ["", "nothing", &second(0), &second(5)] {
            assert!(received(nothing).is_err(), "{nothing}");
        }
    }

    #[test]
    fn a_device_that_idles_is_told_by_the_share_that_it_used() {
        let reading = idle(r#"{"seconds":2.0,"processor_s":0.01}"#).unwrap();
        assert_eq!(reading.value, 0.005);
        assert!(idle("nothing").is_err());
    }

    /// A run at a rate, as the generator prints it.
    fn outcome(rate: &str) -> String {
        format!(
            r#"{{"ports":"a to b","sizes":"64","flows":1,"asked_rate":{rate},"seconds":1.0,"sent":1000,"refused":0,"received":990,
            "lost":10,"rate":1.2e7,"bits_per_second":1e9,"faults":{{"doubled":0,"overtaken":0,"changed":0,"strange":0}},
            "latency":{{"count":4000,"min_ns":1,"max_ns":9,"mean_ns":5.0,"deviation_ns":1.0,"percentiles":[[50.0,5],[99.0,8]]}},
            "late_max_ns":0,"preempted":0,"stolen":0.0,"notes":[]}}"#
        )
    }

    #[test]
    fn of_packets_at_a_fixed_rate_the_latency_is_kept_and_what_was_lost_is_told() {
        let reading = timed(&outcome("1000.0")).unwrap();
        assert_eq!((reading.value, reading.operations), (5.0, 0.0));
        assert_eq!(reading.whole_latency.unwrap().max_ns, 9);
        assert_eq!(reading.notes, ["1.0000 % of the packets were lost"]);
        assert!(timed("nothing").is_err());
    }

    /// As the generator prints it, with these rates.
    fn told(rates: &str) -> String {
        let (most, half) = (outcome("null"), outcome("4e6"));
        format!(
            r#"{{"found":[{rates}],"own":2e7,"most":{most},"steps":[],"disturbed":1,"latencies":[{{"share":0.5,"outcome":{half}}}]}}"#
        )
    }

    #[test]
    fn the_rate_without_loss_is_the_figure_and_the_rest_is_kept() {
        let Some(Figure::Printed(read)) = by_name("millrace-load-packets") else {
            panic!("it has a name");
        };
        let reading = read(&told(
            r#"{"loss":0.0,"rate":8e6},{"loss":0.005,"rate":9e6}"#,
        ))
        .unwrap();
        assert_eq!((reading.value, reading.operations), (8e6, 0.0));
        let packets = reading.packets.unwrap();
        let rates: Vec<(f64, f64)> = packets.rates.iter().map(|of| (of.loss, of.rate)).collect();
        assert_eq!(rates, [(0.0, 8e6), (0.005, 9e6)]);
        assert_eq!((packets.most, packets.most_loss), (1.2e7, 0.01));
        assert_eq!((packets.own, packets.disturbed), (2e7, 1));
        let half = &packets.latencies[0];
        assert_eq!(
            (half.share, half.rate, half.latency.count),
            (0.5, 4e6, 4000)
        );
        assert_eq!(reading.notes.len(), 1, "{:?}", reading.notes);
    }

    #[test]
    fn a_rate_that_was_not_found_is_told() {
        let reading = found(&told(
            r#"{"loss":0.0,"rate":0.0},{"loss":0.005,"rate":9e6}"#,
        ))
        .unwrap();
        assert_eq!(reading.value, 0.0);
        let note = "no rate was found at which at most 0 % is lost".to_owned();
        assert!(reading.notes.contains(&note), "{:?}", reading.notes);
        assert!(found(&told("")).is_err());
        assert!(found("nothing").is_err());
    }
}
