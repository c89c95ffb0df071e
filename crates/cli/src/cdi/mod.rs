//! `millrace cdi`: containers get Millrace by one device request, as the Container Device Interface has it.
//!
//! What a container needs is one directory of the machine's, mounted read-only: the library, this program and the agent's socket
//! ([`directory`]). A specification ([`spec`]) tells every container engine so, and names a hook ([`hook`]) that has the
//! container's programs load the library, beside whatever its image has them load already. Which object that is depends on the
//! image ([`images`]). Two more hooks keep the container's labels for the agent ([`labels`]).

mod directory;
mod hook;
mod images;
mod labels;
mod spec;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use millrace_agent::{CONTAINERS_DIRECTORY, LABELS_DIRECTORY, ROOT_SOCKET, socket_in};

use crate::table::Table;
use directory::Directory;
use spec::{FILE_NAME, Specification};

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
  millrace cdi list                                        what is installed, and whether it is whole
  sudo millrace cdi remove                                 takes all of it away

Exit status: 0; 1 when something is not as it should be, which is then said.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the specification, for a place of your own.
    Generate(Where),
    /// Make the directory that containers get, and tell the container engines of it.
    ///
    /// Do it again after an update: running programs keep the library that they have, and later ones load the new one. An agent that
    /// runs already has to be started again to serve a new directory; connections go on meanwhile.
    Install(Where),
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
        Command::Generate(place) => generate(place),
        Command::Install(place) => install(place),
        Command::List(place) => list(place),
        Command::Remove(removal) => remove(removal),
        Command::Hook { step } => Ok(match step {
            Step::Preload => hook::run(),
            Step::Label => labels::write(),
            Step::Unlabel => labels::remove(),
        }),
    }
}

fn generate(place: &Where) -> anyhow::Result<u8> {
    let text = Specification::of(&place.directory()?).to_json();
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(0)
}

fn install(place: &Where) -> anyhow::Result<u8> {
    let directory = place.directory()?;
    let file = place.specification();
    directory.fill()?;
    // Last: whoever reads it finds everything there.
    directory::replace(
        &file,
        Specification::of(&directory).to_json().as_bytes(),
        0o644,
    )?;
    println!(
        "{}: the library, and a program for the hook",
        directory.0.display()
    );
    println!("{}: tells container engines of it", file.display());
    println!();
    if agent_answers(&directory) {
        println!("The agent serves it. Try:");
    } else {
        println!(
            "No agent serves {} yet. Start it, or start it again: {}",
            directory.0.display(),
            agent_command(&directory)
        );
        println!("Then try:");
    }
    println!(
        "  podman run --device {} IMAGE",
        spec::qualified(spec::EVERY)
    );
    Ok(0)
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
            eprintln!(
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
    writeln!(out, "\n{} names {}", file.display(), directory.0.display())?;
    for complaint in &complaints {
        writeln!(out, "{complaint}")?;
    }
    Ok(u8::from(!complaints.is_empty()))
}

fn remove(Removal { place, unless_used }: &Removal) -> anyhow::Result<u8> {
    let file = place.specification();
    let directory = place.directory()?;
    if *unless_used && !directory.users().is_empty() {
        println!(
            "{}: containers have it; nothing is removed",
            directory.0.display()
        );
        return Ok(0);
    }
    directory::sweep(&file);
    match std::fs::remove_file(&file) {
        Ok(()) => println!("{}: removed", file.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
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
        println!("{}: removed", directory.0.display());
    } else {
        println!(
            "{}: Millrace's files are removed; the directory stays: it is mounted here, or others are in it, such as the socket of an \
             agent that runs",
            directory.0.display()
        );
    }
    // Engines that look elsewhere are not the ones whose hooks write there.
    if place.specifications == Path::new(SPECIFICATIONS)
        && labels::clear(Path::new(LABELS_DIRECTORY))?
    {
        println!("{LABELS_DIRECTORY}: removed");
    }
    Ok(0)
}
