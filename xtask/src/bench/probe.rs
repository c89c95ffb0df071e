//! Figures that no scenario gives yet: of idle connections, and of a program's start.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_bench::carried::Carried;
use millrace_bench::process::Program;
use millrace_bench::readers::{self, Reading};
use millrace_bench::results::{Cell, Outcome, Processor, Results, Trial, Unit};
use millrace_bench::scenario::fill;
use millrace_bench::sys::Times;
use millrace_bench::{machine, sys};

use super::lab::{Lab, Plan};
use super::measured::median;
use super::rows::{KERNEL, MILLRACE, Parameters};

/// How long a server may take until it listens, and idle connections until they are made.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Long enough for what follows a connection's last byte (closing a ring, an agent's time-outs).
const SETTLING: Duration = Duration::from_secs(2);
const ECHO: &str = "{millrace} load serve echo --listen 127.0.0.1:{port}";
const REDIS: &str =
    "redis-server --port {port} --bind 127.0.0.1 --save '' --appendonly no --dir {dir}";
const SET: &str = "{millrace} load redis 127.0.0.1:{port} --connections {clients} --bytes 1024 --set-share 1 --time {seconds} --json";

const IDLE: &str = "{millrace} load idle 127.0.0.1:{port}";

/// A cell, and how one trial of it is made.
pub(super) struct Probe {
    pub(super) scenario: &'static str,
    title: &'static str,
    unit: Unit,
    /// The cells, as roads and parameters, in the order of a round.
    cells: &'static [(&'static str, Parameters)],
    measure: fn(&Stand, &mut Trial) -> Result<()>,
}

/// All of them.
pub(super) static PROBES: &[Probe] = &[
    Probe {
        scenario: "redis-idle/set",
        title: "Redis: SET 1 KiB by millrace load, beside idle connections",
        unit: Unit::OperationsPerSecond,
        cells: &[
            (MILLRACE, &[("clients", 10), ("idle", 0)]),
            (MILLRACE, &[("clients", 10), ("idle", 990)]),
            (KERNEL, &[("clients", 10), ("idle", 990)]),
        ],
        measure: beside_idle,
    },
    Probe {
        scenario: "idle/processor",
        title: "Processor use of idle connections that have talked",
        unit: Unit::ProcessorShare,
        cells: &[
            (KERNEL, &[("connections", 1)]),
            (MILLRACE, &[("connections", 1)]),
        ],
        measure: idle_processor,
    },
    Probe {
        scenario: "idle/memory",
        title: "Memory of idle connections that have talked",
        unit: Unit::Bytes,
        cells: &[
            (KERNEL, &[("connections", 10_000)]),
            (MILLRACE, &[("connections", 10_000)]),
        ],
        measure: idle_memory,
    },
    Probe {
        scenario: "start/true",
        title: "Start and end of /bin/true",
        unit: Unit::Nanoseconds,
        cells: &[(KERNEL, &[]), (MILLRACE, &[])],
        measure: start,
    },
];

impl Probe {
    /// Whether it measures a cell.
    #[cfg(test)]
    pub(super) fn has(&self, road: &str, wanted: &BTreeMap<String, u64>) -> bool {
        let mut cells = self.cells.iter();
        cells.any(|(known, parameters)| *known == road && owned(parameters) == *wanted)
    }
}

/// Measures a probe in rounds, and adds its cells to the results. Only an interrupt is an error.
pub(super) fn measure(lab: &Lab, probe: &Probe, plan: Plan, results: &mut Results) -> Result<()> {
    let cell = |(road, parameters): &(&str, Parameters)| Cell {
        scenario: probe.scenario.to_owned(),
        title: probe.title.to_owned(),
        road: (*road).to_owned(),
        parameters: owned(parameters),
        unit: probe.unit,
        figure: String::new(),
        trials: Vec::new(),
    };
    let mut cells: Vec<Cell> = probe.cells.iter().map(cell).collect();
    for round in 1..=plan.repeats {
        for cell in &mut cells {
            eprintln!("round {round}, {} on {}", cell.scenario, cell.road);
            let mut trial = Trial::begun(round);
            let outcome =
                Stand::new(lab, cell, plan).and_then(|stand| (probe.measure)(&stand, &mut trial));
            ensure!(!sys::interrupted(), "interrupted");
            if let Err(error) = outcome {
                trial.outcome = Outcome::Failed(format!("{error:#}"));
            }
            cell.trials.push(trial);
        }
    }
    results.cells.extend(cells);
    Ok(())
}

