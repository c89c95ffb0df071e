//! What measurements share: the built programs where every user can read them, and a directory.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use millrace_bench::results::Results;
use millrace_bench::{machine, sys};

use super::rows::{KERNEL, MILLRACE};
use super::scratch::Scratch;

const LIBRARY: &str = "libmillrace_preload.so";
/// As shells have it.
const INTERRUPTED: i32 = 130;

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) repeats: u32,
    /// Length of a trial.
    pub(crate) seconds: u32,
}

/// The lab. Dropping it removes every file.
pub(crate) struct Lab {
    pub(super) scratch: Scratch,
    /// Of the server, and of the client.
    pub(super) processors: [usize; 2],
}

impl Lab {
    /// Builds Millrace and copies it.
    pub(crate) fn open() -> Result<Self> {
        let only = machine::allowed_processors().first().copied().unwrap_or(0);
        let lab = Self {
            scratch: Scratch::new("xtask")?,
            processors: machine::two_processors().unwrap_or([only, only]),
        };
        eprintln!("Building Millrace");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--release", "--package", "millrace-cli"]);
        command.args(["--package", "millrace-preload"]);
        let status = command.status().context("cannot start cargo")?;
        ensure!(status.success(), "cargo build failed");
        // This program is in the directory `xtask` of cargo's target directory.
        let this = env::current_exe()?;
        let target = this.parent().and_then(Path::parent);
        let target = target.context("this program has no place")?;
        for (name, copy) in [("millrace", lab.millrace()), (LIBRARY, lab.library())] {
            let built = target.join("release").join(name);
            fs::copy(&built, copy).with_context(|| format!("cannot copy {}", built.display()))?;
        }
        Ok(lab)
    }

    /// Runs scenarios by `millrace bench run` on both roads; what there is already in `out` of the same plan is not measured again.
    pub(crate) fn run(
        &self,
        files: &[PathBuf],
        plan: Plan,
        more: &[&str],
        out: &Path,
    ) -> Result<Results> {
        let mut command = Command::new(self.millrace());
        command.args(["bench", "run"]).args(files);
        command.args(["--roads", &format!("{KERNEL},{MILLRACE}")]);
        command.args(["--repeat", &plan.repeats.to_string()]);
        command.args(["--time", &plan.seconds.to_string()]);
        command.args(more).arg("--out").arg(out);
        sys::die_with_parent(&mut command, libc::SIGTERM);
        let child = command.stdout(Stdio::piped()).spawn();
        let output = child.context("cannot start millrace")?.wait_with_output()?;
        ensure!(
            !sys::interrupted() && output.status.code() != Some(INTERRUPTED),
            "interrupted"
        );
        // Trials that failed are told in the results.
        let told = String::from_utf8_lossy(&output.stdout);
        ensure!(told.contains("Results: "), "millrace bench run failed");
        Results::read(out)
    }

    /// A directory that goes with the lab.
    pub(super) fn directory(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// The `millrace` program.
    pub(super) fn millrace(&self) -> PathBuf {
        self.scratch.path().join("millrace")
    }

    /// The preload library.
    pub(super) fn library(&self) -> PathBuf {
        self.scratch.path().join(LIBRARY)
    }
}
