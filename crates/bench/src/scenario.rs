//! Scenarios: pairs of programs and what is varied about them, each one a file in `scenarios/` or of the user's own.
//!
//! In commands and files the words of `words` are filled in, and every parameter of the grid by its name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::programs::{self, Lack};
use crate::readers::{self, Figure};
use crate::results::{Fact, Unit};
use crate::roads::{Device, Road};

#[cfg(test)]
mod tests;
mod words;

use words::WORDS;
pub use words::fill;

const FILES: &[(&str, &str)] = &[
    ("pingpong", include_str!("../scenarios/pingpong.toml")),
    ("echo", include_str!("../scenarios/echo.toml")),
    ("one-way", include_str!("../scenarios/one-way.toml")),
    ("throughput", include_str!("../scenarios/throughput.toml")),
    ("redis", include_str!("../scenarios/redis.toml")),
    ("http", include_str!("../scenarios/http.toml")),
    (
        "http-minimal",
        include_str!("../scenarios/http-minimal.toml"),
    ),
    ("connect", include_str!("../scenarios/connect.toml")),
    ("memcached", include_str!("../scenarios/memcached.toml")),
    ("mixed", include_str!("../scenarios/mixed.toml")),
    ("idle", include_str!("../scenarios/idle.toml")),
    ("proxy", include_str!("../scenarios/proxy.toml")),
    ("channels", include_str!("../scenarios/channels.toml")),
    ("packets", include_str!("../scenarios/packets.toml")),
    ("ppf", include_str!("../scenarios/ppf.toml")),
    ("scheduler", include_str!("../scenarios/scheduler.toml")),
];

/// What the names of facts begin with that tell a scenario's file.
pub(crate) const FACT: &str = "scenario ";

/// A set of values of parameters: every combination of them is measured.
pub type Grid = BTreeMap<String, Vec<u64>>;
/// One combination.
pub type Parameters = BTreeMap<String, u64>;

/// A pair of programs, and what is measured on it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name.
    #[serde(skip)]
    pub name: String,
    /// CRC-32 of the file, where it is the user's own: whether it is still the same.
    #[serde(skip)]
    pub checksum: Option<String>,
    /// A heading.
    pub title: String,
    /// What is measured, and what a reader has to know of it.
    pub about: String,
    /// On which roads, the baseline first, where none are named; none: on loopback and Millrace there.
    #[serde(default)]
    pub roads: Vec<String>,
    /// The program that answers.
    pub server: Server,
    /// What is measured on it.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

/// How much of its grid is measured of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// So much of every case that a run of the suite ends within an hour or so.
    Short,
    /// So much of some cases that it ends within minutes.
    Quick,
}

/// The program that answers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// How it is started; `{device}`: it is the road's, which forwards packets.
    pub command: String,
    /// The same on a Unix socket; without it, there is none, unless `command` has `{listen}`.
    pub unix: Option<String>,
    /// A program that the server asks, in the same place; it listens at `{port_behind}`.
    pub behind: Option<String>,
    /// The Debian package that has it.
    pub package: Option<String>,
    /// Files in the trial's directory.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// The two ends of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The program that answers.
    Server,
    /// The program that asks.
    Client,
}

/// A program that runs beside a measured pair, in the place of one of its ends and on its processor.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// Whose place.
    pub end: End,
    /// How it is started.
    pub command: String,
}

/// A client, and what is varied about it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// For the command line, after the scenario's name and a slash.
    pub name: String,
    /// A heading.
    pub title: String,
    /// How the client is started; `{receiver}`: it is the road's, which takes what the road's device sends.
    pub client: String,
    /// The same on a Unix socket; without it, there is none, unless `client` has `{address}`.
    pub unix: Option<String>,
    /// What runs beside the pair.
    #[serde(default)]
    pub beside: Vec<Beside>,
    /// The Debian package that has it.
    pub package: Option<String>,
    /// On these roads only; none: on all that the programs can take.
    #[serde(default)]
    pub roads: Vec<String>,
    /// Where the figure comes from: one of [`readers::by_name`].
    pub read: String,
    /// What the figure counts.
    pub unit: Unit,
    /// What it is in words, where those of [`readers::says`] do not say it.
    pub figure: Option<String>,
    /// What is varied in a whole run.
    pub grid: Vec<Grid>,
    /// What is varied in a short run; nothing: what is in a whole one.
    #[serde(default)]
    pub short: Vec<Grid>,
    /// What is varied in a quick run; nothing: the case is left out.
    #[serde(default)]
    pub quick: Vec<Grid>,
}

impl Scenario {
    /// Whether one of its cases can be measured on a road.
    #[must_use]
    pub fn takes(&self, road: &Road) -> bool {
        let is_taken = |case: &Case| case.on(road).is_some();
        self.server.on(road).is_some() && self.cases.iter().any(is_taken)
    }

