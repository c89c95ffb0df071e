//! Serves, or tells, until a signal comes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::api::Api;
use crate::events::Teller;
use crate::keeper::{Keeper, Names, State};
use crate::server::{self, Times};

/// For how long it goes on answering when it is to stop: until the last API server sends its questions elsewhere.
const GRACE: Duration = Duration::from_secs(5);

/// What the command line says.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    /// The directory with the account of the pod.
    pub(crate) account: PathBuf,
    /// None for that of the pod.
    pub(crate) namespace: Option<String>,
    pub(crate) service: String,
    pub(crate) secret: String,
    pub(crate) configuration: String,
    /// For how long a certificate is valid.
    pub(crate) lifetime: Duration,
    /// How often it is looked whether all is in place.
    pub(crate) period: Duration,
}

/// Writes events until SIGTERM or SIGINT.
pub(crate) fn events(
    account: &Path,
    agent: PathBuf,
    node: String,
    period: Duration,
) -> anyhow::Result<()> {
    let mut teller = Teller::new(Api::in_cluster(account)?, agent, node, period);
    let runtime = one_thread()?;
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).context("cannot take signals")?;
        let mut interrupted = signal(SignalKind::interrupt()).context("cannot take signals")?;
        tokio::select! {
            () = teller.tell() => {}
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
        anyhow::Ok(())
    })?;
    // An agent that does not answer may keep a thread a little longer.
    runtime.shutdown_background();
    Ok(())
}

/// A question takes some microseconds, and memory is what one question needs at a time.
fn one_thread() -> anyhow::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start")
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn webhook(settings: &Settings) -> anyhow::Result<()> {
    one_thread()?.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).context("cannot take signals")?;
        let mut interrupted = signal(SignalKind::interrupt()).context("cannot take signals")?;
        let keeper = keeper(settings)?;
        let listener = TcpListener::bind(settings.listen).await.with_context(|| {
            format!(
                "cannot listen at {}: --listen is another address",
                settings.listen
            )
        })?;
        info!("listening at {}", settings.listen);
        let state = keeper.state.clone();
        let mut serving = std::pin::pin!(server::serve(listener, state.clone(), Times::default()));
        tokio::select! {
            outcome = serving.as_mut() => return outcome,
            () = keeper.keep(settings.period) => {}
            _ = terminated.recv() => {}
            _ = interrupted.recv() => return Ok(()),
        }
        state.set_ready(false);
        tokio::select! {
            outcome = serving => outcome,
            () = tokio::time::sleep(GRACE) => Ok(()),
            _ = interrupted.recv() => Ok(()),
        }
    })
}

fn keeper(settings: &Settings) -> anyhow::Result<Keeper> {
    let namespace = match &settings.namespace {
        Some(namespace) => namespace.clone(),
        None => {
            let file = settings.account.join("namespace");
            let text = std::fs::read_to_string(&file);
            text.with_context(|| format!("{}: --namespace says in which it runs", file.display()))?
        }
    };
    let names = Names {
        namespace: namespace.trim().to_owned(),
        service: settings.service.clone(),
        secret: settings.secret.clone(),
        configuration: settings.configuration.clone(),
    };
    for name in [
        &names.namespace,
        &names.service,
        &names.secret,
        &names.configuration,
    ] {
        let allowed =
            |each: char| each.is_ascii_lowercase() || each.is_ascii_digit() || "-.".contains(each);
        if name.is_empty() || !name.chars().all(allowed) {
            bail!("{name:?} is no name of an object of Kubernetes");
        }
    }
    Ok(Keeper {
        api: Api::in_cluster(&settings.account)?,
        names,
        lifetime: settings.lifetime,
        state: Arc::new(State::default()),
    })
}
