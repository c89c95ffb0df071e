//! The hook that gives a container its packet ports: the switch makes them, and the directory of their sockets is mounted.
//!
//! OCI runtime specification, `createRuntime` hooks: run in the engine's namespaces, with the engine's rights, when the container's
//! namespaces and mounts are there and its root is not the root yet. Only there can the switch be asked, whose control socket is root's;
//! and the mount needs no right in the container, whatever user namespace that is in: the directory is taken here, and put into the
//! container's mount namespace from here. What has been mounted in its place by the specification, an empty directory, is what the engine
//! made room for, also in images that nobody can write to.
//!
//! A container that gets no port does not start: unlike a connection, which the kernel carries as well, packets have no other way.
//!
//! Nobody takes the ports away from here: the switch watches the container's first process.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use millrace_switch::{Request, ask, own_socket};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags};
use rustix::thread::LinkNameSpaceType;
use serde_json::Value;

use super::hook::{open_in, root_of_bundle, state};
use super::spec::packet_place;

/// The exit status: a container that gets none is not to start.
pub(super) fn give(device: &str, switch: Option<&Path>) -> u8 {
    let usual = own_socket(0, None);
    match give_to(&state(), device, switch.unwrap_or(&usual)) {
        Ok(()) => 0,
        Err(error) => {
            complain!("millrace: this container gets no packet port of {device:?}: {error:#}");
            1
        }
    }
}

/// Who asks.
struct Container {
    id: String,
    pid: u32,
    root: PathBuf,
}

impl Container {
    fn parse(state: &str) -> anyhow::Result<Container> {
        let value: Value = serde_json::from_str(state).context("what the engine says of it")?;
        let id = value.get("id").and_then(Value::as_str);
        let pid = value.get("pid").and_then(Value::as_u64);
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        let (Some(id), Some(pid @ 1..)) = (id, pid) else {
            bail!("the engine does not say which container it is, and which process");
        };
        let root = root_of_bundle(state).context("its bundle does not say where its root is")?;
        Ok(Container {
            id: id.to_owned(),
            pid,
            root,
        })
    }
}

fn give_to(state: &str, device: &str, switch: &Path) -> anyhow::Result<()> {
    let container = Container::parse(state)?;
    let request = Request::AddContainer {
        id: container.id.clone(),
        pid: container.pid,
        device: device.to_owned(),
    };
    let answer = ask(switch, &request)?;
    let directory = answer.get("directory").and_then(Value::as_str);
    let directory = directory.context("the switch does not say where the sockets are")?;
    mount(&container, Path::new(directory), &packet_place(device))
}

/// Mounts a directory of the machine's into the container, read-only: an image's own root could otherwise fill the machine's memory.
fn mount(container: &Container, directory: &Path, place: &str) -> anyhow::Result<()> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let source = rustix::mount::open_tree(CWD, directory, clone)
        .with_context(|| format!("cannot take {}", directory.display()))?;
    enter(container.pid).context("cannot enter its mount namespace")?;
    let root = open_root(&container.root).context(container.root.display().to_string())?;
    let target = open_in(&root, place.trim_start_matches('/'), OFlags::PATH)
        .with_context(|| format!("it has no {place}"))?;
    let empty_paths =
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(&source, "", &target, "", empty_paths)
        .with_context(|| format!("cannot mount {place}"))?;
    let flags = MountFlags::BIND
        | MountFlags::RDONLY
        | MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC;
    let mounted = format!("/proc/self/fd/{}", source.as_raw_fd());
    rustix::mount::mount_remount(mounted, flags, "")
        .with_context(|| format!("cannot make {place} read-only"))
}

/// This process, which has one thread, goes to the container's mounts.
fn enter(pid: u32) -> std::io::Result<()> {
    let namespace = File::open(format!("/proc/{pid}/ns/mnt"))?;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
    Ok(())
}

fn open_root(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_told_by_what_the_engine_says() {
        let bundle = tempfile::tempdir().unwrap();
        let root = r#"{"root":{"path":"fs"}}"#;
        std::fs::write(bundle.path().join("config.json"), root).unwrap();
        let place = bundle.path().display();
        let told = format!(r#"{{"id":"c1","pid":7,"bundle":"{place}"}}"#);
        let container = Container::parse(&told).unwrap();
        assert_eq!((container.id.as_str(), container.pid), ("c1", 7));
        assert_eq!(container.root, bundle.path().join("fs"));
        for told in [
            "".to_owned(),
            "[]".to_owned(),
            format!(r#"{{"id":"c1","pid":0,"bundle":"{place}"}}"#),
            format!(r#"{{"id":"c1","pid":-1,"bundle":"{place}"}}"#),
            format!(r#"{{"pid":7,"bundle":"{place}"}}"#),
            r#"{"id":"c1","pid":7,"bundle":"/nowhere"}"#.to_owned(),
        ] {
            assert!(Container::parse(&told).is_err(), "{told}");
        }
    }

    #[test]
    fn without_a_switch_it_says_so() {
        let bundle = tempfile::tempdir().unwrap();
        let root = r#"{"root":{"path":"fs"}}"#;
        std::fs::write(bundle.path().join("config.json"), root).unwrap();
        let told = format!(
            r#"{{"id":"c","pid":7,"bundle":"{}"}}"#,
            bundle.path().display()
        );
        let error = give_to(&told, "fast", &bundle.path().join("switch.sock")).unwrap_err();
        assert!(error.to_string().contains("no switch answers"), "{error}");
    }
}
