//! One trial: a server that runs on a road, and a client that is started, read and accounted for.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::carried::{self, Carried};
use crate::disturbance::{Seen, Watch};
use crate::lab::{self, Lab};
use crate::load::Counts;
use crate::process::{Memory, Program};
use crate::readers::{self, Figure, Reader, Reading};
use crate::results::{Latency, Outcome, Plan, Processor, Trial};
use crate::roads::Road;
use crate::scenario::{Case, End, Parameters, Scenario, fill};
use crate::stats::percentiles::is_carried_in_trial;
use crate::sys::Times;
use device::Ran;

mod device;
mod idle;

const SERVER_LIMIT: Duration = Duration::from_secs(30);
/// For clients that are told a number of operations and no time: the number for the first attempt, and how long one has to take to tell
/// the pace.
const FIRST_COUNT: u64 = 2_000;
const PACE_SECONDS: f64 = 0.2;
/// No client does so many operations in that time: it does not heed the number.
const COUNT_MAX: u64 = 10_000_000_000;
/// How often in a trial it is looked at how fast processors are, and the agent is asked where the bytes go. That takes a moment of a
/// processor, longer the more connections there are.
const LOOKS: f64 = 3.0;

/// Operations in a second, of cells by their index.
#[derive(Debug, Default)]
pub(crate) struct Paces(HashMap<usize, f64>);

/// A server on a road, and what its clients have to know.
pub(crate) struct Pair<'a> {
    pub(crate) road: &'a Road,
    /// With what is behind it; or why it did not start.
    servers: Result<Vec<Program>>,
    /// That of the servers before the first client.
    memory_before: Memory,
    /// Their command lines.
    lines: BTreeMap<String, String>,
    words: BTreeMap<String, String>,
    ports: [u16; 2],
    seconds: f64,
    /// Where clients leave histograms and traces.
    results: &'a Path,
}

