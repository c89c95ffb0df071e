//! Ports of containers: made when a container comes that has a device, and gone with it.
//!
//! A hook of the container runtime asks for them while it makes the container (`millrace cdi hook packet`), names the container and its
//! first process, and mounts the directory of the sockets into it. Nobody has to say that a container has gone: its first process is
//! watched (pidfd_open(2)), and a runtime that is killed leaves nothing.
//!
//! What a container has is written down before it is made (`record`), beside the control socket. So a switch that is started again makes
//! the ports anew, in the directories that containers still have mounted, and takes away what is of containers that have gone meanwhile.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::geteuid;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;
use tracing::{info, warn};

use crate::config::DeviceConfig;
use crate::report::DeviceReport;
use crate::switch::Switch;
use name::NAME_BYTES_MAX;
use record::{Record, remove, short};

pub(crate) mod name;
mod record;
#[cfg(test)]
mod tests;

/// Bytes of a socket's path, at most (unix(7)).
const PATH_BYTES_MAX: usize = 107;
/// Bytes behind the directory, at most: a container's name, a device's, and `/15.sock`.
const BELOW_BYTES_MAX: usize = 1 + NAME_BYTES_MAX + 1 + 16 + 8;
/// What a container is told of its ports, beside the sockets.
const FACTS: &str = "ports.json";

/// A container, while its first process lives.
#[derive(Debug)]
struct Container {
    record: Record,
    process: OwnedFd,
    /// By which its end is told.
    token: u64,
}

/// Those that have ports.
#[derive(Debug)]
pub(crate) struct Containers {
    directory: PathBuf,
    devices: Vec<DeviceConfig>,
    /// Of first processes: readable when one has ended.
    epoll: Epoll,
    /// By what they are called for short.
    containers: BTreeMap<String, Container>,
    next_token: u64,
    /// Ports that could not be taken away, since a flow or a mirror names them.
    left: Vec<String>,
}

/// The first process of a container that is there, and when it was started.
fn watch(pid: u32) -> io::Result<(OwnedFd, u64)> {
    let number = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    let number = number.and_then(Pid::from_raw);
    let number = number.ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(number, PidfdFlags::empty())?;
    Ok((process, record::started(pid)?))
}

