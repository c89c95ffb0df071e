//! What a worker does when it is told to: ports come and go, another plan is followed, figures are said.

use std::sync::Arc;
use std::time::Instant;

use millrace_port::{Burst, Port, State};
use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::{ANSWERS, Attached, Command, ENDPOINTS, PortState, Report, Worker};
use crate::BURST;
use crate::bucket::{Bucket, Rate};
use crate::config::VxlanConfig;
use crate::counters::{Hits, Tally, Work};
use crate::lane;
use crate::plan::{Plan, PortPlan};
use crate::processor;
use crate::vxlan::Endpoint;

impl Worker {
    /// Does what it is told.
    pub(crate) fn handle(&mut self, command: Command) {
        // Whoever asked may have given up waiting.
        match command {
            Command::Plan(plan, done) => {
                // What others said when they went by the one before: numbers of ports may mean others afterwards.
                self.read_mail(Instant::now(), lane::ALL);
                self.flush_held(true);
                self.follow(plan);
                let _ = done.send(());
            }
            Command::Add(number, port, is_file, done) => {
                // What others said of the one that had the number before.
                self.read_mail(Instant::now(), lane::ALL);
                self.add(number, port, is_file);
                let _ = done.send(());
            }
            Command::AddTunnel(number, config, endpoint, done) => {
                self.read_mail(Instant::now(), lane::ALL);
                self.add_tunnel(number, &config, endpoint);
                let _ = done.send(());
            }
            Command::Remove(number, done) => {
                self.read_mail(Instant::now(), lane::ALL);
                self.remove(number);
                let _ = done.send(());
            }
            Command::Report(to) => drop(to.send(self.report())),
            Command::Stations(to) => drop(to.send(self.table.list(self.now_ns))),
            Command::Forget(done) => {
                self.table.clear();
                let _ = done.send(());
            }
            Command::Stop => self.is_stopped = true,
        }
    }

    fn follow(&mut self, plan: Arc<Plan>) {
        let count = plan.ports.len().max(self.ports.len());
        self.make_room(count);
        let now_ns = self.now_ns;
        for place in 0..count {
            // At most `PORTS_MAX`.
            let number = place as u16;
            match plan.port(number) {
                Some(port) => {
                    if self.states[place].version.is_none() {
                        self.table.forget_port(number);
                    }
                    self.states[place].follow(port, now_ns);
                }
                None => {
                    // Nobody sends to it any more, and another one may get its number.
                    self.states[place] = PortState::new(now_ns);
                    self.tallies[place] = Tally::default();
                    self.table.forget_port(number);
                }
            }
        }
        // A port is served from the plan that first names it to the one that no longer does.
        self.own.clear();
        for (number, attached) in (0..).zip(&self.ports) {
            let is_own = plan
                .port(number)
                .is_some_and(|port| port.worker == self.number);
            if is_own && matches!(attached, Some(Attached::Port { .. })) {
                self.own.push(number);
            }
        }
        let versions = plan
            .flows
            .iter()
            .map(|flow| flow.as_ref().map(|flow| flow.version));
        let versions: Vec<Option<u64>> = versions.collect();
        self.hits.resize(versions.len(), Hits::default());
        for (place, version) in versions.iter().enumerate() {
            if self.flow_versions.get(place) != Some(version) {
                self.hits[place] = Hits::default();
            }
        }
        self.flow_versions = versions;
        self.plan = Some(plan);
    }

    /// Has a place for each of so many ports, at least: others may know one before this worker's plan does.
    fn make_room(&mut self, count: usize) {
        let count = count.max(self.ports.len());
        self.table.set_ports(count);
        self.tallies.resize(count, Tally::default());
        self.ports.resize_with(count, || None);
        self.outs.resize_with(count, || None);
        self.touched.reserve(count);
        self.held.reserve(count);
        let now_ns = self.now_ns;
        self.states.resize_with(count, || PortState::new(now_ns));
    }

