//! What the trials of a run share: the roads, set up; an agent of our own; processors; a directory.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::isolate;
use crate::machine;
use crate::process::{Memory, Program};
use crate::programs;
use crate::readers::WRK_SCRIPT;
use crate::roads::Road;
use crate::scenario::{End, fill};
use crate::sockmap::{Messages, Sockmap};
use crate::sys;

const AGENT_LIMIT: Duration = Duration::from_secs(10);
/// A command that sets up a road, or lets it rest, is done by then on a busy machine, too.
const SET_UP_LIMIT: Duration = Duration::from_secs(120);

/// The lab. Dropping it stops the agents; namespaces and files go with the last process.
pub(crate) struct Lab {
    /// One for all roads of a build; in a user namespace, where it can look into no other network namespace, one in that of each road.
    /// By their sockets.
    agents: BTreeMap<PathBuf, Agent>,
    is_one_for_all: bool,
    processors: Option<[usize; 2]>,
    millrace: PathBuf,
    /// By the names of the roads that have one.
    sockmaps: BTreeMap<String, Sockmap>,
}

struct Agent {
    program: Program,
    /// Before it had a client.
    memory: Memory,
}

/// Which processors the two ends get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Two that may be used, of different cores if there are.
    Auto,
    /// None in particular.
    Free,
    /// These, of the server and of the client.
    Named([usize; 2]),
}

impl std::str::FromStr for Pinning {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Pinning> {
        let number = |word: &str| word.trim().parse::<usize>().ok();
        match text {
            "auto" => Ok(Pinning::Auto),
            "none" => Ok(Pinning::Free),
            _ => {
                let pair = text
                    .split_once(',')
                    .and_then(|(a, b)| Some([number(a)?, number(b)?]));
                pair.map(Pinning::Named).with_context(|| {
                    format!("auto, none, or two processors as 0,1, and not {text}")
                })
            }
        }
    }
}

impl std::fmt::Display for Pinning {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pinning::Auto => formatter.write_str("auto"),
            Pinning::Free => formatter.write_str("none"),
            Pinning::Named([server, client]) => write!(formatter, "{server},{client}"),
        }
    }
}

impl Pinning {
    /// The processors of server and client. None: they are free.
    ///
    /// # Errors
    /// They may not be used here.
    pub fn processors(self) -> Result<Option<[usize; 2]>> {
        let allowed = machine::allowed_processors();
        match self {
            Pinning::Free => Ok(None),
            Pinning::Auto => Ok(machine::two_processors()),
            Pinning::Named(named) => {
                for processor in named {
                    ensure!(
                        allowed.contains(&processor),
                        "processor {processor} may not be used here; these may: {allowed:?}"
                    );
                }
                Ok(Some(named))
            }
        }
    }
}

impl Lab {
    /// Sets the roads up. One that cannot be is taken out of them, and told in `left_out`.
    pub(crate) fn open(
        roads: &mut Vec<Road>,
        left_out: &mut Vec<String>,
        processors: Option<[usize; 2]>,
    ) -> Result<Lab> {
        let mut lab = Lab {
            agents: BTreeMap::new(),
            is_one_for_all: isolate::is_root_of_the_machine(),
            processors,
            millrace: env::current_exe()?,
            sockmaps: BTreeMap::new(),
        };
        // Why the namespaces of a base are not there, if they are not.
        let mut bases: BTreeMap<String, Option<String>> = BTreeMap::new();
        let told = |error: anyhow::Error| format!("{error:#}");
        let words = lab.words();
        roads.retain(|road| {
            let base = bases.entry(road.base.clone());
            let base = base.or_insert_with(|| set_up(road, &words).err().map(told));
            let why = base.clone().or_else(|| lab.equip(road).err().map(told));
            let why = why.or_else(|| rest(road).err().map(told));
            left_out.extend(why.iter().map(|why| road.left_out(why)));
            why.is_none()
        });
        ensure!(!sys::interrupted(), "interrupted");
        fs::write(wrk_script(), WRK_SCRIPT)?;
        Ok(lab)
    }

