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
fn a_directory_for_results_may_have_any_name() {
    let place = OsStr::from_bytes(b"/run/results-\xff");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(["bench", "run", "echo", "--out"]).arg(place);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("results cannot go to"), "{text}");
}
