//! The highest rate at which a function that runs loses nothing, by two memif ports, from one generator that is both peers.
//!
//!     line DIRECTORY relay|decapsulate|encapsulate BEARERS [SECONDS]
//!
//! The function (`millrace ppf run DIRECTORY/ppf.toml`) listens at `DIRECTORY/ppf.sock`, and its ports `radio` and `core` at
//! `DIRECTORY/radio.sock` and `DIRECTORY/core.sock`, as `line DIRECTORY config` prints it. Each is pinned by whoever starts it.

#![forbid(unsafe_code)]

mod frames;

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use frames::{CORE, INNER_BYTES, RADIO, frame, in_tunnel, ipv4, user};
use millrace_port::memif::{Config, Memif, Role};
use millrace_port::{Burst, Port, State};
use millrace_ppf::{Added, Client};

const BURST: usize = 32;
/// Bursts that are sent again and again, at most.
const BURSTS_MAX: usize = 2048;
/// What comes later is lost.
const DRAIN: Duration = Duration::from_millis(50);
/// How exactly a rate is known.
const WIDTH: f64 = 0.01;

const CONFIG: &str = r#"
control = "DIRECTORY/ppf.sock"
[[port]]
name = "radio"
side = "radio"
memif = { path = "DIRECTORY/radio.sock" }
addresses = ["192.0.2.1/24"]
[[port]]
name = "core"
side = "core"
memif = { path = "DIRECTORY/core.sock" }
addresses = ["198.51.100.1/24"]
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, what, rest @ ..] = words.as_slice() else {
        return Err("line DIRECTORY config|relay|decapsulate|encapsulate BEARERS [SECONDS]".into());
    };
    if what == "config" {
        print!("{}", CONFIG.replace("DIRECTORY", directory));
        return Ok(());
    }
    let count = rest.first().map_or(Ok(1000), |word| word.parse())?;
    let seconds = rest.get(1).map_or(Ok(1.0), |word| word.parse())?;
    let directory = Path::new(directory);
    let teids = add(directory, what, count)?;
    let mut line = Line::open(directory, what, &teids)?;
    line.begin()?;
    let (mut low, mut high) = (0.0, 20e6);
    while high - low > WIDTH * high {
        let rate = if low == 0.0 {
            high / 4.0
        } else {
            (low + high) / 2.0
        };
        let (sent, came) = line.run(rate, seconds / 4.0);
        let reached = sent as f64 / (seconds / 4.0);
        match sent == came && reached > 0.98 * rate {
            true => low = rate,
            false => high = rate,
        }
    }
    let mut rate = low;
    loop {
        let (sent, came) = line.run(rate, seconds);
        if sent == came {
            println!(
                "{what} {count} bearers: {:.2} M packets/s without loss",
                sent as f64 / seconds / 1e6
            );
            return Ok(());
        }
        println!(
            "at {:.2} M packets/s {} of {sent} lost",
            rate / 1e6,
            sent.saturating_sub(came)
        );
        rate *= 0.98;
    }
}

