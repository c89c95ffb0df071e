//! Ends without manners: a peer, a client of the agent, and an agent. None of them runs the library.
//!
//!     hostile attack PORT SEED SECONDS STYLE SLOT...    connects once per slot of the ledger, and writes what it likes
//!     hostile pester SEED SECONDS                       says what it likes to the agent at MILLRACE_AGENT
//!     hostile pretend SOCKET SEED                       is an agent that sends what it likes, until it is killed
//!     hostile suffer TRICK                              is a server, to be run with the library, that says its port
//!     hostile trick TRICK PORT SEED                     plays a trick on it
//!
//! `attack` and `pester` print what they did. All end with 1 where somebody wrote or allowed what must not be, or got what TCP gives
//! nobody.
//!
//! Reading order: `session` (the agent's socket), `attack`, `strikes` (what is written over a segment), `pester`, `pretend`,
//! `gifts` (descriptors that nobody asked for), `tricks`, `suffer`, `sys`.

mod attack;
mod gifts;
#[path = "../../../kills/traffic/src/order.rs"]
#[expect(dead_code, reason = "the server's half is traffic's own")]
mod order;
mod pester;
mod pretend;
mod random;
mod session;
mod strikes;
mod suffer;
mod sys;
mod tricks;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use random::Random;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Some(holes) if holes.is_empty() => ExitCode::SUCCESS,
        Some(holes) => {
            holes.iter().for_each(|hole| eprintln!("{hole}"));
            ExitCode::FAILURE
        }
        None => {
            eprintln!(
                "usage: hostile attack PORT SEED SECONDS STYLE SLOT... | pester SEED SECONDS | pretend SOCKET SEED | \
                 suffer TRICK | trick TRICK PORT SEED"
            );
            ExitCode::from(2)
        }
    }
}

/// What should not have been possible.
fn run(words: &[&str]) -> Option<Vec<String>> {
    let deadline = |text: &str| {
        let seconds = text.parse().ok()?;
        Some(Instant::now() + Duration::from_secs_f64(seconds))
    };
    match words {
        ["attack", port, seed, seconds, style, slots @ ..] => {
            let slots: Option<Vec<u32>> = slots.iter().map(|slot| slot.parse().ok()).collect();
            let (port, seed) = (port.parse().ok()?, seed.parse().ok()?);
            let style = strikes::Style::named(style)?;
            Some(attack::run(
                port,
                Random::new(seed),
                deadline(seconds)?,
                style,
                &slots?,
            ))
        }
        ["pester", seed, seconds] => {
            let random = Random::new(seed.parse().ok()?);
            Some(pester::run(random, deadline(seconds)?))
        }
        ["suffer", trick] => Some(suffer::run(tricks::Trick::named(trick)?)),
        ["trick", trick, port, seed] => {
            let random = Random::new(seed.parse().ok()?);
            let trick = tricks::Trick::named(trick)?;
            Some(tricks::run(trick, port.parse().ok()?, random))
        }
        ["pretend", path, seed] => pretend::run(path, Random::new(seed.parse().ok()?)),
        _ => None,
    }
}
