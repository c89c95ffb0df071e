//! The header and the library with a real C compiler, and from Python, against a real agent.

use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_agent::{Agent, Config, Options};

/// The library that cargo has just built, by its names, in this directory.
fn install_library(directory: &Path) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let built = own.with_file_name("libmillrace.so");
    let library = directory.join("libmillrace.so.0");
    symlink(built, &library).unwrap();
    symlink("libmillrace.so.0", directory.join("libmillrace.so")).unwrap();
    library
}

/// Runs a command beside an agent.
fn run_with_agent(directory: &Path, command: &mut Command) {
    let socket = directory.join("agent.sock");
    let (stopped, stop) = UnixStream::pair().unwrap();
    let options = Options {
        others: Vec::new(),
        socket: socket.clone(),
        config: Config::default(),
        background: false,
    };
    let (ready, listening) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let agent = Agent::start(options, stopped.as_fd()).unwrap();
        ready.send(()).unwrap();
        agent.serve().unwrap();
    });
    listening.recv().unwrap();
    let ran = command.env("MILLRACE_AGENT", &socket).output().unwrap();
    drop(stop);
    thread.join().unwrap();
    let said =
        String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command:?}: {said}");
}

#[test]
fn a_program_in_c_uses_every_function() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = directory.path().display();
    install_library(directory.path());
    let mut compiler = Command::new("cc");
    compiler.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-O1",
        "-I",
    ]);
    compiler
        .arg(here.join("include"))
        .arg(here.join("tests/every.c"))
        .arg("-o")
        .arg(&program);
    compiler.args([
        format!("-L{library}"),
        format!("-Wl,-rpath,{library}"),
        "-lmillrace".to_owned(),
        "-pthread".to_owned(),
    ]);
    let compiled = compiler.output().unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    run_with_agent(directory.path(), &mut Command::new(program));
}

#[test]
fn the_header_is_c_plus_plus_too() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("c++");
    compiler.args([
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        "-x",
        "c++",
    ]);
    let compiled = compiler
        .arg(here.join("include/millrace.h"))
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
}

#[test]
fn python_sends_and_receives() {
    let directory = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg(here.join("tests/every.py"));
    python.env("PYTHONPATH", here.join("python"));
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python.env(
        "MILLRACE_CHANNEL_LIBRARY",
        install_library(directory.path()),
    );
    run_with_agent(directory.path(), &mut python);
}
