//! A client that says what it likes, often, and seldom listens.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use millrace_wire::{
    Address, CHANNEL_ABI, ChannelName, End, Family, Grow, Hello, Holds, Left, MAX_BYTES, Mode,
    Offer, Open, Query, Ready, Recall, Role, Take, ToAgent, VERSION_MAX, Withdraw,
};

use crate::gifts;
use crate::random::Random;
use crate::session::{self, HELLO, Session};
use crate::strikes;
use crate::sys;

/// Sessions that it has at one time.
const SESSIONS: usize = 40;
/// Messages of a flood, more than socket and agent hold.
const FLOOD: usize = 2000;
/// Memory of the size of a board, for gifts.
const BOARD_BYTES: usize = 4096 + 384 * 16_384;

/// Goes on until the deadline.
pub(crate) fn run(mut random: Random, deadline: Instant) -> Vec<String> {
    let mut sessions = VecDeque::new();
    let (mut opened, mut turns) = (0u64, 0u64);
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) else {
        return vec!["no listener".to_owned()];
    };
    let Some((near, _far)) = listener
        .local_addr()
        .and_then(|address| Ok((TcpStream::connect(address)?, listener.accept()?)))
        .ok()
    else {
        return vec!["no connection".to_owned()];
    };
    while Instant::now() < deadline {
        if sessions.len() < SESSIONS && (sessions.is_empty() || random.strikes(4)) {
            match Session::open() {
                Some(session) => sessions.push_back(session),
                None => return vec![format!("the agent is not there after {opened} sessions")],
            }
            opened += 1;
            if random.strikes(2) {
                sessions.back().map(|session| session.say(&HELLO));
            }
        }
        let which = random.below(sessions.len());
        if !turn(&sessions[which], &near, &mut random) || random.strikes(30) {
            sessions.remove(which);
        }
        turns += 1;
    }
    println!("{opened} sessions, {turns} turns");
    Vec::new()
}

/// One thing that should not be done, or not then. False: the agent has closed the session.
fn turn(session: &Session, near: &TcpStream, random: &mut Random) -> bool {
    let fd = session.fd();
    match random.below(16) {
        0 => noise(fd, random),
        1..=4 => {
            let message = any_message(near, random);
            session.say(&message);
        }
        5 => mutilated(fd, &any_message(near, random), random),
        6 => gift(fd, &any_message(near, random), random),
        7 => replay(session, &any_message(near, random)),
        8 => flood(session, near, random),
        9 => {
            let message = any_message(near, random);
            // Another process on the same socket.
            sys::in_child(|| {
                session.say(&message);
            });
        }
        10 => sys::shut_down(
            fd,
            random.pick(&[libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR]),
        ),
        11 => scribble_board(session, near, random),
        12 => {
            for offer_id in 0..random.below(64) as u64 {
                session.say(&ToAgent::Withdraw(Withdraw { offer_id }));
                session.say(&ToAgent::Take(Take { offer_id }));
            }
        }
        _ => {
            let mut buffer = [0; MAX_BYTES];
            return match sys::receive(fd, &mut buffer) {
                Ok((bytes, _)) => bytes != 0,
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            };
        }
    }
    true
}

fn noise(fd: &OwnedFd, random: &mut Random) {
    let bytes = random.below(3 * MAX_BYTES);
    let _ = sys::transmit(fd, &random.bytes(bytes), &[]);
}

/// A message of the right form; what it says is true now and then.
fn any_message(near: &TcpStream, random: &mut Random) -> ToAgent {
    let offer_id = random.below(64) as u64;
    match random.below(15) {
        0 => ToAgent::Hello(Hello {
            version_min: random.pick(&[0, 1, 2, 3, u16::MAX]),
            version_max: random.pick(&[0, 1, 2, 3, u16::MAX]),
            segment_version: random.pick(&[0, 1, 2, u16::MAX]),
            mode: random.pick(&[Mode::Default, Mode::Eager, Mode::EagerNospin, Mode::Chaos]),
        }),
        1..=4 => ToAgent::Offer(any_offer(offer_id, near, random)),
        5 => ToAgent::Query(random.pick(&[
            Query::Connections,
            Query::Status,
            Query::StatusAndStay,
            Query::Channels,
        ])),
        6 => ToAgent::Recall(Recall {
            offer_id,
            connection_id: random.pick(&[0, 1, 2, 3 * offer_id]),
            fd: any_descriptor(near, random),
            sends: random.strikes(2),
        }),
        7 => ToAgent::Grow(Grow { offer_id }),
        8 => ToAgent::Take(Take { offer_id }),
        9 | 10 => ToAgent::Open(any_participant(offer_id, random)),
        11 => ToAgent::Ready(Ready {
            link: random.pick(&[0, 0, 1, offer_id]),
        }),
        12 => ToAgent::Holds(Holds { peer: offer_id }),
        13 => ToAgent::Left(Left { peer: offer_id }),
        _ => ToAgent::Withdraw(Withdraw { offer_id }),
    }
}