impl<'a> Pair<'a> {
    /// Starts a server, of so many before it. That it fails is told by each of its trials.
    pub(crate) fn start(
        lab: &Lab,
        scenario: &Scenario,
        road: &'a Road,
        index: usize,
        plan: &Plan,
        results: &'a Path,
    ) -> Result<Pair<'a>> {
        let directory = lab.directory(&format!("{}-{}", scenario.name, road.name))?;
        let socket = directory.join("socket");
        // The last round's server may have left it; nobody listens there.
        let _ = fs::remove_file(&socket);
        let mut words = lab.words();
        let [port, behind] = ports(index);
        let more = [
            ("bind", road.bind.clone()),
            ("host", road.host.clone()),
            ("port", port.to_string()),
            ("port_behind", behind.to_string()),
            ("path", socket.display().to_string()),
            ("address", road.address(&road.host, port, &socket)),
            ("listen", road.address(&road.bind, port, &socket)),
            ("transport", road.transport.clone().unwrap_or_default()),
            ("dir", directory.display().to_string()),
            ("counts", directory.join("counts").display().to_string()),
            ("seconds", plan.seconds.to_string()),
            ("whole_seconds", plan.seconds.ceil().to_string()),
            ("step_seconds", (plan.seconds / 10.0).to_string()),
            ("width", plan.width.to_string()),
        ];
        words.extend(more.map(|(name, value)| (name.to_owned(), value)));
        words.extend(device::words(road, &words));
        let of_device = road.device.iter().flat_map(|device| &device.files);
        for (name, text) in scenario.server.files.iter().chain(of_device) {
            fs::write(directory.join(name), fill(text, &words))
                .with_context(|| format!("cannot write {name}"))?;
        }
        let template = scenario
            .server
            .on(road)
            .context("it cannot take this road")?;
        let mut all = vec![("server", template, port)];
        // A device polls: it is started for each trial, and takes no time from those of other roads.
        all.retain(|_| road.device.is_none());
        if let Some(template) = scenario.server.behind.as_deref() {
            all.insert(0, ("behind", template, behind));
        }
        let mut lines = BTreeMap::new();
        let servers = all.into_iter().map(|(name, template, port)| {
            let command = lab.command(road, End::Server, template, &words)?;
            let line = lab::line_of(&command);
            lines.insert(name.to_owned(), line.clone());
            let output = directory.join(format!("{name}.txt"));
            let mut server = Program::start(&line, command, output)?;
            let path = road.unix.then(|| Path::new(&words["path"]));
            wait_until_it_listens(&mut server, name, path, port)?;
            Ok(server)
        });
        let servers: Result<Vec<Program>> = servers.collect();
        Ok(Pair {
            road,
            memory_before: servers.iter().flatten().map(Program::memory).sum(),
            servers,
            lines,
            words,
            ports: [port, behind],
            seconds: plan.seconds,
            results,
        })
    }

    /// Runs a client of cell `cell` once.
    pub(crate) fn measure(
        &self,
        lab: &Lab,
        case: &Case,
        parameters: &Parameters,
        (round, cell): (u32, usize),
        paces: &mut Paces,
    ) -> Trial {
        let mut trial = Trial {
            commands: self.lines.clone(),
            ..Trial::begun(round)
        };
        let tried = lab::wake(self.road)
            .and_then(|()| self.attempt(lab, case, parameters, cell, paces, &mut trial));
        if let Err(error) = tried.and(lab::rest(self.road)) {
            trial.outcome = readers::events::outcome_of(&error);
            // It may have been asked for more than it can do now.
            paces.0.remove(&cell);
        }
        trial
    }

    fn attempt(
        &self,
        lab: &Lab,
        case: &Case,
        parameters: &Parameters,
        cell: usize,
        paces: &mut Paces,
        trial: &mut Trial,
    ) -> Result<()> {
        let template = case.on(self.road).context("it cannot take this road")?;
        let mut words = self.words.clone();
        words.extend(
            parameters
                .iter()
                .map(|(name, value)| (name.clone(), value.to_string())),
        );
        let read = match case.source()? {
            Figure::Printed(read) => read,
            Figure::Seen(figure) => {
                let idle = self.watch(lab, template, &words, trial)?;
                trial.value = figure(&idle);
                trial.idle = Some(idle);
                return Ok(());
            }
        };
        let client = Client {
            lab,
            road: self.road,
            case,
            template,
            read,
            seconds: self.seconds,
        };
        self.ask(&client, words, cell, paces, trial)
    }

    /// Runs a client to its end.
    fn ask(
        &self,
        client: &Client<'_>,
        mut words: BTreeMap<String, String>,
        cell: usize,
        paces: &mut Paces,
        trial: &mut Trial,
    ) -> Result<()> {
        let (servers, lab) = (self.servers()?, client.lab);
        let raw = Raw::of(
            &format!("{}-{}-{}", cell, self.road.name, trial.round),
            self.results,
            &mut words,
        )?;
        let beside = client.start_beside(&words, &mut trial.commands)?;
        // In their company: alone it may be many times faster, and the trial would take as much longer.
        client.set_count(&mut words, paces.0.get(&cell).copied())?;
        let sent = lab.messages(self.road)?;
        let counts = || Counts::read(Path::new(&self.words["counts"]));
        let woken = counts();
        let used = || servers.iter().map(Program::processor).sum::<Times>();
        let (mut watch, times) = (Watch::begin(lab.processors()), used());
        let mut carried = Carried::at(&self.ports);
        let run = client.run(&words, Some((&mut watch, &mut carried)))?;
        let (seen, times) = (watch.end(), used().since(times));
        let Ran {
            reading,
            exit,
            line,
            device,
        } = run;
        trial.seconds = seen.elapsed_s;
        drop(beside);
        trial.commands.insert("client".to_owned(), line);
        let (device_line, of_device) = device.unzip();
        let device_line = device_line.map(|line| ("device".to_owned(), line));
        trial.commands.extend(device_line);
        let times: Times = [times].into_iter().chain(of_device).sum();
        trial.value = reading.value;
        trial.operations = reading.operations;
        trial.latency = latency(&reading);
        trial.clocks = reading.clocks;
        trial.packets = reading.packets;
        trial.ready_per_wake = reading.ready_per_wake;
        let woken = counts().zip(woken);
        trial.server_ready_per_wake =
            woken.and_then(|(now, before)| now.ready_per_wake_since(before));
        trial.notes.extend(reading.notes);
        let spliced = lab.messages(self.road)?.zip(sent);
        let spliced = spliced.and_then(|(now, before)| now.since(before).note());
        trial.notes.extend(spliced);
        trial.notes.extend(seen.note().map(str::to_owned));
        self.tell_road(&carried, trial);
        trial.processor = spent(times, exit.processor, &seen);
        (trial.histogram, trial.trace) = raw.found();
        paces.0.insert(cell, reading.operations / trial.seconds);
        if let Some(why) = seen.disturbance() {
            trial.outcome = Outcome::Void(why);
        }
        Ok(())
    }
}

