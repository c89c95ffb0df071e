//! Whether the agent answers.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

/// How often it is asked.
const PERIOD: Duration = Duration::from_secs(2);
/// How long it may take.
const ANSWER: Duration = Duration::from_secs(2);

/// Asks the agent again and again, and says in `healthy` whether devices can be had. It is back as soon as it answers, and gone when it
/// has not answered for a while: while a new version starts, nothing is to change.
pub(crate) async fn watch(agent: &Path, patience: Duration, healthy: &watch::Sender<bool>) {
    let mut answered: Option<Instant> = None;
    let mut said = None;
    loop {
        let socket = agent.to_owned();
        let answer =
            tokio::task::spawn_blocking(move || millrace_agent::status(&socket, ANSWER)).await;
        let error = match answer {
            Ok(Ok(_)) => {
                answered = Some(Instant::now());
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let now = error.is_none() || answered.is_some_and(|last| last.elapsed() < patience);
        if said != Some(now) {
            said = Some(now);
            match error {
                Some(error) if !now => warn!(
                    "no agent answers at {}, so devices are unhealthy: {error} (millrace agent)",
                    agent.display()
                ),
                _ => info!("the agent answers at {}", agent.display()),
            }
            healthy.send_replace(now);
        }
        tokio::time::sleep(PERIOD).await;
    }
}