    /// For those who read results: which scenario of that name it was, where it is the user's own.
    pub(crate) fn fact(&self) -> Option<Fact> {
        let value = self.checksum.clone()?;
        let name = format!("{FACT}{}", self.name);
        Some(Fact { name, value })
    }

    /// Reads a scenario. `name` is a file's name without `.toml`.
    ///
    /// # Errors
    /// The text is not what a scenario is.
    pub fn parse(name: &str, text: &str) -> Result<Scenario> {
        let mut scenario: Scenario =
            toml::from_str(text).with_context(|| format!("the scenario {name}"))?;
        scenario.name = name.to_owned();
        ensure!(
            !scenario.cases.is_empty(),
            "the scenario {name} has no [[case]]"
        );
        for case in &scenario.cases {
            case.check()
                .with_context(|| format!("the scenario {name}, case {}", case.name))?;
        }
        Ok(scenario)
    }
}

/// The command for a road, if there is one.
fn on<'a>(road: &Road, tcp: &'a str, unix: Option<&'a str>) -> Option<&'a str> {
    if road.unix {
        let either = tcp.contains("{address}") || tcp.contains("{listen}");
        unix.or(either.then_some(tcp))
    } else {
        Some(tcp)
    }
}

impl Server {
    /// Its programs that are not here, see [`programs::missing`].
    #[must_use]
    pub fn missing(&self) -> Option<Lack<'_>> {
        let behind = self.behind.iter().map(|command| (command.as_str(), None));
        let own = (self.command.as_str(), self.package.as_deref());
        programs::missing([own].into_iter().chain(behind))
    }

    /// How it is started on a road. None: it cannot take that one.
    #[must_use]
    pub fn on(&self, road: &Road) -> Option<&str> {
        let is_device = self.command == words::DEVICE;
        match (&road.transport, &road.device) {
            (_, device) if device.is_some() != is_device => None,
            (None, None) => on(road, &self.command, self.unix.as_deref()),
            _ => Some(&self.command),
        }
    }
}

impl Case {
    /// Its programs that are not here, see [`programs::missing`].
    #[must_use]
    pub fn missing(&self) -> Option<Lack<'_>> {
        let beside = self
            .beside
            .iter()
            .map(|beside| (beside.command.as_str(), None));
        let own = (self.client.as_str(), self.package.as_deref());
        programs::missing([own].into_iter().chain(beside))
    }

    /// How the client is started on a road. None: it cannot take that one.
    #[must_use]
    pub fn on<'a>(&'a self, road: &'a Road) -> Option<&'a str> {
        let is_its = self.roads.is_empty() || self.roads.contains(&road.base);
        let is_of_messages = self.client.contains("{transport}");
        let is_of_packets = self.client.contains("{from}") || self.takes_only();
        let is_like =
            road.transport.is_some() == is_of_messages && road.device.is_some() == is_of_packets;
        match (&road.transport, &road.device) {
            _ if !is_its || !is_like => None,
            (None, None) => on(road, &self.client, self.unix.as_deref()),
            (_, Some(device)) if device.receiver.is_some() != self.takes_only() => None,
            (_, Some(Device { receiver, .. })) => receiver.as_deref().or(Some(&self.client)),
            _ => Some(&self.client),
        }
    }

    /// Whether its client on a road searches a rate, as narrowly as it is told.
    #[must_use]
    pub fn searches_on(&self, road: &Road) -> bool {
        self.on(road)
            .is_some_and(|client| client.contains("{width}"))
    }

    /// Whether the client only takes what the road's device sends.
    fn takes_only(&self) -> bool {
        self.client == words::RECEIVER
    }

    fn check(&self) -> Result<()> {
        self.source()?;
        for grid in self.grids() {
            for (parameter, values) in grid {
                ensure!(
                    !values.is_empty(),
                    "the parameter {parameter} has no values"
                );
            }
        }
        let Some(first) = self.grid.first() else {
            bail!("the grid is empty");
        };
        for other in self.grids() {
            let same = first.keys().eq(other.keys());
            ensure!(
                same,
                "every table of grid, short and quick has to name the same parameters"
            );
        }
        first.keys().try_for_each(|name| self.check_parameter(name))
    }

    /// A parameter that nobody is told of would be measured with each of its values, and be the same; most often it is misspelt.
    fn check_parameter(&self, name: &str) -> Result<()> {
        ensure!(
            !WORDS.contains(&name),
            "no parameter can be called {name}: it is a word of the suite's own"
        );
        if self.takes_only() {
            // Its commands are those of roads.
            return Ok(());
        }
        let word = format!("{{{name}}}");
        let beside = self.beside.iter().map(|beside| &beside.command);
        let mut commands = [&self.client].into_iter().chain(beside);
        ensure!(
            commands.any(|command| command.contains(&word)),
            "the parameter {name} is in no command: {word} has to stand in `client`, or in one of `beside`"
        );
        Ok(())
    }

    /// Where the figure comes from.
    ///
    /// # Errors
    /// Nothing has this name.
    pub fn source(&self) -> Result<Figure> {
        readers::by_name(&self.read).with_context(|| {
            let names: Vec<&str> = readers::names().collect();
            format!("`read` is one of {}, not {}", names.join(", "), self.read)
        })
    }

    /// What the figure is in words, as `median round trip`.
    #[must_use]
    pub fn says(&self) -> String {
        let own = self.figure.as_deref();
        let says = own.or_else(|| readers::says(&self.read));
        says.unwrap_or_default().to_owned()
    }

    /// Of a parameter that it has, measures these values only; none: all.
    pub fn restrict(&mut self, parameter: &str, values: &[u64]) {
        if values.is_empty() {
            return;
        }
        let shorter = self.short.iter_mut().chain(&mut self.quick);
        for grid in self.grid.iter_mut().chain(shorter) {
            if let Some(known) = grid.get_mut(parameter) {
                *known = values.to_vec();
            }
        }
    }

    /// Every combination of parameters that is measured.
    #[must_use]
    pub fn parameters(&self, extent: Extent) -> Vec<Parameters> {
        combinations(match extent {
            Extent::Short if !self.short.is_empty() => &self.short,
            Extent::Whole | Extent::Short => &self.grid,
            Extent::Quick => &self.quick,
        })
    }

    fn grids(&self) -> impl Iterator<Item = &Grid> {
        self.grid.iter().chain(&self.short).chain(&self.quick)
    }
}

