//! A whole agent over its real socket, with real TCP connections over loopback.

mod channels;
mod client;
mod late;
mod listing;
mod recall;

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use client::{Client, Running};
use millrace_agent::{Config, QuotaConfig};
use millrace_shm::segment::Segment;
use millrace_wire::{Declined, End, Hello, Mode, Offer, Reason, ToAgent, ToClient, Unsupported};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use nix::sys::stat::fstat;
use nix::sys::time::TimeVal;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn unproven(offer_id: u64) -> ToClient {
    ToClient::Declined(Declined {
        offer_id,
        reason: Reason::Unproven,
    })
}

#[test]
fn the_two_ends_of_a_connection_get_the_same_segment() {
    let agent = Running::start(Config::default());
    let (client_socket, server_socket) = pair();
    let (server, client) = (agent.client(), agent.client());
    server.offer(&server_socket, 71, End::Passive);
    client.offer(&client_socket, 72, End::Active);
    assert_eq!([client.take(), server.take()], [72, 71]);

    let (first, first_segment) = client.paired();
    let (second, second_segment) = server.paired();
    assert_eq!((first.offer_id, first.end), (72, End::Active));
    assert_eq!((second.offer_id, second.end), (71, End::Passive));
    assert_eq!(first.connection_id, second.connection_id);
    assert_eq!(first.ring_bytes, 2 << 20);

    let facts = [&first_segment, &second_segment].map(|fd| fstat(fd).unwrap());
    assert_eq!(
        (facts[0].st_dev, facts[0].st_ino),
        (facts[1].st_dev, facts[1].st_ino)
    );
    assert_eq!(
        facts[0].st_mode & 0o777,
        0,
        "nobody can open it again by another name"
    );
    Segment::attach(first_segment.as_fd(), first.ring_bytes).unwrap();
    // The count follows the message: when the agent answers the next question, it has counted.
    agent.wait_for(|_| true);
    assert_eq!((client.board.mail(), server.board.mail()), (2, 2));
}

#[test]
#[ignore = "takes half a minute"]
fn a_program_that_says_nothing_is_closed_and_others_are_not() {
    let agent = Running::start(Config::default());
    let (silent, program) = (agent.connect(), agent.client());
    let patience = TimeVal::new(40, 0);
    setsockopt(&silent, sockopt::ReceiveTimeout, &patience).unwrap();
    let heard = recv(silent.as_raw_fd(), &mut [0; 1], MsgFlags::empty());
    assert_eq!(heard, Ok(0));
    let (near, far) = pair();
    program.offer(&near, 1, End::Active);
    program.offer(&far, 2, End::Passive);
    assert_eq!([program.take(), program.take()], [1, 2]);
}

#[test]
fn both_ends_may_be_one_program_s_and_either_family() {
    let agent = Running::start(Config::default());
    let program = agent.client();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        program.offer(&near, 1, End::Active);
        program.offer(&far, 2, End::Passive);
        assert_eq!([program.take(), program.take()], [1, 2]);
        let ids = [program.paired().0.offer_id, program.paired().0.offer_id];
        assert_eq!(ids, [1, 2], "{address}");
    }
}

