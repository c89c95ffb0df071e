//! Where one run happens: a directory, a port, two processors, a road; and the programs started there.

use std::cell::Cell;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_bench::process::Program;
use millrace_bench::programs::find_program;
use millrace_bench::sys;

use super::lab::Lab;
use super::measure::Plan;
use super::scenario::{Beside, Placement, Road, Scenario, Side};

/// How long a server may take until it listens, and idle connections until they are made.
const START_LIMIT: Duration = Duration::from_secs(120);

/// One side of a scenario, about to be measured.
pub(crate) struct Site<'a> {
    pub(crate) lab: &'a Lab,
    side: &'a Side,
    pub(crate) road: Road,
    pub(crate) dir: PathBuf,
    pub(crate) port: u16,
    pub(crate) seconds: u64,
    processors: [usize; 2],
    user: Option<User>,
    /// How many programs were started: each has an output file of its own.
    started: Cell<usize>,
}

/// The two ends; each has a processor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Server,
    Client,
}

struct User {
    number: u32,
    group: u32,
}

impl<'a> Site<'a> {
    pub(crate) fn new(
        lab: &'a Lab,
        scenario: &'a Scenario,
        side: usize,
        plan: Plan,
    ) -> Result<Self> {
        let [server, client] = lab.processors;
        let processors = match scenario.placement {
            Placement::Apart => [server, client],
            Placement::Together => [server, server],
        };
        let dir = lab.directory(scenario.name)?;
        let user = scenario.server.user.filter(|_| sys::effective_user() == 0);
        let user = user.map(find_user).transpose()?;
        if let Some(user) = &user {
            std::os::unix::fs::chown(&dir, Some(user.number), Some(user.group))?;
        }
        let road = plan
            .roads
            .map_or(scenario.sides[side].road, |roads| roads[side]);
        Ok(Self {
            lab,
            side: &scenario.sides[side],
            road,
            dir,
            port: free_port()?,
            seconds: plan.seconds,
            processors,
            user,
            started: Cell::default(),
        })
    }

    /// Starts the scenario's server and what runs beside it; the programs end when they are dropped.
    pub(crate) fn start_server(&self, scenario: &Scenario) -> Result<Vec<Program>> {
        let mut programs = Vec::new();
        if !scenario.server.command.is_empty() {
            (scenario.server.prepare)(self)?;
            programs.push(self.serve(scenario.server.command)?);
        }
        for beside in self.side.beside {
            match beside {
                Beside::Hogs => {
                    programs.push(self.start(End::Server, "{helper} load hog", 0)?);
                    programs.push(self.start(End::Client, "{helper} load hog", 0)?);
                }
                Beside::Idle(connections) => programs.push(self.open_idle(*connections)?),
            }
        }
        Ok(programs)
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn serve(&self, template: &str) -> Result<Program> {
        let mut command = self.command(End::Server, template, 0)?;
        if let Some(user) = &self.user {
            command.uid(user.number).gid(user.group);
        }
        let mut server = Program::start(template, command, self.dir.join("server.txt"))?;
        server.wait_until(START_LIMIT, |_| listens(self.port))?;
        Ok(server)
    }

    /// Opens connections to the server that talk a little and then keep silent.
    pub(crate) fn open_idle(&self, connections: usize) -> Result<Program> {
        let words = format!("{{helper}} load idle --port {{port}} --connections {connections}");
        let mut idle = self.start(End::Client, &words, 0)?;
        idle.wait_until(START_LIMIT, |program| program.output().contains("ready"))?;
        Ok(idle)
    }

    /// Starts a program at one end; `count` is for the commands that are told how much to do.
    pub(crate) fn start(&self, end: End, template: &str, count: u64) -> Result<Program> {
        let command = self.command(end, template, count)?;
        let number = self.started.get();
        self.started.set(number + 1);
        Program::start(template, command, self.dir.join(format!("{number}.txt")))
    }

    /// Runs a program of the server's user, outside of the measurement, to its end.
    pub(crate) fn run_as_user(&self, template: &str) -> Result<()> {
        let words = self.fill(template, 0);
        let mut command = Command::new(program_of(&words)?);
        command
            .args(&words[1..])
            .current_dir(&self.dir)
            .env("LC_ALL", "C");
        if let Some(user) = &self.user {
            command.uid(user.number).gid(user.group);
        }
        Program::start(template, command, self.dir.join("prepare.txt"))?.finish(START_LIMIT)?;
        Ok(())
    }

    /// The share of the connections' bytes that went through shared memory; `None` on the kernel's road.
    pub(crate) fn ring_share(&self) -> Result<Option<f64>> {
        match self.road {
            Road::Kernel => Ok(None),
            Road::Millrace => self.lab.ring_share(self.port),
        }
    }

    fn command(&self, end: End, template: &str, count: u64) -> Result<Command> {
        let words = self.fill(template, count);
        let [server, client] = self.processors;
        let processor = match end {
            End::Server => server,
            End::Client => client,
        };
        let mut command = self.lab.command(self.road, processor, &program_of(&words)?);
        command.args(&words[1..]).current_dir(&self.dir);
        Ok(command)
    }

    /// The words of a command, its parameters filled in.
    fn fill(&self, template: &str, count: u64) -> Vec<String> {
        let text = template
            .replace("{port}", &self.port.to_string())
            .replace("{dir}", &self.dir.to_string_lossy())
            .replace("{helper}", &self.lab.helper().to_string_lossy())
            .replace("{seconds}", &self.seconds.to_string())
            .replace("{count}", &count.to_string())
            .replace("{extra}", self.side.extra);
        split_words(&text)
    }
}

fn program_of(words: &[String]) -> Result<PathBuf> {
    let name = words.first().context("an empty command")?;
    if Path::new(name).is_absolute() {
        return Ok(name.into());
    }
    find_program(name).with_context(|| format!("{name} is not installed"))
}

/// Splits at spaces; single quotes hold words together, as in a shell.
fn split_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// A port of 127.0.0.1 that nobody has now.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Whether somebody listens on a port: looked up, because some servers take a trial connection for a
/// client.
fn listens(port: u16) -> bool {
    let listening = format!("0100007F:{port:04X} 00000000:0000 0A");
    fs::read_to_string("/proc/net/tcp").is_ok_and(|table| table.contains(&listening))
}

fn find_user(name: &str) -> Result<User> {
    let users = fs::read_to_string("/etc/passwd")?;
    let line = users
        .lines()
        .find(|line| line.split(':').next() == Some(name));
    let line = line.with_context(|| format!("this machine has no user {name}"))?;
    let fields: Vec<&str> = line.split(':').collect();
    ensure!(
        fields.len() == 7,
        "/etc/passwd has a line of another form: {line}"
    );
    Ok(User {
        number: fields[2].parse()?,
        group: fields[3].parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_words_together_and_make_empty_ones() {
        assert_eq!(
            split_words("a --save '' -H 'B: c'  d"),
            ["a", "--save", "", "-H", "B: c", "d"]
        );
    }

    #[test]
    fn a_listener_is_seen_without_connecting_to_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(port));
        drop(listener);
        assert!(!listens(port));
    }
}
