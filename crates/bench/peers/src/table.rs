//! Everything in turns, and a table: what there is without `millrace bench`.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::options::All;
use crate::outcome::Outcome;
use crate::transport::{self, iceoryx};
use crate::trial::Workload;

/// What is measured, and in which unit it is told.
const CASES: &[(Workload, usize)] = &[
    (Workload::RoundTrip, 64),
    (Workload::RoundTrip, 16 << 10),
    (Workload::RoundTrip, 1 << 20),
    (Workload::OneWay, 64),
    (Workload::OneWay, 1500),
    (Workload::FanIn, 64),
    (Workload::Work, 64),
    (Workload::Waking, 64),
];
const PATIENCE: Duration = Duration::from_secs(10);

/// The serving process, and an agent where there are channels; they end with this.
struct Server {
    children: Vec<Child>,
    directory: PathBuf,
}

impl Server {
    fn start(all: &All) -> Result<Server> {
        let directory = env::temp_dir().join(format!("millrace-peers-{}", std::process::id()));
        fs::create_dir(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let mut server = Server {
            children: Vec::new(),
            directory,
        };
        if all.transports.iter().any(|name| name == "channel") {
            server.start_agent()?;
        }
        let mut command = Command::new(env::current_exe()?);
        command
            .arg("serve")
            .arg(server.socket())
            .args(["--processor", &all.pin[0].to_string()]);
        let socket = server.socket();
        server
            .begin(command, &socket)
            .context("the serving process")?;
        Ok(server)
    }

    /// The agent of the `millrace` that is beside this program, or in PATH.
    fn start_agent(&mut self) -> Result<()> {
        let beside = env::current_exe()?.with_file_name("millrace");
        let millrace = if beside.is_file() {
            beside
        } else {
            PathBuf::from("millrace")
        };
        let configuration = self.directory.join("agent.toml");
        fs::write(&configuration, "")?;
        let mut command = Command::new(millrace);
        command
            .args(["agent", "--log", "warn", "--socket"])
            .arg(self.agent());
        command.arg("--config").arg(configuration);
        let socket = self.agent();
        self.begin(command, &socket)
            .context("millrace agent, of which channels have need")
    }

    fn begin(&mut self, mut command: Command, socket: &Path) -> Result<()> {
        command.env("MILLRACE_AGENT", self.agent());
        self.children.push(command.stdin(Stdio::null()).spawn()?);
        let begun = Instant::now();
        while !socket.exists() {
            ensure!(begun.elapsed() < PATIENCE, "it does not begin");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    fn agent(&self) -> PathBuf {
        self.directory.join("agent.sock")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        // What cannot be removed is left.
        let _ = fs::remove_dir_all(&self.directory);
        // iceoryx2 keeps a file for all who will ever come.
        let prefix = iceoryx::shared_memory_prefix(&self.directory);
        for file in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// One case over one transport.
struct Cell {
    workload: Workload,
    bytes: usize,
    transport: String,
    outcomes: Vec<Outcome>,
    failure: Option<String>,
}

/// Measures everything, the transports of a case in turns, each time another one first.
pub(crate) fn all(all: &All) -> Result<()> {
    let server = Server::start(all)?;
    let mut cells = cells(all);
    for round in 0..all.repeat {
        for (workload, bytes) in CASES {
            let mut its: Vec<&mut Cell> = cells
                .iter_mut()
                .filter(|cell| (cell.workload, cell.bytes) == (*workload, *bytes))
                .collect();
            let count = its.len().max(1);
            its.rotate_left(round % count);
            for cell in its {
                match ask(&server, cell, all) {
                    Ok(outcome) => {
                        if all.json {
                            writeln!(io::stdout(), "{}", serde_json::to_string(&outcome)?)?;
                        }
                        cell.outcomes.push(outcome);
                    }
                    Err(error) => cell.failure = Some(format!("{error:#}")),
                }
            }
        }
    }
    if !all.json {
        write!(io::stdout(), "{}", render(all, &cells))?;
    }
    let failures: Vec<String> = cells
        .iter()
        .filter_map(|cell| {
            let why = cell.failure.as_ref()?;
            Some(format!(
                "{} {} over {}: {why}",
                cell.workload.name(),
                cell.bytes,
                cell.transport
            ))
        })
        .collect();
    ensure!(
        failures.is_empty(),
        "trials failed:\n{}",
        failures.join("\n")
    );
    Ok(())
}

fn cells(all: &All) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (workload, bytes) in CASES {
        for kind in transport::ALL {
            let is_wanted = all.workloads.contains(workload)
                && all.transports.iter().any(|name| name == kind.name);
            if is_wanted && kind.workloads.contains(workload) {
                cells.push(Cell {
                    workload: *workload,
                    bytes: *bytes,
                    transport: kind.name.to_owned(),
                    outcomes: Vec::new(),
                    failure: None,
                });
            }
        }
    }
    cells
}

fn ask(server: &Server, cell: &Cell, all: &All) -> Result<Outcome> {
    let mut command = Command::new(env::current_exe()?);
    command.env("MILLRACE_AGENT", server.agent());
    command
        .arg("ask")
        .arg(server.socket())
        .args([&cell.transport, cell.workload.name()]);
    command.args([
        "--bytes",
        &cell.bytes.to_string(),
        "--time",
        &all.seconds.to_string(),
    ]);
    let output = command
        .args(["--processor", &all.pin[1].to_string()])
        .stdin(Stdio::null())
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
            .trim()
            .replace('\n', "; ")
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What a median of percentiles has to have beyond it in all trials together.
const BEYOND_IN_ALL: f64 = 100.0;

impl Cell {
    fn median(&self, figure: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        let mut values: Vec<f64> = self.outcomes.iter().filter_map(figure).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(values[middle]),
            _ => Some(f64::midpoint(values[middle - 1], values[middle])),
        }
    }

    /// Medians over the trials.
    fn show(&self) -> String {
        if self.failure.is_some() {
            return "failed".to_owned();
        }
        let percentile = |at: f64| {
            let latencies = self.outcomes.iter().filter_map(|o| o.latency.as_ref());
            let told = latencies.filter(|latency| latency.at(at).is_some());
            let beyond: f64 = told.map(|latency| latency.beyond(at)).sum();
            let median = self.median(|outcome| Some(outcome.latency.as_ref()?.at(at)? as f64));
            median.filter(|_| beyond >= BEYOND_IN_ALL)
        };
        let time = |ns: Option<f64>| ns.map_or("–".to_owned(), show_time);
        match self.workload {
            Workload::RoundTrip | Workload::Waking => {
                format!("{} / {}", time(percentile(50.0)), time(percentile(99.0)))
            }
            Workload::OneWay | Workload::FanIn | Workload::Work => {
                let rate = self.median(|outcome| Some(outcome.rate));
                let rate = rate.map_or("–".to_owned(), |rate| format!("{:.2} M/s", rate / 1e6));
                let spread = self.median(|outcome| outcome.spread);
                spread.map_or(rate.clone(), |spread| {
                    format!("{rate} ±{:.0} %", 100.0 * spread)
                })
            }
        }
    }
}

fn show_time(ns: f64) -> String {
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        _ => format!("{:.2} ms", ns / 1e6),
    }
}

fn render(all: &All, cells: &[Cell]) -> String {
    let mut rows = vec![vec!["".to_owned()]];
    rows[0].extend(all.transports.iter().cloned());
    for (workload, bytes) in CASES {
        let its: Vec<&Cell> = cells
            .iter()
            .filter(|cell| (cell.workload, cell.bytes) == (*workload, *bytes))
            .collect();
        if its.is_empty() {
            continue;
        }
        let mut row = vec![format!("{} {bytes} B", workload.name())];
        row.extend(all.transports.iter().map(|name| {
            let cell = its.iter().find(|cell| cell.transport == *name);
            cell.map_or("–".to_owned(), |cell| cell.show())
        }));
        rows.push(row);
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, width)| {
            let gap = " ".repeat(width - text.chars().count());
            format!("{text}{gap}")
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    let about = format!(
        "Medians of {} trials of {} s. Times: median / p99. ±: the share that is farthest from an equal one.\n\n",
        all.repeat, all.seconds
    );
    about + &rows.iter().map(line).collect::<String>()
}
