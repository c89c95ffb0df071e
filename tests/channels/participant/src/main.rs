//! Participants of channels that write down what they do, so that those who are killed have said it, and a judge who reads that.
//!
//!     participant ROLE DIRECTORY NAME [GROUP|- [redeliver] [keyed] [patient|hasty] [long] [beset] [fail|drop-oldest|drop-newest]]
//!     participant judge DIRECTORY all|drop-oldest|drop-newest|once|once-or-dropped|redeliver|redeliver-keyed MAY_MISS
//!
//! `publisher`, `subscriber`, `client` and `server` do their work until SIGTERM, then finish it and end with 0; they end with 1, and say
//! why, when a message is not what it must be. `hostile-ROLE` scribbles over all memory that it shares with others.

#![forbid(unsafe_code)]

mod body;
mod hostile;
mod judge;
mod ledger;
mod requests;
mod stream;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use millrace_channel::{Channel, Error, WhenFull};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// For everything that comes at all.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long somebody waits before he looks whether he is to stop.
pub const GLANCE: Duration = Duration::from_millis(20);
/// Outstanding messages on a link.
pub const SLOTS: u32 = 64;

/// Why a participant gives up.
pub type Failure = Box<dyn std::error::Error>;

/// What a participant was told.
pub struct Order {
    pub directory: PathBuf,
    pub channel: Channel,
    pub stop: SignalFd,
    /// Of a group one gets each message.
    pub in_group: bool,
    pub is_keyed: bool,
    pub when_full: WhenFull,
    /// Servers that mean no good are among those of a client.
    pub is_beset: bool,
}

impl Order {
    pub fn is_stopped(&self) -> bool {
        matches!(self.stop.read_signal(), Ok(Some(_)))
    }

    /// Opens an end of the channel; while no agent is there, it tries again.
    pub fn open<End>(&self, open: impl Fn(&Channel) -> Result<End, Error>) -> Result<End, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match open(&self.channel) {
                Err(Error::NoAgent(..)) if Instant::now() < deadline => std::thread::sleep(GLANCE),
                // One that is killed in the middle of its answer.
                Err(Error::Unsupported) if Instant::now() < deadline => std::thread::sleep(GLANCE),
                other => return other,
            }
        }
    }
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["judge", directory, rule, may_miss] = words[..] {
        return judge::judge(directory.as_ref(), rule, may_miss.parse()?);
    }
    let [role, directory, name, ref rest @ ..] = words[..] else {
        return Err("participant ROLE DIRECTORY NAME [GROUP [redeliver]]".into());
    };
    let mut channel = Channel::new(name)
        .slots(SLOTS)
        .pool_bytes(1 << 20)
        .patience(None);
    if role.starts_with("hostile") || rest.contains(&"patient") {
        // Nobody waits for ever for one who means no good.
        channel = channel.patience(Some(Duration::from_secs(2)));
    }
    if rest.contains(&"hasty") {
        channel = channel.patience(Some(Duration::from_millis(50)));
    }
    if rest.contains(&"long") {
        body::make_long();
        channel = channel.pool_bytes(16 << 20);
    }
    let group = rest.first().filter(|group| **group != "-");
    if let Some(group) = group {
        channel = channel.group(group);
    }
    let when_full = match rest.last() {
        Some(&"fail") => WhenFull::Fail,
        Some(&"drop-oldest") => WhenFull::DropOldest,
        Some(&"drop-newest") => WhenFull::DropNewest,
        _ => WhenFull::Block,
    };
    channel = channel
        .redeliver(rest.contains(&"redeliver"))
        .when_full(when_full);
    let signals = SigSet::from_iter([Signal::SIGTERM]);
    signals.thread_block()?;
    let order = Order {
        directory: directory.into(),
        channel,
        stop: SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?,
        in_group: group.is_some(),
        is_keyed: rest.contains(&"keyed"),
        when_full,
        is_beset: rest.contains(&"beset"),
    };
    match role {
        "publisher" => stream::publish(&order),
        "subscriber" => stream::subscribe(&order),
        "client" => requests::ask(&order),
        "server" => requests::serve(&order),
        _ => hostile::act(&order, role.strip_prefix("hostile-").unwrap_or_default()),
    }
}
