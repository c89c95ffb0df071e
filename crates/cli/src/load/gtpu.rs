//! Users' packets of `millrace load packets`, and the function that they are for.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use millrace_bench::packets::{Gtpu, Way};
use millrace_ppf::{Added, BearerId, Client, Side};

/// Bearers that are asked for together.
const PIECE: u32 = 10_000;
/// Two flows at least: what is of one of them only is found.
const FLOWS_MIN: usize = 2;

/// Whose packets are sent.
#[derive(Debug, Args)]
pub(super) struct GtpuArguments {
    /// Send users' packets of a 5G user plane, in VLAN 100, for a function that has to relay them, or take them out of their tunnels or
    /// into one (relay, decapsulate, encapsulate); --size is that of a frame in a tunnel then, 86 at least, or mix (7 of 86, 4 of 592, 1 of
    /// 1522)
    #[arg(long, value_name = "WAY", conflicts_with_all = ["announce", "half"])]
    gtpu: Option<Way>,
    /// With --gtpu: of how many bearers, which take turns; --flows are of these, two at least
    #[arg(long, value_name = "N", default_value_t = 1, requires = "gtpu", value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    bearers: u32,
    /// With --gtpu: the control socket of a packet processing function, which is asked for the bearers; otherwise whoever is there brings
    /// frames as they were sent (see --turned and --other-macs)
    #[arg(long, value_name = "PATH", requires = "gtpu")]
    function: Option<PathBuf>,
}

impl GtpuArguments {
    /// What is to be sent, if it is users' packets, in `flows` at least. The function is running.
    pub(super) fn flows(&self, flows: usize) -> Result<Option<Gtpu>> {
        let Some(way) = self.gtpu else {
            return Ok(None);
        };
        let flows = flows.max(self.bearers as usize).max(FLOWS_MIN);
        match &self.function {
            None => Gtpu::kept(way, self.bearers as usize, flows).map(Some),
            Some(control) => {
                let teids = add(control, way, self.bearers)
                    .with_context(|| format!("the function at {}", control.display()))?;
                Gtpu::processed(way, &teids, flows).map(Some)
            }
        }
    }
}

/// Adds bearers; by what numbers the function knows their tunnels of the radio network.
fn add(control: &Path, way: Way, count: u32) -> Result<Vec<u32>> {
    let mut client = Client::connect(control)?;
    let mut teids = Vec::with_capacity(count as usize);
    let mut last = None;
    for first in (0..count).step_by(PIECE as usize) {
        let places = first..count.min(first + PIECE);
        let lines: String = places.map(|place| way.bearer(place) + "\n").collect();
        let kind = "application/x-ndjson";
        let said = client.ask("POST", "/v1/bearers", kind, lines.as_bytes())?;
        let added: Added = serde_json::from_slice(&said).context("its answer is not understood")?;
        let refused = added.refusals.first().map(|refusal| &refusal.error);
        ensure!(
            added.refused == 0,
            "{} bearers were refused: {}",
            added.refused,
            refused.map_or("", String::as_str)
        );
        for id in added.ids.into_iter().flatten() {
            last = Some(id);
            teids.push(BearerId::from_number(id).teid(Side::Radio));
        }
    }
    ensure!(
        teids.len() == count as usize,
        "{} of {count} bearers were added",
        teids.len()
    );
    if let Some(last) = last {
        // Workers are asked, behind what they were told before.
        client.ask("GET", &format!("/v1/bearers/{last}"), "", &[])?;
    }
    Ok(teids)
}
