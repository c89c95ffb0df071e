//! Two ports joined, for `tests/packets`: what comes by one goes by the other.
//!
//! `forward PORT PORT [OPTION VALUE …]`, with ports
//! `tap:NAME[:QUEUES]`, `stdin` (a TAP interface that somebody else has opened), `memif:PATH` (a client)
//!
//! and options `--offloads yes`, `--trace FILE`, `--filter TEXT`, `--snap BYTES`, `--seed N`, `--loss P`, `--duplication P`,
//! `--corruption P`, `--delay P`, `--reorder P` (of what goes out by the second port), `--seconds N`. Ends after those, or when standard
//! input does, or a port; says then what was counted.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_port::fault::{self, Fault, FaultCounts};
use millrace_port::memif::{self, Memif, Role};
use millrace_port::tap::{self, Tap};
use millrace_port::trace::{self, Trace};
use millrace_port::{Burst, Cause, Offloads, Port, State, Tally};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const BURST: usize = 64;
/// Turns without a packet before it sleeps.
const IDLE_TURNS: u32 = 64;
/// Turns that a full port is waited for.
const FULL_TURNS: u32 = 1000;

type AnyPort = Box<dyn Port + Send>;

#[derive(Default)]
struct Options {
    offloads: Offloads,
    trace: Option<String>,
    filter: String,
    snap: Option<usize>,
    faults: Option<fault::Config>,
    seconds: Option<u64>,
}

impl Options {
    fn parse(words: &mut impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
        let mut options = Options::default();
        while let Some(word) = words.next() {
            let value = words.next().ok_or("a value is missing")?;
            let faults = || fault::Config::new(1);
            match word.as_str() {
                "--offloads" => {
                    options.offloads = Offloads {
                        checksum: true,
                        tso4: true,
                        tso6: true,
                        ecn: true,
                        uso: false,
                    };
                }
                "--trace" => options.trace = Some(value),
                "--filter" => options.filter = value,
                "--snap" => options.snap = Some(value.parse()?),
                "--seconds" => options.seconds = Some(value.parse()?),
                "--seed" => options.faults.get_or_insert_with(faults).seed = value.parse()?,
                fault => {
                    let faults = &mut options.faults.get_or_insert_with(faults).transmitted;
                    let probability = match fault {
                        "--loss" => &mut faults.loss,
                        "--duplication" => &mut faults.duplication,
                        "--corruption" => &mut faults.corruption,
                        "--delay" => &mut faults.delay,
                        "--reorder" => &mut faults.reorder,
                        _ => return Err("no such option".into()),
                    };
                    *probability = value.parse()?;
                    faults.delay_time = Duration::from_micros(100)..=Duration::from_millis(2);
                    faults.reorder_distance = 3;
                }
            }
        }
        Ok(options)
    }
}

fn open(word: &str, options: &Options) -> Result<AnyPort, Box<dyn Error>> {
    let mut parts = word.split(':');
    let kind = parts.next().unwrap_or_default();
    let rest = parts.next().unwrap_or_default();
    Ok(match kind {
        "tap" => {
            let mut config = tap::Config::new(rest);
            config.queues = parts.next().map_or(Ok(1), str::parse)?;
            config.accepts = options.offloads;
            Box::new(Tap::open(&config)?)
        }
        "stdin" => {
            let queue = std::io::stdin().as_fd().try_clone_to_owned()?;
            Box::new(Tap::from_descriptors(vec![queue], options.offloads)?)
        }
        "memif" => Box::new(Memif::new(memif::Config::new(Role::Client, rest))?),
        _ => return Err(format!("{word}: no such port").into()),
    })
}

/// Takes what comes by one port to the other; returns how many packets. Counts them by queue.
fn forward(
    from: &mut dyn Port,
    to: &mut dyn Port,
    burst: &mut Burst,
    by_queue: &mut Vec<u64>,
) -> usize {
    let mut all = 0;
    for queue in 0..from.receive_queues() {
        let count = from.receive(queue, burst);
        by_queue.resize(by_queue.len().max(queue + 1), 0);
        by_queue[queue] += count as u64;
        let onward = queue % to.transmit_queues().max(1);
        let (mut sent, mut turns) = (0, 0);
        while sent < count {
            let taken = to.transmit(onward, burst, sent);
            sent += taken;
            turns = if taken == 0 { turns + 1 } else { 0 };
            if turns == FULL_TURNS || to.transmit_queues() == 0 {
                to.give_up(onward, burst, sent);
                break;
            }
        }
        from.release(queue);
        all += count;
    }
    all
}

