//! What was made for a container's interface, written down before it is made.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use millrace_switch::{container_name, hash};
use serde::{Deserialize, Serialize};

use crate::config::{Attached, Config};
use crate::error::{Code, Error};

/// Bytes of a socket's path, at most (unix(7)).
const PATH_BYTES_MAX: usize = 107;
const ENDING: &str = ".json";
/// How often a directory may be taken away while something is written there: each time another interface has gone.
const ATTEMPTS: u32 = 1000;

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) container: String,
    pub(crate) ifname: String,
    /// The port's name in the switch.
    pub(crate) port: String,
    /// The switch's control socket.
    pub(crate) switch: PathBuf,
    /// The port's socket, where it has one.
    pub(crate) socket: Option<PathBuf>,
    /// The interface's MAC address, as the pod's program is to have it.
    pub(crate) mac: String,
}

/// Those of a network.
#[derive(Debug)]
pub(crate) struct Attachments {
    directory: PathBuf,
}

impl Attachments {
    pub(crate) fn of(config: &Config) -> Attachments {
        Attachments {
            directory: config.directory.join(&config.name),
        }
    }

    /// What would be made for one.
    pub(crate) fn plan(&self, config: &Config, switch: &Path, of: &Attached) -> Attachment {
        let mac = config.runtime_config.mac.clone();
        let socket = config.port.has_socket();
        Attachment {
            container: of.container.clone(),
            ifname: of.ifname.clone(),
            port: format!("cni/{}/{}", container_name(&of.container), of.ifname),
            switch: switch.to_owned(),
            socket: socket.then(|| self.own(of).join("port.sock")),
            mac: mac.unwrap_or_else(|| mac_of(&config.name, of)),
        }
    }

    /// The directory of one, which is mounted into the container.
    fn own(&self, of: &Attached) -> PathBuf {
        let name = container_name(&of.container);
        self.directory.join(name).join(&of.ifname)
    }

    fn record(&self, of: &Attached) -> PathBuf {
        let name = format!("{}@{}{ENDING}", of.ifname, of.container);
        self.directory.join(name)
    }

    /// Writes one down, and makes the directory of its socket. It is written whole or not at all.
    pub(crate) fn write(&self, attachment: &Attachment) -> Result<(), Error> {
        if let Some(socket) = &attachment.socket
            && socket.as_os_str().len() > PATH_BYTES_MAX
        {
            return Err(Error::new(
                Code::Config,
                format!(
                    "{} is longer than the {PATH_BYTES_MAX} bytes of a socket's path",
                    socket.display()
                ),
                "the network needs a shorter name, or a shorter directory",
            ));
        }
        let of = attachment.of();
        let path = self.record(&of);
        let write = || {
            let place = match &attachment.socket {
                Some(_) => self.own(&of),
                None => self.directory.clone(),
            };
            // Others may pass to what is mounted into their containers, and see nothing on the way.
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o711)
                .create(place)?;
            let text = serde_json::to_vec(attachment)?;
            let new = unfinished(&path);
            fs::write(&new, text)?;
            fs::rename(&new, &path)
        };
        let mut attempts = 0;
        loop {
            match write() {
                // Whoever removes the last other one of the container, or of the network, takes away the directory that was just made.
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < ATTEMPTS => {
                    attempts += 1;
                }
                done => return done.map_err(|error| failed("written", &path, error)),
            }
        }
    }

    /// What was written of one.
    pub(crate) fn read(&self, of: &Attached) -> Result<Option<Attachment>, Error> {
        let path = self.record(of);
        match fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path, error)),
        }
    }

    /// All that was written, also what cannot be read any more.
    pub(crate) fn list(&self) -> Result<Vec<Attached>, Error> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("read", &self.directory, error)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let parted = names.filter_map(|name| {
            let (ifname, container) = name.strip_suffix(ENDING)?.rsplit_once('@')?;
            Some(Attached {
                container: container.to_owned(),
                ifname: ifname.to_owned(),
            })
        });
        Ok(parted.collect())
    }

    /// Removes all of one, which may be gone already.
    pub(crate) fn remove(&self, of: &Attached) -> Result<(), Error> {
        let own = self.own(of);
        if let Err(error) = fs::remove_dir_all(&own)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(failed("removed", &own, error));
        }
        // The container may have others, and the network, too.
        let _ = own.parent().map(fs::remove_dir);
        let path = self.record(of);
        for path in [unfinished(&path), path] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(failed("removed", &path, error));
            }
        }
        let _ = fs::remove_dir(&self.directory);
        Ok(())
    }
}

impl Attachment {
    /// What an interface is called until it is in the pod's namespace, and has its own name.
    pub(crate) fn draft(&self) -> String {
        let hash = hash(&[&self.port, "/", &self.mac]);
        // 14 letters, of 15.
        format!("mr{:012x}", hash & 0xffff_ffff_ffff)
    }

    pub(crate) fn of(&self) -> Attached {
        Attached {
            container: self.container.clone(),
            ifname: self.ifname.clone(),
        }
    }
}

/// A record until it is whole.
fn unfinished(record: &Path) -> PathBuf {
    record.with_extension("new")
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    Error::new(
        Code::Io,
        format!("{} cannot be {what}", path.display()),
        error,
    )
}

/// An address of local administration (IEEE 802, section 8.4), always the same for one interface of one container.
fn mac_of(network: &str, of: &Attached) -> String {
    let hash = hash(&[network, "/", &of.container, "/", &of.ifname]);
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_written_while_the_last_other_one_is_removed_is_there() {
        let place = tempfile::tempdir().unwrap();
        let attachments = Attachments {
            directory: place.path().join("net"),
        };
        let attachment = Attachment {
            container: "one".to_owned(),
            ifname: "eth0".to_owned(),
            port: "p".to_owned(),
            switch: PathBuf::new(),
            socket: None,
            mac: String::new(),
        };
        let of = attachment.of();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // As others that are removed one after another.
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let _ = fs::remove_dir(&attachments.directory);
                    // Who does nothing else may keep the other from ever coming to its end.
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            let written = (0..300).map(|_| {
                attachments.write(&attachment)?;
                let read = attachments.read(&of)?;
                attachments.remove(&of)?;
                Ok(read)
            });
            let written: Vec<Result<_, Error>> = written.collect();
            is_done.store(true, Ordering::Relaxed);
            for read in written {
                assert_eq!(read.unwrap().as_ref(), Some(&attachment));
            }
        });
        assert!(!attachments.directory.exists());
    }
}
