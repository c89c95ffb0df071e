//! `millrace load` as a user meets it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A process that is ended with the test.
struct Process(Child);

impl Process {
    fn start(arguments: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.arg("load").args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    /// What it printed when it ended well.
    fn output(&mut self) -> String {
        let mut text = String::new();
        let mut out = self.0.stdout.take().unwrap();
        out.read_to_string(&mut text).unwrap();
        let status = self.0.wait().unwrap();
        let mut errors = String::new();
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_string(&mut errors).unwrap();
        }
        assert!(status.success(), "{errors}");
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, and its address.
fn serve(arguments: &[&str]) -> (Process, String) {
    let arguments = [
        &["serve"],
        arguments,
        &["--listen", "127.0.0.1:0", "--json"],
    ]
    .concat();
    let mut server = Process::start(&arguments);
    let mut line = String::new();
    let errors = server.0.stderr.take().unwrap();
    BufReader::new(errors).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("millrace: listening on ");
    (server, address.unwrap().to_owned())
}

#[test]
fn a_run_tells_json_and_writes_trace_and_histogram() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (mut server, address) = serve(&["http", "--bytes", "100"]);
    let (trace, histogram) = (file("trace.gz"), file("histogram"));
    let mut run = Process::start(&[
        "http",
        &address,
        "-c",
        "3",
        "-t",
        "0.2",
        "--json",
        "--trace",
        &trace,
        "--histogram",
        &histogram,
    ]);
    let outcome: Value = serde_json::from_str(&run.output()).unwrap();
    assert_eq!(outcome["protocol"], "http");
    assert_eq!(outcome["connections"], 3);
    assert!(outcome["latency"]["count"].as_u64().unwrap() > 0);
    let magic = |path: &str| std::fs::read(path).unwrap()[..2].to_vec();
    assert_eq!(magic(&trace), [0x1f, 0x8b], "gzip");
    assert_eq!(magic(&histogram), [0x1c, 0x84], "a deflated histogram");
    server.signal(Signal::SIGTERM);
    let served: Value = serde_json::from_str(&server.output()).unwrap();
    assert_eq!(served["connections"], 4, "one more, to learn the body");
}

#[test]
fn a_signal_ends_a_run_with_what_was_measured() {
    let (_server, address) = serve(&["echo"]);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        for options in [
            &["-c", "5"][..],
            &["--blocking"],
            &["--spin"],
            &["-r", "50"],
        ] {
            let arguments = [&["echo", &address, "-t", "60", "--warm-up", "0"], options].concat();
            let mut run = Process::start(&arguments);
            std::thread::sleep(Duration::from_millis(300));
            run.signal(signal);
            let text = run.output();
            assert!(text.contains("ended by a signal before its time"), "{text}");
            assert!(text.contains("every byte checked"), "{text}");
        }
    }
}

/// A capture with these frames.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let header = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    for frame in frames {
        let bytes = frame.len() as u32;
        file.extend([0, 0, bytes, bytes].into_iter().flat_map(u32::to_le_bytes));
        file.extend(frame);
    }
    file
}

#[test]
fn frames_of_a_capture_go_out_by_one_port_and_are_known_at_the_other() {
    let udp = |port: u8, payload: u8| {
        let [all, most] = [28 + payload, 8 + payload];
        let ip = [
            0x45, 0, 0, all, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        let header = [0, port, 0, 9, 0, most, 0, 0];
        let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        [&ethernet[..], &ip, &header, &vec![7; payload.into()]].concat()
    };
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (capture, socket) = (file("capture"), file("socket"));
    std::fs::write(&capture, pcap(&[udp(1, 30), udp(2, 200), udp(1, 3)])).unwrap();
    let ends = ["server", "client"].map(|role| format!("memif-{role}:{socket}"));
    let [from, to] = &ends;
    for more in [&["--rate", "20000", "--latency"][..], &["--whole"]] {
        let run = ["packets", from, to, "--capture", &capture, "-t", "0.1"];
        let outcome = Process::start(&[&run, more, &["--json"]].concat()).output();
        let outcome: Value = serde_json::from_str(&outcome).unwrap();
        assert!(outcome["received"].as_u64().unwrap() > 0, "{outcome}");
        assert_eq!(
            (&outcome["sizes"], &outcome["flows"]),
            (&"72 to 242".into(), &2.into())
        );
        let note = outcome["notes"][0].as_str().unwrap();
        assert!(
            note.contains("1 are left out: 1 have no 22 bytes"),
            "{note}"
        );
    }
}

#[test]
fn errors_say_what_to_do() {
    for (arguments, expected) in [
        (
            &["echo", "nowhere"][..],
            "an address is HOST:PORT or unix:PATH",
        ),
        (&["echo", "127.0.0.1:1"], "does a server listen there?"),
        (&["redis", "unix:/nowhere"], "does a server listen there?"),
        (
            &["echo", "127.0.0.1:1", "--trace", "/nowhere/x"],
            "cannot write /nowhere/x",
        ),
        (
            &["echo", "127.0.0.1:1", "--blocking", "-c", "2"],
            "with epoll",
        ),
        (
            &["echo", "127.0.0.1:1", "--timeout", "inf"],
            "given up after",
        ),
        (
            &["packets", "memif-client:/x", "--capture", "/nowhere/x"],
            "cannot read /nowhere/x",
        ),
        (&["events", "--time", "nan"], "up to 3600 seconds"),
        (&["events", "--time=-1"], "up to 3600 seconds"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        let output = command.arg("load").args(arguments).output().unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn what_is_for_packets_that_are_made_is_not_for_those_of_a_capture() {
    for option in [
        "--flows=2",
        "--size=64",
        "--gtpu=relay",
        "--send",
        "--to-mac=02:00:00:00:00:09",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.args([
            "load",
            "packets",
            "memif-client:/x",
            "--capture",
            "x",
            option,
        ]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("cannot be used with"), "{option}: {text}");
    }
}

#[test]
fn a_directory_for_results_may_have_any_name() {
    let place = OsStr::from_bytes(b"/run/results-\xff");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(["bench", "run", "echo", "--out"]).arg(place);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("results cannot go to"), "{text}");
}
