//! `millrace cdi`: containers get Millrace by one device request, as the Container Device Interface has it.
//!
//! What a container needs is one directory of the machine's, mounted read-only: the library, this program and the agent's socket
//! ([`directory`]). A specification ([`spec`]) tells every container engine so, and names a hook ([`hook`]) that has the
//! container's programs load the library, beside whatever its image has them load already. Which object that is depends on the
//! image ([`images`]). Two more hooks keep the container's labels for the agent ([`labels`]).
//!
//! Packet ports are devices of another class ([`packet`]): a hook asks the switch for them, and mounts the directory of their sockets.

mod directory;
mod hook;
mod images;
mod labels;
mod packet;
mod spec;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use millrace_agent::{CONTAINERS_DIRECTORY, LABELS_DIRECTORY, ROOT_SOCKET, socket_in};
use millrace_switch::{Request, SwitchReport, ask, check_device_name, own_socket};

use crate::table::Table;
use directory::Directory;
use spec::{FILE_NAME, PACKET_FILE_NAME, Specification};

/// Where container engines look for specifications that stay when the machine starts again.
const SPECIFICATIONS: &str = "/etc/cdi";

/// Let containers have Millrace by one device request: podman run --device millrace.dev/socket=all ...
///
/// The Container Device Interface (CDI) is read by podman, Docker, containerd (nerdctl, Kubernetes) and CRI-O. The container gets one
/// directory, mounted read-only at /run/millrace, and /etc/ld.so.preload, by which the programs of its image load Millrace's library.
/// It needs no capability, no privilege and nothing in its image.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CdiArguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  sudo millrace cdi install                                once on each machine, and after an update of Millrace
  sudo millrace agent                                      serves the machine and its containers
  podman run --device millrace.dev/socket=all redis        a container that is accelerated
  podman run --device millrace.dev/packet=fast dpdk        one with a port of the switch, whose configuration has a device \"fast\"
  millrace cdi list                                        what is installed, and whether it is whole
  sudo millrace cdi remove                                 takes all of it away

Exit status: 0; 1 when something is not as it should be, which is then said.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the specification, for a place of your own.
    Generate(Generated),
    /// Make the directory that containers get, and tell the container engines of it.
    ///
    /// Do it again after an update: running programs keep the library that they have, and later ones load the new one. An agent that
    /// runs already has to be started again to serve a new directory; connections go on meanwhile. Do it again, too, when the switch has
    /// other devices for containers.
    Install(Installation),
    /// Say which devices there are, where, and whether all that belongs to them is there.
    List(Where),
    /// Take the specification and the directory away.
    ///
    /// The directory stays while containers have it: their programs could not start without a complaint otherwise.
    Remove(Removal),
    /// What container engines run while they make a container.
    #[command(hide = true)]
    Hook {
        #[arg(default_value = "preload")]
        step: Step,
        /// Of which ports are wanted.
        #[arg(long, default_value = "", hide_default_value = true)]
        device: String,
        /// Who makes them.
        #[arg(long)]
        switch: Option<PathBuf>,
    },
}

/// What a hook does.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Step {
    /// Has the container's programs load the library.
    Preload,
    /// Writes the container's labels for the agent.
    Label,
    /// Takes them away.
    Unlabel,
    /// Gives the container its packet ports.
    Packet,
}

#[derive(Debug, Args)]
struct Generated {
    #[command(flatten)]
    place: Where,
    /// That of packet ports, millrace.dev/packet, in place of millrace.dev/socket.
    #[arg(long)]
    packets: bool,
    #[command(flatten)]
    ports: Ports,
}

#[derive(Debug, Args)]
struct Installation {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    ports: Ports,
}

// Which packet ports there are for containers. No documentation: it would take the place of a command's.
#[derive(Debug, Args)]
struct Ports {
    /// The control socket of the switch that makes packet ports for containers. Otherwise the one that is installed, or root's.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    switch: Option<PathBuf>,
    /// Names of its devices, as millrace.dev/packet=NAME. Otherwise the switch is asked; where none answers, those that are installed stay.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    packet: Vec<String>,
}

#[derive(Debug, Args)]
struct Where {
    /// The directory that containers get, on a file system that programs can be run from. Otherwise the one that is installed, or
    /// /var/lib/millrace.
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    directory: Option<PathBuf>,
    /// Where the container engines look for specifications.
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath, default_value = SPECIFICATIONS)]
    specifications: PathBuf,
}

#[derive(Debug, Args)]
struct Removal {
    #[command(flatten)]
    place: Where,
    /// Take nothing away while containers have the directory: they could not start again without the specification.
    #[arg(long)]
    unless_used: bool,
}

impl Where {
    fn specification(&self) -> PathBuf {
        self.specifications.join(FILE_NAME)
    }

    fn packet_specification(&self) -> PathBuf {
        self.specifications.join(PACKET_FILE_NAME)
    }

