//! Roads: ways for the bytes of two programs, each one a file in `roads/` or of the user's own.

mod device;
mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::builds::Build;
use crate::machine;
use crate::programs::{self, find_program};
use crate::sockmap;
pub use device::Device;

const FILES: &[(&str, &str)] = &[
    ("loopback", include_str!("../roads/loopback.toml")),
    ("unix", include_str!("../roads/unix.toml")),
    ("veth", include_str!("../roads/veth.toml")),
    ("bridge", include_str!("../roads/bridge.toml")),
    ("dnat", include_str!("../roads/dnat.toml")),
    ("vxlan", include_str!("../roads/vxlan.toml")),
    ("host-gw", include_str!("../roads/host-gw.toml")),
    ("ovs", include_str!("../roads/ovs.toml")),
    ("ovs-user", include_str!("../roads/ovs-user.toml")),
    ("ovs-dpdk", include_str!("../roads/ovs-dpdk.toml")),
    ("sockmap", include_str!("../roads/sockmap.toml")),
    ("smc", include_str!("../roads/smc.toml")),
    ("channel", include_str!("../roads/channel.toml")),
    ("iceoryx2", include_str!("../roads/iceoryx2.toml")),
    ("seqpacket", include_str!("../roads/seqpacket.toml")),
    ("pipe", include_str!("../roads/pipe.toml")),
    ("bare-ring", include_str!("../roads/bare-ring.toml")),
    ("bare-line", include_str!("../roads/bare-line.toml")),
    ("eventfd", include_str!("../roads/eventfd.toml")),
    ("testpmd-memif", include_str!("../roads/testpmd-memif.toml")),
    (
        "testpmd-memif-zero-copy",
        include_str!("../roads/testpmd-memif-zero-copy.toml"),
    ),
    ("switch-memif", include_str!("../roads/switch-memif.toml")),
    ("ovs-vhost", include_str!("../roads/ovs-vhost.toml")),
    ("testpmd-vhost", include_str!("../roads/testpmd-vhost.toml")),
    ("switch-vhost", include_str!("../roads/switch-vhost.toml")),
    (
        "memif-to-testpmd",
        include_str!("../roads/memif-to-testpmd.toml"),
    ),
    (
        "memif-to-millrace",
        include_str!("../roads/memif-to-millrace.toml"),
    ),
    (
        "memif-zero-copy-to-testpmd",
        include_str!("../roads/memif-zero-copy-to-testpmd.toml"),
    ),
    (
        "memif-zero-copy-to-millrace",
        include_str!("../roads/memif-zero-copy-to-millrace.toml"),
    ),
    (
        "virtio-to-testpmd",
        include_str!("../roads/virtio-to-testpmd.toml"),
    ),
    (
        "virtio-to-millrace",
        include_str!("../roads/virtio-to-millrace.toml"),
    ),
    (
        "testpmd-5tswap",
        include_str!("../roads/testpmd-5tswap.toml"),
    ),
    (
        "testpmd-macswap",
        include_str!("../roads/testpmd-macswap.toml"),
    ),
    ("ppf-memif", include_str!("../roads/ppf-memif.toml")),
    ("event-dsw", include_str!("../roads/event-dsw.toml")),
    ("scheduler", include_str!("../roads/scheduler.toml")),
    (
        "scheduler-fused",
        include_str!("../roads/scheduler-fused.toml"),
    ),
    (
        "scheduler-apart",
        include_str!("../roads/scheduler-apart.toml"),
    ),
    (
        "scheduler-naive",
        include_str!("../roads/scheduler-naive.toml"),
    ),
    (
        "scheduler-tables",
        include_str!("../roads/scheduler-tables.toml"),
    ),
    (
        "scheduler-virtual",
        include_str!("../roads/scheduler-virtual.toml"),
    ),
    ("rte-softrss", include_str!("../roads/rte-softrss.toml")),
    (
        "toeplitz-naive",
        include_str!("../roads/toeplitz-naive.toml"),
    ),
    (
        "toeplitz-tables",
        include_str!("../roads/toeplitz-tables.toml"),
    ),
    ("ring", include_str!("../roads/ring.toml")),
    ("echo-kernel", include_str!("../roads/echo-kernel.toml")),
    ("echo-af-xdp", include_str!("../roads/echo-af-xdp.toml")),
];
/// Where none are named.
pub const DEFAULT: [&str; 2] = ["loopback", "millrace-loopback"];
/// What the name of a road begins with that is another one with Millrace above it.
const ABOVE: &str = "millrace-";