pub(super) fn owned(parameters: Parameters) -> BTreeMap<String, u64> {
    let owned = |&(name, value): &(&str, u64)| (name.to_owned(), value);
    parameters.iter().map(owned).collect()
}

/// Rate of clients that are busy beside connections that are not.
fn beside_idle(stand: &Stand, trial: &mut Trial) -> Result<()> {
    let server = stand.serve(REDIS, "Ready to accept connections", trial)?;
    let _idle = match stand.parameter("idle") {
        0 => None,
        _ => Some(stand.open_idle("idle", "--redis", trial)?),
    };
    let before = server.processor();
    let client = stand.start("client", SET, trial)?;
    let (text, exit) = client.finish(START_LIMIT)?;
    let Times { user, system } = server.processor().since(before);
    let Reading {
        value,
        operations,
        whole_latency,
        notes,
        ..
    } = readers::millrace_load(&text)?;
    trial.processor = Processor {
        server_user_s: user.as_secs_f64(),
        server_system_s: system.as_secs_f64(),
        client_user_s: exit.processor.user.as_secs_f64(),
        client_system_s: exit.processor.system.as_secs_f64(),
        ..Processor::default()
    };
    (trial.value, trial.operations) = (value, operations);
    (trial.latency, trial.notes) = (whole_latency, notes);
    trial.seconds = f64::from(stand.plan.seconds);
    Ok(())
}

/// Processor time of a server and a client that are silent, and of the agent, as a share of one processor.
fn idle_processor(stand: &Stand, trial: &mut Trial) -> Result<()> {
    let server = stand.serve(ECHO, "127.0.0.1", trial)?;
    let client = stand.open_idle("connections", "", trial)?;
    pause(SETTLING)?;
    let agent = || stand.agent.as_ref().map(Program::processor);
    let used = || {
        let ends = server.processor().total() + client.processor().total();
        ends + agent().unwrap_or_default().total()
    };
    let (start, before) = (Instant::now(), used());
    pause(Duration::from_secs(stand.plan.seconds.into()))?;
    trial.seconds = start.elapsed().as_secs_f64();
    trial.value = (used() - before).as_secs_f64() / trial.seconds;
    trial.ring_share = stand.ring_share()?;
    Ok(())
}

/// Memory that connections take: of both programs, of the agent, and of the kernel.
fn idle_memory(stand: &Stand, trial: &mut Trial) -> Result<()> {
    let limit = sys::raise_descriptor_limit();
    let connections = stand.parameter("connections");
    ensure!(
        limit > connections + 100,
        "{connections} connections need more descriptors than the limit of {limit}"
    );
    // No process is charged with shared memory and with what the kernel keeps for itself.
    let shared = || machine::meminfo(&["Shmem", "SUnreclaim"]);
    let memory = |program: &Program| {
        let memory = program.memory();
        (memory.private + memory.tables) >> 10
    };
    let agent = || stand.agent.as_ref().map_or(0, memory);
    let before = shared() + agent();
    let server = stand.serve(ECHO, "127.0.0.1", trial)?;
    let client = stand.open_idle("connections", "", trial)?;
    pause(SETTLING)?;
    let after = shared() + agent() + memory(&server) + memory(&client);
    trial.value = (after as f64 - before as f64) * 1024.0;
    trial.ring_share = stand.ring_share()?;
    Ok(())
}

/// Time from starting `/bin/true` to having collected it.
fn start(stand: &Stand, trial: &mut Trial) -> Result<()> {
    const STARTS: usize = 300;
    let mut nanoseconds = Vec::with_capacity(STARTS);
    for _ in 0..STARTS {
        let mut command = Command::new("/bin/true");
        stand.set_environment(&mut command);
        if stand.is_ours() {
            command.env("LD_PRELOAD", stand.lab.library());
        }
        command.stdin(Stdio::null());
        let begun = Instant::now();
        let status = command.status()?;
        nanoseconds.push(begun.elapsed().as_nanos() as f64);
        ensure!(status.success(), "/bin/true failed");
        ensure!(!sys::interrupted(), "interrupted");
    }
    trial.value = median(&nanoseconds);
    Ok(())
}

fn pause(time: Duration) -> Result<()> {
    std::thread::sleep(time);
    ensure!(!sys::interrupted(), "interrupted");
    Ok(())
}