    /// What there is of packet ports. None: there is nothing, or it is not ours.
    fn installed_packets(&self) -> Option<Specification> {
        let text = std::fs::read_to_string(self.packet_specification()).ok()?;
        Specification::parse_packets(&text).ok()
    }

    fn directory(&self) -> anyhow::Result<Directory> {
        let installed = || {
            let text = std::fs::read_to_string(self.specification()).ok()?;
            Some(Specification::parse(&text).ok()?.directory().0)
        };
        let path = self.directory.clone().or_else(installed);
        let path = path.unwrap_or_else(|| PathBuf::from(CONTAINERS_DIRECTORY));
        let path = std::path::absolute(path).context("the directory is not usable")?;
        if path
            .to_str()
            .is_none_or(|text| text.contains([':', ',', '"', '\\', '\n']))
        {
            bail!(
                "{} cannot be mounted into containers: give a path of ordinary characters",
                path.display()
            );
        }
        Ok(Directory(path))
    }
}

/// Does what the subcommand says.
pub(crate) fn run(arguments: &CdiArguments) -> anyhow::Result<u8> {
    match &arguments.command {
        Command::Generate(generated) => generate(generated),
        Command::Install(installation) => install(installation),
        Command::List(place) => list(place),
        Command::Remove(removal) => remove(removal),
        Command::Hook {
            step,
            device,
            switch,
        } => Ok(match step {
            Step::Packet => packet::give(device, switch.as_deref()),
            Step::Preload => hook::run(),
            Step::Label => labels::write(),
            Step::Unlabel => labels::remove(),
        }),
    }
}

impl Ports {
    /// Those that there are to be, if any.
    fn specification(
        &self,
        place: &Where,
        directory: &Directory,
    ) -> anyhow::Result<Option<Specification>> {
        let installed = place.installed_packets();
        let known = installed.as_ref().and_then(Specification::switch);
        let switch = self.switch.clone().or_else(|| known.map(Path::to_owned));
        let switch = switch.unwrap_or_else(|| own_socket(0, None));
        let switch = std::path::absolute(switch).context("the switch's socket is not usable")?;
        if switch.to_str().is_none() {
            bail!("{} is not UTF-8, as a specification is", switch.display());
        }
        let names = if self.packet.is_empty() {
            let asked = devices_of(&switch);
            let installed = || installed.as_ref().map(Specification::names);
            asked.or_else(installed).unwrap_or_default()
        } else {
            self.packet.clone()
        };
        for name in &names {
            check_device_name(name).map_err(anyhow::Error::msg)?;
        }
        let some = !names.is_empty();
        Ok(some.then(|| Specification::of_packets(directory, &switch, &names)))
    }
}

/// Names of what a switch has for containers. None: no switch answers.
fn devices_of(switch: &Path) -> Option<Vec<String>> {
    let report = ask(switch, &Request::Report).ok()?;
    let report: SwitchReport = serde_json::from_value(report).ok()?;
    Some(
        report
            .devices
            .into_iter()
            .map(|device| device.name)
            .collect(),
    )
}

