//! What can be changed: ports, flows, mirrors.

use super::*;

impl Switch {
    /// Adds a port, and opens it.
    ///
    /// # Errors
    /// What is wrong, or cannot be opened; nothing has changed then.
    pub fn add_port(&mut self, config: PortConfig) -> Result<(), String> {
        self.add_port_of(config, Handed::default())
    }

    /// The same, of an interface that somebody else has opened.
    ///
    /// # Errors
    /// As [`Switch::add_port`].
    pub fn add_port_of(&mut self, config: PortConfig, handed: Handed) -> Result<(), String> {
        config.check()?;
        let number = self.new_port(&config.name)?;
        let kind = config.kind()?;
        if let Kind::Vxlan(_) = kind
            && handed.is_nothing()
        {
            return self.add_tunnel(config, number);
        }
        let Some(made) = kinds::open(&config, handed)? else {
            return Ok(());
        };
        let kind = kind.name();
        let worker = self.worker_for(&config, made.is_file)?;
        self.admit(config, number, kind, worker, None, |number, done| {
            Command::Add(number, made.port, made.is_file, done)
        })
    }

    /// Adds a port that somebody else has made, of whatever kind: what the configuration says of one is not looked at.
    ///
    /// # Errors
    /// What is wrong; nothing has changed then.
    pub fn attach(&mut self, config: PortConfig, port: Box<dyn Port + Send>) -> Result<(), String> {
        config.check()?;
        let number = self.new_port(&config.name)?;
        let worker = self.worker_for(&config, false)?;
        self.admit(config, number, "attached", worker, None, |number, done| {
            Command::Add(number, port, false, done)
        })
    }

    fn add_tunnel(&mut self, config: PortConfig, number: u16) -> Result<(), String> {
        let named = |what: String| format!("port {:?}: {what}", config.name);
        let Some(tunnel) = config.vxlan.clone() else {
            return Ok(());
        };
        let at = |error| {
            let (local, port) = tunnel.place();
            named(format!(
                "cannot listen at {local}, UDP port {port}: {error}"
            ))
        };
        let (endpoint, worker) = match self.endpoint_worker(&config, &tunnel)? {
            Some(worker) => (None, worker),
            None => {
                let endpoint = Endpoint::open(&tunnel).map_err(at)?;
                (Some(Box::new(endpoint)), self.worker_for(&config, false)?)
            }
        };
        let mtu = tunnel
            .path_mtu()
            .map_err(|error| named(format!("there is no way to {}: {error}", tunnel.remote)))?;
        let mtu = config.mtu.map_or(mtu, |own| own.min(mtu));
        self.admit(
            config,
            number,
            "vxlan",
            worker,
            Some(mtu),
            |number, done| Command::AddTunnel(number, tunnel, endpoint, done),
        )
    }

    /// Which worker has tunnels of the same address. `None`: nobody, yet.
    pub(super) fn endpoint_worker(
        &self,
        config: &PortConfig,
        tunnel: &config::VxlanConfig,
    ) -> Result<Option<usize>, String> {
        let wrong = |what: String| Err(format!("port {:?}: {what}", config.name));
        let networks = |one: &config::VxlanConfig| -> HashSet<u32> {
            let several = one.networks().into_iter().map(|pair| pair.1);
            several.chain(one.vni).collect()
        };
        let own = networks(tunnel);
        if own.len() < tunnel.vnis.len() {
            return wrong("two VLANs have one VNI".to_owned());
        }
        let mut worker = None;
        for record in self.ports.iter().flatten() {
            let Some(other) = &record.config.vxlan else {
                continue;
            };
            if other.place() != tunnel.place() {
                continue;
            }
            worker = Some(record.plan.worker);
            if other.remote == tunnel.remote && !own.is_disjoint(&networks(other)) {
                let other = &record.config.name;
                return wrong(format!(
                    "port {other:?} has a tunnel to that host with the same VNI"
                ));
            }
        }
        match (worker, config.worker) {
            (Some(has), Some(wanted)) if has != wanted => wrong(format!(
                "tunnels of one address are of one worker, and the others' is {has}"
            )),
            _ => Ok(worker),
        }
    }

    /// The number of a port that is to be added.
    pub(super) fn new_port(&mut self, name: &str) -> Result<u16, String> {
        if self.port_number(name).is_ok() || self.mirrors.iter().any(|one| one.config.name == name)
        {
            return Err(format!("port {name:?}: there is one of that name"));
        }
        self.free_number()
    }