impl Pair<'_> {
    /// Which road the bytes took, where Millrace was there to take them.
    fn tell_road(&self, carried: &Carried, trial: &mut Trial) {
        if self.road.accelerated {
            trial.ring_share = carried.ring_share();
            let note = carried::note(trial.ring_share);
            trial.notes.extend(note.map(str::to_owned));
        }
    }

    /// Its programs, or why they did not start.
    fn servers(&self) -> Result<&[Program]> {
        match &self.servers {
            Ok(servers) => Ok(servers),
            Err(error) => anyhow::bail!("{error:#}"),
        }
    }
}

/// Two ports that the last servers, of which connections may linger, did not have; below those that the kernel gives to clients.
fn ports(index: usize) -> [u16; 2] {
    let first = 7000 + 2 * (index % 12_000) as u16;
    [first, first + 1]
}

/// A client about to be run.
struct Client<'a> {
    lab: &'a Lab,
    road: &'a Road,
    case: &'a Case,
    template: &'a str,
    read: Reader,
    seconds: f64,
}

/// Waits until a server listens, at a path where there is one.
fn wait_until_it_listens(
    server: &mut Program,
    name: &str,
    path: Option<&Path>,
    port: u16,
) -> Result<()> {
    let listens = |server: &Program| match path {
        Some(path) => lab::is_socket(path),
        None => lab::listens(server.pid(), port),
    };
    let waited = server.wait_until(SERVER_LIMIT, listens);
    waited.with_context(|| match path {
        Some(path) => format!("{name} has to listen at {}", path.display()),
        None => format!("{name} has to listen at port {port}"),
    })
}

/// Starts a client, and tells its command line.
fn start_client(
    lab: &Lab,
    road: &Road,
    template: &str,
    words: &BTreeMap<String, String>,
) -> Result<(Program, String)> {
    let command = lab.command(road, End::Client, template, words)?;
    let line = lab::line_of(&command);
    let output = Path::new(&words["dir"]).join("client.txt");
    Ok((Program::start(&line, command, output)?, line))
}

impl Client<'_> {
    /// Runs it to its end; looks now and then at the processors, and at what its connections have carried, where there is an agent to ask.
    fn run(
        &self,
        words: &BTreeMap<String, String>,
        looks: Option<(&mut Watch, &mut Carried)>,
    ) -> Result<Ran> {
        self.clear_for_device(words);
        let (mut program, line) = start_client(self.lab, self.road, self.template, words)?;
        let device = self.start_device(words, &mut program)?;
        let begun = Instant::now();
        // A device may have to be told of a million bearers first.
        let start = if self.road.device.is_some() {
            60.0
        } else {
            20.0
        };
        let limit = Duration::from_secs_f64(start + 10.0 * self.seconds);
        if let Some((watch, carried)) = looks {
            let agent = self.lab.socket(self.road);
            let pause = Duration::from_secs_f64(self.seconds / LOOKS);
            while begun.elapsed() < limit && program.wait(pause)?.is_none() {
                watch.look();
                if self.road.accelerated {
                    // An agent that does not answer leaves the share unknown, which is told.
                    let _ = carried.look(&agent);
                }
            }
        }
        let limit = limit.saturating_sub(begun.elapsed());
        let (text, exit) = device::explained(program.finish(limit), device.as_ref())?;
        let reading = readers::read(self.read, &text).with_context(|| line.clone())?;
        Ok(Ran {
            reading,
            exit,
            line,
            device: device.map(|(device, line)| (line, device.processor())),
        })
    }

    /// Starts what runs beside the pair; it ends when it is dropped.
    fn start_beside(
        &self,
        words: &BTreeMap<String, String>,
        lines: &mut BTreeMap<String, String>,
    ) -> Result<Vec<Program>> {
        let mut programs = Vec::new();
        for (index, beside) in self.case.beside.iter().enumerate() {
            let name = format!("beside {}", index + 1);
            let command = self
                .lab
                .command(self.road, beside.end, &beside.command, words)?;
            let line = lab::line_of(&command);
            let output = Path::new(&words["dir"]).join(format!("{name}.txt"));
            programs.push(Program::start(&line, command, output)?);
            lines.insert(name, line);
        }
        Ok(programs)
    }

    /// A number of operations that take as long as a trial, where the client is told one. Its pace is found if it is not known.
    fn set_count(&self, words: &mut BTreeMap<String, String>, pace: Option<f64>) -> Result<()> {
        if self.template.contains("{count}") {
            let pace = match pace {
                Some(pace) => pace,
                None => self.find_pace(words)?,
            };
            let count = FIRST_COUNT.max((pace * self.seconds) as u64);
            words.insert("count".to_owned(), count.to_string());
        }
        Ok(())
    }

    /// Operations in a second, by attempts of growing length.
    fn find_pace(&self, words: &mut BTreeMap<String, String>) -> Result<f64> {
        let mut count = FIRST_COUNT;
        loop {
            words.insert("count".to_owned(), count.to_string());
            let begun = Instant::now();
            let Ran { reading, .. } = self.run(words, None)?;
            let seconds = begun.elapsed().as_secs_f64();
            if seconds >= PACE_SECONDS {
                return Ok(reading.operations / seconds);
            }
            count *= 5;
            ensure!(
                count <= COUNT_MAX,
                "the client is done within {PACE_SECONDS} s however large {{count}} is: it has to do so many operations"
            );
        }
    }
}

