//! A device under test: a program that forwards packets, or sends them, and is started when the generator listens, or who takes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Client, SERVER_LIMIT};
use crate::lab;
use crate::process::Program;
use crate::readers::Reading;
use crate::roads::Road;
use crate::scenario::{End, fill};
use crate::sys::{Exit, Times};

/// Words that clients of a road with a device have beside others.
pub(super) fn words(road: &Road, words: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let Some(device) = &road.device else {
        return Vec::new();
    };
    let number = Path::new(&words["dir"]).join("device.pid");
    let ports = device.ports.iter().map(|port| fill(port, words));
    let all = ["from", "to"].into_iter().zip(ports);
    let all = all.chain([("device_number", number.display().to_string())]);
    let own = device.words.iter();
    let own = own.map(|(name, value)| (name.clone(), fill(value, words)));
    all.map(|(name, value)| (name.to_owned(), value))
        .chain(own)
        .collect()
}

/// A client that was run to its end.
pub(super) struct Ran {
    pub(super) reading: Reading,
    pub(super) exit: Exit,
    pub(super) line: String,
    /// The command line of the device under test, and the processor time that it has used.
    pub(super) device: Option<(String, Times)>,
}

/// What became of a client; if it failed, with what its device has said.
pub(super) fn explained<T>(done: Result<T>, device: Option<&(Program, String)>) -> Result<T> {
    let Some((program, line)) = device else {
        return done;
    };
    done.with_context(|| {
        let said = program.output();
        format!("the device {line} said:\n{said}\nand the generator")
    })
}

/// The socket of a port that has one of its own, as `memif-server:PATH,ring=1024`.
fn socket(port: &str) -> Option<PathBuf> {
    let (kind, rest) = port.split_once(':')?;
    let path = rest.split(',').next().map(PathBuf::from);
    path.filter(|_| kind.ends_with("-server"))
}

impl Client<'_> {
    /// The sockets of the generator's ports.
    fn sockets(&self, words: &BTreeMap<String, String>) -> Vec<PathBuf> {
        let ports = ["from", "to"].iter().filter_map(|word| words.get(*word));
        let of_device = ports.filter(|_| self.road.device.is_some());
        of_device.filter_map(|port| socket(port)).collect()
    }

    /// Takes away what a generator has left that was killed: nobody listens there. And the number of the last device.
    pub(super) fn clear_for_device(&self, words: &BTreeMap<String, String>) {
        for socket in self.sockets(words) {
            let _ = fs::remove_file(socket);
        }
        if let Some(number) = words.get("device_number") {
            let _ = fs::remove_file(number);
        }
    }

    /// Starts the device, if the road has one, and tells its command line. It ends when it is dropped.
    pub(super) fn start_device(
        &self,
        words: &BTreeMap<String, String>,
        generator: &mut Program,
    ) -> Result<Option<(Program, String)>> {
        let device = self.road.device.as_ref();
        let Some(command) = device.and_then(|device| device.command.as_deref()) else {
            return Ok(None);
        };
        let sockets = self.sockets(words);
        let listens = |_: &Program| sockets.iter().all(|socket| lab::is_socket(socket));
        let waited = generator.wait_until(SERVER_LIMIT, listens);
        waited.context("the generator has to listen for the device")?;
        let command = self.lab.command(self.road, End::Server, command, words)?;
        let line = lab::line_of(&command);
        let output = Path::new(&words["dir"]).join("device.txt");
        let program = Program::start(&line, command, output)?;
        // The program takes the place of those that set its namespace and its processor: their number is its own.
        fs::write(&words["device_number"], program.pid().to_string())
            .context("the device's process number cannot be written")?;
        Ok(Some((program, line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_s_socket_is_between_its_kind_and_its_options() {
        let found = |port| socket(port).map(|path| path.display().to_string());
        assert_eq!(
            found("memif-server:/run/a,ring=64"),
            Some("/run/a".to_owned())
        );
        assert_eq!(
            found("virtio-user-server:/run/b"),
            Some("/run/b".to_owned())
        );
        for none in ["nothing", "ring-first:a/b", "af-xdp:eth0,ring=64"] {
            assert_eq!(found(none), None);
        }
    }
}
