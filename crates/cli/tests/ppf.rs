//! `millrace ppf` as a user meets it. Every function that a test starts is stopped by it, whatever happens.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A directory for a function's sockets and files.
struct Room {
    directory: tempfile::TempDir,
}

impl Room {
    fn new() -> Room {
        Room {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.arg("ppf").args(arguments);
        command.env("MILLRACE_PPF", self.path("control.sock"));
        command
    }

    /// What a command prints that succeeds.
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command says that fails.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--json"]].concat();
        serde_json::from_str(&self.said(&arguments)).unwrap()
    }

    fn config(&self, more: &str) -> String {
        let mut text = format!("store = \"{}\"\n{more}\n", self.shown("store"));
        for (name, side, own) in [
            ("n3", "radio", "192.0.2.1/24"),
            ("n6", "core", "203.0.113.1/24"),
        ] {
            let path = self.shown(&format!("{name}.sock"));
            text.push_str(&format!(
                "[[port]]\nname = \"{name}\"\nside = \"{side}\"\nmemif.path = \"{path}\"\naddresses = [\"{own}\"]\n"
            ));
        }
        text
    }

    fn start(&self, more: &str) -> Function {
        fs::write(self.path("ppf.toml"), self.config(more)).unwrap();
        let mut command = self.command(&["run", &self.shown("ppf.toml")]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        assert!(line.contains("the function works"), "{line}");
        Function { child, log }
    }
}

struct Function {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_stops_cleanly_on_each_of_its_signals_and_leaves_what_it_keeps() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let room = Room::new();
        let mut function = room.start("");
        let mode = fs::metadata(room.path("control.sock"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            room.refused(&["run", &room.shown("ppf.toml")])
                .contains("another function")
        );
        kill(Pid::from_raw(function.child.id() as i32), signal).unwrap();
        assert!(function.child.wait().unwrap().success());
        let mut rest = String::new();
        function.log.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("the function stops"), "{rest}");
        let left = fs::read_dir(room.directory.path()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["ppf.toml", "store"]);
    }
}

#[test]
fn bearers_are_added_changed_and_removed_and_are_there_after_a_kill() {
    let room = Room::new();
    let mut function = room.start("");
    let user = room.json(&["bearer", "add", "core.user=10.0.0.1", "radio=192.0.2.8/7"]);
    assert_eq!(
        (&user["spec"]["core"], &user["teids"]["core"]),
        (&json!({ "user": "10.0.0.1" }), &Value::Null)
    );
    let relay = [
        "bearer",
        "add",
        "core=203.0.113.9/1",
        "radio=192.0.2.8/8",
        "gates=core",
    ];
    let shown = room.said(&relay);
    assert!(
        shown.contains("203.0.113.9/1") && shown.contains("192.0.2.8/8"),
        "{shown}"
    );
    let refused = room.refused(&["bearer", "add", "core.user=10.0.0.1", "radio=192.0.2.8/9"]);
    assert!(refused.contains("already"), "{refused}");
    let refused = room.refused(&["bearer", "add", "core.user=10.0.0.1"]);
    assert!(refused.contains("radio=ADDRESS/TEID"), "{refused}");
    let id = user["id"].to_string();
    let set = room.json(&[
        "bearer",
        "set",
        &id,
        "core.user=10.0.0.2",
        "radio=192.0.2.8/9",
    ]);
    assert_eq!(
        (&set["id"], &set["spec"]["radio"]["teid"]),
        (&user["id"], &json!(9))
    );
    let before = room.json(&["bearer", "list"]);
    assert_eq!(before["bearers"].as_array().unwrap().len(), 2);
    function.child.kill().unwrap();
    function.child.wait().unwrap();
    assert!(room.refused(&["show"]).contains("millrace ppf run"));
    let _function = room.start("");
    assert_eq!(room.json(&["bearer", "list"]), before);
    let gone = room.json(&["bearer", "remove", &id]);
    assert_eq!(gone["bearers"].as_array().unwrap().len(), 1);
    assert!(room.refused(&["bearer", "remove", &id]).contains("0 of 1"));
    assert!(
        room.refused(&["bearer", "show", &id])
            .contains("no such bearer")
    );
    // Its number is not the next one's.
    let next = room.json(&["bearer", "add", "core.user=10.0.0.1", "radio=192.0.2.8/7"]);
    assert_ne!(next["id"], user["id"]);
}