impl Containers {
    /// Takes up what a switch before this one has left beside this control socket: what is of containers that have gone is taken away,
    /// and others get their ports again.
    pub(crate) fn open(
        control: &Path,
        devices: Vec<DeviceConfig>,
        switch: &mut Switch,
    ) -> io::Result<Containers> {
        let mut containers = Containers {
            directory: control.with_extension("ports"),
            devices,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            containers: BTreeMap::new(),
            next_token: 0,
            left: Vec::new(),
        };
        match fs::symlink_metadata(&containers.directory) {
            Ok(_) => {
                containers.check_directory()?;
                containers.restore(switch)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(containers)
    }

    /// Readable when [`Containers::collect`] has something to do.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// What there is for containers.
    pub(crate) fn report(&self) -> Vec<DeviceReport> {
        let has = |name: &str| {
            let all = self.containers.values();
            let with = all.filter(|one| one.record.devices.iter().any(|own| own == name));
            with.count() as u64
        };
        let devices = self.devices.iter();
        let report = devices.map(|device| DeviceReport {
            name: device.name.clone(),
            kind: device.kind().to_owned(),
            ports: device.ports,
            containers: has(&device.name),
            containers_max: device.containers,
        });
        report.collect()
    }

    /// Gives a container, of which `pid` is the first process, the ports of a device; returns the directory of their sockets. Asked again,
    /// it is the same.
    pub(crate) fn add(
        &mut self,
        switch: &mut Switch,
        id: &str,
        pid: u32,
        device: &str,
    ) -> Result<PathBuf, String> {
        self.collect(switch);
        let config = self.device(device)?;
        let name = short(id)?;
        if let Some(found) = self.containers.get(&name) {
            let record = &found.record;
            if (record.id.as_str(), record.pid) != (id, pid) {
                return Err(format!(
                    "container {id}: {}, whose first process is {}, has ports by that name",
                    record.id, record.pid
                ));
            }
            if record.devices.iter().any(|own| own == device) {
                return Ok(self.place(&name, device));
            }
        }
        let report = self.report().into_iter().find(|one| one.name == device);
        if let Some(most) = config.containers
            && report.is_some_and(|report| report.containers >= u64::from(most))
        {
            return Err(format!(
                "device {device:?}: {most} containers have it, which is as many as may (device.containers)"
            ));
        }
        let failed =
            |error| format!("container {id}: its process {pid} cannot be watched: {error}");
        self.know(&name, id, pid).map_err(failed)?;
        let made = self.make(switch, &name, &config);
        if made.is_err() {
            self.take_device(switch, &name, &config.name);
        }
        made
    }

    fn device(&self, name: &str) -> Result<DeviceConfig, String> {
        let found = self.devices.iter().find(|device| device.name == name);
        found.cloned().ok_or_else(|| {
            let names = self.devices.iter().map(|device| device.name.as_str());
            let names: Vec<&str> = names.collect();
            match names[..] {
                [] => "this switch has nothing for containers ([[device]] of its configuration)"
                    .to_owned(),
                _ => format!(
                    "there is no device {name:?}: there are {}",
                    names.join(", ")
                ),
            }
        })
    }

    fn place(&self, name: &str, device: &str) -> PathBuf {
        self.directory.join(name).join(device)
    }

    /// Begins to watch a container, unless it is watched.
    fn know(&mut self, name: &str, id: &str, pid: u32) -> io::Result<()> {
        if self.containers.contains_key(name) {
            return Ok(());
        }
        let (process, started) = watch(pid)?;
        let record = Record {
            id: id.to_owned(),
            pid,
            started,
            devices: Vec::new(),
        };
        self.admit(name, record, process)
    }

    fn admit(&mut self, name: &str, record: Record, process: OwnedFd) -> io::Result<()> {
        let token = self.next_token;
        self.next_token += 1;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
        self.epoll.add(&process, event)?;
        let container = Container {
            record,
            process,
            token,
        };
        self.containers.insert(name.to_owned(), container);
        Ok(())
    }

    /// Makes a device's ports, once that is written down.
    fn make(
        &mut self,
        switch: &mut Switch,
        name: &str,
        device: &DeviceConfig,
    ) -> Result<PathBuf, String> {
        let failed = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
        self.make_directory()
            .map_err(|error| failed(&self.directory, error))?;
        if let Some(container) = self.containers.get_mut(name) {
            let devices = &mut container.record.devices;
            if !devices.contains(&device.name) {
                devices.push(device.name.clone());
            }
            let record = &container.record;
            record
                .write(&self.directory, name)
                .map_err(|error| failed(&self.directory, error))?;
        }
        let place = self.place(name, &device.name);
        let own = self.directory.join(name);
        for path in [&own, &place] {
            make_open(path).map_err(|error| failed(path, error))?;
        }
        let mut facts = Vec::new();
        for number in 0..device.ports {
            let socket = format!("{number}.sock");
            let port = device.port(port_name(name, &device.name, number), place.join(&socket));
            switch.add_port(port)?;
            let (id, secret, mtu) = device.facts();
            let kind = device.kind();
            facts.push(json!({
                "socket": socket, "kind": kind, "id": id, "secret": secret, "mtu": mtu,
            }));
        }
        let path = place.join(FACTS);
        let write = || {
            fs::write(&path, format!("{}\n", json!(facts)))?;
            fs::set_permissions(&path, Permissions::from_mode(0o644))
        };
        write().map_err(|error| failed(&path, error))?;
        Ok(place)
    }

    /// Only whoever the switch is may pass here: a container gets what is its own by a mount.
    fn make_directory(&self) -> io::Result<()> {
        let bytes = self.directory.as_os_str().len() + BELOW_BYTES_MAX;
        if bytes > PATH_BYTES_MAX {
            let what = "too long for sockets below it; the control socket needs a shorter path";
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, what));
        }
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.check_directory(),
            made => made,
        }
    }

    /// What is in there is believed.
    fn check_directory(&self) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.directory)?;
        let is_own = found.is_dir() && found.uid() == geteuid().as_raw();
        if !is_own || found.mode() & 0o077 != 0 {
            let what = format!(
                "{} is not a directory that only this user may enter: take it away",
                self.directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(())
    }

    /// Takes away what containers had whose first process has ended.
    pub(crate) fn collect(&mut self, switch: &mut Switch) {
        let mut events = [EpollEvent::empty(); 32];
        while let Ok(count @ 1..) = self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            for event in &events[..count] {
                let is_it = |one: &(&String, &Container)| one.1.token == event.data();
                let name = self.containers.iter().find(is_it).map(|one| one.0.clone());
                if let Some(name) = name {
                    self.take(switch, &name);
                }
            }
        }
        self.left.retain(|port| {
            switch.remove_port(port).is_err() && switch.port_names(port).contains(port)
        });
    }

    /// Takes a container's ports away, and all that was written of it.
    fn take(&mut self, switch: &mut Switch, name: &str) {
        let Some(container) = self.containers.remove(name) else {
            return;
        };
        // It is closed with it, in any case.
        let _ = self.epoll.delete(&container.process);
        for device in &container.record.devices {
            self.take_ports(switch, name, device);
        }
        if let Err(error) = remove(&self.directory, name) {
            warn!(
                "what container {} had is left: {error}",
                container.record.id
            );
        }
        info!("container {} has gone, and its ports", container.record.id);
    }

    /// What was begun for a device and has failed.
    fn take_device(&mut self, switch: &mut Switch, name: &str, device: &str) {
        self.take_ports(switch, name, device);
        let _ = fs::remove_dir_all(self.place(name, device));
        let Some(container) = self.containers.get_mut(name) else {
            return;
        };
        container.record.devices.retain(|own| own != device);
        if container.record.devices.is_empty() {
            self.take(switch, name);
        } else if let Err(error) = container.record.write(&self.directory, name) {
            warn!("{}: {error}", self.directory.display());
        }
    }

    fn take_ports(&mut self, switch: &mut Switch, name: &str, device: &str) {
        // A device that is of another configuration now had other ports.
        let own = format!("{}/", port_stem(name, device));
        for port in switch.port_names(&own) {
            if let Err(error) = switch.remove_port(&port) {
                warn!("{error}; it goes when that has gone");
                self.left.push(port);
            }
        }
    }

    /// What a switch before this one wrote down.
    fn restore(&mut self, switch: &mut Switch) -> io::Result<()> {
        for (name, record) in record::all(&self.directory)? {
            let watched = watch(record.pid).ok();
            let Some((process, _)) = watched.filter(|one| one.1 == record.started) else {
                continue;
            };
            let devices = record.devices.clone();
            let id = record.id.clone();
            self.admit(&name, record, process)?;
            for device in devices {
                let made = self.device(&device);
                let made = made.and_then(|device| self.make(switch, &name, &device));
                // The container keeps its directory: the next configuration may have the device again.
                if let Err(error) = made {
                    warn!("container {id} has no ports of {device:?} now: {error}");
                }
            }
        }
        for name in record::names(&self.directory)? {
            if !self.containers.contains_key(&name) {
                remove(&self.directory, &name)?;
            }
        }
        Ok(())
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        // It stays while containers have something in it.
        let _ = fs::remove_dir(&self.directory);
    }
}

fn port_stem(name: &str, device: &str) -> String {
    format!("cdi/{name}/{device}")
}

fn port_name(name: &str, device: &str, number: u32) -> String {
    format!("{}/{number}", port_stem(name, device))
}

/// A directory for whoever finds it, whatever the umask is.
fn make_open(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(path, Permissions::from_mode(0o755))
}
