//! What stands in the middle of a road for packets, or events.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A program that forwards packets, and is what a scenario measures. It is started for each trial, when the generator listens. Or one that
/// only sends them, and is the same on roads that differ in who takes them. Or none: then who takes them, or events, also sends them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// How it is started, and stays in the foreground until SIGTERM.
    pub command: Option<String>,
    /// Where the generator sends packets, and where they come back, if elsewhere, as `millrace load packets` has it. It listens there.
    #[serde(default)]
    pub ports: Vec<String>,
    /// Of one that only sends, who takes the packets, by the one port: the client of a case that has `{receiver}` for it.
    pub receiver: Option<String>,
    /// Words of its own for commands of cases and for those here, as `generator`, options that a generator has on this road. A parameter of
    /// the same name goes before.
    #[serde(default)]
    pub words: BTreeMap<String, String>,
    /// Programs that commands need, where they are not the first of their words.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Files in the trial's directory.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

impl Device {
    /// What it is, for a person.
    pub(super) fn settings(&self) -> Vec<String> {
        let files = self.files.iter().map(|(name, text)| {
            let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
            format!("{name}: {}", lines.join("; "))
        });
        let ports = match (&self.receiver, &self.ports[..]) {
            (Some(all), _) if self.command.is_none() => format!("who does all of it: {all}"),
            (Some(receiver), _) => format!("who takes its packets: {receiver}"),
            (None, [from, to]) => format!("the generator sends by {from}, and takes by {to}"),
            (None, ports) => format!("the generator sends and takes by {}", ports.join(", ")),
        };
        let command = self.command.iter();
        let own = command.map(|command| format!("the device: {command}"));
        let words = self.words.iter();
        let words = words.map(|(name, value)| format!("{{{name}}}: {value}"));
        own.chain([ports]).chain(words).chain(files).collect()
    }
}
