//! `millrace switch` as a user meets it. Every switch that a test starts is stopped by it, whatever happens.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A directory for a switch's sockets and files.
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

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.arg("switch").args(arguments);
        command.env("MILLRACE_SWITCH", self.path("control.sock"));
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
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
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{output:?}"
        );
        String::from_utf8(output.stderr).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let arguments = [arguments, &["--json"]].concat();
        serde_json::from_str(&self.said(&arguments)).unwrap()
    }

    fn start(&self, config: &str) -> Switch {
        fs::write(self.path("switch.toml"), config).unwrap();
        let mut command = self.command(&["run", "--config", &self.shown("switch.toml")]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        assert!(line.contains("the switch works"), "{line}");
        Switch { child, log }
    }

    fn port(&self, name: &str, rest: &str) -> String {
        let path = self.shown(&format!("{name}.sock"));
        format!("[[port]]\nname = \"{name}\"\nmemif.path = \"{path}\"\n{rest}\n")
    }
}

struct Switch {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_stops_cleanly_on_each_of_its_signals_and_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let room = Room::new();
        let mut switch = room.start(&room.port("a", ""));
        let mode = fs::metadata(room.path("control.sock"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        kill(Pid::from_raw(switch.child.id() as i32), signal).unwrap();
        assert!(switch.child.wait().unwrap().success());
        let mut rest = String::new();
        switch.log.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("the switch stops"), "{rest}");
        let left = fs::read_dir(room.directory.path()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["switch.toml"]);
    }
}

#[test]
fn ports_flows_and_mirrors_come_and_go_while_it_works() {
    let room = Room::new();
    let _switch = room.start(&room.port("a", "vlan.access = 10"));
    let path = room.shown("b.sock");
    room.said(&[
        "add-port",
        "b",
        "memif",
        &format!("path={path}"),
        "vlan.trunk=10,20",
        "mtu=9000",
    ]);
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    let shown = room.said(&["show"]);
    let lines: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..4], ["PORT", "KIND", "WORKER", "STATE"]);
    assert_eq!(
        lines[1],
        [
            "a",
            "memif",
            "0",
            "connecting",
            "access",
            "10",
            "-",
            "0",
            "0",
            "0",
            "0"
        ]
    );
    assert_eq!(
        lines[2],
        [
            "b",
            "memif",
            "0",
            "connecting",
            "trunk",
            "10,20",
            "9000",
            "0",
            "0",
            "0",
            "0"
        ]
    );
    assert_eq!(
        room.json(&["flow", "add", "f", "in=a", "out=b", "ip_proto=tcp"])["done"],
        true
    );
    let flows = room.said(&["flow", "list"]);
    assert!(flows.contains("ip_proto=tcp"), "{flows}");
    room.said(&["mirror", "add", "m", &room.shown("m.pcapng"), "ports=a"]);
    assert!(room.said(&["mirror", "list"]).contains("m.pcapng"));
    assert!(
        room.refused(&["del-port", "b"])
            .contains("named by flow \"f\"")
    );
    let report = room.json(&["show"]);
    assert_eq!(report["ports"].as_array().unwrap().len(), 2);
    assert_eq!(report["flows"][0]["name"], "f");
    for words in [["flow", "del", "f"], ["mirror", "del", "m"]] {
        room.said(&words);
    }
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    let room = Room::new();
    assert!(room.refused(&["show"]).contains("millrace switch run"));
    let _switch = room.start(&room.port("a", ""));
    let before = room.json(&["show"])["ports"].clone();
    let cases: [(&[&str], &str); 12] = [
        (&["add-port", "a", "memif", "path=/x"], "of that name"),
        (&["add-port", "b", "memif"], "path"),
        (&["add-port", "b", "memif", "path=x"], "absolute"),
        (&["add-port", "b", "memif", "path=/x", "colour=1"], "colour"),
        (&["add-port", "b", "veth"], "memif, vhost_user"),
        (
            &["add-port", "a", "tap", "interface=x", "--open"],
            "of that name",
        ),
        (
            &["add-port", "b", "memif", "path=/x", "--open"],
            "of tap and af_xdp, and nothing else",
        ),
        (
            &["add-port", "b", "tap", "interface=x", "queues=65", "--open"],
            "65 descriptors cannot be handed over, but 64",
        ),
        (&["del-port", "x"], "there are a"),
        (&["flow", "add", "f", "out=x"], "no port \"x\""),
        (
            &["flow", "add", "f", "out=a", "ip_src=10.0.0.0/99"],
            "ip_src",
        ),
        (&["stats", "x"], "no port \"x\""),
    ];
    for (words, wanted) in cases {
        let error = room.refused(words);
        assert!(
            error.starts_with("millrace: ") && error.contains(wanted),
            "{words:?}: {error}"
        );
    }
    assert_eq!(room.json(&["show"])["ports"], before);
    // Whoever says nonsense, or nothing, is told so or left, and the next is served.
    for nonsense in ["\n", "{\"do\":\"everything\"}\n", "\u{0}\n"] {
        let mut stream = UnixStream::connect(room.path("control.sock")).unwrap();
        stream.write_all(nonsense.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("not understood"), "{answer}");
    }
    drop(UnixStream::connect(room.path("control.sock")).unwrap());
    assert_eq!(room.json(&["show"])["ports"], before);
}

