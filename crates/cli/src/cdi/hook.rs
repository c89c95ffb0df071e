//! The hook that container engines run while they make a container: its programs are to load the library.
//!
//! glibc's loader reads `/etc/ld.so.preload`. That file leaves the environment as it is, so an image keeps an `LD_PRELOAD` of its
//! own, and holds for programs that are started with an empty environment and by `exec` into the container, too. What the image
//! has in it comes first. The new file is in a file system of its own (one page of memory), mounted over the image's: nothing is
//! written into the image, or kept when the container is committed to a new one.
//!
//! OCI runtime specification, `createContainer` hooks: run in the container's namespaces, before its root becomes the root, with all
//! rights of the engine, and perhaps with the image's environment. So every path is of the machine here, and every link in the image
//! would lead there, or to what only these rights can read: the image is looked into with `RESOLVE_IN_ROOT` only, and its list must
//! be a file of the image's own file system that no link leads to. The program of the hook is linked statically and has an environment
//! of its own ([`super::spec`]): no loader takes orders from the image.
//!
//! Whatever fails, the container starts, unaffected.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use serde_json::Value;

use super::directory::{IN_CONTAINER, LIBRARY};
use super::images::preload_path;

/// What glibc's loader reads (ld.so(8)), in the container.
const PRELOAD: &str = "etc/ld.so.preload";
/// Longer lists of libraries are left alone.
const LIST_BYTES_MAX: u64 = 65_536;
/// Longest description of a container that is read.
const STATE_BYTES_MAX: u64 = 16 << 20;

/// Always 0: the container is to start.
pub(crate) fn run() -> u8 {
    let state = state();
    if let Err(error) = root(&state).and_then(|root| preload(&root)) {
        // Engines show it when they are told to log much.
        complain!("millrace: this container is not accelerated: {error:#}");
    }
    0
}

/// What the engine says of the container, to every hook.
pub(super) fn state() -> String {
    let mut state = String::new();
    let _ = io::stdin().take(STATE_BYTES_MAX).read_to_string(&mut state);
    state
}

/// The container's root: the working directory (runc), or what its bundle says. Told by what is mounted there.
fn root(state: &str) -> anyhow::Result<OwnedFd> {
    let places = [|_: &str| Some(PathBuf::from(".")), root_of_bundle];
    for path in places.into_iter().filter_map(|place| place(state)) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(root) = rustix::fs::open(&path, flags, Mode::empty())
            && open_in(&root, &library_in_root(), OFlags::PATH).is_ok()
        {
            return Ok(root);
        }
    }
    bail!("its root file system was not found, or has no {IN_CONTAINER}")
}

fn library_in_root() -> String {
    format!("{}/{LIBRARY}", IN_CONTAINER.trim_start_matches('/'))
}

/// What the container's bundle says of its root.
pub(super) fn root_of_bundle(state: &str) -> Option<PathBuf> {
    let state: Value = serde_json::from_str(state).ok()?;
    let bundle = Path::new(state.get("bundle")?.as_str()?);
    let file = File::open(bundle.join("config.json")).ok()?;
    let mut config = Vec::new();
    file.take(STATE_BYTES_MAX).read_to_end(&mut config).ok()?;
    let config: Value = serde_json::from_slice(&config).ok()?;
    // Relative to the bundle, where it is relative.
    Some(bundle.join(config.get("root")?.get("path")?.as_str()?))
}

/// Opens a path of the container's; links in it stay in the container.
pub(super) fn open_in(root: &OwnedFd, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    resolve_in(root, path, flags, ResolveFlags::NO_MAGICLINKS)
}

/// Opens the list of the image's: no link, and no other file system, such as a volume's or /proc.
fn open_list(root: &OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    resolve_in(
        root,
        PRELOAD,
        flags,
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
    )
}

fn resolve_in(root: &OwnedFd, path: &str, flags: OFlags, how: ResolveFlags) -> io::Result<OwnedFd> {
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::from_raw_mode(0o644)
    } else {
        Mode::empty()
    };
    Ok(rustix::fs::openat2(
        root,
        path,
        flags | OFlags::CLOEXEC,
        mode,
        ResolveFlags::IN_ROOT | how,
    )?)
}

/// Has the container's programs load the library.
fn preload(root: &OwnedFd) -> anyhow::Result<()> {
    let target = open_or_make(root).with_context(|| format!("/{PRELOAD} in the image"))?;
    let before = read_list(root, &target).with_context(|| format!("/{PRELOAD} in the image"))?;
    let Some(list) = with_library(&before) else {
        return Ok(());
    };
    mount_file(root, &target, &list).with_context(|| format!("cannot mount /{PRELOAD}"))
}

