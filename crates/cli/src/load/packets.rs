//! `millrace load packets`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use millrace_bench::load::{self, write_histogram};
use millrace_bench::packets::{
    self, Capture, Checks, Content, Generator, Goal, Latencies, Limit, Options, Pattern, Place,
    Sizes, Step, Verdict, Width,
};

use super::gtpu::GtpuArguments;

/// Whoever starts a device says its number soon after.
const NUMBER_LIMIT: Duration = Duration::from_secs(5);

/// What is sent, and how.
#[derive(Debug, Args)]
pub(super) struct PacketsArguments {
    /// The port that packets are sent by
    #[arg(value_name = "FROM")]
    from: Place,
    /// The port that they come by [default: the one that they are sent by]
    #[arg(value_name = "TO")]
    to: Option<Place>,
    /// Length of a packet in bytes, without the frame check sequence, or imix (7 of 64, 4 of 570, 1 of 1518)
    #[arg(long, value_name = "N", default_value = "64")]
    size: Sizes,
    /// How many flows there are
    #[arg(long, value_name = "N", default_value_t = 1)]
    flows: usize,
    /// Send the frames of a capture (pcap or pcapng) in turn, round and round. A frame is sent as it was captured, with its addresses and
    /// flows, but for the last 22 bytes of its payload: they tell it from others, and are chosen so that checksums stay right. Those of
    /// IPv4, UDP and TCP are made right where the capture has them wrong; UDP without one stays so. What is behind a packet (padding) is
    /// not sent. Frames that are not IPv4 or IPv6, have no 22 bytes behind their UDP or TCP header, were captured in part or have more than
    /// 9018 bytes are left out, and a note says how many. A flow is what has the same tags, IP addresses, protocol and ports: in each,
    /// frames have to come in their order
    #[arg(long, value_name = "FILE", conflicts_with_all = TEMPLATE)]
    capture: Option<PathBuf>,
    #[command(flatten)]
    gtpu: GtpuArguments,
    /// Packets a second
    #[arg(long, short, value_name = "R", conflicts_with = "search")]
    rate: Option<f64>,
    /// Find the highest rate at which at most this share of the packets is lost, from 0 to 1; of several, one for each
    #[arg(long, value_name = "SHARES", value_delimiter = ',')]
    search: Vec<f64>,
    /// With --search: how narrow the range becomes in which a rate is looked for, as a share of it, or as packets a second (100/s)
    #[arg(long, value_name = "SHARE|N/s", default_value_t)]
    width: Width,
    /// With --search: measure latencies at these shares of the first rate that was found
    #[arg(
        long,
        value_name = "SHARES",
        value_delimiter = ',',
        requires = "search"
    )]
    latency_at: Vec<f64>,
    /// Before each run, send a packet from where the others go to, so that a switch learns where that is
    #[arg(long, requires = "to")]
    announce: bool,
    /// A file with the process number of the device under test: with --search a run that lost too much is repeated, too, when others had
    /// its processor. With --rate and --latency it is waited for, and latencies are of moments in which nobody else had a processor, so
    /// that they have --time seconds together
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    /// Send a few packets and then none, and tell what --device uses of its processor meanwhile
    #[arg(
        long,
        conflicts_with = "search",
        requires = "device",
        conflicts_with = "rate"
    )]
    idle: bool,
    /// Only take what comes by FROM, and count it: as soon as packets come, and for a second they are not counted
    #[arg(long, group = "half", conflicts_with_all = WHOLE)]
    receive: bool,
    /// Only send by FROM, as many packets as it takes, to whoever connects, until ended
    #[arg(long, group = "half", conflicts_with_all = WHOLE)]
    send: bool,
    /// Only send back what comes by FROM, with source and destination exchanged, until ended
    #[arg(long, group = "half", conflicts_with_all = WHOLE)]
    echo: bool,
    /// Packets come with source and destination exchanged, as from --echo and from servers of UDP
    #[arg(long)]
    turned: bool,
    /// Seconds to send, or to count
    #[arg(long, short, value_name = "S", default_value_t = 1.0)]
    time: f64,
    /// Check every byte of each packet, not only its first 128
    #[arg(long)]
    whole: bool,
    /// MAC addresses may be others when packets come
    #[arg(long)]
    other_macs: bool,
    /// The destination's MAC address
    #[arg(long, value_name = "MAC", value_parser = mac, default_value = "02:00:00:00:00:02")]
    to_mac: [u8; 6],
    /// The source's MAC address
    #[arg(long, value_name = "MAC", value_parser = mac, default_value = "02:00:00:00:00:01")]
    from_mac: [u8; 6],
    /// Keep latencies, which takes some time for each packet
    #[arg(long)]
    latency: bool,
    /// Keep the histogram of latencies, in HdrHistogram's V2 form, deflated
    #[arg(long, value_name = "FILE", requires = "latency")]
    histogram: Option<PathBuf>,
    /// Tell the figures as one JSON object
    #[arg(long)]
    json: bool,
}

/// What is for those who send and take.
const WHOLE: [&str; 6] = ["to", "rate", "search", "idle", "latency", "turned"];

/// What is for packets that are made here.
const TEMPLATE: [&str; 8] = [
    "size", "flows", "gtpu", "to_mac", "from_mac", "announce", "turned", "half",
];

