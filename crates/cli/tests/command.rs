//! The command as a user meets it. Every agent that a test starts is stopped by it, whatever happens.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod room;
use room::{Agent, Room, harmless_library, text, wait_until};

#[test]
fn the_agent_stops_cleanly_on_each_of_its_signals() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let room = Room::new();
        let mut agent = room.start_agent();
        agent.signal(signal);
        assert!(agent.child.wait().unwrap().success());
        let mut rest = String::new();
        agent.log.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("the agent leaves"), "{rest}");
        assert_eq!(
            fs::read_dir(room.socket().parent().unwrap())
                .unwrap()
                .count(),
            0
        );
    }
}

/// As on a disk that is full; and as in a pipe whose reader has gone.
#[test]
fn a_log_that_cannot_be_written_does_not_end_the_agent() {
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    for log in [Stdio::from(full), Stdio::from(pipe)] {
        let room = Room::new();
        let mut agent = room.millrace(&["agent"]).stderr(log).spawn().unwrap();
        wait_until("it answers, or has ended", || {
            room.agent().is_some() || !is_running(&agent)
        });
        let _ = kill(Pid::from_raw(agent.id() as i32), Signal::SIGTERM);
        assert_eq!(agent.wait().unwrap().code(), Some(0));
    }
}

fn is_running(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    !status.contains(") Z ")
}

#[test]
fn a_second_agent_is_refused_and_a_killed_one_is_replaced() {
    let room = Room::new();
    let first = room.start_agent();
    let second = room
        .millrace(&["agent", "--socket"])
        .arg(room.socket())
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(
        text(&second.stderr).contains("another agent already listens"),
        "{}",
        text(&second.stderr)
    );
    drop(first);
    assert!(room.socket().exists(), "a killed agent leaves its socket");
    drop(room.start_agent());
}

#[test]
fn a_probe_says_whether_an_agent_answers_and_starts_none() {
    let room = Room::new();
    let probe = || room.output(&["agent", "--probe"]);
    let nobody = probe();
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("no agent answers"));
    assert!(!room.socket().exists());
    let agent = room.start_agent();
    assert!(probe().status.success());
    // One that stands still takes connections as before, and says nothing.
    agent.signal(Signal::SIGSTOP);
    let silent = probe();
    assert_eq!(silent.status.code(), Some(1));
    assert!(text(&silent.stderr).contains("does not answer"));
    agent.signal(Signal::SIGCONT);
    wait_until("it answers again", || probe().status.success());
}

#[test]
fn run_becomes_the_program_and_leaves_an_agent_that_is_nobody_s_child() {
    let room = Room::new();
    let child = room
        .millrace(&["run", "--mode", "chaos:7", "--", "sh", "-c"])
        .arg("echo $$; echo $LD_PRELOAD; echo $MILLRACE_AGENT; echo $MILLRACE_MODE; exec sh -c 'exit 7'")
        .env("LD_PRELOAD", "libm.so.6")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    // It returns although the agent goes on: the agent has none of these pipes.
    let output = child.wait_with_output().unwrap();
    let preload = format!("libm.so.6:{}", harmless_library().display());
    let expected = [
        &pid.to_string(),
        preload.as_str(),
        room.socket().to_str().unwrap(),
        "chaos:7",
    ]
    .join("\n");
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        (expected.as_str(), "")
    );
    assert_eq!(output.status.code(), Some(7));

    let agent = room.agent().expect("an agent answers");
    let status = fs::read_to_string(format!("/proc/{agent}/stat")).unwrap();
    let fields: Vec<&str> = status.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_ne!(fields[1], pid.to_string(), "parent");
    assert_ne!(fields[1], std::process::id().to_string(), "parent");
    assert_eq!(fields[3], agent.to_string(), "a session of its own");
    assert_eq!(
        fs::read_link(format!("/proc/{agent}/cwd")).unwrap(),
        Path::new("/")
    );
    for number in 0..3 {
        let link = fs::read_link(format!("/proc/{agent}/fd/{number}")).unwrap();
        assert_eq!(link, Path::new("/dev/null"));
    }
    assert!(
        !fs::read_to_string(format!("/proc/{agent}/environ"))
            .unwrap()
            .contains("LD_PRELOAD")
    );
}

/// What a program says of its children, and of signals that wait, when this runs it.
fn seen_by_a_program(runner: &[&str], room: &Room) -> String {
    let seen = "import os, signal
try: print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError: print('no child')
print(sorted(signal.sigpending()))";
    let output = room
        .command(runner[0])
        .args(&runner[1..])
        .args([
            env!("CARGO_BIN_EXE_millrace"),
            "run",
            "--",
            "python3",
            "-c",
            seen,
        ])
        .output()
        .unwrap();
    text(&output.stdout).to_owned()
}