/// Adds bearers, and returns the numbers of their tunnels at the radio's side.
fn add(directory: &Path, what: &str, count: u32) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut client = Client::connect(&directory.join("ppf.sock"))?;
    let mut teids = Vec::new();
    let numbers: Vec<u32> = (1..=count).collect();
    for piece in numbers.chunks(10_000) {
        let lines: String = piece
            .iter()
            .map(|number| {
                let core = match what {
                    "relay" => format!(r#"{{"address":"198.51.100.9","teid":{number}}}"#),
                    _ => format!(r#"{{"user":"{}"}}"#, user(*number)),
                };
                format!("{{\"core\":{core},\"radio\":{{\"address\":\"192.0.2.9\",\"teid\":{number}}}}}\n")
            })
            .collect();
        let said = client.ask(
            "POST",
            "/v1/bearers",
            "application/x-ndjson",
            lines.as_bytes(),
        )?;
        let added: Added = serde_json::from_slice(&said)?;
        if added.refused > 0 {
            return Err(format!("{:?}", added.refusals.first()).into());
        }
        teids.extend(added.ids.into_iter().flatten().map(|id| id << 1 | 1));
    }
    Ok(teids)
}

/// Both peers.
struct Line {
    /// By which packets leave, and by which they come.
    ports: [Memif; 2],
    bursts: Vec<Burst>,
    next: usize,
    received: Burst,
}

impl Line {
    fn open(directory: &Path, what: &str, teids: &[u32]) -> Result<Line, Box<dyn Error>> {
        let names = match what {
            "encapsulate" => ["core", "radio"],
            _ => ["radio", "core"],
        };
        let port = |name: &str| {
            let mut config = Config::new(Role::Client, directory.join(format!("{name}.sock")));
            config.log2_ring_size = 11;
            Memif::new(config)
        };
        Ok(Line {
            ports: [port(names[0])?, port(names[1])?],
            bursts: bursts(what, teids),
            next: 0,
            received: Burst::new(BURST),
        })
    }

    /// Waits until packets pass.
    fn begin(&mut self) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            let mut is_up = true;
            for port in &mut self.ports {
                is_up &= matches!(port.poll(Instant::now()), State::Connected);
            }
            if is_up && self.run(10_000.0, 0.02).1 > 0 {
                return Ok(());
            }
        }
        Err("nothing passes".into())
    }

    /// Sends at a rate; returns how many were sent, and how many came.
    fn run(&mut self, rate: f64, seconds: f64) -> (u64, u64) {
        let (mut sent, mut came) = (0, 0);
        let (began, mut turns) = (Instant::now(), 0_u32);
        loop {
            let elapsed = began.elapsed().as_secs_f64();
            if elapsed >= seconds {
                break;
            }
            if sent as f64 + BURST as f64 <= elapsed * rate {
                let burst = &self.bursts[self.next];
                let taken = self.ports[0].transmit(0, burst, 0);
                // What the ring has no room for is not sent, and the rate is not reached.
                sent += taken as u64;
                self.next = (self.next + 1) % self.bursts.len();
            }
            came += self.take();
            turns += 1;
            if turns % 1024 == 0 {
                self.poll();
            }
        }
        let until = Instant::now() + DRAIN;
        while came < sent && Instant::now() < until {
            came += self.take();
        }
        (sent, came)
    }

    fn poll(&mut self) {
        for port in &mut self.ports {
            port.poll(Instant::now());
        }
    }

    /// Counts what has come, and answers who asks for a station.
    fn take(&mut self) -> u64 {
        let mut came = 0;
        for place in [1, 0] {
            let count = self.ports[place].receive(0, &mut self.received);
            let mut asked = Vec::new();
            for packet in self.received.iter().take(count) {
                match packet.head()[12..14] == [8, 6] {
                    true => asked.push(packet.to_vec()),
                    false => came += u64::from(place == 1),
                }
            }
            for ask in asked {
                let mut answer = Burst::new(1);
                answer.push(&told(&ask));
                self.ports[place].transmit(0, &answer, 0);
            }
        }
        came
    }
}

/// The answer to a station's question.
fn told(ask: &[u8]) -> Vec<u8> {
    let own = [2, 0, 0, 0, 0, 9];
    let mut answer = [
        &ask[6..12],
        &own,
        &ask[12..20],
        &[0, 2],
        &own,
        &ask[38..42],
        &ask[22..32],
    ]
    .concat();
    answer.truncate(42);
    answer
}

/// Bursts for bearers in an order that looks random.
fn bursts(what: &str, teids: &[u32]) -> Vec<Burst> {
    let mut bursts = Vec::new();
    let mut at = 0_usize;
    while bursts.len() * BURST < teids.len().max(BURST) && bursts.len() < BURSTS_MAX {
        let mut burst = Burst::new(BURST);
        for _ in 0..BURST {
            at = (at + 1_618_033) % teids.len();
            // No more than can be added.
            let user = user(at as u32 + 1);
            let far = [CORE[0], CORE[1], CORE[2], 9].into();
            let bytes = match what {
                "encapsulate" => frame("core", &ipv4(far, user, 17, &[0; INNER_BYTES - 20])),
                _ => {
                    let inner = ipv4(user, far, 17, &[0; INNER_BYTES - 20]);
                    frame("radio", &in_tunnel(RADIO, teids[at], &inner))
                }
            };
            assert!(burst.push(&bytes));
        }
        bursts.push(burst);
    }
    bursts
}