fn sleep(ports: [&mut dyn Port; 2]) {
    let now = Instant::now();
    let [first, second] = ports;
    if !(first.arm() && second.arm()) {
        return;
    }
    let due = [first.poll_at(), second.poll_at()];
    let due = due.into_iter().flatten().min();
    let patience = Duration::from_millis(50);
    let timeout = due.map_or(patience, |at| {
        patience.min(at.saturating_duration_since(now))
    });
    let mut polled = [
        PollFd::new(first.as_fd(), PollFlags::POLLIN),
        PollFd::new(second.as_fd(), PollFlags::POLLIN),
    ];
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
    // Failing is waking.
    let _ = poll(&mut polled, timeout);
}

fn tally(tally: &Tally) -> String {
    let drops = Cause::ALL.map(|cause| format!("{}={}", cause.name(), tally.dropped(cause)));
    format!("{} {} {}", tally.packets, tally.bytes, drops.join(","))
}

fn report(number: usize, port: &dyn Port, by_queue: &[u64]) {
    let counters = port.counters();
    println!(
        "port {number} received {} transmitted {} queues {by_queue:?}",
        tally(&counters.received),
        tally(&counters.transmitted)
    );
}

fn report_faults(counts: &FaultCounts) {
    println!(
        "faults offered={} passed={} lost={} doubled={} corrupted={} delayed={} reordered={} held={} gone={}",
        counts.offered,
        counts.passed,
        counts.lost,
        counts.doubled,
        counts.corrupted,
        counts.delayed,
        counts.reordered,
        counts.held,
        counts.gone,
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let names: Vec<String> = words.by_ref().take(2).collect();
    let [one, other] = names.as_slice() else {
        return Err("two ports are joined".into());
    };
    let options = Options::parse(&mut words)?;
    let mut first = Trace::new(open(one, &options)?);
    let faults = options.faults.clone().unwrap_or(fault::Config::new(0));
    let mut second = Fault::new(open(other, &options)?, &faults)?;
    if let Some(path) = &options.trace {
        let mut config = trace::Config::new(one);
        config.filter = options.filter.parse()?;
        config.snap_bytes = options.snap.unwrap_or(config.snap_bytes);
        first.begin(config, File::create(path)?)?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    let over = Arc::new(AtomicBool::new(false));
    if names.iter().all(|name| name != "stdin") {
        let over = over.clone();
        std::thread::spawn(move || {
            // Whatever becomes of it, that was all.
            let _ = std::io::stdin().read(&mut [0]);
            over.store(true, Ordering::Relaxed);
        });
    }
    let until = options
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut burst = Burst::new(BURST);
    let mut by_queue = [Vec::new(), Vec::new()];
    let mut idle = 0;
    while !over.load(Ordering::Relaxed) {
        let now = Instant::now();
        let states = [first.poll(now), second.poll(now)];
        if let Some(State::Closed(why)) = states
            .into_iter()
            .find(|state| matches!(state, State::Closed(_)))
        {
            println!("over: {why}");
            break;
        }
        if until.is_some_and(|until| until <= now) {
            break;
        }
        let [there, back] = &mut by_queue;
        let moved = forward(&mut first, &mut second, &mut burst, there)
            + forward(&mut second, &mut first, &mut burst, back);
        idle = if moved == 0 { idle + 1 } else { 0 };
        if idle >= IDLE_TURNS {
            sleep([&mut first, &mut second]);
        }
    }
    if let Some(ending) = first.end() {
        let counts = ending.wait()?;
        println!(
            "trace seen={} matched={} written={} over_limit={} no_room={}",
            counts.seen, counts.matched, counts.written, counts.over_limit, counts.no_room
        );
    }
    report_faults(&second.transmitted());
    report(0, &first, &by_queue[0]);
    report(1, &second, &by_queue[1]);
    println!("end");
    Ok(())
}