    fn add(&mut self, number: u16, mut port: Box<dyn Port + Send>, is_file: bool) {
        port.poll(Instant::now());
        let event = EpollEvent::new(EpollFlags::EPOLLIN, number.into());
        // Without it the port is polled when the worker is awake, which is said nowhere else.
        if let Err(error) = self.epoll.add(port.as_fd(), event) {
            tracing::warn!(port = number, "a port cannot wake its worker: {error}");
        }
        let is_connected = matches!(port.state(), State::Connected);
        self.attach(
            number,
            Attached::Port {
                port,
                is_file,
                is_connected,
            },
        );
    }

    fn attach(&mut self, number: u16, attached: Attached) {
        let place = usize::from(number);
        self.make_room(place + 1);
        self.ports[place] = Some(attached);
        self.outs[place] = Some(Burst::new(BURST));
    }

    fn add_tunnel(&mut self, number: u16, config: &VxlanConfig, endpoint: Option<Box<Endpoint>>) {
        if let Some(endpoint) = endpoint {
            let token = ENDPOINTS + self.endpoints.len() as u64;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
            if let Err(error) = self.epoll.add(endpoint.as_fd(), event) {
                tracing::warn!(port = number, "a tunnel cannot wake its worker: {error}");
            }
            self.endpoints.push(Some(*endpoint));
        }
        let place = self.endpoints.iter_mut().position(|endpoint| {
            let Some(endpoint) = endpoint else {
                return false;
            };
            let is_its = endpoint.place() == config.place();
            if is_its {
                endpoint.add(number, config);
            }
            is_its
        });
        if let Some(place) = place {
            self.attach(number, Attached::Tunnel(place));
        }
    }

    fn remove(&mut self, number: u16) {
        let place = usize::from(number);
        self.own.retain(|own| *own != number);
        self.outs[place] = None;
        match self.ports[place].take() {
            Some(Attached::Port { port, .. }) => {
                let _ = self.epoll.delete(port.as_fd());
            }
            Some(Attached::Tunnel(at)) => {
                if let Some(endpoint) = &mut self.endpoints[at] {
                    endpoint.remove(number);
                    if endpoint.is_unused() {
                        let _ = self.epoll.delete(endpoint.as_fd());
                        self.endpoints[at] = None;
                    }
                }
            }
            None => {}
        }
        self.forget_memory();
    }

    fn report(&mut self) -> Report {
        let endpoints = self.endpoints.iter_mut().flatten();
        endpoints.for_each(Endpoint::count_overflow);
        let numbered = (0..).zip(&self.ports);
        let ports = numbered.filter_map(|(number, attached)| match attached.as_ref()? {
            Attached::Port { port, .. } => {
                Some((number, port.counters(), port.state().to_string()))
            }
            Attached::Tunnel(at) => {
                let counters = self.endpoints[*at].as_ref()?.counters(number)?;
                Some((number, counters, "connected".to_owned()))
            }
        });
        Report {
            ports: ports.collect(),
            mtus: self.mtus(),
            tallies: self.tallies.clone(),
            hits: self.hits.clone(),
            work: Work {
                processor_ns: processor::used_ns(),
                ..self.work
            },
        }
    }
}

impl PortState {
    fn new(now_ns: u64) -> PortState {
        PortState {
            police: [None; 2],
            storm: [None; 3],
            answers: Bucket::new(ANSWERS, now_ns),
            mtu: usize::MAX,
            is_mtu_told: true,
            version: None,
        }
    }

    fn follow(&mut self, plan: &PortPlan, now_ns: u64) {
        if self.version == Some(plan.rates_version) {
            return;
        }
        let bucket = |rate: Option<Rate>| rate.map(|rate| Bucket::new(rate, now_ns));
        self.police = plan.police.map(bucket);
        self.storm = plan.storm.map(bucket);
        // So have the others, or will.
        self.mtu = plan.mtu.map_or(usize::MAX, usize::from);
        self.is_mtu_told = true;
        self.version = Some(plan.rates_version);
    }
}
