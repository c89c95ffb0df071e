//! Builds of Millrace that are held against each other: each carries every road of a run, with an agent of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use flate2::Crc;
use serde::{Deserialize, Serialize};

use crate::isolate;
use crate::roads::Road;

/// The program's file.
const PROGRAM: &str = "millrace";
/// Where it is in a directory that somebody names: one of cargo's, an installation's prefix, a checkout.
const PLACES: &[&str] = &["", "bin", "target/release"];

/// A build of Millrace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// As `A`.
    pub name: String,
    /// The `millrace` program.
    pub program: PathBuf,
    /// The library that it puts into other programs.
    pub library: PathBuf,
    /// What the program says that it is.
    pub version: String,
    /// CRC-32 of the program and of the library: whether it is still the same build.
    pub checksums: [String; 2],
}

impl Build {
    /// The build that is called `name`, of a program and its library.
    ///
    /// # Errors
    /// They are no such program and no such library, or a run could not see them.
    pub fn new(name: &str, program: PathBuf, library: PathBuf) -> Result<Build> {
        for path in [&program, &library] {
            ensure!(
                !isolate::is_hidden(path),
                "{} cannot be measured there: a run has a /run of its own. Copy the build to another directory",
                path.display()
            );
        }
        Ok(Build {
            name: name.to_owned(),
            version: version(&program)?,
            checksums: [checksum(&program)?, checksum(&library)?],
            program,
            library,
        })
    }

    /// Whether another one is made of the same bytes.
    #[must_use]
    pub fn is_same_as(&self, other: &Build) -> bool {
        self.checksums == other.checksums
    }

    /// The name of a road of Millrace by this build.
    #[must_use]
    pub fn name_of(&self, road: &str) -> String {
        format!("{road}-{}", self.name)
    }

    /// The road of Millrace of which this one is by this build.
    #[must_use]
    pub fn road_of<'a>(&self, name: &'a str) -> &'a str {
        let road = name.strip_suffix(&self.name);
        road.and_then(|road| road.strip_suffix('-')).unwrap_or(name)
    }
}

/// The `millrace` program that somebody means: itself, or the one of a directory.
///
/// # Errors
/// There is none.
pub fn program_in(place: &Path) -> Result<PathBuf> {
    let candidates: Vec<PathBuf> = if place.is_dir() {
        let below = PLACES.iter().map(|part| place.join(part).join(PROGRAM));
        below.collect()
    } else {
        vec![place.to_owned()]
    };
    let Some(found) = candidates.iter().find(|path| path.is_file()) else {
        let looked: Vec<String> = candidates
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        bail!("there is no program at {}", looked.join(" or "));
    };
    // Where it is by all links is where it looks for its library.
    fs::canonicalize(found).with_context(|| format!("cannot find {}", found.display()))
}

/// Each of these roads by each of these builds, in turn.
///
/// # Errors
/// One of them is none of Millrace.
pub fn roads(roads: &[Road], builds: &[Build; 2]) -> Result<Vec<Road>> {
    let mut found = Vec::new();
    for road in roads {
        ensure!(
            road.accelerated,
            "the road {} is the same with every build; name roads of Millrace, as millrace-loopback",
            road.name
        );
        for build in builds {
            found.push(Road {
                name: build.name_of(&road.name),
                about: format!("{}, build {}", road.about, build.name),
                build: Some(build.clone()),
                ..road.clone()
            });
        }
    }
    Ok(found)
}

/// What a program of Millrace says of itself.
fn version(program: &Path) -> Result<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let told = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success() && told.starts_with("millrace "),
        "{} is no build of Millrace: with --version it does not say that it is",
        program.display()
    );
    Ok(told)
}

fn checksum(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut crc = Crc::new();
    crc.update(&bytes);
    Ok(format!("{:08x}", crc.sum()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roads::choose;

    fn build(name: &str) -> Build {
        Build {
            name: name.to_owned(),
            program: PathBuf::from("/opt/millrace/bin/millrace"),
            library: PathBuf::new(),
            version: String::new(),
            checksums: ["0", "1"].map(str::to_owned),
        }
    }

    #[test]
    fn a_program_is_found_by_its_name_and_in_directories_that_builds_have() {
        let place = tempfile::tempdir().unwrap();
        let told = program_in(place.path()).unwrap_err().to_string();
        assert!(told.contains("target/release/millrace"), "{told}");
        for directory in ["target/release", "bin", "."] {
            let directory = place.path().join(directory);
            fs::create_dir_all(&directory).unwrap();
            let program = directory.join(PROGRAM);
            fs::write(&program, "").unwrap();
            let program = fs::canonicalize(program).unwrap();
            assert_eq!(program_in(place.path()).unwrap(), program);
            assert_eq!(program_in(&program).unwrap(), program);
        }
    }

    #[test]
    fn every_road_of_millrace_is_there_with_either_build_and_no_other_road_is() {
        let names = ["millrace-loopback", "millrace-bridge"].map(str::to_owned);
        let builds = [build("A"), build("B")];
        let found = roads(&choose(&names).unwrap(), &builds).unwrap();
        let names: Vec<&str> = found.iter().map(|road| road.name.as_str()).collect();
        let expected = [
            "millrace-loopback-A",
            "millrace-loopback-B",
            "millrace-bridge-A",
            "millrace-bridge-B",
        ];
        assert_eq!(names, expected);
        assert_eq!(builds[1].road_of(names[3]), "millrace-bridge");
        let kernel = choose(&["bridge".to_owned()]).unwrap();
        let told = roads(&kernel, &builds).unwrap_err().to_string();
        assert!(told.contains("the road bridge is the same"), "{told}");
    }

    #[test]
    fn a_program_that_is_no_build_is_told() {
        let told = version(Path::new("/bin/true")).unwrap_err().to_string();
        assert!(told.contains("/bin/true is no build"), "{told}");
    }
}
