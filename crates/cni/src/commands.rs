//! What a runtime asks for: ADD, DEL, CHECK, GC, STATUS, VERSION (specification, section 2).

use serde_json::{Value, json};

use crate::addresses::Addresses;
use crate::attachment::{Attachment, Attachments};
use crate::config::{self, Attached, Config, Kind, VERSIONS};
use crate::error::{Code, Error};
use crate::result::{self, Interface};
use crate::{ipam, ports, tap};

/// What was asked, by the environment and standard input.
pub(crate) struct Call<'a> {
    command: Option<String>,
    container: Option<String>,
    netns: Option<String>,
    ifname: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) input: &'a [u8],
}

impl<'a> Call<'a> {
    pub(crate) fn new(input: &'a [u8], variable: impl Fn(&str) -> Option<String>) -> Call<'a> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        Call {
            command: given("CNI_COMMAND"),
            container: given("CNI_CONTAINERID"),
            netns: given("CNI_NETNS"),
            ifname: given("CNI_IFNAME"),
            path: given("CNI_PATH"),
            input,
        }
    }

    /// Whose interface it is about.
    fn attached(&self) -> Result<Attached, Error> {
        let missing = |name: &str| Error::new(Code::Environment, format!("{name} is missing"), "");
        let container = self.container.clone();
        let container = container.ok_or_else(|| missing("CNI_CONTAINERID"))?;
        let ifname = self.ifname.clone();
        let ifname = ifname.ok_or_else(|| missing("CNI_IFNAME"))?;
        let wrong = |name: &str, value: &str| {
            Err(Error::new(
                Code::Environment,
                format!("{name} cannot be {value:?}"),
                "",
            ))
        };
        if !config::is_identifier(&container) {
            return wrong("CNI_CONTAINERID", &container);
        }
        if !config::is_interface(&ifname) {
            return wrong("CNI_IFNAME", &ifname);
        }
        Ok(Attached { container, ifname })
    }
}

/// Does it; returns what is to be printed.
pub(crate) fn run(call: &Call<'_>) -> Result<String, Error> {
    let missing = || Error::new(Code::Environment, "CNI_COMMAND is missing", HINT);
    let command = call.command.as_deref().ok_or_else(missing)?;
    if command == "VERSION" {
        return Ok(version(call.input));
    }
    let config = Config::parse(call.input)?;
    match command {
        "ADD" => add(call, &config),
        "DEL" => del(call, &config),
        "CHECK" => check(call, &config),
        "GC" => collect(call, &config),
        "STATUS" => status(call, &config),
        other => Err(Error::new(
            Code::Environment,
            format!("CNI_COMMAND cannot be {other:?}"),
            "there are ADD, DEL, CHECK, GC, STATUS and VERSION",
        )),
    }
}

const HINT: &str =
    "this is a CNI plugin, which container runtimes run; see docs/switch.md of Millrace";

fn version(input: &[u8]) -> String {
    json!({
        "cniVersion": config::version_of(input),
        "supportedVersions": VERSIONS,
    })
    .to_string()
}

fn add(call: &Call<'_>, config: &Config) -> Result<String, Error> {
    let of = call.attached()?;
    let attachments = Attachments::of(config);
    if attachments.read(&of)?.is_some() {
        return Err(Error::new(
            Code::Config,
            format!("{} has {} already", of.container, of.ifname),
            "",
        ));
    }
    let attachment = attachments.plan(config, &ports::switch(config), &of);
    let made = make(call, config, &attachments, &attachment);
    if made.is_err() {
        // As the specification wants it, the runtime will ask for that, too; what fails now fails then, and is told.
        let _ = unmake(call, config, &attachments, &of);
    }
    made
}

fn make(
    call: &Call<'_>,
    config: &Config,
    attachments: &Attachments,
    attachment: &Attachment,
) -> Result<String, Error> {
    attachments.write(attachment)?;
    let addresses = ipam::delegate(call, config, "ADD", None)?;
    let queues = match config.port {
        Kind::Tap => {
            let netns = tap::namespace(call.netns.as_deref())?;
            let addresses = Addresses::parse(addresses.as_ref(), None)?;
            tap::make(config, attachment, &netns, &addresses)?
        }
        Kind::Memif | Kind::VhostUser => Vec::new(),
    };
    ports::add(config, attachment, &queues)?;
    let socket = attachment.socket.as_deref();
    let interface = Interface {
        name: config.interface_of(&attachment.ifname).to_owned(),
        mac: attachment.mac.clone(),
        mtu: config.mtu.map(u32::from),
        sandbox: call.netns.clone().unwrap_or_default(),
        socket_path: socket.map_or(String::new(), |path| path.display().to_string()),
        ..Interface::default()
    };
    result::of_add(config, interface, addresses)
}