    /// What a road needs beside its namespaces.
    fn equip(&mut self, road: &Road) -> Result<()> {
        if road.sockmap {
            let namespace = Path::new(isolate::NAMES).join(&road.server);
            let sockmap = Sockmap::of_namespace(&namespace)?;
            self.sockmaps.insert(road.name.clone(), sockmap);
        }
        if (road.accelerated || road.agent) && !self.agents.contains_key(&self.socket(road)) {
            self.start_agent(road)?;
        }
        Ok(())
    }

    /// The processors of server and client, if they are pinned.
    pub(crate) fn processors(&self) -> Option<[usize; 2]> {
        self.processors
    }

    /// A directory for one server, of its own.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = Path::new(isolate::FILES).join(name);
        fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }

    /// What has been sent on a road that is spliced. None: it is not.
    pub(crate) fn messages(&self, road: &Road) -> Result<Option<Messages>> {
        let sockmap = self.sockmaps.get(&road.name);
        sockmap.map(Sockmap::messages).transpose()
    }

    /// The agent of a road that has one, and the memory that it had in the beginning.
    pub(crate) fn agent(&self, road: &Road) -> Option<(&Program, Memory)> {
        let agent = self.agents.get(&self.socket(road));
        let agent = agent.filter(|_| road.accelerated || road.agent)?;
        Some((&agent.program, agent.memory))
    }

    /// Words that every command may have.
    pub(crate) fn words(&self) -> BTreeMap<String, String> {
        let peers = programs::peers().unwrap_or_default();
        let softrss = programs::find_program(programs::SOFTRSS).unwrap_or_default();
        let allowed = machine::allowed_processors();
        let free = allowed.first().copied().unwrap_or_default();
        let other = allowed.get(1).copied().unwrap_or(free);
        let [processor, of_client] = self.processors.unwrap_or([free, other]);
        BTreeMap::from([
            ("millrace".to_owned(), self.millrace.display().to_string()),
            ("wrk_script".to_owned(), wrk_script().display().to_string()),
            ("peers".to_owned(), peers.display().to_string()),
            ("softrss".to_owned(), softrss.display().to_string()),
            ("processor".to_owned(), processor.to_string()),
            ("client_processor".to_owned(), of_client.to_string()),
        ])
    }

    /// How a program of one end of a road is started.
    pub(crate) fn command(
        &self,
        road: &Road,
        end: End,
        template: &str,
        words: &BTreeMap<String, String>,
    ) -> Result<Command> {
        let line = fill(template, words);
        let program =
            shlex::split(&line).with_context(|| format!("quotes do not match: {line}"))?;
        let (namespace, index) = match end {
            End::Server => (&road.server, 0),
            End::Client => (&road.client, 1),
        };
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}/{namespace}", isolate::NAMES))
            .arg("--");
        if let Some(processors) = self.processors {
            command.args(["taskset", "-c", &processors[index].to_string()]);
        }
        for name in [
            "LD_PRELOAD",
            "MILLRACE",
            "MILLRACE_MODE",
            "MILLRACE_SPIN_US",
            "MILLRACE_AGENT",
        ] {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C");
        if road.accelerated || road.agent {
            command.env("MILLRACE_AGENT", self.socket(road));
        }
        if road.accelerated {
            if let Some(build) = &road.build {
                command.env("MILLRACE_LIBRARY", &build.library);
            }
            command.arg(self.carrier(road)).args(["run", "--"]);
        }
        if let Some(by) = &road.run_by {
            command.args(shlex::split(by).with_context(|| format!("quotes do not match: {by}"))?);
        }
        command.args(program);
        Ok(command)
    }

    /// Where the agent of a road is.
    pub(crate) fn socket(&self, road: &Road) -> PathBuf {
        let place = (!self.is_one_for_all).then_some(road.base.as_str());
        let build = road.build.as_ref().map(|build| build.name.as_str());
        let words: Vec<&str> = ["agent"].into_iter().chain(place).chain(build).collect();
        Path::new(isolate::FILES).join(format!("{}.sock", words.join("-")))
    }

    /// The `millrace` program of a road.
    fn carrier<'a>(&'a self, road: &'a Road) -> &'a Path {
        road.build
            .as_ref()
            .map_or(&self.millrace, |build| &build.program)
    }

    fn start_agent(&mut self, road: &Road) -> Result<()> {
        // An empty configuration is the default one, whatever this machine's is.
        let configuration = Path::new(isolate::FILES).join("agent.toml");
        fs::write(&configuration, "")?;
        let mut command = Command::new("nsenter");
        if !self.is_one_for_all {
            command.arg(format!("--net={}/{}", isolate::NAMES, road.server));
        }
        let socket = self.socket(road);
        command.arg("--").arg(self.carrier(road));
        command
            .args(["agent", "--log", "warn", "--socket"])
            .arg(&socket);
        command.arg("--config").arg(configuration);
        let output = socket.with_extension("txt");
        let name = format!("{} agent", self.carrier(road).display());
        let mut agent = Program::start(&name, command, output)?;
        agent.wait_until(AGENT_LIMIT, |_| socket.exists())?;
        let memory = agent.memory();
        self.agents.insert(
            socket,
            Agent {
                memory,
                program: agent,
            },
        );
        Ok(())
    }
}

