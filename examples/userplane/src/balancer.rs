//! The first stage: packets of a file, distributed by flow.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use millrace_channel::{Error, Publisher};

use crate::packet::{self, TAG_BYTES, Tag};
use crate::stop::Stop;
use crate::{ChannelOptions, PATIENCE, capture, now_ns};

/// Reads packets from a capture file and publishes each to one of the workers: all of a flow to the same.
///
/// Ends with 0 when the workers have given back all of it.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    channel: ChannelOptions,
    /// What a worker had that dies goes to another one: packets may then be forwarded twice, and the second time have a mark. Otherwise
    /// they are lost.
    #[arg(long)]
    redeliver: bool,
    /// Read the file so many times.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    times: u64,
    /// Packets in a second; 0: as many as there is room for.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    rate: u64,
    /// Packets that are published at once.
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    batch: usize,
    /// Begin when so many workers are there.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    workers: usize,
    /// The capture file: pcap, of Ethernet or IP.
    file: PathBuf,
}

/// Packets of the file, and what is said of each.
struct Load {
    packets: Vec<Vec<u8>>,
    /// Of each packet its flow's place in the following.
    places: Vec<usize>,
    flows: Vec<Tag>,
}

impl Load {
    fn read(options: &Options) -> anyhow::Result<Load> {
        let packets = capture::read(&options.file)?;
        let (mut flows, mut known) = (Vec::new(), HashMap::new());
        let run = now_ns() ^ (u64::from(std::process::id()) << 40);
        let place_of = |packet: &Vec<u8>| {
            let flow = packet::flow(packet).unwrap_or_default();
            *known.entry(flow).or_insert_with(|| {
                flows.push(Tag {
                    run,
                    flow,
                    ..Tag::default()
                });
                flows.len() - 1
            })
        };
        let places = packets.iter().map(place_of).collect();
        Ok(Load {
            packets,
            places,
            flows,
        })
    }

    /// The next packet of this place in the file, with its tag.
    fn next(&mut self, index: usize) -> (Tag, &[u8]) {
        let index = index % self.packets.len();
        let packet = &self.packets[index];
        let flow = &mut self.flows[self.places[index]];
        let tag = Tag {
            sent_ns: now_ns(),
            ttl: packet::ttl(packet),
            ..*flow
        };
        flow.sequence += 1;
        (tag, packet)
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let stop = Stop::new()?;
    let mut load = Load::read(options)?;
    let channel = options.channel.packets().redeliver(options.redeliver);
    let publisher = channel.publisher()?;
    while !publisher.wait_for_subscribers(options.workers, PATIENCE) {
        ensure!(!stop.is_asked(), "stopped before there were workers");
    }
    let began = Instant::now();
    let count = load.packets.len() * usize::try_from(options.times)?;
    let (mut sent, mut bytes) = (0, 0);
    while sent < count && !stop.is_asked() {
        let end = count.min(sent + options.batch.max(1));
        for index in sent..end {
            let (tag, packet) = load.next(index);
            send(&publisher, &tag, packet)?;
            bytes += packet.len();
        }
        publisher.publish();
        sent = end;
        if let Some(ahead) = ahead_of_rate(began, sent, options.rate) {
            std::thread::sleep(ahead);
        }
    }
    println!("sent {sent}");
    println!("bytes {bytes}");
    // It is the balancer that has the packets until they are given back: whoever ends before takes them along.
    while !publisher.drain(PATIENCE) {
        ensure!(!stop.is_asked(), "stopped before everything was given back");
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("rate {:.0}", sent as f64 / seconds);
    println!("dropped {}", publisher.dropped());
    Ok(())
}

/// Writes a packet in place and pushes it, whoever it takes it and however long.
fn send(publisher: &Publisher, tag: &Tag, packet: &[u8]) -> anyhow::Result<()> {
    let mut loan = loop {
        match publisher.loan(TAG_BYTES + packet.len()) {
            Ok(loan) => break loan,
            Err(Error::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    };
    tag.emit(&mut loan);
    loan[TAG_BYTES..].copy_from_slice(packet);
    while let Err(failed) = publisher.push_keyed(loan, tag.flow) {
        if !matches!(failed.error, Error::TimedOut) {
            return Err(failed.error.into());
        }
        loan = failed.loan;
    }
    Ok(())
}

/// How long to wait so that there are not more in a second.
fn ahead_of_rate(began: Instant, sent: usize, rate: u64) -> Option<Duration> {
    let due = Duration::from_secs_f64(sent as f64 / (rate != 0).then_some(rate)? as f64);
    due.checked_sub(began.elapsed())
}
