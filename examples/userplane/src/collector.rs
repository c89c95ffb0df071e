//! The last stage: checks what arrives.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use millrace_channel::{Error, Message};

use crate::ledger::Ledger;
use crate::packet::{self, TAG_BYTES, Tag};
use crate::stop::Stop;
use crate::{ChannelOptions, PATIENCE, now_ns};

/// Takes what workers have forwarded, and checks it: every packet is whole and was changed once, none is missing or doubled, and those of a
/// flow are in order.
///
/// Reports when as many have come as were announced, or at SIGTERM or SIGINT when nothing more comes, and ends with 0 if what was promised
/// has been kept.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    channel: ChannelOptions,
    /// So many packets are sent. Otherwise only those are missing that later ones of their flows tell of.
    #[arg(long, value_name = "COUNT")]
    packets: Option<u64>,
    /// So many may be missing: what workers had that died, where the balancer does not redeliver.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    may_lose: u64,
    /// Packets may come twice, if one of the two says so: the balancer redelivers.
    #[arg(long)]
    repeats: bool,
    /// Flows must be in order also when other workers take them over: workers work in order, and whatever dies is redelivered.
    #[arg(long)]
    in_order: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let stop = Stop::new()?;
    let subscriber = options.channel.forwarded().subscriber()?;
    let mut ledger = Ledger::default();
    let mut buffer = Vec::new();
    let (mut first, mut last) = (None, Instant::now());
    let mut is_ending = false;
    loop {
        match subscriber.receive_until(Some(Instant::now() + PATIENCE)) {
            Ok(message) => {
                check(&message, &mut buffer, &mut ledger);
                last = Instant::now();
                first.get_or_insert(last);
            }
            Err(Error::TimedOut) if is_ending => break,
            Err(Error::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        let is_complete = options.packets.is_some_and(|count| ledger.packets >= count);
        // Copies of what has come already may still be under way.
        is_ending |= is_complete;
        // Messages wake whoever waits; the signal is looked for now and then.
        if ledger.packets % 64 == 0 || last.elapsed() > Duration::from_millis(10) {
            is_ending |= stop.is_asked();
        }
    }
    let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    Ok(report(options, &mut ledger, seconds, subscriber.lost()))
}

/// Copies a packet, since its worker could change it meanwhile, and notes it.
fn check(message: &Message<'_>, buffer: &mut Vec<u8>, ledger: &mut Ledger) {
    buffer.resize(message.len(), 0);
    message.copy_to(0, buffer);
    let Some(tag) = Tag::parse(buffer) else {
        ledger.damaged += 1;
        return;
    };
    let packet = &buffer[TAG_BYTES..];
    let is_its = packet::flow(packet) == Some(tag.flow) && packet::is_whole(packet);
    if !is_its || packet::ttl(packet) != tag.ttl.wrapping_sub(1) {
        ledger.damaged += 1;
        return;
    }
    let latency_ns = now_ns().saturating_sub(tag.sent_ns);
    ledger.note(&tag, packet.len(), latency_ns);
}

/// Says what has come, and whether that was promised.
fn report(options: &Options, ledger: &mut Ledger, seconds: f64, given_up: u64) -> ExitCode {
    let announced = options.packets.unwrap_or(0);
    let lost = ledger
        .missing()
        .max(announced.saturating_sub(ledger.packets));
    println!("packets {}", ledger.packets);
    println!("bytes {}", ledger.bytes);
    println!("flows {}", ledger.flows());
    println!("rate {:.0}", ledger.packets as f64 / seconds.max(1e-9));
    println!("lost {lost}");
    println!("given up {given_up}");
    println!("repeated {}", ledger.repeated);
    println!("doubled {}", ledger.doubled);
    println!("overtaken {}", ledger.overtaken);
    println!("disordered {}", ledger.disordered);
    println!("damaged {}", ledger.damaged);
    for (name, latency_ns) in ["p50", "p99", "p99.9", "max"]
        .iter()
        .zip(ledger.latencies_ns(&[0.5, 0.99, 0.999, 1.0]))
    {
        println!("latency {name} {:.1} us", latency_ns as f64 / 1e3);
    }
    let promises = [
        ("packets are missing", lost <= options.may_lose),
        ("packets were given up", given_up == 0),
        (
            "packets came twice that nobody announced",
            ledger.doubled == 0,
        ),
        (
            "packets came twice",
            options.repeats || ledger.repeated == 0,
        ),
        ("packets were damaged", ledger.damaged == 0),
        (
            "a worker changed the order of a flow",
            ledger.disordered == 0,
        ),
        (
            "a worker overtook another one",
            !options.in_order || ledger.overtaken == 0,
        ),
    ];
    let broken: Vec<_> = promises.iter().filter(|(_, is_kept)| !is_kept).collect();
    for (what, _) in &broken {
        eprintln!("userplane: not as promised: {what}");
    }
    ExitCode::from(u8::from(!broken.is_empty()))
}
