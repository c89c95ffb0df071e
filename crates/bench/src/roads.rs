//! Roads: ways for the bytes of two programs, each one a file in `roads/`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::programs::{find_program, program_of};
use crate::sockmap;

const FILES: &[(&str, &str)] = &[
    ("loopback", include_str!("../roads/loopback.toml")),
    ("unix", include_str!("../roads/unix.toml")),
    ("veth", include_str!("../roads/veth.toml")),
    ("bridge", include_str!("../roads/bridge.toml")),
    ("dnat", include_str!("../roads/dnat.toml")),
    ("vxlan", include_str!("../roads/vxlan.toml")),
    ("host-gw", include_str!("../roads/host-gw.toml")),
    ("sockmap", include_str!("../roads/sockmap.toml")),
];
/// What the name of a road begins with that is another one with Millrace above it.
const ABOVE: &str = "millrace-";

/// What a road's file has.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    /// Network namespaces of the two programs.
    server: String,
    client: String,
    /// Where the client finds the server.
    #[serde(default)]
    host: String,
    /// Where the server listens, if that is another address.
    bind: Option<String>,
    /// It is a Unix socket.
    #[serde(default)]
    unix: bool,
    /// Connections within the server's namespace are spliced.
    #[serde(default)]
    sockmap: bool,
    /// What everybody who measures it has to know.
    caution: Option<String>,
    /// Commands, as a shell has them. The namespaces are made in a place where there are no others.
    set_up: Vec<String>,
}

/// A way for bytes.
#[derive(Clone, Debug)]
pub struct Road {
    /// As `bridge`, or `millrace-bridge`.
    pub name: String,
    /// One line for somebody who does not know it.
    pub about: String,
    /// Both programs run by `millrace run`.
    pub accelerated: bool,
    /// The road that this one is above, or itself: whose namespaces it has.
    pub base: String,
    /// Network namespace of the server.
    pub server: String,
    /// Network namespace of the client.
    pub client: String,
    /// Where the client finds the server; empty for a Unix socket.
    pub host: String,
    /// Where the server listens.
    pub bind: String,
    /// It is a Unix socket.
    pub unix: bool,
    /// Its connections are spliced by BPF programs.
    pub sockmap: bool,
    /// What everybody who measures it has to know.
    pub caution: Option<String>,
    /// The commands that make the namespaces.
    pub set_up: Vec<String>,
}

/// All roads: the kernel's, and Millrace on each of them that is TCP and nothing else.
///
/// # Panics
/// Never: a test reads every file.
#[must_use]
pub fn all() -> Vec<Road> {
    let kernels: Vec<Road> = FILES
        .iter()
        .map(|(name, text)| read(name, text).expect("the files are tested"))
        .collect();
    let above = kernels
        .iter()
        .filter(|road| !road.unix && !road.sockmap)
        .map(Road::with_millrace);
    let above: Vec<Road> = above.collect();
    kernels.into_iter().chain(above).collect()
}

/// The roads with these names, in this order; for none, loopback and Millrace there.
///
/// # Errors
/// There is no such road.
pub fn choose(names: &[String]) -> Result<Vec<Road>> {
    let known = all();
    let default = ["loopback".to_owned(), "millrace-loopback".to_owned()];
    let names = if names.is_empty() { &default } else { names };
    let find = |name: &String| {
        let found = known.iter().find(|road| road.name == *name);
        found.cloned().with_context(|| {
            let list: Vec<&str> = known.iter().map(|road| road.name.as_str()).collect();
            format!("there is no road {name}; there are {}", list.join(", "))
        })
    };
    let roads: Vec<Road> = names.iter().map(find).collect::<Result<_>>()?;
    for (index, road) in roads.iter().enumerate() {
        let again = roads[..index].iter().any(|other| other.name == road.name);
        ensure!(!again, "the road {} is named twice", road.name);
    }
    Ok(roads)
}

/// The name of the kernel's road in the same place, of a road with Millrace above it.
#[must_use]
pub fn below(name: &str) -> Option<&str> {
    name.strip_prefix(ABOVE)
}

fn read(name: &str, text: &str) -> Result<Road> {
    let file: File = toml::from_str(text).with_context(|| format!("the road {name}"))?;
    Ok(Road {
        name: name.to_owned(),
        about: file.about,
        accelerated: false,
        base: name.to_owned(),
        server: file.server,
        client: file.client,
        bind: file.bind.unwrap_or_else(|| file.host.clone()),
        host: file.host,
        unix: file.unix,
        sockmap: file.sockmap,
        caution: file.caution,
        set_up: file.set_up,
    })
}

impl Road {
    /// A port, or a Unix socket, as `millrace load` has it.
    #[must_use]
    pub fn address(&self, host: &str, port: u16, socket: &Path) -> String {
        if self.unix {
            format!("unix:{}", socket.display())
        } else {
            format!("{host}:{port}")
        }
    }

    /// Why it cannot be set up here, if something is missing. The kernel is asked, too, which may take a moment.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let mut programs = self.set_up.iter().map(|command| program_of(command));
        let program = programs.find(|program| find_program(program).is_none());
        let spliced = || self.sockmap.then(sockmap::check)?.err();
        match program {
            Some(program) => Some(format!("no {program}")),
            None => spliced().map(|error| format!("no sockmap: {error:#}")),
        }
    }

    /// A line for people: it is not measured.
    pub(crate) fn left_out(&self, why: &str) -> String {
        format!("the road {} is left out: {why}", self.name)
    }

    /// How it is set up, for a person.
    #[must_use]
    pub fn settings(&self) -> Vec<String> {
        let spliced = self.sockmap.then_some(sockmap::SETTING);
        let all = self.set_up.iter().map(String::as_str).chain(spliced);
        all.map(str::to_owned).collect()
    }

    fn with_millrace(&self) -> Road {
        Road {
            name: format!("{ABOVE}{}", self.name),
            about: format!("Millrace: {}", self.about),
            accelerated: true,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_road_is_known_by_its_name() {
        let names: Vec<String> = all().into_iter().map(|road| road.name).collect();
        assert_eq!(choose(&names).unwrap().len(), 2 * FILES.len() - 2);
        assert!(names.contains(&"millrace-vxlan".to_owned()));
        for bare in ["unix", "sockmap"] {
            assert!(!names.contains(&format!("{ABOVE}{bare}")));
        }
    }

    #[test]
    fn an_unknown_road_is_told_with_those_that_there_are() {
        let error = choose(&["brigde".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("brigde") && error.contains("bridge"),
            "{error}"
        );
    }

    #[test]
    fn every_command_is_words() {
        for road in all() {
            for command in &road.set_up {
                assert!(
                    shlex::split(command).is_some_and(|words| words.len() > 2),
                    "{command}"
                );
            }
        }
    }
}