/// The file, to be mounted over; made empty where the image has none, as engines make every place for a mount.
fn open_or_make(root: &OwnedFd) -> io::Result<OwnedFd> {
    match open_list(root, OFlags::PATH) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    // Fails, rightly, where it is there already.
    let _ = rustix::fs::mkdirat(root, "etc", Mode::from_raw_mode(0o755));
    open_list(root, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
    open_list(root, OFlags::PATH)
}

fn read_list(root: &OwnedFd, target: &OwnedFd) -> anyhow::Result<Vec<u8>> {
    // To open a device, or a pipe, does things.
    if !FileType::from_raw_mode(rustix::fs::fstat(target)?.st_mode).is_file() {
        bail!("not a file");
    }
    let file = File::from(open_list(root, OFlags::RDONLY | OFlags::NONBLOCK)?);
    let mut list = Vec::new();
    file.take(LIST_BYTES_MAX + 1).read_to_end(&mut list)?;
    if list.len() as u64 > LIST_BYTES_MAX {
        bail!("longer than {LIST_BYTES_MAX} bytes");
    }
    Ok(list)
}

/// The list with the library at its end. `None`: it is there already.
fn with_library(list: &[u8]) -> Option<Vec<u8>> {
    let library = preload_path(Path::new(IN_CONTAINER));
    // What separates names there, and what begins a comment (ld.so(8)).
    let named = list.split(|byte| *byte == b'\n').any(|line| {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        line.split(|byte| matches!(byte, b' ' | b':' | b'\t'))
            .any(|name| name == library.as_bytes())
    });
    if named {
        return None;
    }
    let mut list = list.to_vec();
    if list.last().is_some_and(|last| *last != b'\n') {
        list.push(b'\n');
    }
    list.extend_from_slice(library.as_bytes());
    list.push(b'\n');
    Some(list)
}

/// Mounts a read-only file with these bytes over `target`.
fn mount_file(root: &OwnedFd, target: &OwnedFd, bytes: &[u8]) -> anyhow::Result<()> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("size", "128k"), ("nr_inodes", "4"), ("mode", "0755")] {
        rustix::mount::fsconfig_set_string(&context, key, value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let files = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    write_list(&files, bytes)?;
    rustix::mount::fsconfig_set_flag(&context, "ro")?;
    rustix::mount::fsconfig_reconfigure(&context)?;

    // A part of a file system can be mounted only once the whole is mounted in this namespace: for a moment it is.
    let place = open_in(root, IN_CONTAINER.trim_start_matches('/'), OFlags::PATH)?;
    let empty_paths =
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(&files, "", &place, "", empty_paths)?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let file = rustix::mount::open_tree(&files, "list", clone);
    let whole = format!("/proc/self/fd/{}", files.as_raw_fd());
    rustix::mount::unmount(whole, UnmountFlags::DETACH)?;
    rustix::mount::move_mount(&file?, "", target, "", empty_paths)?;
    Ok(())
}

fn write_list(files: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(files, "list", flags, Mode::from_raw_mode(0o644))?;
    // Whatever the umask is.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    File::from(file).write_all(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn opened(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn the_library_comes_last_and_once() {
        let ours = "/run/millrace/$PLATFORM/libmillrace_preload.so\n";
        let list = |before: &str| {
            with_library(before.as_bytes()).map(|list| String::from_utf8(list).unwrap())
        };
        assert_eq!(list(""), Some(ours.to_owned()));
        assert_eq!(list("/a.so"), Some(format!("/a.so\n{ours}")));
        assert_eq!(list("/a.so:/b.so\n"), Some(format!("/a.so:/b.so\n{ours}")));
        assert_eq!(list(&format!("/a.so {ours}")), None);
        assert!(list(&format!("# {ours}")).is_some());
    }

    /// What `preload` reads before it mounts.
    fn list_of(root: &OwnedFd) -> anyhow::Result<Vec<u8>> {
        read_list(root, &open_or_make(root)?)
    }

    #[test]
    fn links_in_an_image_are_not_followed() {
        let outer = tempfile::tempdir().unwrap();
        let image = outer.path().join("image");
        std::fs::create_dir_all(image.join("etc")).unwrap();
        std::fs::write(image.join("secret"), "for root alone").unwrap();
        let root = opened(&image);
        for target in ["/secret", "../secret", "/nowhere"] {
            symlink(target, image.join(PRELOAD)).unwrap();
            assert!(list_of(&root).is_err(), "{target}");
            std::fs::remove_file(image.join(PRELOAD)).unwrap();
        }
        std::fs::remove_dir(image.join("etc")).unwrap();
        symlink(outer.path(), image.join("etc")).unwrap();
        assert!(list_of(&root).is_err());
        assert!(!outer.path().join("ld.so.preload").exists());
    }

    #[test]
    fn what_is_no_file_and_what_is_too_long_is_left_alone() {
        let image = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(image.path().join(PRELOAD)).unwrap();
        let root = opened(image.path());
        assert!(list_of(&root).is_err());
        std::fs::remove_dir(image.path().join(PRELOAD)).unwrap();
        assert_eq!(list_of(&root).unwrap(), b"");
        std::fs::write(image.path().join(PRELOAD), vec![b'#'; 70_000]).unwrap();
        assert!(list_of(&root).is_err());
    }

    #[test]
    fn a_root_is_told_by_what_is_mounted_in_it() {
        let bundle = tempfile::tempdir().unwrap();
        std::fs::write(
            bundle.path().join("config.json"),
            r#"{"root":{"path":"fs"}}"#,
        )
        .unwrap();
        let state = format!(r#"{{"bundle":"{}"}}"#, bundle.path().display());
        assert_eq!(root_of_bundle(&state), Some(bundle.path().join("fs")));
        assert!(root(&state).is_err());
        let mounted = bundle.path().join("fs").join(library_in_root());
        std::fs::create_dir_all(mounted.parent().unwrap()).unwrap();
        std::fs::write(mounted, "").unwrap();
        assert!(root(&state).is_ok());
        assert_eq!(root_of_bundle("no state"), None);
    }
}