#[test]
fn a_v4_connection_of_an_ipv6_socket_is_the_same_connection() {
    let agent = Running::start(Config::default());
    let program = agent.client();
    let listener = TcpListener::bind("[::]:0").unwrap();
    let near = TcpStream::connect(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
    let (far, _) = listener.accept().unwrap();
    program.offer(&far, 1, End::Passive);
    program.offer(&near, 2, End::Active);
    assert_eq!([program.take(), program.take()], [1, 2]);
    assert_eq!(program.paired().0.offer_id, 2);
    assert_eq!(program.paired().0.offer_id, 1);
}

#[test]
fn a_forged_offer_is_declined_and_does_not_keep_the_true_one_out() {
    let agent = Running::start(Config::default());
    let (client_socket, server_socket) = pair();
    let (thief_socket, _other) = pair();
    let (client, server, thief) = (agent.client(), agent.client(), agent.client());
    let forged = Offer {
        local: client_socket.local_addr().unwrap().into(),
        remote: client_socket.peer_addr().unwrap().into(),
        ..client::offer(&thief_socket, 1, End::Active)
    };
    thief.say(ToAgent::Offer(forged));
    // Also with the cookie of the victim's socket, which anybody can find out.
    let cookie = client::offer(&client_socket, 1, End::Active).cookie;
    thief.say(ToAgent::Offer(Offer {
        offer_id: 2,
        cookie,
        ..forged
    }));
    server.offer(&server_socket, 5, End::Passive);
    assert_eq!([thief.hear(), thief.hear()], [unproven(1), unproven(2)]);

    client.offer(&client_socket, 6, End::Active);
    assert_eq!([server.take(), client.take()], [5, 6]);
    assert_eq!(client.paired().0.offer_id, 6);
    assert_eq!(server.paired().0.offer_id, 5);
}

#[test]
fn wrong_descriptors_are_declined() {
    let agent = Running::start(Config::default());
    let (client_socket, server_socket) = pair();
    let program = agent.client();
    for (offer_id, fd) in [(1, 0), (2, i32::MAX), (3, 100_000)] {
        program.say(ToAgent::Offer(Offer {
            fd,
            ..client::offer(&client_socket, offer_id, End::Active)
        }));
        program.offer(&server_socket, 10 + offer_id, End::Passive);
        assert_eq!(program.hear(), unproven(offer_id));
        program.say(ToAgent::Withdraw(millrace_wire::Withdraw {
            offer_id: 10 + offer_id,
        }));
    }
}

#[test]
fn another_version_is_refused_politely() {
    let agent = Running::start(Config::default());
    for hello in [
        Hello {
            version_min: 3,
            version_max: 9,
            segment_version: 1,
            mode: Mode::Default,
        },
        Hello {
            version_min: 1,
            version_max: 1,
            segment_version: 1,
            mode: Mode::Default,
        },
        Hello {
            version_min: 2,
            version_max: 2,
            segment_version: 99,
            mode: Mode::Default,
        },
    ] {
        let stranger = agent.connect();
        client::say(&stranger, ToAgent::Hello(hello));
        let (message, _) = client::hear(&stranger).unwrap();
        assert_eq!(
            message,
            ToClient::Unsupported(Unsupported {
                version_min: 2,
                version_max: 2
            })
        );
        assert!(client::hear(&stranger).is_none(), "the agent hangs up");
    }
}

#[test]
fn nonsense_costs_its_sender_the_connection_and_nobody_else_anything() {
    let agent = Running::start(Config::default());
    let innocent = agent.client();
    let (near, far) = pair();
    let twice = client::offer(&near, 1, End::Active);
    let before_hello = agent.connect();
    client::say(&before_hello, ToAgent::Offer(twice));
    assert!(client::hear(&before_hello).is_none());

    for nonsense in [&b"x"[..], &[0; 128], &[0xff; 4096], b"CRLM\x02\x00\x02\x00"] {
        let culprit = agent.client();
        culprit.say_bytes(nonsense);
        assert!(culprit.try_hear().is_none(), "{nonsense:?}");
    }
    let culprit = agent.client();
    culprit.say(ToAgent::Offer(twice));
    culprit.say(ToAgent::Offer(twice));
    assert!(culprit.try_hear().is_none());

    innocent.offer(&near, 1, End::Active);
    innocent.offer(&far, 2, End::Passive);
    assert_eq!([innocent.take(), innocent.take()], [1, 2]);
    innocent.paired();
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn a_storm_of_random_messages_leaves_the_agent_well() {
    let agent = Running::start(Config::default());
    let (near, far) = pair();
    let innocent = agent.client();
    for seed in 0..300 {
        let mut state = seed;
        let attacker = agent.client();
        for _ in 0..20 {
            let mut bytes = [0u8; 256];
            for chunk in bytes.chunks_mut(8) {
                chunk.copy_from_slice(&random(&mut state).to_le_bytes());
            }
            // A valid header of any kind and, for offers, valid enumerations.
            let kind = (random(&mut state) % 7) as u8;
            bytes[..8].copy_from_slice(&[b'C', b'R', b'L', b'M', 2, 0, kind, 0]);
            (bytes[19], bytes[24], bytes[25]) = (0, 4, 1);
            let length =
                [78, 16, 9, 15, random(&mut state) as usize % 256][random(&mut state) as usize % 5];
            if !attacker.try_say_bytes(&bytes[..length]) {
                break;
            }
        }
    }
    innocent.offer(&near, 1, End::Active);
    innocent.offer(&far, 2, End::Passive);
    assert_eq!([innocent.take(), innocent.take()], [1, 2]);
    innocent.paired();
    drop(innocent);
    agent.wait_for(|status| status.clients == 0 && status.offers_waiting == 0);
}

#[test]
fn a_client_that_dies_takes_its_offers_along() {
    let agent = Running::start(Config::default());
    let (near, far) = pair();
    let dying = agent.client();
    dying.offer(&near, 1, End::Active);
    drop(dying);
    let survivor = agent.client();
    survivor.offer(&far, 2, End::Passive);
    agent.wait_for(|status| status.clients == 1 && status.offers_waiting == 1);
    survivor.offer(&near, 3, End::Active);
    assert_eq!([survivor.take(), survivor.take()], [2, 3]);
    assert_eq!(survivor.paired().0.offer_id, 3);
}

#[test]
fn a_message_that_nobody_reads_holds_no_memory() {
    let agent = Running::start(Config::default());
    let (near, far) = pair();
    let (client, server) = (agent.client(), agent.client());
    client.offer(&near, 1, End::Active);
    server.offer(&far, 2, End::Passive);
    // The server is asleep in accept(); its child takes the connection over when the server has let go of it.
    client.take();
    agent.wait_for(|status| status.segment_bytes == 0 && status.paired == 0);
    server.say(ToAgent::Withdraw(millrace_wire::Withdraw { offer_id: 2 }));
    let child = agent.client();
    child.offer(&far, 3, End::Passive);
    assert_eq!(child.take(), 3);
    assert_eq!(client.paired().0.offer_id, 1);
    assert_eq!(child.paired().0.offer_id, 3);
}

#[test]
fn what_was_taken_is_paired_or_declined_once() {
    let agent = Running::start(Config::default());
    let (near, far) = pair();
    let (client, server) = (agent.client(), agent.client());
    client.offer(&near, 1, End::Active);
    server.offer(&far, 2, End::Passive);
    client.take();
    let withdraw = ToAgent::Withdraw(millrace_wire::Withdraw { offer_id: 1 });
    client.say(withdraw);
    let declined = Declined {
        offer_id: 1,
        reason: Reason::None,
    };
    assert_eq!(client.hear(), ToClient::Declined(declined));
    // What is no more is not answered: the next message is the next offer's.
    client.say(ToAgent::Take(millrace_wire::Take { offer_id: 1 }));
    client.say(withdraw);
    client.offer(&near, 3, End::Active);
    assert_eq!(client.take(), 3);
    server.take();
    assert_eq!(client.paired().0.offer_id, 3);

    // Of two that were matched, one that goes leaves the other waiting.
    drop(server);
    agent.wait_for(|status| status.clients == 1 && status.offers_waiting == 0);
    let (near, far) = pair();
    let server = agent.client();
    client.offer(&near, 4, End::Active);
    server.offer(&far, 5, End::Passive);
    client.take();
    drop(server);
    agent.wait_for(|status| status.clients == 1 && status.offers_waiting == 1);
}

#[test]
fn connections_that_say_nothing_are_their_tenant_s_and_bounded() {
    let quota = QuotaConfig {
        clients_per_tenant: 2,
        ..QuotaConfig::default()
    };
    let agent = Running::start(Config {
        quota,
        ..Config::default()
    });
    let is_closed = |socket: &OwnedFd| {
        recv(socket.as_raw_fd(), &mut [0; 1], MsgFlags::empty()).is_ok_and(|count| count == 0)
    };
    let _programs = [agent.client(), agent.client()];
    let silent = [agent.connect(), agent.connect()];
    assert!(is_closed(&agent.connect()), "there is no room for a third");
    drop(silent);
    let has_room = || {
        let socket = agent.connect();
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, 200_000)).unwrap();
        !is_closed(&socket)
    };
    while !has_room() {}
}