fn generate(generated: &Generated) -> anyhow::Result<u8> {
    let place = &generated.place;
    let directory = place.directory()?;
    let text = if generated.packets {
        let packets = generated.ports.specification(place, &directory)?;
        let none = "no devices are known: give their names with --packet, or start the switch that has them";
        packets.context(none)?.to_json()
    } else {
        Specification::of(&directory).to_json()
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(0)
}

fn install(Installation { place, ports }: &Installation) -> anyhow::Result<u8> {
    let directory = place.directory()?;
    let file = place.specification();
    directory.fill()?;
    install_packets(place, ports, &directory)?;
    // Last: whoever reads it finds everything there.
    directory::replace(
        &file,
        Specification::of(&directory).to_json().as_bytes(),
        0o644,
    )?;
    tell!(
        "{}: the library, and a program for the hook",
        directory.0.display()
    );
    tell!("{}: tells container engines of it", file.display());
    tell!();
    if agent_answers(&directory) {
        tell!("The agent serves it. Try:");
    } else {
        tell!(
            "No agent serves {} yet. Start it, or start it again: {}",
            directory.0.display(),
            agent_command(&directory)
        );
        tell!("Then try:");
    }
    tell!(
        "  podman run --device {} IMAGE",
        spec::qualified(spec::EVERY)
    );
    Ok(0)
}

/// Tells container engines of packet ports, where there are any.
fn install_packets(place: &Where, ports: &Ports, directory: &Directory) -> anyhow::Result<()> {
    let file = place.packet_specification();
    match ports.specification(place, directory)? {
        Some(packets) => {
            directory::replace(&file, packets.to_json().as_bytes(), 0o644)?;
            let names = packets.names().join(", ");
            tell!("{}: packet ports of the switch: {names}", file.display());
        }
        // The switch has none any more.
        None => drop(remove_file(&file)?),
    }
    Ok(())
}

/// Whether it was there.
fn remove_file(file: &Path) -> anyhow::Result<bool> {
    directory::sweep(file);
    match std::fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

fn agent_answers(directory: &Directory) -> bool {
    is_answered(&socket_in(&directory.0))
}

fn is_answered(socket: &Path) -> bool {
    millrace_agent::status(socket, crate::locate::PATIENCE_OF_USERS).is_ok()
}

fn agent_command(directory: &Directory) -> String {
    let is_usual = directory.0 == Path::new(CONTAINERS_DIRECTORY);
    if is_usual && is_answered(Path::new(ROOT_SOCKET)) {
        "end it and start it again (sudo systemctl restart millrace)".to_owned()
    } else if is_usual {
        "sudo millrace agent".to_owned()
    } else {
        format!("sudo millrace agent --containers {}", directory.0.display())
    }
}

fn list(place: &Where) -> anyhow::Result<u8> {
    let file = place.specification();
    let installed = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            complain!(
                "millrace: no devices: {} is not there (sudo millrace cdi install)",
                file.display()
            );
            return Ok(1);
        }
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    let specification = Specification::parse(&installed).with_context(|| {
        format!(
            "{} is not Millrace's (sudo millrace cdi install mends it)",
            file.display()
        )
    })?;
    let directory = specification.directory();
    let mut out = std::io::stdout().lock();
    let mut table = Table::new(&["DEVICE", "FOR"], &[]);
    for (device, purpose) in spec::DEVICES {
        table.push(vec![spec::qualified(device), purpose.to_owned()]);
    }
    let packets = place.installed_packets();
    for name in packets.iter().flat_map(Specification::names) {
        let purpose = format!("a port of the switch, at {}", spec::packet_place(&name));
        table.push(vec![spec::qualified_packet(&name), purpose]);
    }
    out.write_all(table.render(out.is_terminal()).as_bytes())?;
    let mut complaints = directory.complaints();
    if specification != Specification::of(&directory) {
        complaints.push(format!(
            "{} is of another version: sudo millrace cdi install",
            file.display()
        ));
    }
    if !agent_answers(&directory) {
        complaints.push(format!(
            "no agent answers at {}: {}",
            socket_in(&directory.0).display(),
            agent_command(&directory)
        ));
    }
    complaints
        .extend(packets.and_then(|packets| complaint_of_packets(place, &directory, &packets)));
    writeln!(out, "\n{} names {}", file.display(), directory.0.display())?;
    for complaint in &complaints {
        writeln!(out, "{complaint}")?;
    }
    Ok(u8::from(!complaints.is_empty()))
}

/// What is not as it should be with packet ports.
fn complaint_of_packets(
    place: &Where,
    directory: &Directory,
    packets: &Specification,
) -> Option<String> {
    let file = place.packet_specification();
    let switch = packets.switch()?;
    let names = packets.names();
    if *packets != Specification::of_packets(directory, switch, &names) {
        return Some(format!(
            "{} is of another version: sudo millrace cdi install",
            file.display()
        ));
    }
    let Some(offered) = devices_of(switch) else {
        return Some(format!(
            "no switch answers at {}: containers that ask for a port do not start (millrace switch run)",
            switch.display()
        ));
    };
    let missing = names.into_iter().find(|name| !offered.contains(name));
    missing.map(|name| {
        format!(
            "the switch at {} has no device {name:?}: containers that ask for it do not start (sudo millrace cdi install)",
            switch.display()
        )
    })
}

fn remove(Removal { place, unless_used }: &Removal) -> anyhow::Result<u8> {
    let file = place.specification();
    let directory = place.directory()?;
    if *unless_used && !directory.users().is_empty() {
        tell!(
            "{}: containers have it; nothing is removed",
            directory.0.display()
        );
        return Ok(0);
    }
    for file in [file, place.packet_specification()] {
        if remove_file(&file)? {
            tell!("{}: removed", file.display());
        }
    }
    let users = directory.users();
    if let Some(pid) = users.first() {
        bail!(
            "{directory} stays: {} processes in containers have it, such as {pid}; end these containers, then: \
             sudo {directory}/millrace cdi remove --directory {directory}",
            users.len(),
            directory = directory.0.display()
        );
    }
    if directory.empty()? {
        tell!("{}: removed", directory.0.display());
    } else {
        tell!(
            "{}: Millrace's files are removed; the directory stays: it is mounted here, or others are in it, such as the socket of an \
             agent that runs",
            directory.0.display()
        );
    }
    // Engines that look elsewhere are not the ones whose hooks write there.
    if place.specifications == Path::new(SPECIFICATIONS)
        && labels::clear(Path::new(LABELS_DIRECTORY))?
    {
        tell!("{LABELS_DIRECTORY}: removed");
    }
    Ok(0)
}
