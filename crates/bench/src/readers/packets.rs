//! What `millrace load packets --search` tells of a device.

use anyhow::{Context, Result, ensure};

use super::Reading;
use crate::packets::{At, Found, Limit};
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::{Figure, by_name};

    /// As the generator prints it, with these rates.
    fn told(rates: &str) -> String {
        let outcome = |rate: &str| {
            format!(
                r#"{{"ports":"a to b","sizes":"64","flows":1,"asked_rate":{rate},"seconds":1.0,"sent":1000,"refused":0,"received":990,
                "lost":10,"rate":1.2e7,"bits_per_second":1e9,"faults":{{"doubled":0,"overtaken":0,"changed":0,"strange":0}},
                "latency":{{"count":4000,"min_ns":1,"max_ns":9,"mean_ns":5.0,"deviation_ns":1.0,"percentiles":[[50.0,5],[99.0,8]]}},
                "late_max_ns":0,"preempted":0,"stolen":0.0,"notes":[]}}"#
            )
        };
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
