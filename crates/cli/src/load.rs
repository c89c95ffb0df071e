//! `millrace load`: the load generators and servers of the benchmarks.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use millrace_bench::load::{
    self, Address, Get, Idle, Keyed, Kind, Options, Server, Speech, Waiting, Workload,
};
use millrace_bench::packets::echo_udp;

mod events;
mod gtpu;
mod packets;
mod toeplitz;

/// Load a server and tell its throughput and latencies, or be a minimal server.
///
/// One thread holds all connections. Every byte of every answer is checked, and a wrong answer ends the run. Without --rate the loop is
/// closed: the next request goes out when an answer is there, which finds the highest throughput. With --rate it is open: requests are
/// due at a fixed rate, and each latency counts from when its request was due, whether or not the server (or this program) had time
/// for it then. Only that shows what a stall does to those who come meanwhile. Latencies are in nanoseconds and contain about one
/// reading of the clock, whose cost is told. Ctrl-C ends a run and tells what was measured until then.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LoadArguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  millrace load redis 127.0.0.1:6379 --connections 50 --set-share 1
                                            how fast redis stores, with 50 connections
  millrace load redis 127.0.0.1:6379 --connections 50 --rate 100000
                                            how late answers are at 100 000 requests a second
  millrace load http 127.0.0.1:80 --path /index.html --connections 100 --close
                                            a connection for each request
  millrace load serve echo --listen unix:/tmp/echo &
  millrace load echo unix:/tmp/echo --bytes 64 --blocking --trace echo.gz --json
  millrace load packets memif-client:/run/a.sock memif-client:/run/b.sock --search 0
                                            how many packets a switch between the two brings without loss
  millrace load packets memif-client:/run/a.sock memif-client:/run/b.sock --capture traffic.pcapng --rate 1000000 --latency
                                            how long it takes for frames that were captured
  millrace load serve stamp --listen 0.0.0.0:7000      (on another host)
  millrace load echo 10.0.0.2:7000 --one-way           how long a message takes there, and back