fn del(call: &Call<'_>, config: &Config) -> Result<String, Error> {
    let of = call.attached()?;
    unmake(call, config, &Attachments::of(config), &of)?;
    Ok(String::new())
}

/// All that may be there is taken away. Nothing being there is no failure: a runtime may ask again.
fn unmake(
    call: &Call<'_>,
    config: &Config,
    attachments: &Attachments,
    of: &Attached,
) -> Result<(), Error> {
    let taken = take_away(config, attachments, of);
    ipam::delegate(call, config, "DEL", None)?;
    taken
}

fn take_away(config: &Config, attachments: &Attachments, of: &Attached) -> Result<(), Error> {
    let known = attachments.read(of)?;
    // What was written and cannot be read was at least meant so.
    let planned = || attachments.plan(config, &ports::switch(config), of);
    ports::remove(&known.unwrap_or_else(planned))?;
    attachments.remove(of)
}

fn check(call: &Call<'_>, config: &Config) -> Result<String, Error> {
    let of = call.attached()?;
    let differs = |what: String| Err(Error::new(Code::Differs, what, ""));
    let Some(attachment) = Attachments::of(config).read(&of)? else {
        return Err(Error::new(
            Code::UnknownContainer,
            format!("{} has no {} of ours", of.container, of.ifname),
            "",
        ));
    };
    let Some(result) = &config.prev_result else {
        return Err(Error::new(Code::Config, "CHECK needs prevResult", ""));
    };
    let earlier = config.earlier_interfaces();
    let name = config.interface_of(&of.ifname);
    let is_it = |one: &Interface| one.name == name && one.mac == attachment.mac;
    let Some(number) = earlier.iter().position(is_it) else {
        return differs(format!("prevResult has no {name} of ours"));
    };
    let Some(state) = ports::state_of(&attachment)? else {
        return differs(format!("the switch has no port {}", attachment.port));
    };
    match attachment.socket.as_deref() {
        Some(socket) if !socket.exists() => {
            return differs(format!("{} is gone", socket.display()));
        }
        Some(_) => {}
        None => check_interface(call, config, &attachment, result, number, &state)?,
    }
    ipam::delegate(call, config, "CHECK", None)?;
    Ok(String::new())
}

/// What the pod's namespace and the switch have, beside what they are to have.
fn check_interface(
    call: &Call<'_>,
    config: &Config,
    attachment: &Attachment,
    result: &Value,
    number: usize,
    state: &str,
) -> Result<(), Error> {
    if state != "connected" {
        let what = format!("the switch's port {} is {state}", attachment.port);
        return Err(Error::new(Code::Differs, what, ""));
    }
    let netns = tap::namespace(call.netns.as_deref())?;
    let addresses = Addresses::parse(Some(result), Some(number))?;
    tap::check(config, attachment, &netns, &addresses)
}

/// What is of none that still is, is taken away.
fn collect(call: &Call<'_>, config: &Config) -> Result<String, Error> {
    let Some(valid) = &config.valid_attachments else {
        return Err(Error::new(
            Code::Config,
            "GC needs cni.dev/valid-attachments",
            "",
        ));
    };
    let attachments = Attachments::of(config);
    let mut failed = None;
    for of in attachments.list()? {
        if valid.contains(&of) {
            continue;
        }
        // Plugins for addresses need not know of GC.
        let freed = ipam::delegate(call, config, "DEL", Some(&of)).map(drop);
        if let Err(error) = take_away(config, &attachments, &of).and(freed) {
            failed = Some(error);
        }
    }
    ipam::delegate(call, config, "GC", None)?;
    failed.map_or(Ok(String::new()), Err)
}

fn status(call: &Call<'_>, config: &Config) -> Result<String, Error> {
    ports::answers(&ports::switch(config)).map_err(|error| Error {
        code: Code::NotReady as u32,
        ..error
    })?;
    ipam::delegate(call, config, "STATUS", None)?;
    Ok(String::new())
}