#[test]
fn an_agent_is_no_child_of_who_adopts_orphans_and_no_signal_tells_of_its_start() {
    let adopting = "import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(36, 1)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
os.execvp(sys.argv[1], sys.argv[1:])";
    let room = Room::new();
    let seen = seen_by_a_program(&["python3", "-c", adopting], &room);
    assert_eq!(seen, "no child\n[]");
    assert!(room.agent().is_some());
    // The first process of a PID namespace has whatever is orphaned there.
    let room = Room::new();
    let first = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    let may = room
        .command(first[0])
        .args(&first[1..])
        .arg("true")
        .status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there are no PID namespaces for users here");
        return;
    }
    let seen = seen_by_a_program(&first, &room);
    assert_eq!(seen, "no child\n[]");
    assert!(room.agent().is_none());
}

#[test]
fn an_agent_in_the_background_inherits_no_descriptor() {
    let room = Room::new();
    let status = Command::new("sh")
        .args(["-c", "exec 9>\"$1\"; shift; exec \"$@\"", "sh"])
        .arg(room.directory.path().join("open"))
        .arg(env!("CARGO_BIN_EXE_millrace"))
        .args(["agent", "--background", "--socket"])
        .arg(room.socket())
        .status()
        .unwrap();
    assert!(status.success());
    let agent = room.agent().expect("an agent answers");
    for entry in fs::read_dir(format!("/proc/{agent}/fd")).unwrap() {
        // The agent may close that of our question meanwhile; what it has inherited stays.
        if let Ok(link) = fs::read_link(entry.unwrap().path()) {
            assert!(!link.ends_with("open"), "{link:?}");
        }
    }
}

#[test]
fn an_agent_in_the_background_leaves_without_a_trace_when_nobody_comes() {
    let room = Room::new();
    assert!(room.output(&["run", "--", "true"]).status.success());
    assert!(room.socket().exists());
    // Looking at the files does not keep it.
    wait_until("the agent leaves", || !room.socket().exists());
    wait_until("its directory goes, too", || {
        !room.socket().parent().unwrap().exists()
    });
}

#[test]
fn an_agent_in_the_background_stays_until_the_program_has_ended() {
    let room = Room::new();
    let patience = Duration::from_secs(5);
    let awaited = || {
        let (status, _) = millrace_agent::status(&room.socket(), patience).unwrap();
        (status.awaited, status.clients)
    };
    let start = |arguments: &[&str]| {
        let mut child = room
            .millrace(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        child
    };
    let program = ["run", "--", "sh", "-c", "echo ready; read line"];
    let twice = [&["run", "--", env!("CARGO_BIN_EXE_millrace")], &program[..]].concat();
    let mut programs = [start(&program), start(&twice)];
    assert_eq!(awaited(), (2, 0));
    let agent = room.agent().expect("an agent answers");
    let links = || fs::read_dir(format!("/proc/{agent}/fd")).unwrap();
    let pidfds = || {
        links()
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .filter(|link| link.to_string_lossy().contains("pidfd"))
            .count()
    };
    assert_eq!(pidfds(), 2);
    for (index, child) in programs.iter_mut().enumerate() {
        drop(child.stdin.take());
        child.wait().unwrap();
        wait_until("it takes note", || awaited() == (1 - index, 0));
        assert_eq!(pidfds(), 1 - index);
    }
    wait_until("the agent leaves", || !room.socket().exists());
}

#[test]
fn programs_that_start_at_once_share_one_agent() {
    let room = Room::new();
    let children: Vec<Child> = (0..8)
        .map(|_| {
            room.millrace(&["run", "--", "true"])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(text(&output.stderr), "");
    }
    assert!(room.agent().is_some());
}

#[test]
fn off_means_nothing_at_all() {
    let room = Room::new();
    let output = room
        .millrace(&["run", "--", "sh", "-c", "echo \"[$LD_PRELOAD]\""])
        .env("MILLRACE", "off")
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "[]");
    assert!(!room.socket().exists());
}

#[test]
fn without_an_agent_the_program_runs_all_the_same_and_says_nothing() {
    let room = Room::new();
    fs::write(room.socket().parent().unwrap(), "no directory").unwrap();
    let output = room.output(&["run", "--", "echo", "works"]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("works", ""));
}

#[test]
fn a_program_that_goes_to_another_directory_finds_the_agent_all_the_same() {
    let room = Room::new();
    let output = room
        .millrace(&["run", "--", "sh", "-c", "echo $MILLRACE_AGENT"])
        .current_dir(room.directory.path())
        .env("MILLRACE_AGENT", "m/agent.sock")
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), room.socket().to_str().unwrap());
    assert!(room.agent().is_some());
}

