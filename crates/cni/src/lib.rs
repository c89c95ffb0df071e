//! A CNI plugin that gives a pod a port of its node's switch, with addresses by whatever IPAM plugin the network has.
//!
//! What it is: a program that a container runtime runs for each pod that comes and goes, as the Container Network Interface specification
//! has it (versions 0.3.0 to 1.1.0, <https://www.cni.dev/docs/spec/>), alone or behind other plugins. What it is not: it moves no packet
//! and holds nothing open; the switch is a program of its own, `millrace switch run`.
//!
//! A port has a socket in a directory of its own, which is the pod's to be mounted into it; or it is a TAP interface, which is made in the
//! pod's network namespace and handed over to the switch. What was made for whom is written down before it is made, in a file for each
//! attachment, so that whatever a plugin has left that was killed is found and taken away.
//!
//! In reading order: `config` (what the runtime says), `attachment` (what was made for whom), `ipam`, `addresses`, `tap` and `netlink`
//! (interfaces), `ports` (the switch), `commands`, `result` and `error` (what the runtime is told).

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::process::ExitCode;

mod addresses;
mod attachment;
mod commands;
mod config;
mod error;
mod ipam;
mod netlink;
mod ports;
mod result;
mod tap;

use commands::Call;
use error::{Code, Error};

/// Bytes of a configuration, at most.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Does what the environment and standard input say.
#[must_use]
pub fn main() -> ExitCode {
    let mut input = Vec::new();
    let read = std::io::stdin()
        .take(CONFIG_BYTES_MAX)
        .read_to_end(&mut input);
    let done = match read {
        Ok(_) => commands::run(&Call::new(&input, |name| std::env::var(name).ok())),
        Err(error) => Err(Error::new(
            Code::Io,
            "the configuration cannot be read",
            error,
        )),
    };
    let (text, code) = match done {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => {
            let version = config::version_of(&input);
            (error.to_json(&version), ExitCode::FAILURE)
        }
    };
    if text.is_empty() || writeln!(std::io::stdout(), "{text}").is_ok() {
        code
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests;
