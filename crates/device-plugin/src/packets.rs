//! Packet ports: what the node's switch has for containers can be asked for by pods, while the switch answers.
//!
//! Which devices there are is the switch's configuration, so it is asked, again and again: a node without a switch offers nothing, and one
//! that is started later is found.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_switch::{DeviceReport, Request, SwitchReport, ask};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::resources::Resource;
use crate::run::{Settings, offer};

/// How often the switch is asked.
const PERIOD: Duration = Duration::from_secs(2);

/// A resource that is offered.
struct Offered {
    healthy: watch::Sender<bool>,
    /// When the switch had it last.
    seen: Instant,
}

/// Offers what the switch has, until something is wrong that waiting does not mend.
pub(crate) async fn serve(settings: &Settings) -> anyhow::Result<()> {
    let mut offered: BTreeMap<String, Offered> = BTreeMap::new();
    // Ended with this.
    let mut offers = JoinSet::new();
    loop {
        let socket = settings.switch.clone();
        let devices = tokio::task::spawn_blocking(move || devices(&socket)).await;
        let devices = devices.ok().flatten().unwrap_or_default();
        let now = Instant::now();
        for device in devices {
            if let Some(known) = offered.get_mut(&device.name) {
                known.seen = now;
                continue;
            }
            let resource = Resource::of_packets(&device.name);
            info!("{}: the switch has it", resource.name);
            let (healthy, watched) = watch::channel(true);
            let mut settings = settings.clone();
            settings.count = device.containers_max.unwrap_or(settings.count);
            offers.spawn(async move { offer(&settings, resource, watched).await });
            let seen = now;
            offered.insert(device.name, Offered { healthy, seen });
        }
        for (name, one) in &offered {
            let is_healthy = one.seen == now || one.seen.elapsed() < settings.patience;
            if one.healthy.send_replace(is_healthy) != is_healthy {
                tell(name, is_healthy);
            }
        }
        tokio::select! {
            Some(ended) = offers.join_next() => return ended.context("an offer")?,
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

fn tell(name: &str, is_healthy: bool) {
    if is_healthy {
        info!("the switch has device {name:?} again");
    } else {
        warn!(
            "no switch answers that has device {name:?}, so it is unhealthy (millrace switch run)"
        );
    }
}

/// What a switch has for containers. None: none answers.
fn devices(socket: &Path) -> Option<Vec<DeviceReport>> {
    let report = ask(socket, &Request::Report).ok()?;
    let report: SwitchReport = serde_json::from_value(report).ok()?;
    Some(report.devices)
}