    fn free_number(&mut self) -> Result<u16, String> {
        self.free_left();
        let is_free = |number: &usize| {
            let record = self.ports.get(*number);
            let is_mirror = |one: &MirrorRecord| usize::from(one.to) == *number;
            let is_left = |one: &Leaving| usize::from(one.number) == *number;
            record.is_none_or(Option::is_none)
                && !self.mirrors.iter().any(is_mirror)
                && !self.leaving.iter().any(is_left)
        };
        let free = (0..PORTS_MAX).find(is_free);
        // Less than 65 536.
        free.map(|number| number as u16)
            .ok_or_else(|| format!("there are {PORTS_MAX} ports and mirrors, and can be no more"))
    }

    /// Which worker is to have a port.
    pub(super) fn worker_for(&self, config: &PortConfig, is_file: bool) -> Result<usize, String> {
        let files = self.files();
        if let Some(worker) = config.worker {
            if worker >= files {
                let name = &config.name;
                return Err(format!(
                    "port {name:?}: worker is {worker}; there are {files}, counted from 0"
                ));
            }
            return Ok(worker);
        }
        if is_file {
            return Ok(files);
        }
        let load = |worker: &usize| {
            let ports = self.ports.iter().flatten();
            ports.filter(|port| port.plan.worker == *worker).count()
        };
        Ok((0..files).min_by_key(load).unwrap_or(0))
    }

    /// Gives a port to its worker, and has all go by that.
    fn admit(
        &mut self,
        config: PortConfig,
        number: u16,
        kind: &'static str,
        worker: usize,
        path_mtu: Option<u16>,
        command: impl FnOnce(u16, Sender<()>) -> Command,
    ) -> Result<(), String> {
        self.version += 1;
        let plan = self.port_plan(&config, worker, path_mtu);
        self.give(number, worker, command)?;
        self.enter(number, PortRecord { config, plan, kind });
        let published = self.publish();
        if published.is_err() {
            self.ports[usize::from(number)] = None;
            self.withdraw(number, worker);
        }
        published
    }

    pub(super) fn port_plan(
        &self,
        config: &PortConfig,
        worker: usize,
        path_mtu: Option<u16>,
    ) -> PortPlan {
        let horizon = config.vxlan.as_ref().map(|_| TUNNELS);
        PortPlan {
            worker,
            membership: Some(config.membership()),
            mtu: path_mtu.or(config.mtu),
            mtu_max: config.mtu,
            mac_limit: config.stations_max(),
            horizon: config.horizon.or(horizon),
            tunnel: config.vxlan.clone(),
            storm: config.storm.rates(),
            police: config.police.rates(),
            rates_version: self.version,
        }
    }

    pub(super) fn enter(&mut self, number: u16, record: PortRecord) {
        let place = usize::from(number);
        if self.ports.len() <= place {
            self.ports.resize_with(place + 1, || None);
        }
        self.ports[place] = Some(record);
    }

    /// Takes a port away. What is on its way there is dropped.
    ///
    /// # Errors
    /// When there is none of that name, or a flow or a mirror names it. When a worker does not answer: the port is gone for all others.
    pub fn remove_port(&mut self, name: &str) -> Result<(), String> {
        let number = self.port_number(name)?;
        let names =
            |flow: &&FlowRecord| flow.plan.from == Some(number) || flow.plan.out.contains(&number);
        let users = self.flows.iter().flatten().filter(names);
        let flows = users.map(|flow| format!("flow {:?}", flow.config.name));
        let mirrors = self.mirrors.iter();
        let mirrors = mirrors.filter(|one| one.config.ports.iter().any(|port| port == name));
        let mirrors = mirrors.map(|one| format!("mirror {:?}", one.config.name));
        let users: Vec<String> = flows.chain(mirrors).collect();
        if !users.is_empty() {
            return Err(format!(
                "port {name:?} is named by {}: take that away first",
                users.join(", ")
            ));
        }
        let place = usize::from(number);
        let Some(record) = self.ports[place].take() else {
            return Ok(());
        };
        self.take_back(number, record.plan.worker)
    }

