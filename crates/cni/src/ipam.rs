//! Addresses: the network's IPAM plugin is run as this one was, with the same configuration and environment (specification, section 4).

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::commands::Call;
use crate::config::{Attached, Config};
use crate::error::{Code, Error};

/// Has the IPAM plugin do `command`, if the network has one; returns what it says. `of`: for another interface than the call is about.
pub(crate) fn delegate(
    call: &Call<'_>,
    config: &Config,
    command: &str,
    of: Option<&Attached>,
) -> Result<Option<Value>, Error> {
    let kind = config.ipam.as_ref().and_then(|ipam| ipam.kind.as_deref());
    let Some(kind) = kind.filter(|kind| !kind.is_empty()) else {
        return Ok(None);
    };
    let program = find(kind, call.path.as_deref().unwrap_or_default())?;
    let failed = |error| {
        Error::new(
            Code::Io,
            format!("the IPAM plugin {} cannot be run", program.display()),
            error,
        )
    };
    let mut plugin = Command::new(&program);
    plugin.env("CNI_COMMAND", command);
    if let Some(Attached { container, ifname }) = of {
        plugin
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", ifname);
    }
    let mut child = plugin
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may have seen enough.
        let _ = stdin.write_all(call.input);
    }
    let output = child.wait_with_output().map_err(failed)?;
    let said = serde_json::from_slice::<Value>(&output.stdout).ok();
    if output.status.success() {
        return Ok(said);
    }
    let field = |name: &str| said.as_ref().and_then(|said| said.get(name)).cloned();
    let text = |name: &str| field(name).and_then(|it| Some(it.as_str()?.to_owned()));
    let code = field("code").and_then(|code| u32::try_from(code.as_u64()?).ok());
    Err(Error {
        code: code.unwrap_or(Code::Io as u32),
        message: text("msg").unwrap_or_else(|| format!("the IPAM plugin {kind} failed")),
        details: text("details").unwrap_or_default(),
    })
}

fn find(kind: &str, path: &str) -> Result<PathBuf, Error> {
    let is_name = !kind.contains('/') && kind != "." && kind != "..";
    let mut places = path.split(':').filter(|place| !place.is_empty());
    let found = places.find_map(|place| {
        let program = PathBuf::from(place).join(kind);
        (is_name && program.is_file()).then_some(program)
    });
    found.ok_or_else(|| {
        Error::new(
            Code::Config,
            format!("there is no IPAM plugin {kind:?} in CNI_PATH"),
            path,
        )
    })
}