An address is HOST:PORT or unix:PATH. `millrace load redis --help` and the like tell the options.
Put `millrace run --` in front of server and load to accelerate both.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Load redis with SET and GET
    ///
    /// Before the run every key is set. Each connection has keys of its own and writes a new value each time, so that each GET has
    /// to find exactly the value of the last SET.
    Redis {
        #[command(flatten)]
        run: RunArguments,
        /// Share of SET, from 0 to 1
        #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
        set_share: f64,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Load memcached with set and get
    ///
    /// As for redis, in memcached's text protocol.
    Memcached {
        #[command(flatten)]
        run: RunArguments,
        /// Share of set, from 0 to 1
        #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
        set_share: f64,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Load an HTTP server with GET of one path
    ///
    /// All answers must have the same body, and Content-Length. Requests have a number in the header X-Request-Id; where a server sends it
    /// back (nginx: add_header X-Request-Id $http_x_request_id), that is checked, too.
    Http {
        #[command(flatten)]
        run: RunArguments,
        /// What to get
        #[arg(long, default_value = "/")]
        path: String,
        /// Length that the body must have; without it, that of the first answer
        #[arg(long, value_name = "N")]
        bytes: Option<usize>,
        /// Open a connection for each request; also tells the time until it is established, and until the answer's first byte
        #[arg(long)]
        close: bool,
    },
    /// Load a server that sends back what it gets
    ///
    /// With --one-way the latency is that of the way there: from when a message was to be sent until the server had received it, by the
    /// server's clock. The way back is told, too. Where the ends have one clock (one kernel, one time namespace), that is said. Elsewhere
    /// the offset of the clocks is estimated before the run and after it, by 64 probes each, with its error, and allowed for.
    Echo {
        #[command(flatten)]
        run: RunArguments,
        /// Measure each way; the server is `millrace load serve stamp`
        #[arg(long)]
        one_way: bool,
        /// Length of a message
        #[arg(long, value_name = "N", default_value_t = 64)]
        bytes: usize,
    },
    /// Open connections to a server that sends back what it gets, talk on each, and be silent then
    ///
    /// A line tells when they are; Ctrl-C ends them. What they cost meanwhile, tools like ps and millrace bench show.
    Idle {
        /// The server: HOST:PORT, or unix:PATH
        #[arg(value_name = "ADDR")]
        address: Address,
        /// How many connections there are
        #[arg(long, short, value_name = "N", default_value_t = 1)]
        connections: usize,
        /// The server is redis, and does not send back what it gets
        #[arg(long)]
        redis: bool,
        /// Tell it as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Send packets by a port, and check those that come back or by another port
    ///
    /// One thread, which never sleeps: give it a processor of its own (taskset). Packets are UDP in IPv4, numbered, in flows of their own
    /// addresses and ports, or frames of a capture (--capture). Without --rate as many are sent as the port takes, which tells what can
    /// pass at most, not what passes without loss: --search finds that, by trials of --time seconds, and verifies it by longer ones. With
    /// --rate a packet that the port has no room for when it is due is lost, and latencies count from when packets were due.
    ///
    /// With --receive, --send or --echo it is half of that, by one port, for somebody else at the other end.
    ///
    /// A port is memif-server:PATH or memif-client:PATH, with options behind commas: id=N, ring=N (descriptors), buffer=N (bytes);
    /// virtio-user-server:PATH or virtio-user-client:PATH (ring=N, buffer=N, packed=1), vhost-user-server:PATH or vhost-user-client:PATH;
    /// ring-first:NAME or ring-second:NAME, which an agent brings together, or af-xdp:INTERFACE, which has UDP come here (ring=N).
    Packets(Box<packets::PacketsArguments>),
    /// Let events through stages of the scheduler, and tell how many passed
    ///
    /// One thread lets them in, as fast as they go; workers on processors of their own bring them through, flow by flow in their order.
    /// What came in has to have gone out at the end.
    Events(events::EventsArguments),
    /// Compute Toeplitz hashes of tuples of 12 bytes, and tell how many in a second
    ///
    /// One thread hashes the same 4 096 tuples again and again, as fast as it goes. Their hashes are told as one sum, which is the same for
    /// whoever computes them.
    Toeplitz(toeplitz::ToeplitzArguments),
    /// Be a minimal server: one thread, many connections
    ///
    /// The address is printed when it listens; with Ctrl-C it ends and tells what it has done.
    Serve {
        #[command(subcommand)]
        kind: ServeCommand,
    },
}

#[derive(Debug, Subcommand)]
enum ServeCommand {
    /// Send back what comes
    Echo {
        #[command(flatten)]
        serve: ServeArguments,
    },
    /// Send back what `millrace load echo --one-way` sends, with the times at which it came and went
    Stamp {
        #[command(flatten)]
        serve: ServeArguments,
    },
    /// Answer every GET with the same body, or with /N as path with one of N bytes
    Http {
        #[command(flatten)]
        serve: ServeArguments,
        /// Length of the body
        #[arg(long, value_name = "N", default_value_t = 64)]
        bytes: usize,
    },
    /// Send back datagrams of UDP, many with a call of the kernel
    Udp {
        /// Where to listen: an IP address and a port
        #[arg(long, value_name = "ADDR")]
        listen: SocketAddr,
        /// Tell what was done as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct ServeArguments {
    /// Where to listen: HOST:PORT (port 0: any that is free), or unix:PATH
    #[arg(long, value_name = "ADDR")]
    listen: Address,
    /// Keep in FILE meanwhile, as two numbers of 64 bits, how often it woke, and for how many descriptors in all
    #[arg(long, value_name = "FILE")]
    counts: Option<PathBuf>,
    /// Tell what was done as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct StoreArguments {
    /// How many keys there are [default: 1000, or as many as connections]
    #[arg(long, value_name = "N")]
    keys: Option<u64>,
    /// Length of a value
    #[arg(long, value_name = "N", default_value_t = 64)]
    bytes: usize,
}

#[derive(Debug, Args)]
struct RunArguments {
    /// The server: HOST:PORT, or unix:PATH
    #[arg(value_name = "ADDR")]
    address: Address,
    /// How many connections there are at once
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// Requests a second of all connections: an open loop
    #[arg(long, short, value_name = "R")]
    rate: Option<f64>,
    /// Seconds to measure
    #[arg(long, short, value_name = "S", default_value_t = 5.0)]
    time: f64,
    /// Seconds that go before and are not counted
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    warm_up: f64,
    /// Requests that a connection may have unanswered
    #[arg(long, value_name = "N", default_value_t = 1)]
    pipeline: usize,
    /// Wait in a receive that blocks, not in epoll; for one connection
    #[arg(long, conflicts_with = "spin")]
    blocking: bool,
    /// Do not wait but try to receive again and again; for one connection
    #[arg(long)]
    spin: bool,
    /// Give up when nothing comes for so many seconds
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    timeout: f64,
    /// What the contents and the order of requests follow from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep every request: gzip of lines `intended_ns latency_ns`, in sending order
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Requests that the trace has room for (16 bytes of memory each, with --one-way 32); later ones are left out of it, and counted
    #[arg(long, value_name = "N", default_value_t = 5_000_000)]
    trace_max: usize,
    /// Keep the histogram, in HdrHistogram's V2 form, deflated
    #[arg(long, value_name = "FILE")]
    histogram: Option<PathBuf>,
    /// Tell the figures as one JSON object
    #[arg(long)]
    json: bool,
}

/// Keys where nothing else is said.
const KEYS: u64 = 1000;

/// Loads or serves.
pub(crate) fn run(arguments: LoadArguments) -> Result<u8> {
    let (run, workload) = match arguments.command {
        Command::Redis {
            run,
            set_share,
            store,
        } => {
            let keyed = store.keyed(set_share, run.connections);
            (run, Workload::Redis(keyed))
        }
        Command::Memcached {
            run,
            set_share,
            store,
        } => {
            let keyed = store.keyed(set_share, run.connections);
            (run, Workload::Memcached(keyed))
        }
        Command::Http {
            run,
            path,
            bytes,
            close,
        } => (run, Workload::Http(Get { path, bytes, close })),
        Command::Echo {
            run,
            one_way,
            bytes,
        } => (
            run,
            if one_way {
                Workload::OneWay { bytes }
            } else {
                Workload::Echo { bytes }
            },
        ),
        Command::Idle {
            address,
            connections,
            redis,
            json,
        } => {
            let speech = if redis { Speech::Redis } else { Speech::Echo };
            return idle(&address, connections, speech, json);
        }
        Command::Packets(packets) => return packets.load(),
        Command::Events(events) => return events.load(),
        Command::Toeplitz(toeplitz) => return toeplitz.load(),
        Command::Serve { kind } => return serve(kind),
    };
    run.load(&workload)
}

impl StoreArguments {
    fn keyed(&self, set_share: f64, connections: usize) -> Keyed {
        Keyed {
            keys: self.keys.unwrap_or(KEYS.max(connections as u64)),
            bytes: self.bytes,
            set_share,
        }
    }
}

impl RunArguments {
    fn load(&self, workload: &Workload) -> Result<u8> {
        let stop = load::stop_on_signals()?;
        // Before the run, so that a place that cannot be written to is not found after it.
        let trace_file = self.trace.as_deref().map(create).transpose()?;
        let histogram_file = self.histogram.as_deref().map(create).transpose()?;
        let measured = load::run(&self.address, workload, &self.options(workload), &stop)?;
        if let (Some(file), Some(trace)) = (trace_file, &measured.trace) {
            trace.write(file).context("the trace cannot be written")?;
        }
        if let Some(file) = histogram_file {
            load::write_histogram(&measured.histogram, file)?;
        }
        print(&measured.outcome, self.json)
    }

    fn options(&self, workload: &Workload) -> Options {
        let has_trace = self.trace.is_some() || matches!(workload, Workload::OneWay { .. });
        Options {
            connections: self.connections,
            pipeline: self.pipeline,
            rate: self.rate,
            seconds: self.time,
            warm_up_seconds: self.warm_up,
            timeout_seconds: self.timeout,
            seed: self.seed,
            waiting: match (self.blocking, self.spin) {
                (true, _) => Waiting::Blocking,
                (_, true) => Waiting::Spin,
                _ => Waiting::Epoll,
            },
            trace: has_trace.then_some(self.trace_max),
        }
    }
}

fn idle(address: &Address, connections: usize, speech: Speech, json: bool) -> Result<u8> {
    let stop = load::stop_on_signals()?;
    let idle = Idle::open(address, connections, speech, &stop)?;
    print(&idle.silence(), json)?;
    idle.keep(&stop)?;
    Ok(0)
}

fn serve(kind: ServeCommand) -> Result<u8> {
    let (serve, kind) = match kind {
        ServeCommand::Echo { serve } => (serve, Kind::Echo),
        ServeCommand::Http { serve, bytes } => (serve, Kind::Http { bytes }),
        ServeCommand::Stamp { serve } => (serve, Kind::Stamp),
        ServeCommand::Udp { listen, json } => {
            let stop = load::stop_on_signals()?;
            return print(&echo_udp(listen, &stop)?, json);
        }
    };
    let stop = load::readable_on_signals()?;
    let mut server = Server::bind(kind, &serve.listen)?;
    if let Some(path) = &serve.counts {
        server.count_in(path)?;
    }
    complain!("millrace: listening on {}", server.address());
    let served = server.run(&stop)?;
    print(&served, serve.json)
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn print(figures: &(impl serde::Serialize + std::fmt::Display), json: bool) -> Result<u8> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(figures)?)?;
    } else {
        writeln!(out, "{figures}")?;
    }
    Ok(0)
}