/// Where they are, below the results.
pub(crate) const RAW: &str = "raw";

/// Files that a client may leave beside the results.
struct Raw<'a> {
    results: &'a Path,
    names: [String; 2],
}

impl<'a> Raw<'a> {
    fn of(name: &str, results: &'a Path, words: &mut BTreeMap<String, String>) -> Result<Raw<'a>> {
        let names = [
            format!("{RAW}/{name}.hdr"),
            format!("{RAW}/{name}.trace.gz"),
        ];
        fs::create_dir_all(results.join(RAW))?;
        let [histogram, trace] = [&names[0], &names[1]].map(|name| path_of(results, name));
        let histogram = histogram?;
        let record = [
            "--time",
            &words["seconds"],
            "--json",
            "--histogram",
            &histogram,
            "--trace",
            &trace?,
        ];
        words.insert("record".to_owned(), shlex::try_join(record)?);
        let quoted = shlex::try_quote(&histogram)?.into_owned();
        words.insert("histogram".to_owned(), quoted);
        Ok(Raw { results, names })
    }

    /// Those that it has left.
    fn found(self) -> (Option<String>, Option<String>) {
        let results = self.results;
        let found = |name: String| Some(name).filter(|name| results.join(name).exists());
        let [histogram, trace] = self.names.map(found);
        (histogram, trace)
    }
}

fn spent(server: Times, client: Times, seen: &Seen) -> Processor {
    Processor {
        server_user_s: server.user.as_secs_f64(),
        server_system_s: server.system.as_secs_f64(),
        client_user_s: client.user.as_secs_f64(),
        client_system_s: client.system.as_secs_f64(),
        softirq_s: seen.work.softirq_s,
        steal_s: seen.work.steal_s,
        busy_s: seen.work.busy_s,
        others_s: seen.others_s,
        line_ns: seen.line_ns,
        megahertz: seen.megahertz,
        slowed_for_heat: seen.slowed_for_heat,
    }
}

/// Clients may run elsewhere.
fn path_of(results: &Path, relative: &str) -> Result<String> {
    let path = fs::canonicalize(results)?.join(relative);
    Ok(path.display().to_string())
}

fn latency(reading: &Reading) -> Option<Latency> {
    let told = &reading.latency;
    let percentiles = [
        (50.0, told.p50),
        (95.0, told.p95),
        (99.0, told.p99),
        (99.9, told.p999),
    ];
    let percentiles: Vec<(f64, u64)> = percentiles
        .into_iter()
        .filter(|(percentile, _)| is_carried_in_trial(reading.operations as u64, *percentile))
        .filter_map(|(percentile, ns)| Some((percentile, ns?.round() as u64)))
        .collect();
    let whole = |ns: Option<f64>| ns.map_or(0, |ns| ns.round() as u64);
    let few = (!percentiles.is_empty()).then(|| Latency {
        count: reading.operations as u64,
        min_ns: whole(told.min),
        max_ns: whole(told.max),
        mean_ns: told.mean.unwrap_or_default(),
        deviation_ns: 0.0,
        percentiles,
    });
    reading.whole_latency.clone().or(few)
}