/// Six bytes in hexadecimal.
fn mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("{text:?} is no MAC address such as 02:00:00:00:00:01");
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(wrong)
}

/// The process number in a file, which is there soon: the device is started when the generator's ports are there.
fn process_in(path: &Path) -> Result<u32> {
    let begun = Instant::now();
    let read = || std::fs::read_to_string(path).ok();
    let text = loop {
        match read().filter(|text| !text.is_empty()) {
            Some(text) => break text,
            None if begun.elapsed() < NUMBER_LIMIT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            None => {
                let text = std::fs::read_to_string(path);
                break text.with_context(|| format!("cannot read {}", path.display()))?;
            }
        }
    };
    let number = text.trim().parse();
    number.with_context(|| format!("{}: {text:?} is no process number", path.display()))
}

impl PacketsArguments {
    /// Sends. The status is 1 when packets came otherwise than they were sent.
    pub(super) fn load(&self) -> Result<u8> {
        let stop = load::stop_on_signals()?;
        ensure!(
            self.time > 0.0 && self.time <= 3_600.0,
            "a run is of up to 3600 seconds, not {}",
            self.time
        );
        let is_timed = self.rate.is_some() && self.latency;
        ensure!(
            self.device.is_none() || self.idle || !self.search.is_empty() || is_timed,
            "--device is for --search, for --idle, or for --rate with --latency"
        );
        let file = self.histogram.as_deref().map(super::create).transpose()?;
        let capture = self.capture.as_deref().map(Capture::read).transpose()?;
        let pattern = Pattern {
            sizes: self.size.clone(),
            flows: self.flows,
            macs: [self.from_mac, self.to_mac],
            content: capture.map_or(Content::Udp, Content::Capture),
        };
        let options = Options {
            rate: self.rate,
            seconds: self.time,
            checks: Checks {
                skips_macs: self.other_macs,
                whole: self.whole,
                is_turned: self.turned,
            },
            latency: match (self.latency, &self.device) {
                (false, _) => Latencies::None,
                (true, Some(_)) if is_timed => Latencies::Undisturbed,
                (true, _) => Latencies::All,
            },
        };
        if self.receive || self.send || self.echo {
            return self.half(&pattern, &stop);
        }
        let mut generator = Generator::open(&self.from, self.to.as_ref(), pattern, &stop)?;
        if let Some(gtpu) = self.gtpu.flows(self.flows)? {
            generator.carry(gtpu);
        }
        if self.announce {
            generator.announce();
        }
        let device = self.device.as_deref().map(process_in).transpose()?;
        if let (true, Some(device)) = (self.idle, device) {
            let quiet = packets::idle(&mut generator, device, self.time, options.checks, &stop)?;
            return super::print(&quiet, self.json);
        }
        if let Some(device) = device {
            generator.watch(device);
            if is_timed {
                generator.wait_until_it_passes(options.checks, &stop)?;
            }
        }
        if !self.search.is_empty() {
            let limit = self.find(&mut generator, &options, &stop)?;
            return super::print(&limit, self.json);
        }
        let outcome = generator.run(&options, &stop)?;
        if let (Some(file), Some(latency)) = (file, generator.latency()) {
            write_histogram(latency, file).context("the histogram cannot be written")?;
        }
        super::print(&outcome, self.json)?;
        Ok(u8::from(!outcome.is_sound()))
    }

    /// What is done by one port, with somebody else at the other end.
    fn half(&self, pattern: &Pattern, stop: &AtomicBool) -> Result<u8> {
        if self.receive {
            super::print(&packets::receive(&self.from, self.time, stop)?, self.json)
        } else if self.send {
            super::print(&packets::send(&self.from, pattern, stop)?, self.json)
        } else {
            super::print(&packets::echo(&self.from, stop)?, self.json)
        }
    }

    fn find(
        &self,
        generator: &mut Generator,
        options: &Options,
        stop: &AtomicBool,
    ) -> Result<Limit> {
        for loss in &self.search {
            ensure!(
                (0.0..1.0).contains(loss),
                "a share that may be lost is from 0 to below 1, not {loss}"
            );
        }
        ensure!(
            self.search.is_sorted(),
            "shares that may be lost are given rising"
        );
        ensure!(
            self.latency_at
                .iter()
                .all(|share| *share > 0.0 && *share <= 1.0),
            "shares of the rate are above 0 and at most 1"
        );
        let goal = Goal {
            losses: self.search.clone(),
            width: self.width,
            latency_at: self.latency_at.clone(),
        };
        let shows = std::io::stderr().is_terminal() && !self.json;
        packets::search(
            generator,
            &self.from,
            options,
            &goal,
            stop,
            |step: &Step| {
                if shows {
                    let what = match step.verdict {
                        Verdict::Held => "held",
                        Verdict::Lost if !step.outcome.has_kept_up() => {
                            "the generator does not keep up"
                        }
                        Verdict::Lost => "lost too much",
                    };
                    complain!(
                        "{:.3} M packets/s: {what} ({} of {} lost)",
                        step.rate / 1e6,
                        step.outcome.lost,
                        step.outcome.sent
                    );
                }
            },
        )
    }
}