#[test]
fn quotas_hold_until_the_memory_is_really_gone() {
    let quota = QuotaConfig {
        ends_per_client: 2,
        offers_per_client: 3,
        ..QuotaConfig::default()
    };
    let agent = Running::start(Config {
        quota,
        ..Config::default()
    });
    let program = agent.client();
    let sockets: Vec<_> = (0..3).map(|_| pair()).collect();
    let offer_pair = |index: u64| {
        let (near, far) = &sockets[index as usize];
        program.offer(near, 2 * index, End::Active);
        program.offer(far, 2 * index + 1, End::Passive);
        program.take();
        program.take();
    };
    let refused = |offer_id| {
        ToClient::Declined(Declined {
            offer_id,
            reason: Reason::Quota,
        })
    };
    offer_pair(0);
    let (paired, segment) = program.paired();
    drop(program.paired());
    offer_pair(1);
    assert_eq!([program.hear(), program.hear()], [refused(2), refused(3)]);

    // Saying that it is done is not enough, and closing the descriptor neither: it is still mapped.
    let mapped = Segment::attach(segment.as_fd(), paired.ring_bytes).unwrap();
    drop(segment);
    program.say(ToAgent::Withdraw(millrace_wire::Withdraw { offer_id: 0 }));
    offer_pair(1);
    assert_eq!([program.hear(), program.hear()], [refused(2), refused(3)]);
    drop(mapped);
    agent.wait_for(|status| status.segment_bytes == 0);
    offer_pair(1);
    drop((program.paired(), program.paired()));

    for offer_id in 100..104 {
        program.offer(&sockets[2].0, offer_id, End::Active);
    }
    assert_eq!(program.hear(), refused(103));
}

