//! The switch's side.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use millrace_switch::{AskError, Request, SwitchReport, ask, ask_with, own_socket};
use serde_json::{Map, Value, json};

use crate::attachment::Attachment;
use crate::config::Config;
use crate::error::{Code, Error};

/// The control socket of the network's switch.
pub(crate) fn switch(config: &Config) -> PathBuf {
    // Runtimes run plugins as root.
    config.switch.clone().unwrap_or_else(|| own_socket(0, None))
}

/// Adds a port; of a TAP interface, of the queues that were opened.
pub(crate) fn add(
    config: &Config,
    attachment: &Attachment,
    queues: &[OwnedFd],
) -> Result<(), Error> {
    let toml = settings(config, attachment)?;
    let queues: Vec<_> = queues.iter().map(AsFd::as_fd).collect();
    let request = Request::AddPort {
        toml,
        ifindex: None,
    };
    done(ask_with(&attachment.switch, &request, &queues, None))
}

/// Takes it away, if it is there. A switch that has gone has no ports.
pub(crate) fn remove(attachment: &Attachment) -> Result<(), Error> {
    match state(&attachment.switch, &attachment.port) {
        Ok(None) | Err(AskError::NoSwitch(..)) => Ok(()),
        Ok(Some(_)) => {
            let name = attachment.port.clone();
            done(ask(&attachment.switch, &Request::RemovePort { name }))
        }
        Err(error) => done(Err(error)),
    }
}

/// How it is, if it is there.
pub(crate) fn state_of(attachment: &Attachment) -> Result<Option<String>, Error> {
    state(&attachment.switch, &attachment.port).map_err(refused)
}

/// Whether the switch answers.
pub(crate) fn answers(switch: &Path) -> Result<(), Error> {
    done(ask(switch, &Request::Report))
}

fn state(switch: &Path, port: &str) -> Result<Option<String>, AskError> {
    let report = ask(switch, &Request::Report)?;
    let report: SwitchReport =
        serde_json::from_value(report).map_err(|error| AskError::Nonsense(error.to_string()))?;
    let mut ports = report.ports.into_iter();
    let found = ports.find(|one| one.name == port);
    Ok(found.map(|one| one.state))
}

fn done(asked: Result<Value, AskError>) -> Result<(), Error> {
    asked.map(drop).map_err(refused)
}

fn refused(error: AskError) -> Error {
    let code = match &error {
        AskError::NoSwitch(..) | AskError::NoAnswer(_) => Code::Later,
        AskError::Stranger(_) | AskError::Nonsense(_) | AskError::Refused(_) => Code::Switch,
    };
    Error::new(code, "the switch does not do it", error)
}

/// The port as a line of the switch's configuration each. What the network says comes first, and what makes it this port last.
fn settings(config: &Config, attachment: &Attachment) -> Result<String, Error> {
    let mut all = config.settings.clone();
    let kind = config.port.name();
    let own = all.entry(kind).or_insert_with(|| json!({}));
    let Value::Object(own) = own else {
        return Err(Error::new(
            Code::Config,
            format!("settings.{kind} is no table"),
            "",
        ));
    };
    if let Some(socket) = &attachment.socket {
        own.insert("path".to_owned(), json!(socket));
    } else {
        let name = config.interface_of(&attachment.ifname);
        own.insert("interface".to_owned(), json!(name));
    }
    if let Some(mode) = config.socket_mode {
        own.insert("socket_mode".to_owned(), json!(mode));
    }
    all.insert("name".to_owned(), json!(attachment.port));
    all.entry("container").or_insert(json!(true));
    if let Some(vlan) = config.vlan {
        all.insert("vlan".to_owned(), json!({ "access": vlan }));
    }
    if let Some(mtu) = config.mtu {
        all.insert("mtu".to_owned(), json!(mtu));
    }
    lines(&all)
}

/// JSON as TOML: tables inline, strings with JSON's escapes, which TOML's basic strings have as well.
fn lines(table: &Map<String, Value>) -> Result<String, Error> {
    let mut text = String::new();
    for (key, value) in table {
        text.push_str(&format!("{} = {}\n", json!(key), inline(value)?));
    }
    Ok(text)
}

fn inline(value: &Value) -> Result<String, Error> {
    Ok(match value {
        Value::Object(table) => {
            let pairs = table.iter().map(|(key, value)| {
                let value = inline(value)?;
                Ok(format!("{} = {value}", json!(key)))
            });
            format!(
                "{{ {} }}",
                pairs.collect::<Result<Vec<_>, Error>>()?.join(", ")
            )
        }
        Value::Array(list) => {
            let parts = list.iter().map(inline);
            format!("[{}]", parts.collect::<Result<Vec<_>, Error>>()?.join(", "))
        }
        Value::Null => {
            return Err(Error::new(
                Code::Config,
                "a setting of the port is null",
                "",
            ));
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    })
}