/// A way for bytes.
#[derive(Clone, Debug)]
pub struct Road {
    /// As `bridge`, or `millrace-bridge`.
    pub name: String,
    /// One line for somebody who does not know it.
    pub about: String,
    /// Both programs run by `millrace run`.
    pub accelerated: bool,
    /// The build of Millrace that carries it; none: this one, or it needs none.
    pub build: Option<Build>,
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
    /// How messages go between two programs that are written for it; its socket is where they meet. None: it is for bytes of any program.
    pub transport: Option<String>,
    /// It is for packets, by this device.
    pub device: Option<Device>,
    /// Its programs ask an agent by themselves.
    pub agent: bool,
    /// Its connections are spliced by BPF programs.
    pub sockmap: bool,
    /// Both programs are started by this one, which puts something else in the place of TCP.
    pub run_by: Option<String>,
    /// A module that the kernel has to have, loaded or not.
    pub module: Option<String>,
    /// The Debian package that brings its programs, in hints.
    pub package: Option<String>,
    /// What everybody who measures it has to know.
    pub caution: Option<String>,
    /// Of a road that takes processor time while nobody is on it, the command that stops that.
    pub rest: Option<String>,
    /// The command that lets it go on, before a trial.
    pub wake: Option<String>,
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
        .map(|(name, text)| file::read(name, name, text).expect("the files are tested"))
        .collect();
    let above = kernels
        .iter()
        .filter(|road| road.takes_millrace())
        .map(Road::with_millrace);
    let above: Vec<Road> = above.collect();
    kernels.into_iter().chain(above).collect()
}

/// The roads with these names, in this order; for none, loopback and Millrace there. A name may be the path of a file of the user's own,
/// as `./mine.toml`: that road is called `mine`, and beside it there is `millrace-mine`.
///
/// # Errors
/// There is no such road, or the file is no road.
pub fn choose(names: &[String]) -> Result<Vec<Road>> {
    let default = DEFAULT.map(str::to_owned);
    let names = if names.is_empty() { &default } else { names };
    let mut known = all();
    let own: BTreeSet<&String> = names.iter().filter(|name| is_file(name)).collect();
    for path in own {
        let road = file::open(path)?;
        let mut others = known.iter();
        ensure!(
            others.all(|other| other.name != road.name && !road.name.starts_with(ABOVE)),
            "{path}: two roads would be called {}: give the file another name",
            road.name
        );
        known.extend(road.takes_millrace().then(|| road.with_millrace()));
        known.push(road);
    }
    let find = |name: &String| {
        let name = if is_file(name) {
            file::stem(name)
        } else {
            name
        };
        let found = known.iter().find(|road| road.name == name);
        found.cloned().with_context(|| {
            let list: Vec<&str> = known.iter().map(|road| road.name.as_str()).collect();
            let list = list.join(", ");
            format!("there is no road {name}; there are {list}, and files that end with .toml")
        })
    };
    let roads: Vec<Road> = names.iter().map(find).collect::<Result<_>>()?;
    for (index, road) in roads.iter().enumerate() {
        for other in &roads[..index] {
            ensure!(
                other.name != road.name,
                "the road {} is named twice",
                road.name
            );
            let both = road
                .namespaces()
                .intersection(&other.namespaces())
                .next()
                .cloned();
            ensure!(
                other.base == road.base || both.is_none(),
                "the roads {} and {} both make the network namespace {}",
                other.name,
                road.name,
                both.unwrap_or_default()
            );
        }
    }
    Ok(roads)
}