#[test]
fn a_file_that_is_wrong_is_refused_before_anything_is_done() {
    let room = Room::new();
    let taken = room.path("taken");
    fs::write(&taken, "").unwrap();
    let port =
        |name: &str, path: &str| format!("[[port]]\nname = \"{name}\"\nmemif.path = \"{path}\"\n");
    let good = room.port("a", "");
    let cases = [
        (good.clone() + "colour = 1", "colour"),
        (good.clone() + &port("a", "/x"), "of that name"),
        (good.clone() + &port("b", taken.to_str().unwrap()), "taken"),
        (
            good.clone() + "[[flow]]\nname = \"f\"\nout = [\"x\"]",
            "no port \"x\": there are a",
        ),
        ("processors = [9999]\n".to_owned() + &good, "processors"),
    ];
    for (text, wanted) in cases {
        fs::write(room.path("wrong.toml"), text).unwrap();
        let error = room.refused(&["run", "--config", &room.shown("wrong.toml")]);
        assert!(error.contains(wanted), "{wanted}: {error}");
        assert!(!room.path("a.sock").exists() && !room.path("control.sock").exists());
    }
    fs::write(room.path("wrong.toml"), "spin_us = 1000000").unwrap();
    let checked = |name: &str| {
        room.output(&["run", "--check", "--config", &room.shown(name)])
            .status
    };
    assert!(!checked("wrong.toml").success());
    fs::write(room.path("right.toml"), good).unwrap();
    assert!(checked("right.toml").success() && !room.path("a.sock").exists());
}

#[test]
fn a_second_switch_is_refused_and_a_killed_one_is_replaced() {
    let room = Room::new();
    let mut first = room.start(&room.port("a", ""));
    let error = room.refused(&["run"]);
    assert!(error.contains("another switch already listens"), "{error}");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(room.path("control.sock").exists());
    let _second = room.start(&room.port("a", ""));
    assert_eq!(room.json(&["show"])["ports"][0]["name"], "a");
}

#[test]
fn who_connects_and_says_nothing_holds_nobody_up() {
    let room = Room::new();
    let _switch = room.start(&room.port("a", ""));
    let silent = || UnixStream::connect(room.path("control.sock")).unwrap();
    let mut silent: Vec<UnixStream> = (0..70).map(|_| silent()).collect();
    assert_eq!(room.json(&["show"])["ports"][0]["name"], "a");
    let last = silent.last_mut().unwrap();
    last.set_nonblocking(true).unwrap();
    let said = last.read(&mut [0]).unwrap_err();
    assert_eq!(
        said.kind(),
        std::io::ErrorKind::WouldBlock,
        "it is heard still"
    );
    last.set_nonblocking(false).unwrap();
    last.write_all(b"{\"do\":\"report\"}\n").unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("{\"done\""), "{answer}");
    for mut asker in silent.into_iter().rev().skip(1) {
        assert_eq!(asker.read(&mut [0]).unwrap(), 0, "it is left");
    }
    assert_eq!(room.json(&["show"])["ports"][0]["name"], "a");
}

#[test]
fn prometheus_reads_what_was_counted() {
    let room = Room::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let _switch = room.start(&format!("metrics = \"{address}\"\n{}", room.port("a", "")));
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    for line in [
        "# TYPE millrace_switch_port_packets_total counter",
        "millrace_switch_port_packets_total{port=\"a\",direction=\"received\"} 0",
        "millrace_switch_port_up{port=\"a\"} 0",
        "millrace_switch_stations_limit 65536",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn top_tells_rates_of_ports_flows_and_workers_line_after_line() {
    let room = Room::new();
    let flow = "[[flow]]\nname = \"straight\"\nin = \"a\"\nout = [\"b\"]\n";
    let ports = room.port("a", "") + &room.port("b", "");
    let _switch = room.start(&(ports + flow));
    let text = room.said(&["top", "--count", "2", "--interval", "0.1"]);
    for heading in ["PORT", "FLOW", "WORKER"] {
        let lines = text.lines().filter(|line| line.starts_with(heading));
        assert_eq!(lines.count(), 2, "{heading}: {text}");
    }
    assert!(
        text.contains("straight") && text.contains("connecting"),
        "{text}"
    );
    let line = room.json(&["top", "--once", "--interval", "0.1", "b"]);
    assert_eq!(line["ports"].as_array().unwrap().len(), 1);
    assert_eq!(line["ports"][0]["name"], "b");
    assert_eq!(line["ports"][0]["received"]["packets"], 0);
    assert_eq!(line["flows"][0]["packets"], 0);
    assert!(
        line["workers"][0]["processor_share"].as_f64().is_some(),
        "{line}"
    );
    let told = room.refused(&["top", "--once", "c"]);
    assert!(told.contains("there is no port \"c\""), "{told}");
}