/// Of one of two channels, with few or many slots and links that it claims to have.
fn any_participant(id: u64, random: &mut Random) -> Open {
    let role = random.pick(&[
        Role::Publisher,
        Role::Subscriber,
        Role::Client,
        Role::Server,
    ]);
    let name = random.pick(&["pester", "pester/other"]);
    Open {
        version_min: random.pick(&[0, 1, 2, u16::MAX]),
        version_max: random.pick(&[2, 2, 3, u16::MAX]),
        abi: random.pick(&[CHANNEL_ABI, CHANNEL_ABI, 0, u16::MAX]),
        role,
        overwrites: random.strikes(2),
        pool: (role.sends() && random.strikes(2)).then(|| random.below(64) as u32),
        id,
        pool_bytes: if role.sends() {
            random.pick(&[65_536, 1 << 20, 4 << 30])
        } else {
            0
        },
        slots: random.pick(&[2, 256, 32_768]),
        peers: random.pick(&[0, 0, 1, 5, u32::MAX]),
        name: ChannelName::new(name).expect("it is a name"),
        group: random
            .strikes(2)
            .then(|| ChannelName::new("workers").expect("it is a name")),
    }
}

/// A descriptor of the connection, of nothing, of a pipe, of the session…
fn any_descriptor(near: &TcpStream, random: &mut Random) -> RawFd {
    match random.below(4) {
        0 => near.as_raw_fd(),
        1 => i32::MAX,
        _ => random.below(64) as RawFd,
    }
}

fn any_offer(offer_id: u64, near: &TcpStream, random: &mut Random) -> Offer {
    let address = |random: &mut Random| Address {
        ip: random.bytes(16).try_into().expect("sixteen bytes"),
        port: random.next() as u16,
    };
    let mut offer = session::offer(near, offer_id, random.below(20_000) as u32).unwrap_or(Offer {
        offer_id,
        fd: 0,
        row: u32::MAX,
        family: Family::V6,
        end: End::Passive,
        local: address(random),
        remote: address(random),
        cookie: random.odd(),
        netns_cookie: random.odd(),
    });
    match random.below(8) {
        0 => offer.fd = any_descriptor(near, random),
        1 => offer.row = random.odd() as u32,
        2 => std::mem::swap(&mut offer.local, &mut offer.remote),
        3 => offer.local = address(random),
        4 => offer.cookie = random.odd(),
        5 => offer.netns_cookie = random.odd(),
        6 => (offer.end, offer.family) = (End::Passive, Family::V6),
        _ => {}
    }
    offer
}

fn encoded(message: &ToAgent) -> Vec<u8> {
    let mut buffer = [0; MAX_BYTES];
    let bytes = message.encode(VERSION_MAX, &mut buffer);
    buffer[..bytes].to_vec()
}

/// Cut, extended, or with bits turned over.
fn mutilated(fd: &OwnedFd, message: &ToAgent, random: &mut Random) {
    let mut bytes = encoded(message);
    match random.below(3) {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => {
            let more = random.below(2 * MAX_BYTES);
            bytes.extend(random.bytes(more));
        }
        _ => {
            for _ in 0..1 + random.below(4) {
                let place = random.below(bytes.len());
                bytes[place] ^= 1 << random.below(8);
            }
        }
    }
    let _ = sys::transmit(fd, &bytes, &[]);
}

fn gift(fd: &OwnedFd, message: &ToAgent, random: &mut Random) {
    let count = random.pick(&[1, 1, 2, 16, 253]);
    let gifts: Vec<OwnedFd> = (0..count.min(3))
        .filter_map(|_| gifts::draw(random, BOARD_BYTES))
        .collect();
    if gifts.is_empty() {
        return;
    }
    let numbers: Vec<RawFd> = (0..count)
        .map(|place| gifts[place % gifts.len()].as_raw_fd())
        .collect();
    let _ = sys::transmit(fd, &encoded(message), &numbers);
    for gift in &gifts {
        // Sealed files refuse.
        let _ = sys::resize(gift, 0);
    }
    // The session itself, in its own queue.
    if random.strikes(4) {
        let _ = sys::transmit(fd, &encoded(message), &[fd.as_raw_fd()]);
    }
}

fn replay(session: &Session, message: &ToAgent) {
    for _ in 0..16 {
        session.say(message);
        session.say(&HELLO);
    }
}

/// Many questions, and no ear for the answers.
fn flood(session: &Session, near: &TcpStream, random: &mut Random) {
    let message = if random.strikes(2) {
        ToAgent::Query(Query::Connections)
    } else {
        any_message(near, random)
    };
    for _ in 0..FLOOD {
        if !session.say(&message) {
            return;
        }
    }
}

/// A welcome, then rows of which no word is true, and somebody who wants to see them.
fn scribble_board(session: &Session, near: &TcpStream, random: &mut Random) {
    session.say(&HELLO);
    let Some((millrace_wire::ToClient::Welcome(_), Some(file))) =
        session.hear(Duration::from_millis(100))
    else {
        return;
    };
    let Ok(memory) = strikes::map(&file, BOARD_BYTES) else {
        return;
    };
    for _ in 0..20_000 {
        let rows = random.pick(&[16, 16_384]);
        let row = random.below(rows);
        sys::store(
            &memory,
            4096 + 384 * row + random.below(384),
            random.odd() as u8,
        );
    }
    for row in 0..16_384 {
        // All of them in use, by processes of all numbers.
        sys::store(&memory, 4096 + 384 * row + 4, 1 + (row % 3) as u8);
        sys::store(&memory, 4096 + 384 * row + 80, row as u8);
    }
    if let Some(offer) = session::offer(near, 1, random.below(16) as u32) {
        session.say(&ToAgent::Offer(offer));
    }
    session.say(&ToAgent::Query(Query::Connections));
    for place in 0..4096 {
        sys::store(&memory, place, random.odd() as u8);
    }
    sys::punch(&file, 0, BOARD_BYTES);
}
