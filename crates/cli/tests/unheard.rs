//! What the command does where nothing that it says can be written, as on a disk that is full.

use std::fs::{self, File};
use std::process::{Command, Stdio};

fn millrace(words: &[&str]) -> Command {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(full())
        .stderr(full());
    command.env("MILLRACE", "off");
    command
}

#[test]
fn exit_statuses_are_as_they_are_when_it_is_heard() {
    for (words, expected) in [
        (&["run", "--", "/nowhere/at-all"][..], 127),
        (&["run", "--", "/etc/passwd"], 126),
        (&["switch", "--control", "/nowhere", "show"], 1),
        (&["cdi", "hook", "packet"], 1),
        // The container is to start.
        (&["cdi", "hook"], 0),
    ] {
        let status = millrace(words).status().unwrap();
        assert_eq!(status.code(), Some(expected), "{words:?}");
    }
    let mut command = millrace(&["run", "--", "true"]);
    command.env_remove("MILLRACE");
    command.env("MILLRACE_LIBRARY", "/nowhere.so");
    assert_eq!(command.status().unwrap().code(), Some(125));
}

#[test]
fn what_is_to_be_removed_is_removed_to_the_end() {
    let place = tempfile::tempdir().unwrap();
    let [directory, specifications] =
        ["directory", "specifications"].map(|name| place.path().join(name));
    fs::create_dir_all(directory.join("packet")).unwrap();
    fs::create_dir(&specifications).unwrap();
    let packets = specifications.join("millrace.dev-packet.json");
    fs::write(&packets, "{}").unwrap();
    let mut command = millrace(&["cdi", "remove", "--directory"]);
    command
        .arg(&directory)
        .arg("--specifications")
        .arg(&specifications);
    assert_eq!(command.status().unwrap().code(), Some(0));
    assert!(!packets.exists() && !directory.exists());
}