    /// Adds a flow.
    ///
    /// # Errors
    /// What is wrong; nothing has changed then.
    pub fn add_flow(&mut self, config: FlowConfig) -> Result<(), String> {
        config.check()?;
        let name = &config.name;
        if self.flow_place(name).is_ok() {
            return Err(format!("flow {name:?}: there is one of that name"));
        }
        let number = |port: &String| {
            self.port_number(port)
                .map_err(|what| format!("flow {name:?}: {what}"))
        };
        let from = config.from.as_ref().map(number).transpose()?;
        let out: Vec<u16> = config.out.iter().map(number).collect::<Result<_, _>>()?;
        let different: HashSet<u16> = out.iter().copied().collect();
        if different.len() < out.len() {
            return Err(format!("flow {name:?}: out has a port twice"));
        }
        let wanted = config.matching()?;
        let is_same = |other: &&FlowRecord| {
            let plan = &other.plan;
            (plan.wanted, plan.priority, plan.from) == (wanted, config.priority, from)
        };
        if let Some(other) = self.flows.iter().flatten().find(is_same) {
            let other = &other.config.name;
            return Err(format!(
                "flow {name:?}: flow {other:?} is of the same frames with the same priority"
            ));
        }
        let free = self.flows.iter().position(Option::is_none);
        let place = free.unwrap_or(self.flows.len());
        if place >= FLOWS_MAX {
            return Err(format!("there are {FLOWS_MAX} flows, and can be no more"));
        }
        self.version += 1;
        let plan = FlowPlan {
            priority: config.priority,
            from,
            wanted,
            out,
            version: self.version,
        };
        if place == self.flows.len() {
            self.flows.push(None);
        }
        self.flows[place] = Some(FlowRecord { config, plan });
        let published = self.publish();
        if published.is_err() {
            self.flows[place] = None;
            self.order_plan();
        }
        published
    }

    /// Takes a flow away.
    ///
    /// # Errors
    /// When there is none of that name. When a worker does not answer: the flow is gone for all others.
    pub fn remove_flow(&mut self, name: &str) -> Result<(), String> {
        let place = self.flow_place(name)?;
        self.flows[place] = None;
        self.publish()
    }

    /// Adds a mirror, and opens its file.
    ///
    /// # Errors
    /// What is wrong, or cannot be opened; nothing has changed then.
    pub fn add_mirror(&mut self, config: MirrorConfig) -> Result<(), String> {
        let to = self.new_mirror(&config)?;
        let made = kinds::mirror(&config)?;
        self.version += 1;
        let plan = self.mirror_plan();
        let worker = plan.worker;
        self.give(to, worker, |to, done| {
            Command::Add(to, made.port, true, done)
        })?;
        self.mirrors.push(MirrorRecord { config, to, plan });
        let published = self.publish();
        if published.is_err() {
            self.mirrors.pop();
            self.withdraw(to, worker);
        }
        published
    }

    /// The number of a mirror that is to be added.
    pub(super) fn new_mirror(&mut self, config: &MirrorConfig) -> Result<u16, String> {
        config.check()?;
        let name = &config.name;
        if self.port_number(name).is_ok() || self.mirrors.iter().any(|one| one.config.name == *name)
        {
            return Err(format!(
                "mirror {name:?}: there is a port or a mirror of that name"
            ));
        }
        let named = |what: String| format!("mirror {name:?}: {what}");
        for port in &config.ports {
            self.port_number(port).map_err(named)?;
        }
        self.free_number()
    }

    pub(super) fn mirror_plan(&self) -> PortPlan {
        PortPlan {
            worker: self.files(),
            membership: None,
            mtu: None,
            mtu_max: None,
            mac_limit: 0,
            horizon: None,
            tunnel: None,
            storm: [None; 3],
            police: [None; 2],
            rates_version: self.version,
        }
    }

    /// Ends a mirror; its file is whole then.
    ///
    /// # Errors
    /// When there is none of that name. When a worker does not answer: the mirror is gone for all others.
    pub fn remove_mirror(&mut self, name: &str) -> Result<(), String> {
        let place = self.mirrors.iter().position(|one| one.config.name == name);
        let place = place.ok_or_else(|| {
            let names = self.mirrors.iter().map(|one| one.config.name.as_str());
            format!("there is no mirror {name:?}{}", others(names))
        })?;
        let record = self.mirrors.remove(place);
        self.take_back(record.to, record.plan.worker)
    }

    pub(super) fn port_number(&self, name: &str) -> Result<u16, String> {
        let is_it = |record: &Option<PortRecord>| {
            record
                .as_ref()
                .is_some_and(|record| record.config.name == name)
        };
        let place = self.ports.iter().position(is_it);
        // Less than 65 536.
        place.map(|place| place as u16).ok_or_else(|| {
            let records = self.ports.iter().flatten();
            format!(
                "there is no port {name:?}{}",
                others(records.map(|record| record.config.name.as_str()))
            )
        })
    }

    fn flow_place(&self, name: &str) -> Result<usize, String> {
        let is_it = |record: &Option<FlowRecord>| {
            record
                .as_ref()
                .is_some_and(|record| record.config.name == name)
        };
        self.flows.iter().position(is_it).ok_or_else(|| {
            let records = self.flows.iter().flatten();
            format!(
                "there is no flow {name:?}{}",
                others(records.map(|record| record.config.name.as_str()))
            )
        })
    }
}

/// Which there are instead, for somebody who has mistyped.
fn others<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.len() {
        0 => ": there is none at all".to_owned(),
        1..=20 => format!(": there are {}", names.join(", ")),
        count => format!(" among {count}"),
    }
}
