//! The Debian packages that a command needs, and their installation.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use millrace_bench::programs::find_program;
use millrace_bench::sys;

/// One package a line: name, a program it brings, who needs it. `.ci/run` reads the same file.
const LIST: &str = include_str!("../debian-packages.txt");

/// Installs what `user` (a word of the list's third column) needs and this machine has not.
pub(crate) fn install_missing(user: &str) -> Result<()> {
    let missing: Vec<(&str, &str)> = needed_by(user)
        .filter(|(_, program)| find_program(program).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(package, _)| *package).collect();
    let list = packages.join(" ");
    ensure!(
        find_program("apt-get").is_some(),
        "these programs are missing, and there is no apt-get to install them with: {}\n\
         Install them (on Debian the packages are: {list}) and run this again.",
        missing
            .iter()
            .map(|(_, program)| *program)
            .collect::<Vec<_>>()
            .join(" "),
    );
    eprintln!("Installing {list}");
    apt_get(&["update", "-qq"])?;
    let mut words = vec!["install", "-qq", "-y", "--no-install-recommends"];
    words.extend(packages);
    apt_get(&words)
}

fn apt_get(words: &[&str]) -> Result<()> {
    let mut command = if sys::effective_user() == 0 {
        Command::new("apt-get")
    } else if find_program("sudo").is_some() {
        let mut sudo = Command::new("sudo");
        sudo.args(["--preserve-env=DEBIAN_FRONTEND,RUNLEVEL", "apt-get"]);
        sudo
    } else {
        bail!(
            "apt-get needs root, and there is no sudo: run as root: apt-get {}",
            words.join(" ")
        );
    };
    command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
    // Where this is heeded, the services of the packages are not started.
    command.env("RUNLEVEL", "1");
    // What apt has to say belongs to the progress.
    command.stdout(std::io::stderr());
    let status = command.status().context("cannot start apt-get")?;
    ensure!(status.success(), "apt-get {} failed", words.join(" "));
    Ok(())
}

/// Package and program of every line whose third column has `user`.
fn needed_by(user: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    LIST.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(move |line| {
            let mut words = line.split_whitespace();
            let (package, program, users) = (words.next()?, words.next()?, words.next()?);
            users
                .split(',')
                .any(|each| each == user)
                .then_some((package, program))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_has_three_columns() {
        for line in LIST
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
        {
            assert_eq!(line.split_whitespace().count(), 3, "{line}");
        }
    }

    #[test]
    fn the_demo_needs_redis_and_no_database() {
        let demo: Vec<_> = needed_by("demo").map(|(package, _)| package).collect();
        assert!(demo.contains(&"redis-server"));
        assert!(!demo.contains(&"postgresql"));
    }
}
