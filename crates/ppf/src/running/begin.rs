//! How a function comes to run: its ports are opened, and its workers started with the bearers that a store has.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_switch::{Bell, open_parts, processor};

use super::{Handle, Running};
use crate::bearer::MeterId;
use crate::config::Config;
use crate::node::{Interface, Node};
use crate::registry::Registry;
use crate::report::{CountReport, PortReport};
use crate::store::{Loaded, Store};
use crate::worker::errand::{Errands, Way};
use crate::worker::stages::{self, EndsAll};
use crate::worker::{Attached, Parts, Worker};

impl Running {
    /// Opens the ports, and starts workers, each a thread, which have what a store has. Packets pass from then on: the registry, for those
    /// who ask, is made behind them.
    ///
    /// # Errors
    /// What is wrong with the configuration, or what cannot be opened, and why. Nothing is left running then.
    pub fn start(config: &Config, mut store: Option<Store>) -> Result<Running, String> {
        let loaded = store.as_mut().map(Store::take_loaded).unwrap_or_default();
        let mut running = Running::with_workers(config, &loaded)?;
        running.registry = Mutex::new(Registry::of(&loaded, store));
        Ok(running)
    }

    /// With an empty registry.
    fn with_workers(config: &Config, loaded: &Loaded) -> Result<Running, String> {
        let kernel = |error: nix::Error| format!("the kernel refuses what a worker needs: {error}");
        let workers = config.workers();
        let (attached, owners) = attach(config)?;
        let built = stages::build(workers, &owners);
        let (parts, entry, stages) = built.map_err(|error| error.to_string())?;
        let errands = Arc::<Errands>::default();
        let way = Way::new(entry, stages.bearer, errands.clone());
        let control = way.control();
        let latency = config.latency_us.map(|us| Duration::from_micros(us.into()));
        control.set_latency(latency);
        let mut running = Running {
            began: Instant::now(),
            config: config.clone(),
            ports: Vec::new(),
            workers: Vec::new(),
            registry: Mutex::default(),
            control,
            errands,
            way: Mutex::new(way),
            events: Arc::default(),
            traces: Arc::default(),
        };
        for (number, owner) in (0..).zip(&owners) {
            let port = running.describe(number);
            running.ports.push((port, *owner));
        }
        let interfaces: Vec<_> = config.port.iter().map(|port| port.interface()).collect();
        for (number, (part, ports)) in parts.into_iter().zip(attached).enumerate() {
            let node = running.node(number, interfaces.clone(), loaded, |shard| {
                part.scheduled.has(stages.bearer, shard)
            });
            let bell = Arc::new(Bell::new().map_err(kernel)?);
            let (commands, received) = channel();
            let parts = Parts {
                node,
                number,
                workers,
                epoch: running.began,
                spin: Duration::from_micros(config.spin_us.into()),
                commands: received,
                bell: bell.clone(),
                ports,
                owners: owners.clone(),
                events: running.events.clone(),
                stages,
                errands: running.errands.clone(),
            };
            let worker = Worker::new(parts, part).map_err(kernel)?;
            let processor = config.processors.get(number).copied();
            let thread = start(number, processor, worker)?;
            running.workers.push(Handle {
                commands,
                bell,
                processor,
                thread: Mutex::new(Some(thread)),
            });
        }
        Ok(running)
    }

    /// A worker's node, which has what there is, and is the worker's.
    fn node(
        &self,
        number: usize,
        interfaces: Vec<Interface>,
        loaded: &Loaded,
        is_here: impl Fn(u32) -> bool,
    ) -> Node {
        let settings = self.config.settings();
        let node = Node::with_settings(interfaces, settings, number, self.config.workers());
        let mut node = node.with_reassembly(self.config.reassembly.limits());
        node.deal_with(&is_here);
        for (ue, spec) in &loaded.ues {
            node.put_ue(MeterId(*ue), Some(spec.limits()));
        }
        for (id, spec) in loaded.bearers() {
            let bearer = spec.bearer();
            node.know(id, &bearer);
            if is_here(id.shard()) {
                node.put(id, bearer);
            }
        }
        node
    }

    fn describe(&self, number: u16) -> PortReport {
        let port = &self.config.port[usize::from(number)];
        let interface = port.interface();
        PortReport {
            name: interface.name,
            kind: port.kind().to_owned(),
            side: interface.side.name().to_owned(),
            worker: 0,
            state: String::new(),
            mac: interface.mac.to_string(),
            vlan: interface.vlan,
            addresses: interface
                .addresses
                .iter()
                .map(ToString::to_string)
                .collect(),
            mtu: interface.mtu as u64,
            counters: CountReport::default(),
        }
    }
}

/// Opens all ports: what each worker has of them, and by port whose it is. Queues that can be apart are several workers', who receive from
/// them; whose the port is sends.
pub(super) fn attach(config: &Config) -> Result<(Vec<Vec<Attached>>, Vec<usize>), String> {
    let workers = config.workers();
    let mut attached: Vec<Vec<Attached>> = (0..workers).map(|_| Vec::new()).collect();
    let mut owners: Vec<usize> = Vec::new();
    for (number, port) in (0..).zip(&config.port) {
        let ports_of = |worker: &usize| owners.iter().filter(|owner| *owner == worker).count();
        let fewest = (0..workers).min_by_key(ports_of);
        let owner = port.worker.or(fewest).unwrap_or(0);
        // Who is named has all of it.
        let most = if port.worker.is_some() { 1 } else { workers };
        let parts = open_parts(&port.opened(), most)?.into_iter();
        for (part, (port, is_file)) in parts.enumerate() {
            attached[(owner + part) % workers].push(Attached {
                number,
                port,
                is_file,
            });
        }
        owners.push(owner);
    }
    Ok((attached, owners))
}

fn start(
    number: usize,
    processor: Option<usize>,
    worker: Worker,
) -> Result<JoinHandle<()>, String> {
    let (placed, is_placed) = channel();
    let body = move || {
        let outcome = processor.map_or(Ok(()), processor::stay_on);
        let is_good = outcome.is_ok();
        // Whoever started this waits for it.
        let _ = placed.send(outcome);
        if is_good {
            let _ends = EndsAll(number);
            worker.run();
        }
    };
    let thread = std::thread::Builder::new().name(format!("ppf-{number}"));
    let thread = thread.spawn(body);
    let thread = thread.map_err(|error| format!("cannot start a worker: {error}"))?;
    match (is_placed.recv(), processor) {
        (Ok(Err(error)), Some(processor)) => Err(format!(
            "processors: no thread can run on processor {processor}: {error}"
        )),
        _ => Ok(thread),
    }
}