#[test]
fn excluded_programs_are_told_never_to_offer_and_declined_all_the_same() {
    let name = std::env::current_exe()
        .unwrap()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let agent = Running::start(Config {
        exclude: vec![name],
        ..Config::default()
    });
    let program = agent.client();
    assert_eq!(program.welcome.offer_after_calls, u32::MAX);
    program.offer(&pair().0, 1, End::Active);
    assert_eq!(
        program.hear(),
        ToClient::Declined(Declined {
            offer_id: 1,
            reason: Reason::Excluded
        })
    );
}

#[test]
fn metrics_are_served() {
    use std::io::{Read, Write};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.sock");
    let metrics = Some(path.to_str().unwrap().to_owned());
    let agent = Running::start(Config {
        metrics,
        ..Config::default()
    });
    let _program = agent.client();
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    stream.write_all(b"Host: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\nmillrace_clients 1\n"), "{text}");
    drop(agent);
    assert!(!path.exists());
}

#[test]
fn a_slow_reader_is_dropped_and_the_others_go_on() {
    let agent = Running::start(Config::default());
    let sleeper: Client = agent.client();
    let (near, _far) = pair();
    let offer = client::offer(&near, 0, End::Active);
    // Each is declined at once: it has no other end.
    let mut sent = 0;
    for offer_id in 0..5000 {
        let stray = Offer {
            offer_id,
            remote: offer.local,
            ..offer
        };
        if !sleeper.try_say(ToAgent::Offer(stray)) {
            break;
        }
        sent += 1;
    }
    assert!(sent > 256 && sent < 5000, "{sent}");
    agent.wait_for(|status| status.clients == 0);
}

#[test]
fn nothing_stays_when_it_stops_and_a_new_one_takes_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("millrace/agent.sock");
    let agent = Running::start_at(&path, Config::default());
    let client = agent.client();
    drop(agent);
    assert!(client.try_hear().is_none());
    assert_eq!(
        std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
        0
    );
    let again = Running::start_at(&path, Config::default());
    again.client();
}
