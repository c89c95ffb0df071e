//! What is listed of connections that were offered, and of others.

use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_agent::Config;
use millrace_shm::board::state;
use millrace_wire::{End, Offer, Query, Reason, ToAgent, ToClient};

use crate::client::{self, Client, Running};
use crate::pair;

#[test]
fn connections_are_reported_with_both_ends() {
    let agent = Running::start(Config::default());
    let program = agent.client();
    let (near, far) = pair();
    program.offer(&near, 1, End::Active);
    program.offer(&far, 2, End::Passive);
    assert_eq!([program.take(), program.take()], [1, 2]);
    let mut held = Vec::new();
    for (index, reason) in [(0, Reason::None), (1, Reason::Sleeping)] {
        let (paired, segment) = program.paired();
        held.push(segment);
        let identity = &program.board.row(index).unwrap().identity;
        identity
            .connection_id
            .store(paired.connection_id, Ordering::Relaxed);
        identity
            .active
            .store(u8::from(paired.end == End::Active), Ordering::Relaxed);
        identity.reason.store(reason as u8, Ordering::Relaxed);
        identity.state.store(state::ATTACHED, Ordering::Relaxed);
    }
    // A row that claims a connection of others is shown, but not as an end of it.
    let liar = agent.client();
    let row = liar.board.row(0).unwrap();
    row.identity.connection_id.store(1, Ordering::Relaxed);
    row.identity.local_port.store(80, Ordering::Relaxed);
    row.identity.state.store(state::KERNEL, Ordering::Relaxed);

    let report = millrace_agent::connections(agent.path(), Duration::from_secs(5)).unwrap();
    let shape: Vec<_> = report
        .connections
        .iter()
        .map(|connection| (connection.id, connection.ends.len()))
        .collect();
    assert_eq!(shape, [(Some(1), 2), (None, 1)]);
    let end = &report.connections[0].ends[0];
    assert_eq!(
        (end.pid, end.road.as_str(), end.reason.as_str()),
        (std::process::id() as i32, "shm", "none")
    );
    assert_eq!(report.connections[0].ends[1].reason, "sleeping");
}

#[test]
fn questions_of_one_program_let_others_have_their_turn() {
    const QUESTIONS: usize = 10;
    let agent = Running::start(Config::default());
    let program = agent.client();
    fill_board(&program, 4096);
    for _ in 0..QUESTIONS {
        program.say(ToAgent::Query(Query::Connections));
    }
    agent.wait_for(|_| true);
    let answers = program.hear_waiting();
    assert!(
        answers < QUESTIONS,
        "all were answered before another's question"
    );
}

#[test]
fn questions_that_come_too_early_are_answered_in_time_or_forgotten() {
    let agent = Running::start(Config::default());
    let [program, gone] = [agent.client(), agent.client()];
    fill_board(&program, 2048);
    for _ in 0..6 {
        program.say(ToAgent::Query(Query::Connections));
        gone.say(ToAgent::Query(Query::Connections));
    }
    drop(gone);
    agent.wait_for(|status| status.clients == 1);
    for _ in 0..6 {
        assert!(matches!(program.hear(), ToClient::Answer(_)));
    }
    // It is heard again.
    let (near, far) = pair();
    program.offer(&near, 1, End::Active);
    program.offer(&far, 2, End::Passive);
    assert_eq!([program.take(), program.take()], [1, 2]);
}

/// Has a board list so many connections.
fn fill_board(program: &Client, rows: u32) {
    for index in 0..rows {
        let identity = &program.board.row(index).unwrap().identity;
        identity.local_port.store(80, Ordering::Relaxed);
        identity.state.store(state::KERNEL, Ordering::Relaxed);
    }
}

/// What is listed of the only connection: both reasons, and the local port.
fn listed(agent: &Running) -> (String, String, u16) {
    let report = millrace_agent::connections(agent.path(), Duration::from_secs(5)).unwrap();
    assert_eq!(report.connections.len(), 1, "{report:?}");
    let end = report.connections[0].ends[0].clone();
    (end.reason, end.sent.reason, end.local.port())
}

#[test]
fn what_was_not_offered_is_listed_with_the_kernel_s_addresses() {
    let others = vec!["another program".to_owned()];
    for (include, reason) in [(vec![], "too_short"), (others, "excluded")] {
        let agent = Running::start(Config {
            include,
            ..Config::default()
        });
        let program = agent.client();
        let (near, _far) = pair();
        let identity = &program.board.row(7).unwrap().identity;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&near).cast_unsigned();
        identity.fd.store(fd, Ordering::Relaxed);
        identity
            .reason
            .store(Reason::TooShort as u8, Ordering::Relaxed);
        identity.state.store(state::KERNEL, Ordering::Relaxed);
        let port = near.local_addr().unwrap().port();
        assert_eq!(listed(&agent), (reason.into(), reason.into(), port));
        // From memory, the second time.
        assert_eq!(listed(&agent).2, port);
    }
}

#[test]
fn a_program_that_has_not_read_the_answer_is_listed_with_its_reason() {
    let agent = Running::start(Config::default());
    let program = agent.client();
    let (near, _far) = pair();
    let offer = client::offer(&near, 1, End::Active);
    let identity = &program.board.row(offer.row).unwrap().identity;
    identity
        .local_port
        .store(offer.local.port, Ordering::Relaxed);
    identity.cookie.store(offer.cookie, Ordering::Relaxed);
    identity
        .reason
        .store(Reason::TooShort as u8, Ordering::Relaxed);
    identity.state.store(state::KERNEL, Ordering::Relaxed);
    program.say(ToAgent::Offer(Offer {
        remote: offer.local,
        ..offer
    }));
    agent.wait_for(|status| !status.declined.is_empty());
    assert_eq!(listed(&agent).0, "not_both_ends");
    assert!(matches!(program.hear(), ToClient::Declined(_)));
}