/// Every combination once, in the order of the grids.
fn combinations(grids: &[Grid]) -> Vec<Parameters> {
    let mut found: Vec<Parameters> = Vec::new();
    for grid in grids {
        let mut here = vec![Parameters::new()];
        for (name, values) in grid {
            let with = |base: &Parameters, value: &u64| {
                let mut base = base.clone();
                base.insert(name.clone(), *value);
                base
            };
            here = here
                .iter()
                .flat_map(|base| values.iter().map(|value| with(base, value)))
                .collect();
        }
        for parameters in here {
            if !found.contains(&parameters) {
                found.push(parameters);
            }
        }
    }
    found
}

/// The scenarios of the suite.
///
/// # Panics
/// Never: a test reads every file.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let read =
        |(name, text): &(&str, &str)| Scenario::parse(name, text).expect("the files are tested");
    FILES.iter().map(read).collect()
}

/// What the words of a command line mean: `redis` (all of a scenario), `redis/get` (one case), `./mine.toml` (a file). None: everything.
///
/// # Errors
/// There is no such scenario or case, or the file is no scenario.
pub fn choose(words: &[String]) -> Result<Vec<Scenario>> {
    if words.is_empty() {
        return Ok(all());
    }
    let mut chosen: Vec<Scenario> = Vec::new();
    for word in words {
        let scenario = named(word)?;
        match chosen.iter_mut().find(|other| other.name == scenario.name) {
            Some(other) => {
                // Results know a scenario by its name.
                ensure!(
                    words
                        .iter()
                        .all(|other| !is_file(other) || stem(other) != scenario.name),
                    "two scenarios would be called {}: give the file another name",
                    scenario.name
                );
                let is_new = |case: &Case| other.cases.iter().all(|known| known.name != case.name);
                let more: Vec<Case> = scenario.cases.into_iter().filter(is_new).collect();
                other.cases.extend(more);
            }
            None => chosen.push(scenario),
        }
    }
    Ok(chosen)
}

fn is_file(word: &str) -> bool {
    word.ends_with(".toml")
}

/// The name of a scenario in a file.
fn stem(word: &str) -> &str {
    let stem = Path::new(word).file_stem();
    stem.and_then(|name| name.to_str()).unwrap_or("scenario")
}

fn named(word: &str) -> Result<Scenario> {
    if is_file(word) {
        let text = fs::read_to_string(word).with_context(|| format!("cannot read {word}"))?;
        let scenario = Scenario::parse(stem(word), &text).with_context(|| word.to_owned())?;
        let mut sum = flate2::Crc::new();
        sum.update(text.as_bytes());
        return Ok(Scenario {
            checksum: Some(format!("{:08x}", sum.sum())),
            ..scenario
        });
    }
    let (name, case) = word
        .split_once('/')
        .map_or((word, None), |(name, case)| (name, Some(case)));
    let known = all();
    let Some(scenario) = known.iter().find(|scenario| scenario.name == name) else {
        let names: Vec<&str> = known
            .iter()
            .map(|scenario| scenario.name.as_str())
            .collect();
        bail!(
            "there is no scenario {name}; there are {}, and files that end with .toml",
            names.join(", ")
        );
    };
    let mut scenario = scenario.clone();
    if let Some(case) = case {
        let names: Vec<String> = scenario
            .cases
            .iter()
            .map(|case| case.name.clone())
            .collect();
        scenario.cases.retain(|known| known.name == case);
        ensure!(
            !scenario.cases.is_empty(),
            "the scenario {name} has no case {case}; it has {}",
            names.join(", ")
        );
    }
    Ok(scenario)
}
