//! An agent in a thread of this process, to which a few sessions say anything: it answers the next question as well.
//!
//! Sessions hold the two ends of a true connection, so that offers, introductions, growth and recalls are reached, too.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use millrace_agent::{Agent, Config, Options};
use millrace_wire::{
    CHANNEL_ABI, ChannelName, End, Family, Grow, Hello, Holds, Left, MAX_BYTES, Mode, Offer, Open,
    Query, Ready, Recall, Role, SEGMENT_VERSION, Take, ToAgent, VERSION_MAX, VERSION_MIN, Withdraw,
};

use crate::{Choices, sys};

const PATIENCE: Duration = Duration::from_secs(20);

struct Site {
    path: PathBuf,
    ends: [TcpStream; 2],
    /// Open as long as the agent is to run.
    _stop: UnixStream,
}

fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("millrace-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("agent.sock");
        let (stopped, stop) = UnixStream::pair().expect("a pair");
        let options = Options {
            others: Vec::new(),
            socket: path.clone(),
            config: Config::default(),
            background: false,
        };
        let (ready, listening) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let agent = Agent::start(options, stopped.as_fd()).expect("an agent");
            ready.send(()).expect("somebody waits");
            agent.serve().expect("an agent serves");
        });
        listening.recv().expect("an agent");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let near =
            TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (far, _) = listener.accept().expect("a connection");
        Site {
            path,
            ends: [near, far],
            _stop: stop,
        }
    })
}

/// Says what `bytes` say; then the agent must answer, and hold nothing.
pub fn run(bytes: &[u8]) {
    let site = site();
    let mut sessions: [Option<OwnedFd>; 3] = Default::default();
    let mut choices = Choices(bytes);
    while !choices.is_empty() {
        let what = choices.byte();
        let place = usize::from(what) % sessions.len();
        let session = sessions[place]
            .get_or_insert_with(|| sys::connect(&site.path).expect("the agent listens"));
        let mut buffer = [0; MAX_BYTES];
        match what / 3 % 16 {
            0..=11 => {
                let length =
                    message(what / 3 % 16, site, &mut choices).encode(VERSION_MAX, &mut buffer);
                sys::transmit(session, &buffer[..length]);
            }
            12 => {
                let length = message(choices.byte() % 12, site, &mut choices)
                    .encode(VERSION_MAX, &mut buffer);
                let place = usize::from(choices.byte()) % length;
                buffer[place] ^= choices.byte();
                sys::transmit(session, &buffer[..length]);
            }
            13 => {
                let length = usize::from(choices.byte()) % choices.0.len().max(1);
                sys::transmit(session, &choices.0[..length]);
                choices.0 = &choices.0[length..];
            }
            14 => sessions[place] = None,
            _ => {
                // What is answered, and a moment for the agent.
                std::thread::yield_now();
                while sys::receive(session, &mut buffer) > 0 {}
            }
        }
    }
    drop(sessions);
    let gone = std::time::Instant::now();
    loop {
        let (status, _) = millrace_agent::status(&site.path, PATIENCE).expect("the agent answers");
        if status.clients <= 1 && status.offers_waiting == 0 && status.segment_bytes == 0 {
            return;
        }
        assert!(gone.elapsed() < PATIENCE, "left behind: {status:?}");
        std::thread::yield_now();
    }
}

/// A message of the right form.
fn message(kind: u8, site: &Site, choices: &mut Choices<'_>) -> ToAgent {
    let offer_id = u64::from(choices.byte() % 4);
    match kind {
        0 | 1 => ToAgent::Hello(Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            segment_version: SEGMENT_VERSION,
            mode: Mode::Eager,
        }),
        2..=5 => ToAgent::Offer(offer(offer_id, usize::from(kind) & 1, site, choices)),
        6 | 7 => ToAgent::Take(Take { offer_id }),
        8 => ToAgent::Withdraw(Withdraw { offer_id }),
        9 => ToAgent::Grow(Grow { offer_id }),
        10 => ToAgent::Recall(Recall {
            offer_id,
            connection_id: choices.word(),
            fd: site.ends[usize::from(choices.byte()) & 1].as_raw_fd(),
            sends: choices.byte() & 1 == 1,
        }),
        _ => match choices.byte() & 7 {
            0 | 1 => ToAgent::Query(Query::Connections),
            2 => ToAgent::Query(Query::Status),
            3 => ToAgent::Query(Query::Channels),
            4 | 5 => ToAgent::Open(open(choices)),
            6 => ToAgent::Ready(Ready { link: offer_id }),
            _ if offer_id & 2 == 0 => ToAgent::Left(Left { peer: offer_id }),
            _ => ToAgent::Holds(Holds { peer: offer_id }),
        },
    }
}

/// One who takes part in one of two channels.
fn open(choices: &mut Choices<'_>) -> Open {
    let what = choices.byte();
    let role = Role::from_u8(what & 3).unwrap_or(Role::Server);
    let name = if what & 4 == 0 { "news" } else { "ask" };
    Open {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        abi: CHANNEL_ABI,
        role,
        overwrites: what & 8 != 0,
        pool: (role.sends() && what & 0x30 == 0x30).then_some(u32::from(what)),
        id: u64::from(what >> 6),
        pool_bytes: if role.sends() { 65_536 } else { 0 },
        slots: 2 << (choices.byte() & 7),
        peers: u32::from(choices.byte() & 1),
        name: ChannelName::new(name).expect("a name"),
        group: (choices.byte() & 1 != 0).then(|| ChannelName::new("workers").expect("a name")),
    }
}

/// An offer of one end, true unless the choices say which field is not.
fn offer(offer_id: u64, end: usize, site: &Site, choices: &mut Choices<'_>) -> Offer {
    let stream = &site.ends[end];
    let mut offer = Offer {
        offer_id,
        fd: stream.as_raw_fd(),
        row: u32::from(choices.byte() % 4),
        family: Family::V4,
        end: if end == 0 { End::Active } else { End::Passive },
        local: stream.local_addr().expect("an address").into(),
        remote: stream.peer_addr().expect("an address").into(),
        cookie: sys::cookie(stream, libc::SO_COOKIE),
        netns_cookie: sys::cookie(stream, libc::SO_NETNS_COOKIE),
    };
    match choices.byte() {
        0 => offer.fd = i32::from(choices.byte()),
        1 => offer.row = choices.word() as u32,
        2 => std::mem::swap(&mut offer.local, &mut offer.remote),
        3 => offer.cookie = choices.word(),
        4 => offer.netns_cookie = choices.word(),
        5 => offer.family = Family::V6,
        6 => offer.local.port = choices.word() as u16,
        _ => {}
    }
    offer
}
