use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use millrace_wire::{End, Family};

use super::*;
use crate::sys::{netns_cookie, socket_cookie};

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn offer(stream: &TcpStream, end: End) -> Offer {
    Offer {
        offer_id: 1,
        fd: stream.as_raw_fd(),
        row: 0,
        family: Family::V4,
        end,
        local: stream.local_addr().unwrap().into(),
        remote: stream.peer_addr().unwrap().into(),
        cookie: socket_cookie(stream.as_fd()).unwrap(),
        netns_cookie: netns_cookie(stream.as_fd()).unwrap(),
    }
}

fn myself() -> Process {
    Process::open(std::process::id() as i32, None)
        .unwrap()
        .unwrap()
}

fn prove(first: &Offer, second: &Offer) -> Result<(), (Side, Doubt)> {
    let process = myself();
    let mut prover = Prover::new().unwrap();
    let claim = |offer| Claim {
        offer,
        process: Some(&process),
    };
    prover.prove(claim(first), claim(second)).map(drop)
}

#[test]
fn the_two_ends_of_one_connection_are_proved() {
    let (client, server) = pair();
    let (active, passive) = (offer(&client, End::Active), offer(&server, End::Passive));
    assert_eq!(prove(&active, &passive), Ok(()));
    assert!(Prover::new().unwrap().is_in_reach(&active));
}

#[test]
fn each_lie_is_caught_on_the_side_that_tells_it() {
    let (client, server) = pair();
    let (other_client, _other_server) = pair();
    let (active, passive) = (offer(&client, End::Active), offer(&server, End::Passive));
    let lies = [
        (
            Offer {
                fd: 9999,
                ..passive
            },
            Doubt::Descriptor,
        ),
        (Offer { fd: 1, ..passive }, Doubt::Descriptor),
        (
            Offer {
                fd: other_client.as_raw_fd(),
                ..passive
            },
            Doubt::OtherSocket,
        ),
        (
            Offer {
                cookie: passive.cookie ^ 1,
                ..passive
            },
            Doubt::Connection,
        ),
        (
            Offer {
                cookie: 0,
                ..passive
            },
            Doubt::Connection,
        ),
        (
            Offer {
                fd: other_client.as_raw_fd(),
                ..offer(&other_client, End::Active)
            },
            Doubt::Connection,
        ),
    ];
    for (lie, doubt) in &lies[..5] {
        // Descriptor 1 may be a socket where the tests run.
        let acceptable = [*doubt, Doubt::OtherSocket];
        let (side, seen) = prove(&active, lie).unwrap_err();
        assert_eq!(side, Side::Second);
        assert!(acceptable.contains(&seen), "{lie:?}: {seen:?}");
        assert_eq!(prove(lie, &passive).unwrap_err().0, Side::First);
    }
    let stolen = Offer {
        local: passive.local,
        remote: passive.remote,
        ..lies[5].0
    };
    assert_eq!(
        prove(&active, &stolen),
        Err((Side::Second, Doubt::Connection))
    );
}

#[test]
fn a_connection_that_is_half_closed_is_not_established() {
    let (client, server) = pair();
    let (active, passive) = (offer(&client, End::Active), offer(&server, End::Passive));
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(matches!(
        prove(&active, &passive),
        Err((_, Doubt::Connection))
    ));
}

#[test]
fn a_process_that_is_gone_or_has_become_another_program_is_not_believed() {
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let process = Process::open(child.id() as i32, None).unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!process.is_unchanged());
    assert!(process.name().is_none());
    assert!(Process::open(0, None).unwrap().is_none());

    // The shell becomes another program when its standard input ends.
    let mut shell = std::process::Command::new("sh")
        .args(["-c", "read line; exec sleep 60"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let name = |process: &Process| process.program().unwrap();
    let process = loop {
        // Until exec the child still is this test's program.
        let process = Process::open(shell.id() as i32, None).unwrap().unwrap();
        if name(&process) != name(&myself()) {
            break process;
        }
        std::thread::yield_now();
    };
    assert!(process.is_unchanged());
    drop(shell.stdin.take());
    while process.is_unchanged() {
        std::thread::yield_now();
    }
    assert!(
        name(&process).contains("sleep")
            || name(&process).contains("coreutils")
            || name(&process) == "busybox"
    );
    shell.kill().unwrap();
    shell.wait().unwrap();
}

#[test]
fn another_namespace_s_cookie_is_out_of_reach() {
    let (client, _server) = pair();
    let active = offer(&client, End::Active);
    let prover = Prover::new().unwrap();
    assert!(!prover.is_in_reach(&Offer {
        netns_cookie: active.netns_cookie + 1,
        ..active
    }));
    assert!(prover.is_in_reach(&Offer {
        netns_cookie: 0,
        ..active
    }));
}