#[test]
fn a_file_has_many_bearers_and_its_wrong_lines_are_told() {
    let room = Room::new();
    let _function = room.start("");
    let mut csv = "core.user,radio.address,radio.teid\n".to_owned();
    let mut lines = String::new();
    for number in 1..=300 {
        csv.push_str(&format!(
            "10.0.{}.{},192.0.2.8,{number}\n",
            number / 250,
            number % 250 + 1
        ));
        let line = json!({ "core": { "address": "203.0.113.9", "teid": number }, "radio": { "address": "192.0.2.8", "teid": number } });
        lines.push_str(&format!("{line}\n\n"));
    }
    fs::write(room.path("some.csv"), &csv).unwrap();
    fs::write(room.path("some.jsonl"), format!("{lines}nonsense\n")).unwrap();
    let loaded = room.json(&["bearer", "load", &room.shown("some.csv")]);
    assert_eq!(
        (&loaded["added"], &loaded["refused"]),
        (&json!(300), &json!(0))
    );
    let output = room.output(&["bearer", "load", &room.shown("some.jsonl")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("line 601:"),
        "{said}"
    );
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "300 bearers added\n"
    );
    let changes: Vec<String> = (1..=301)
        .map(|number| {
            let id = loaded["ids"][number - 1].as_u64();
            let id = id.map(|id| id.to_string()).unwrap_or_default();
            format!(
                "{id},10.1.{}.{},192.0.2.7,{number}",
                number / 250,
                number % 250 + 1
            )
        })
        .collect();
    let csv = format!(
        "id,core.user,radio.address,radio.teid\n{}\n",
        changes.join("\n")
    );
    fs::write(room.path("changes.csv"), csv).unwrap();
    let changes = ["bearer", "load", "--change", &room.shown("changes.csv")];
    let output = room.output(&changes);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "300 bearers changed, 1 added\n"
    );
    let gone = room.json(&["bearer", "list", "--limit", "601"])["bearers"][600]["id"].to_string();
    room.json(&["bearer", "remove", &gone]);
    let shown = room.json(&["bearer", "show", &loaded["ids"][7].to_string()]);
    assert_eq!(shown["spec"]["core"]["user"], json!("10.1.0.9"));
    assert_eq!(room.json(&["show"])["bearers"], json!(600));
    let page = room.json(&["bearer", "list", "--limit", "599"]);
    assert!(page["next"].is_number());
    let refused = room.refused(&["bearer", "load", &room.shown("nothing.csv")]);
    assert!(refused.contains("cannot read"), "{refused}");
}