#[test]
fn run_exits_as_env_does() {
    let room = Room::new();
    let _agent = room.start_agent();
    assert_eq!(
        room.output(&["run", "--", "/nowhere/at-all"]).status.code(),
        Some(127)
    );
    assert_eq!(
        room.output(&["run", "--", "/etc/passwd"]).status.code(),
        Some(126)
    );
    let missing = room
        .millrace(&["run", "--", "true"])
        .env("MILLRACE_LIBRARY", "/nowhere.so")
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(125));
    assert!(text(&missing.stderr).contains("/nowhere.so"));
    assert_eq!(room.output(&["run"]).status.code(), Some(2));
    assert_eq!(
        room.output(&["run", "--", "sh", "-c", "kill -9 $$"])
            .status
            .signal(),
        Some(9)
    );
}

#[test]
fn signals_are_inherited_as_they_were() {
    let room = Room::new();
    let _agent = room.start_agent();
    let plain = |shell: &str, with: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", shell, "sh"]).args(with).args([
            "grep",
            "-E",
            "^Sig(Blk|Ign)",
            "/proc/self/status",
        ]);
        command
            .env("MILLRACE_AGENT", room.socket())
            .env("MILLRACE_LIBRARY", harmless_library());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    for shell in ["exec \"$@\"", "trap '' PIPE USR1; exec \"$@\""] {
        let expected = plain(shell, &[]);
        assert!(expected.contains("SigIgn"));
        assert_eq!(
            plain(shell, &[env!("CARGO_BIN_EXE_millrace"), "run", "--"]),
            expected
        );
    }
}

#[test]
fn ps_and_doctor_say_what_is_there() {
    let room = Room::new();
    let lost = room.output(&["ps"]);
    assert_eq!(lost.status.code(), Some(1));
    assert!(
        text(&lost.stderr).contains("no agent answers"),
        "{}",
        text(&lost.stderr)
    );
    assert!(text(&room.output(&["doctor"]).stdout).contains("mind  no agent answers"));

    let _agent = room.start_agent();
    let list = room.output(&["ps"]);
    assert!(list.status.success());
    assert!(
        text(&list.stdout).starts_with("ID  CONNECTED"),
        "{}",
        text(&list.stdout)
    );
    let json: serde_json::Value =
        serde_json::from_slice(&room.output(&["ps", "--json"]).stdout).unwrap();
    assert_eq!(json["connections"], serde_json::json!([]));
    let doctor = room.output(&["doctor"]);
    let lines = text(&doctor.stdout);
    assert!(lines.contains("good  an agent answers at"), "{lines}");
    assert!(
        lines.lines().all(|line| ["good  ", "mind  ", "bad   "]
            .iter()
            .any(|word| line.starts_with(word))),
        "{lines}"
    );
}

#[test]
fn channels_says_that_there_are_none_and_what_an_agent_does_not_know() {
    let room = Room::new();
    let listed = room.output(&["channels"]);
    assert_eq!(listed.status.code(), Some(1), "there is no agent");
    let _agent = room.start_agent();
    let listed = room.output(&["channels"]);
    assert!(
        listed.status.success() && listed.stdout.is_empty(),
        "{listed:?}"
    );
    assert!(text(&listed.stderr).contains("takes part"), "{listed:?}");
    let listed = room.output(&["channels", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let now_ns = said["now_ns"].as_u64();
    let nothing = serde_json::json!({ "now_ns": now_ns, "truncated": false, "channels": [] });
    assert!(now_ns.is_some() && said == nothing, "{said}");
    let help = room.output(&["channels", "--help"]);
    assert!(text(&help.stdout).contains("Examples:"), "{help:?}");
}

#[test]
fn an_agent_without_descriptors_turns_programs_away_and_does_not_spin() {
    let room = Room::new();
    let mut child = Command::new("sh")
        .args([
            "-c",
            "ulimit -n 40; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_millrace"),
            "agent",
            "--socket",
        ])
        .arg(room.socket())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    log.read_line(&mut String::new()).unwrap();
    let agent = Agent { child, log };

    let address = nix::sys::socket::UnixAddr::new(&room.socket()).unwrap();
    let connect = || {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, connect, socket};
        let socket = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .unwrap();
        connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &address).unwrap();
        socket
    };
    let crowd: Vec<_> = (0..60).map(|_| connect()).collect();
    let ticks = || {
        let status = fs::read_to_string(format!("/proc/{}/stat", agent.child.id())).unwrap();
        let fields: Vec<u64> = status
            .rsplit_once(") ")
            .unwrap()
            .1
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        // Counted from the first numeric field, the parent: user and system time.
        fields[10] + fields[11]
    };
    std::thread::sleep(Duration::from_millis(300));
    let before = ticks();
    std::thread::sleep(Duration::from_millis(700));
    assert!(ticks() - before < 20, "it spins");
    drop(crowd);
    wait_until("it serves again", || room.agent().is_some());
}
