//! What workers go by: a configuration that is made whole before anybody sees it, and is never changed. A worker takes a new one between
//! two bursts.

use crate::bucket::Rate;
use crate::config::VxlanConfig;
use crate::flow::{self, Match};
use crate::table::Limits;
use crate::vlan::Membership;

/// A port.
#[derive(Debug, Clone)]
pub(crate) struct PortPlan {
    /// The worker that has it.
    pub(crate) worker: usize,
    /// None: copies of mirrors go there, and nothing else.
    pub(crate) membership: Option<Membership>,
    pub(crate) mtu: Option<u16>,
    /// A tunnel's MTU changes with its path, up to this.
    pub(crate) mtu_max: Option<u16>,
    pub(crate) mac_limit: u32,
    pub(crate) horizon: Option<u16>,
    pub(crate) tunnel: Option<VxlanConfig>,
    pub(crate) storm: [Option<Rate>; 3],
    pub(crate) police: [Option<Rate>; 2],
    /// Changes when rates do, so that buckets are made anew then only.
    pub(crate) rates_version: u64,
}

/// Where a flow's frames go.
#[derive(Debug, Clone)]
pub(crate) struct FlowPlan {
    pub(crate) priority: u32,
    pub(crate) from: Option<u16>,
    pub(crate) wanted: Match,
    /// Empty: they are dropped.
    pub(crate) out: Vec<u16>,
    /// Counted anew when another flow gets the place.
    pub(crate) version: u64,
}

/// Which ports' packets are copied to which port.
#[derive(Debug, Clone)]
pub(crate) struct MirrorPlan {
    /// Where copies go.
    pub(crate) to: u16,
    /// None: of all.
    pub(crate) ports: Option<Vec<u16>>,
    pub(crate) enters: bool,
    pub(crate) leaves: bool,
}

impl MirrorPlan {
    fn is_of(&self, port: u16) -> bool {
        let ports = self.ports.as_ref();
        ports.is_none_or(|ports| ports.contains(&port))
    }
}

/// What follows from all of it for one port.
#[derive(Debug, Default)]
pub(crate) struct Derived {
    /// Flows that its frames are looked up in.
    pub(crate) flows: flow::Table,
    /// Where copies go of what enters by it, and of what leaves.
    pub(crate) mirrors_in: Vec<u16>,
    pub(crate) mirrors_out: Vec<u16>,
    /// All its frames are of this flow, go to this port as they are, and nothing else is to be done.
    pub(crate) straight: Option<(u16, u16)>,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Plan {
    /// By number. Numbers are used again when nothing of a port is left.
    pub(crate) ports: Vec<Option<PortPlan>>,
    pub(crate) derived: Vec<Derived>,
    pub(crate) flows: Vec<Option<FlowPlan>>,
    pub(crate) mirrors: Vec<MirrorPlan>,
    /// Ports that frames are flooded to.
    pub(crate) flooded: Vec<u16>,
    pub(crate) limits: Limits,
}

impl Plan {
    /// Of parts that fit each other.
    pub(crate) fn new(
        ports: Vec<Option<PortPlan>>,
        flows: Vec<Option<FlowPlan>>,
        mirrors: Vec<MirrorPlan>,
        limits: Limits,
    ) -> Plan {
        let numbers = 0..ports.len() as u16;
        let is_flooded = |number: &u16| {
            let port = ports[usize::from(*number)].as_ref();
            port.is_some_and(|port| port.membership.is_some())
        };
        let flooded = numbers.clone().filter(is_flooded).collect();
        let mut plan = Plan {
            ports,
            derived: Vec::new(),
            flows,
            mirrors,
            flooded,
            limits,
        };
        plan.derived = numbers.map(|number| plan.derive(number)).collect();
        plan
    }

    pub(crate) fn port(&self, number: u16) -> Option<&PortPlan> {
        self.ports.get(usize::from(number))?.as_ref()
    }

    fn derive(&self, number: u16) -> Derived {
        let Some(port) = self.port(number) else {
            return Derived::default();
        };
        let numbered = (0..).zip(&self.flows);
        let fitting = numbered.filter_map(|(place, flow)| {
            let flow = flow.as_ref()?;
            let fits = flow.from.is_none_or(|from| from == number);
            fits.then_some((flow.wanted, flow.priority, place))
        });
        let flows = flow::Table::new(fitting);
        // Copies are not copied again.
        let is_looked_at = port.membership.is_some();
        let copies = |is_wanted: fn(&MirrorPlan) -> bool| {
            let mirrors = self.mirrors.iter().filter(|mirror| is_wanted(mirror));
            let of_port = mirrors.filter(|mirror| is_looked_at && mirror.is_of(number));
            of_port.map(|mirror| mirror.to).collect::<Vec<u16>>()
        };
        let (mirrors_in, mirrors_out) = (copies(|one| one.enters), copies(|one| one.leaves));
        let mut derived = Derived {
            flows,
            mirrors_in,
            mirrors_out,
            straight: None,
        };
        derived.straight = self.straight(port, &derived);
        derived
    }

    /// Whether all that a port's frames need is to be handed to another port of the same worker.
    fn straight(&self, port: &PortPlan, derived: &Derived) -> Option<(u16, u16)> {
        let flow = derived.flows.of_all()?;
        let [to] = self.flows[usize::from(flow)].as_ref()?.out[..] else {
            return None;
        };
        let target = self.port(to)?;
        let mut mirrors = self.mirrors.iter();
        let mirrored = mirrors.any(|mirror| mirror.leaves && mirror.is_of(to));
        let is_plain = target.worker == port.worker
            && target.mtu.is_none()
            && derived.mirrors_in.is_empty()
            && !mirrored
            && port.police == [None; 2];
        is_plain.then_some((flow, to))
    }
}
