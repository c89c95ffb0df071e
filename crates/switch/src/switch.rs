//! A switch: its workers, and what can be changed while they work. Each change is checked whole before any of it is done.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_port::Port;

use crate::config::{
    self, Config, Direction, FLOWS_MAX, FlowConfig, Kind, MirrorConfig, PORTS_MAX, PortConfig,
};
use crate::handed::Handed;
use crate::kinds;
use crate::lane::{Bell, lanes};
use crate::plan::{FlowPlan, MirrorPlan, Plan, PortPlan};
use crate::processor;
use crate::table::Limits;
use crate::vxlan::Endpoint;
use crate::worker::{Command, Parts, Worker};

mod change;
mod order;
mod rehearse;
mod tell;
#[cfg(test)]
mod tests;

use order::Leaving;

/// A worker answers between two bursts. One that does not within this time is held up, or never will.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ports of this group do not forward to each other: that of tunnels, unless they say otherwise.
const TUNNELS: u16 = 1;

/// A worker, by who tells it what to do.
struct Handle {
    commands: Sender<Command>,
    bell: Arc<Bell>,
    processor: Option<usize>,
    /// Neither: it has ended.
    thread: Option<JoinHandle<()>>,
    inline: Option<Box<Worker>>,
}

/// A port.
struct PortRecord {
    config: PortConfig,
    plan: PortPlan,
    kind: &'static str,
}

/// A flow.
struct FlowRecord {
    config: FlowConfig,
    plan: FlowPlan,
}

/// A mirror, and the number of its port.
struct MirrorRecord {
    config: MirrorConfig,
    to: u16,
    plan: PortPlan,
}

/// A switch.
pub struct Switch {
    began: Instant,
    workers: Vec<Handle>,
    ports: Vec<Option<PortRecord>>,
    flows: Vec<Option<FlowRecord>>,
    mirrors: Vec<MirrorRecord>,
    leaving: Vec<Leaving>,
    patience: Duration,
    limits: Limits,
    version: u64,
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a switch with {} workers", self.workers.len())
    }
}

impl Switch {
    /// Opens the ports, and starts workers, each a thread, when everything that was configured is in place.
    ///
    /// # Errors
    /// What is wrong with the configuration, or what cannot be opened, and why. Nothing is left running then.
    pub fn start(config: &Config) -> Result<Switch, String> {
        let mut switch = Switch::idle(config)?;
        // All of it before the first packet: a flow that drops, or a VLAN's other ports, would come too late for some.
        switch.take_in(config)?;
        for number in 0..switch.workers.len() {
            switch.start_worker(number)?;
        }
        Ok(switch)
    }

    /// The same without threads: packets pass in [`Switch::turn`], and nowhere else. For tests.
    ///
    /// # Errors
    /// As [`Switch::start`].
    pub fn inline(config: &Config) -> Result<Switch, String> {
        let mut switch = Switch::idle(config)?;
        switch.take_in(config)?;
        Ok(switch)
    }

    /// Has each worker look at everything once, at this time. False: there was nothing.
    pub fn turn(&mut self, now: Instant) -> bool {
        let inline = self
            .workers
            .iter_mut()
            .filter_map(|one| one.inline.as_mut());
        // Each has its turn.
        inline.fold(false, |is_busy, worker| worker.turn(now) | is_busy)
    }

    /// Workers that have ports and no packets yet: one for each processor, and one for files.
    fn idle(config: &Config) -> Result<Switch, String> {
        let kernel = |error: nix::Error| format!("the kernel refuses what a worker needs: {error}");
        let processors: Vec<Option<usize>> = match config.processors[..] {
            [] => vec![None],
            ref some => some.iter().copied().map(Some).collect(),
        };
        let count = processors.len() + 1;
        let limits = Limits {
            entries: config.mac.entries,
            age_ns: config.mac.age_s * 1_000_000_000,
        };
        let plan = Arc::new(Plan::new(Vec::new(), Vec::new(), Vec::new(), limits));
        let bells: Vec<Arc<Bell>> = (0..count)
            .map(|_| Bell::new().map(Arc::new))
            .collect::<Result<_, _>>()
            .map_err(kernel)?;
        let (lanes, inlets) = lanes(&bells);
        let mut switch = Switch {
            began: Instant::now(),
            workers: Vec::new(),
            ports: Vec::new(),
            flows: Vec::new(),
            mirrors: Vec::new(),
            leaving: Vec::new(),
            patience: PATIENCE,
            limits,
            version: 0,
        };
        let files = std::iter::once(None);
        let parts = bells.into_iter().zip(lanes).zip(inlets);
        for (processor, ((bell, lanes), inlets)) in processors.into_iter().chain(files).zip(parts) {
            let (commands, received) = channel();
            let parts = Parts {
                number: switch.workers.len(),
                epoch: switch.began,
                spin: Duration::from_micros(config.spin_us.into()),
                commands: received,
                bell: bell.clone(),
                lanes,
                inlets,
                plan: plan.clone(),
            };
            switch.workers.push(Handle {
                commands,
                bell,
                processor,
                thread: None,
                inline: Some(Box::new(Worker::new(parts).map_err(kernel)?)),
            });
        }
        Ok(switch)
    }

    fn start_worker(&mut self, number: usize) -> Result<(), String> {
        let files = self.files();
        let handle = &mut self.workers[number];
        let Some(worker) = handle.inline.take() else {
            return Ok(());
        };
        let name = if number == files {
            "switch-files".to_owned()
        } else {
            format!("switch-{number}")
        };
        let (placed, is_placed) = channel();
        let processor = handle.processor;
        let body = move || {
            let outcome = processor.map_or(Ok(()), processor::stay_on);
            let is_good = outcome.is_ok();
            // Whoever started this waits for it.
            let _ = placed.send(outcome);
            if is_good {
                worker.run();
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(body);
        handle.thread = Some(thread.map_err(|error| format!("cannot start a worker: {error}"))?);
        match (is_placed.recv(), processor) {
            (Ok(Err(error)), Some(processor)) => Err(format!(
                "processors: no thread can run on processor {processor}: {error}"
            )),
            _ => Ok(()),
        }
    }

    /// The worker that has files.
    fn files(&self) -> usize {
        self.workers.len() - 1
    }

    fn take_in(&mut self, config: &Config) -> Result<(), String> {
        for port in &config.port {
            self.add_port(port.clone())?;
        }
        for flow in &config.flow {
            self.add_flow(flow.clone())?;
        }
        for mirror in &config.mirror {
            self.add_mirror(mirror.clone())?;
        }
        Ok(())
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for handle in &self.workers {
            let _ = handle.commands.send(Command::Stop);
            handle.bell.ring();
        }
        for handle in &mut self.workers {
            if let Some(thread) = handle.thread.take() {
                // It panicked, and said so.
                let _ = thread.join();
            }
        }
    }
}