/// Where one trial is made: a road, a port, two processors, an agent.
struct Stand<'a> {
    lab: &'a Lab,
    cell: &'a Cell,
    plan: Plan,
    port: u16,
    agent: Option<Program>,
}

impl<'a> Stand<'a> {
    fn new(lab: &'a Lab, cell: &'a Cell, plan: Plan) -> Result<Self> {
        // A port of 127.0.0.1 that nobody has now.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut stand = Self {
            lab,
            cell,
            plan,
            port,
            agent: None,
        };
        if stand.is_ours() {
            // An empty configuration is the default one, whatever this machine's is.
            let configuration = lab.scratch.path().join("agent.toml");
            fs::write(&configuration, "")?;
            let mut command = Command::new(lab.millrace());
            command.args(["agent", "--log", "warn", "--socket"]);
            command
                .arg(stand.socket())
                .arg("--config")
                .arg(configuration);
            let output = lab.scratch.path().join("agent.txt");
            let mut agent = Program::start("millrace agent", command, output)?;
            agent.wait_until(START_LIMIT, |_| stand.socket().exists())?;
            stand.agent = Some(agent);
        }
        Ok(stand)
    }

    fn is_ours(&self) -> bool {
        self.cell.road == MILLRACE
    }

    fn parameter(&self, name: &str) -> u64 {
        self.cell.parameters.get(name).copied().unwrap_or(0)
    }

    /// Starts a server and waits until it says that it is ready.
    fn serve(&self, template: &str, ready: &str, trial: &mut Trial) -> Result<Program> {
        let mut server = self.start("server", template, trial)?;
        server.wait_until(START_LIMIT, |server| server.output().contains(ready))?;
        Ok(server)
    }

    /// Opens as many connections as a parameter says; they talk a little and then keep silent.
    fn open_idle(&self, parameter: &str, options: &str, trial: &mut Trial) -> Result<Program> {
        let template = format!("{IDLE} --connections {{{parameter}}} {options}");
        let mut idle = self.start("idle", &template, trial)?;
        idle.wait_until(START_LIMIT, |idle| idle.output().contains("silent"))?;
        Ok(idle)
    }

    /// Starts a program on the road, on its end's processor.
    fn start(&self, name: &str, template: &str, trial: &mut Trial) -> Result<Program> {
        let words = self.words(template)?;
        let line = shlex::try_join(words.iter().map(String::as_str))?;
        let [server, client] = self.lab.processors;
        let processor = if name == "server" { server } else { client };
        let mut command = Command::new("taskset");
        command.args(["-c", &processor.to_string()]);
        self.set_environment(&mut command);
        if self.is_ours() {
            command.arg(self.lab.millrace()).args(["run", "--"]);
        }
        command.args(words);
        trial.commands.insert(name.to_owned(), line.clone());
        let output = self.lab.scratch.path().join(format!("{name}.txt"));
        Program::start(&line, command, output)
    }

    /// Makes the environment that of the road, whatever our own is.
    fn set_environment(&self, command: &mut Command) {
        for name in [
            "LD_PRELOAD",
            "MILLRACE",
            "MILLRACE_AGENT",
            "MILLRACE_LIBRARY",
            "MILLRACE_MODE",
            "MILLRACE_SPIN_US",
        ] {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C");
        if self.is_ours() {
            command.env("MILLRACE_AGENT", self.socket());
        }
    }

    /// The words of a command, its parameters filled in.
    fn words(&self, template: &str) -> Result<Vec<String>> {
        let mut words: BTreeMap<String, String> = self
            .cell
            .parameters
            .iter()
            .map(|(name, value)| (name.clone(), value.to_string()))
            .collect();
        let more = [
            ("millrace", self.lab.millrace().display().to_string()),
            ("dir", self.lab.scratch.path().display().to_string()),
            ("port", self.port.to_string()),
            ("seconds", self.plan.seconds.to_string()),
        ];
        words.extend(more.map(|(name, value)| (name.to_owned(), value)));
        shlex::split(&fill(template, &words)).context("quotes do not match")
    }

    fn socket(&self) -> PathBuf {
        let name = format!("agent-{}.sock", self.port);
        self.lab.scratch.path().join(name)
    }

    /// The share of bytes that went through shared memory, of all connections with the server; `None` where there are none.
    fn ring_share(&self) -> Result<Option<f64>> {
        let mut carried = Carried::at(&[self.port]);
        if self.is_ours() {
            carried.look(&self.socket())?;
        }
        Ok(carried.ring_share())
    }
}
