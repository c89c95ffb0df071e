//! What a whole series of measurements shares: the built programs, an agent of its own, the processors.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_bench::carried::Carried;
use millrace_bench::machine;
use millrace_bench::process::Program;

use super::scenario::Road;
use super::scratch::Scratch;

const LIBRARY: &str = "libmillrace_preload.so";

/// The lab. Dropping it stops the agent and removes every file.
pub(crate) struct Lab {
    agent: Option<Program>,
    /// Of the server, and of the client.
    pub(crate) processors: [usize; 2],
    scratch: Scratch,
}

impl Lab {
    /// Copies the programs to where every user can read them, and starts an agent that no other
    /// program uses; builds them before, when `with_millrace`.
    pub(crate) fn open(with_millrace: bool) -> Result<Self> {
        let scratch = Scratch::new("xtask")?;
        let allowed = machine::allowed_processors();
        let first = allowed.first().copied().unwrap_or(0);
        let second = allowed.get(1).copied().unwrap_or(first);
        if first == second {
            eprintln!("Only one processor may be used: server and client share it.");
        }
        let mut lab = Self {
            agent: None,
            processors: [first, second],
            scratch,
        };
        fs::copy(env::current_exe()?, lab.helper()).context("cannot copy the helper")?;
        if with_millrace {
            lab.build()?;
            lab.start_agent()?;
        }
        Ok(lab)
    }

    /// A directory of its own for a scenario.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.path().join(name);
        fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }

    /// The agent, when any workload needs one.
    pub(crate) fn agent(&self) -> Option<&Program> {
        self.agent.as_ref()
    }

    /// The share of bytes that went through shared memory, of all connections with a server's port; `None`
    /// when there are none.
    pub(crate) fn ring_share(&self, port: u16) -> Result<Option<f64>> {
        let mut carried = Carried::at(&[port]);
        carried.look(&self.socket())?;
        Ok(carried.ring_share())
    }

    /// Our own load generators.
    pub(crate) fn helper(&self) -> PathBuf {
        self.scratch.path().join("helper")
    }

    /// The preload library.
    pub(crate) fn library(&self) -> PathBuf {
        self.scratch.path().join(LIBRARY)
    }

    /// A command that runs `program` on a road.
    pub(crate) fn command(&self, road: Road, processor: usize, program: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(processor.to_string());
        self.set_road(&mut command, road);
        if road == Road::Millrace {
            command.arg(self.millrace()).args(["run", "--"]);
        }
        command.arg(program);
        command
    }

    /// Makes the environment that of a road, whatever our own is.
    pub(crate) fn set_road(&self, command: &mut Command, road: Road) {
        for name in [
            "LD_PRELOAD",
            "MILLRACE",
            "MILLRACE_MODE",
            "MILLRACE_SPIN_US",
        ] {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C");
        match road {
            Road::Kernel => command.env_remove("MILLRACE_AGENT"),
            Road::Millrace => command.env("MILLRACE_AGENT", self.socket()),
        };
    }

    fn millrace(&self) -> PathBuf {
        self.scratch.path().join("millrace")
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("agent.sock")
    }

    fn build(&self) -> Result<()> {
        eprintln!("Building Millrace");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--release", "--package", "millrace-cli"]);
        command.args(["--package", "millrace-preload"]);
        let status = command.status().context("cannot start cargo")?;
        ensure!(status.success(), "cargo build failed");
        // The helper is in the directory `xtask` of cargo's target directory.
        let helper = env::current_exe()?;
        let target = helper
            .parent()
            .and_then(Path::parent)
            .context("the helper has no place")?;
        for (name, copy) in [("millrace", self.millrace()), (LIBRARY, self.library())] {
            let built = target.join("release").join(name);
            fs::copy(&built, copy).with_context(|| format!("cannot copy {}", built.display()))?;
        }
        Ok(())
    }

    fn start_agent(&mut self) -> Result<()> {
        let mut command = Command::new(self.millrace());
        // An empty configuration is the default one, whatever this machine's is.
        let configuration = self.scratch.path().join("agent.toml");
        fs::write(&configuration, "")?;
        command
            .args(["agent", "--log", "warn", "--socket"])
            .arg(self.socket());
        command.arg("--config").arg(configuration);
        let mut agent = Program::start(
            "millrace agent",
            command,
            self.scratch.path().join("agent.txt"),
        )?;
        let socket = self.socket();
        agent.wait_until(Duration::from_secs(10), |_| socket.exists())?;
        self.agent = Some(agent);
        Ok(())
    }
}