#[test]
fn it_shows_itself_to_people_programs_and_prometheus() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let room = Room::new();
    let _function = room.start(&format!("http = \"{address}\""));
    for (words, parts) in [
        (
            &["show"][..],
            &["n3", "radio", "192.0.2.1/24", "connecting", "0 bearers"][..],
        ),
        (&["stats"], &["RX", "CONSUMED", "radio"]),
        (&["stats", "n6"], &["n6"]),
        (&["neighbours"], &["ADDRESS"]),
        (&["paths"], &["PEER", "TUNNELS", "RESTARTS"]),
        (&["events"], &["NUMBER", "EVENT"]),
        (
            &["top", "--once", "--interval", "0.1"],
            &["RX/s", "n6", "BEARERS", "BUSY"],
        ),
        (&["bearer", "list"], &["BEARER"]),
    ] {
        let said = room.said(words);
        for part in parts {
            assert!(said.contains(part), "{words:?}: {said}");
        }
    }
    assert!(room.refused(&["stats", "n9"]).contains("no port"));
    assert!(room.refused(&["top", "--once", "n9"]).contains("no port"));
    let top = room.json(&["top", "--once", "--interval", "0.1", "n3"]);
    assert_eq!(
        (&top["bearers"], &top["ports"][0]["side"]),
        (&json!(0), &json!("radio"))
    );
    assert_eq!(top["workers"].as_array().unwrap().len(), 1);
    assert_eq!(room.json(&["events"])["events"], json!([]));
    assert_eq!(room.json(&["paths"])["paths"], json!([]));
    let ports = &room.json(&["show"])["ports"];
    assert_eq!(
        (&ports[0]["kind"], &ports[1]["side"]),
        (&json!("memif"), &json!("core"))
    );
    let mut stream = TcpStream::connect(address).unwrap();
    let question = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(question.as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert!(
        said.contains("millrace_ppf_port_up{port=\"n3\"} 0")
            && said.contains("millrace_ppf_bearers 0"),
        "{said}"
    );
}

#[test]
fn a_file_that_is_not_right_is_told_and_nothing_is_started() {
    let room = Room::new();
    fs::write(room.path("ppf.toml"), room.config("spin_us = 100000")).unwrap();
    let refused = room.refused(&["run", "--check", &room.shown("ppf.toml")]);
    assert!(refused.contains("spin_us"), "{refused}");
    fs::write(room.path("ppf.toml"), room.config("")).unwrap();
    assert_eq!(room.said(&["run", "--check", &room.shown("ppf.toml")]), "");
    assert!(!room.path("control.sock").exists() && !room.path("store").exists());
}

#[test]
fn a_peer_that_does_not_answer_is_told_of_and_followed() {
    let room = Room::new();
    let _function = room.start("[supervision]\ninterval_s = 60\nresponse_ms = 10\nrequests = 2");
    let mut follows = room.command(&["events", "--follow", "--json"]);
    let mut follows = follows.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follows.stdout.take().unwrap());
    let bearer = ["bearer", "add", "core.user=10.0.0.1", "radio=192.0.2.8/7"];
    room.json(&bearer);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    follows.kill().unwrap();
    follows.wait().unwrap();
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&event["event"], &event["peer"], &event["number"]),
        (&json!("path_down"), &json!("192.0.2.8"), &json!(0))
    );
    let said = room.said(&["events"]);
    assert!(
        said.contains("path_down") && said.contains("192.0.2.8"),
        "{said}"
    );
    let paths = room.said(&["paths"]);
    assert!(
        paths.contains("down") && paths.contains("192.0.2.8"),
        "{paths}"
    );
}

#[test]
fn a_bearer_is_traced_by_its_number_or_a_tunnel_s() {
    let room = Room::new();
    let _function = room.start("");
    let bearer = room.json(&["bearer", "add", "core.user=10.0.0.1", "radio=192.0.2.8/7"]);
    let (id, teid) = (
        bearer["id"].to_string(),
        bearer["teids"]["radio"].to_string(),
    );
    let file = room.shown("bearer.pcapng");
    for words in [
        &["trace", &id, "--seconds", "0", "-w", &file][..],
        &["trace", &teid, "--teid", "--seconds", "0", "-w", &file],
        &["trace", &teid, "--seconds", "0", "-w", &file],
    ] {
        let output = room.output(words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{words:?}: {said}");
        assert!(said.contains("0 frames were written"), "{said}");
        let bytes = fs::read(&file).unwrap();
        assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
        fs::remove_file(&file).unwrap();
    }
    let refused = room.refused(&["trace", "7", "-w", &file]);
    assert!(refused.contains("neither"), "{refused}");
    assert!(!room.path("bearer.pcapng").exists());
    let output = room.output(&["trace", &id, "--seconds", "0", "-w", "-"]);
    assert_eq!(output.stdout[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
}
