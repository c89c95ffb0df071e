//! The asking side, with an agent that is slow, and signals meanwhile.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use millrace_agent::{Answerer, AskError, StatusReport};
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, socket,
};

#[test]
fn a_signal_does_not_end_the_wait_for_an_answer() {
    let outcome = asked(Duration::from_secs(30), 20);
    let Err(AskError::NoAnswer(error)) = outcome else {
        panic!("there was no answer: {outcome:?}");
    };
    // It closed without having read the question.
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn signals_do_not_make_the_wait_endless() {
    let outcome = asked(Duration::from_millis(50), 200);
    let Err(AskError::NoAnswer(error)) = outcome else {
        panic!("there was no answer: {outcome:?}");
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

/// Asks an agent that says nothing, and closes after so many signals to the asking thread, 5 ms apart.
fn asked(patience: Duration, signals: u32) -> Result<(StatusReport, Answerer), AskError> {
    let is_caught = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, is_caught).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let listener = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let asking = pthread_self();
    let agent = thread::spawn(move || {
        let connection = accept(listener.as_raw_fd()).unwrap();
        for _ in 0..signals {
            thread::sleep(Duration::from_millis(5));
            pthread_kill(asking, Signal::SIGUSR1).unwrap();
        }
        nix::unistd::close(connection).unwrap();
    });
    let outcome = millrace_agent::status(&path, patience);
    agent.join().unwrap();
    outcome
}