/// The name of the kernel's road in the same place, of a road with Millrace above it.
#[must_use]
pub fn below(name: &str) -> Option<&str> {
    name.strip_prefix(ABOVE)
}

fn is_file(name: &str) -> bool {
    name.ends_with(".toml")
}

/// The programs of a command: the first word, and of `ip netns exec NAME` and `env A=B` what is to be run there.
fn programs_of(command: &str) -> Vec<&str> {
    let mut words = command.split_whitespace().peekable();
    let mut programs = Vec::new();
    while let Some(program) = words.next() {
        programs.push(program);
        match program {
            "ip" if words.next_if_eq(&"netns").is_some() && words.next() == Some("exec") => {
                words.next();
            }
            "env" => while words.next_if(|word| word.contains('=')).is_some() {},
            _ => break,
        }
    }
    programs
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
        let between = self.rest.iter().chain(&self.wake);
        let device = self.device.iter();
        let device = device.flat_map(|device| device.command.iter().chain(&device.needs));
        let commands = self.set_up.iter().chain(&self.run_by).chain(between);
        let mut programs = commands
            .chain(device)
            .flat_map(|command| programs_of(command))
            // What is ours is here.
            .filter(|program| !program.starts_with('{'));
        let program = programs.find(|program| find_program(program).is_none());
        let module = self
            .module
            .as_deref()
            .filter(|name| !machine::has_module(name));
        let spliced = || self.sockmap.then(sockmap::check)?.err();
        match (module, program) {
            (Some(module), _) => Some(format!("this kernel has no module {module}")),
            (_, Some(program)) => Some(match &self.package {
                Some(package) if programs::is_peer(program) => {
                    format!(
                        "no {program}: apt install {package}, and make peers in a checkout of Millrace"
                    )
                }
                Some(package) => format!("no {program}: apt install {package}"),
                None => format!("no {program}"),
            }),
            _ => spliced().map(|error| format!("no sockmap: {error:#}")),
        }
    }

    /// Programs that are built beside Millrace, and that it is measured with.
    pub fn peers(&self) -> impl Iterator<Item = PathBuf> {
        let of_messages = self.transport.as_ref().map(|_| programs::PEERS);
        let needs = self.device.iter().flat_map(|device| &device.needs);
        let needs = needs.map(String::as_str);
        let peers = needs.filter(|name| programs::is_peer(name));
        of_messages
            .into_iter()
            .chain(peers)
            .filter_map(find_program)
    }

    /// A line for people: it is not measured.
    pub(crate) fn left_out(&self, why: &str) -> String {
        format!("the road {} is left out: {why}", self.name)
    }

    /// How it is set up, for a person.
    #[must_use]
    pub fn settings(&self) -> Vec<String> {
        let spliced = self.sockmap.then_some(sockmap::SETTING);
        let commands = self.set_up.iter().map(String::as_str).chain(spliced);
        let run_by = self
            .run_by
            .iter()
            .map(|by| format!("both programs are started by {by}"));
        let between = [("before a trial", &self.wake), ("after it", &self.rest)];
        let between = between
            .into_iter()
            .filter_map(|(when, command)| Some(format!("{when}: {}", command.as_ref()?)));
        let commands = commands.map(str::to_owned);
        let device = self.device.iter().flat_map(Device::settings);
        commands
            .chain(run_by)
            .chain(between)
            .chain(device)
            .collect()
    }

    /// The network namespaces that its commands make.
    fn namespaces(&self) -> BTreeSet<String> {
        let words = self.set_up.iter().filter_map(|line| shlex::split(line));
        words
            .filter_map(|words| file::made_by(&words).map(str::to_owned))
            .collect()
    }

    /// Whether it is TCP and nothing else.
    fn takes_millrace(&self) -> bool {
        !self.unix && !self.sockmap && self.run_by.is_none() && self.device.is_none()
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