fn wrk_script() -> PathBuf {
    Path::new(isolate::FILES).join("result.lua")
}

/// A command line, as a person would type it.
pub(crate) fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

fn set_up(road: &Road, words: &BTreeMap<String, String>) -> Result<()> {
    let mut lines = road.set_up.iter();
    lines.try_for_each(|line| perform(&fill(line, words)).context("it cannot be set up"))
}

/// Stops what a road does while nobody is on it: it would take processor time from the others, with which it takes turns.
pub(crate) fn rest(road: &Road) -> Result<()> {
    road.rest.as_deref().map_or(Ok(()), perform)
}

/// Lets it go on.
pub(crate) fn wake(road: &Road) -> Result<()> {
    road.wake.as_deref().map_or(Ok(()), perform)
}

/// Runs a command to its end. An interrupt ends it, and so does its limit: it may wait for what does not come.
fn perform(line: &str) -> Result<()> {
    perform_within(line, SET_UP_LIMIT, Path::new(isolate::FILES))
}

/// The same, with what it prints in a directory.
fn perform_within(line: &str, limit: Duration, directory: &Path) -> Result<()> {
    let words = shlex::split(line).unwrap_or_default();
    let (program, arguments) = words.split_first().context("an empty command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let mut running = Program::start(program, command, directory.join("set-up.txt"))?;
    let exit = running.wait(limit)?;
    let exit = exit.with_context(|| format!("{line}: not done in {} s", limit.as_secs()))?;
    ensure!(exit.success, "{line}: {}", running.output().trim());
    Ok(())
}

/// Whether something listens on a port, in the network namespace of a process.
pub(crate) fn listens(pid: i32, port: u16) -> bool {
    let listens = |family: &str| {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{family}")).unwrap_or_default();
        // proc_pid_net(5): local address and state, which is 0A for a listener, are the second and the fourth word.
        table.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().take(4).collect();
            words.len() == 4 && words[3] == "0A" && words[1].ends_with(&format!(":{port:04X}"))
        })
    };
    listens("tcp") || listens("tcp6")
}

/// Whether a Unix socket is there.
pub(crate) fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_sets_up_a_road_and_does_not_end_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let perform = |line: &str, limit: u64| {
            let limit = Duration::from_secs(limit);
            let done = perform_within(line, limit, directory.path());
            done.map_err(|error| format!("{error:#}"))
        };
        assert_eq!(perform("true", 60), Ok(()));
        let number = directory.path().join("number");
        let line = format!("sh -c 'echo $$ > {}; exec sleep 60'", number.display());
        let late = perform(&line, 2).unwrap_err();
        assert!(late.ends_with(": not done in 2 s"), "{late}");
        let number = fs::read_to_string(number).unwrap();
        assert!(!Path::new("/proc").join(number.trim()).exists());
        let refused = perform("sh -c 'echo no >&2; exit 2'", 60).unwrap_err();
        assert!(refused.ends_with(": no"), "{refused}");
    }
}
