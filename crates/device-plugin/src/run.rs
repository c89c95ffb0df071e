//! Serves all resources until a signal comes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tracing::{error, info};

use crate::health;
use crate::interface::device_plugin_server::DevicePluginServer;
use crate::kubelet;
use crate::packets;
use crate::place::{Identity, Place, State, identity};
use crate::resources::{RESOURCES, Resource};
use crate::service::Service;

/// How often it is looked whether the kubelet has started again.
const PERIOD: Duration = Duration::from_secs(1);
/// How long calls may take that are under way when it stops.
const GRACE: Duration = Duration::from_secs(2);

/// What the command line says.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The kubelet's directory.
    pub(crate) kubelet: PathBuf,
    /// The agent's socket.
    pub(crate) agent: PathBuf,
    /// The switch's control socket.
    pub(crate) switch: PathBuf,
    /// How many devices there are of each resource.
    pub(crate) count: u32,
    /// How long the agent, or the switch, may be silent.
    pub(crate) patience: Duration,
}

/// Serves until SIGTERM or SIGINT; then nothing is left of it.
pub(crate) fn until_signal(settings: &Settings) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let outcome = runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).context("cannot take signals")?;
        let mut interrupted = signal(SignalKind::interrupt()).context("cannot take signals")?;
        tokio::select! {
            outcome = serve(settings) => outcome,
            _ = terminated.recv() => Ok(()),
            _ = interrupted.recv() => Ok(()),
        }
    });
    // An agent that does not answer may keep a thread a little longer.
    runtime.shutdown_background();
    outcome
}

/// Serves until something is wrong that waiting does not mend.
pub(crate) async fn serve(settings: &Settings) -> anyhow::Result<()> {
    if !settings.kubelet.is_dir() {
        bail!(
            "{} is no directory: is there a kubelet on this machine? Give its directory with --kubelet, and in a pod have it mounted",
            settings.kubelet.display()
        );
    }
    let (healthy, watched) = watch::channel(false);
    let [first, second] = &RESOURCES;
    tokio::select! {
        () = health::watch(&settings.agent, settings.patience, &healthy) => Ok(()),
        outcome = offer(settings, first, watched.clone()) => outcome,
        outcome = offer(settings, second, watched) => outcome,
        outcome = packets::serve(settings) => outcome,
    }
}

/// Offers a resource, again after each start of the kubelet.
pub(crate) async fn offer(
    settings: &Settings,
    resource: &'static Resource,
    healthy: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    loop {
        let served = Served::start(settings, resource, &healthy)?;
        served.keep_registered(&settings.kubelet, resource).await?;
        info!(
            "{}: the socket was removed, as by a kubelet that starts; making it again",
            resource.name
        );
        served.stop().await;
    }
}

/// A socket at which a resource is served.
struct Served {
    place: Place,
    /// Dropped, it ends the streams.
    stop: watch::Sender<bool>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    relay: JoinHandle<()>,
}

impl Served {
    fn start(
        settings: &Settings,
        resource: &'static Resource,
        healthy: &watch::Receiver<bool>,
    ) -> anyhow::Result<Served> {
        let (place, listener) = Place::take(&settings.kubelet.join(resource.socket))?;
        let (stop, stopped) = watch::channel(true);
        let (relayed, watched) = watch::channel(*healthy.borrow());
        let service = Service {
            resource,
            count: settings.count,
            healthy: watched,
        };
        let relay = tokio::spawn(relay(healthy.clone(), relayed, stopped.clone()));
        let mut ending = stopped;
        let server = tokio::spawn(Server::builder().serve_with_incoming_shutdown(
            DevicePluginServer::new(service),
            UnixListenerStream::new(listener),
            // Changes never come: an error says that the sender is gone.
            async move { while ending.changed().await.is_ok() {} },
        ));
        Ok(Served {
            place,
            stop,
            server,
            relay,
        })
    }

    /// Registers whenever there is a kubelet that does not know of it yet. Returns when the socket is gone.
    async fn keep_registered(&self, directory: &Path, resource: &Resource) -> anyhow::Result<()> {
        let mut known_to: Option<Identity> = None;
        let mut complaint = String::new();
        loop {
            match self.place.state() {
                State::Ours => {}
                State::Gone => return Ok(()),
                State::Others => bail!(
                    "another device plugin took the socket {} of {}: one is enough for a node",
                    resource.socket,
                    resource.name
                ),
            }
            let kubelet = identity(&kubelet::socket_in(directory));
            if kubelet.is_none() || kubelet != known_to {
                known_to = None;
                match kubelet::register(directory, resource).await {
                    Ok(()) => {
                        known_to = kubelet;
                        complaint.clear();
                        info!("{}: registered with the kubelet", resource.name);
                    }
                    Err(found) => {
                        let text = format!("{found:#}");
                        if text != complaint {
                            error!("{}: {text}; trying again", resource.name);
                            complaint = text;
                        }
                    }
                }
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Ends it; the socket goes with the place, while the listener is there.
    async fn stop(self) {
        drop(self.place);
        drop(self.stop);
        let _ = self.relay.await;
        let _ = tokio::time::timeout(GRACE, self.server).await;
    }
}

/// Passes on what is said of the health until it is to stop; then the streams to the kubelet end.
async fn relay(
    mut from: watch::Receiver<bool>,
    to: watch::Sender<bool>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            changed = from.changed() => match changed {
                Ok(()) => {
                    let now = *from.borrow_and_update();
                    to.send_replace(now);
                }
                Err(_) => return,
            },
            changed = stopped.changed() => if changed.is_err() { return },
        }
    }
}
