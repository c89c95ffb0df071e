//! The switch: joins ports of `millrace-port`, and hosts with each other.
//!
//! What it is: frames that come by one port leave by those that they are for. Stations are learnt, flows say otherwise, VLANs keep apart,
//! tunnels lead to other hosts, and what is too much is held back. What it is not: it makes no port's protocol, routes nothing, and keeps
//! no state of connections.
//!
//! *Threads.* One worker for each processor that is given, which has some of the ports and serves them in bursts, from coming in to going
//! out. A port is one worker's: what is for a port of another one is copied once and handed over by a lane (`lane`). Files, which can take
//! time, have a worker of their own, so that no disk holds up packets. Whoever configures talks to workers by messages; what they go by is
//! made whole beforehand and exchanged between two bursts (`plan`). Each worker counts for itself, and is asked for its figures.
//!
//! In reading order: `address` and `parse` (frames), `vlan`, `flow`, `table` (stations), `bucket`; `plan`; `worker`, `forward`, `deliver`
//! (a packet's way), `lane`; `offload`, `checksum`, `icmp`; `vxlan`; `kinds` (of ports); `config`; `switch` (all of it, and what can be
//! changed); `report` and `metrics`; `containers` (their ports); `control` (how the command line asks) and `serve`.

#![deny(unsafe_code)]

// Unit tests have the rig of the programs in `tests`, which name the crate.
#[cfg(test)]
extern crate self as millrace_switch;

mod address;
mod bucket;
mod checksum;
mod config;
mod containers;
mod control;
mod counters;
mod deliver;
mod exposition;
mod flow;
mod forward;
mod handed;
mod icmp;
mod kinds;
mod lane;
mod listen;
mod metrics;
mod offload;
mod parse;
mod plan;
pub mod processor;
mod report;
mod serve;
mod silent;
mod switch;
mod table;
mod vlan;
mod vxlan;
mod worker;

pub use address::Mac;
pub use config::{
    AfXdpConfig, Config, ConfigError, DeviceConfig, Direction, FlowConfig, KINDS, MacConfig,
    MatchConfig, MemifConfig, MirrorConfig, PcapConfig, PoliceConfig, PortConfig, RingConfig,
    RingSide, Role, StormConfig, TapConfig, Text, VhostUserConfig, VirtioUserConfig, VlanConfig,
    VxlanConfig, check_device_name,
};
pub use containers::name::{container_name, hash};
pub use control::{AskError, Request, ask, ask_with, own_socket};
pub use counters::{Cause, Hits, Tally, Work};
pub use exposition::{Exposition, Figure};
pub use handed::Handed;
pub use icmp::{Answer, too_big};
pub use kinds::open_parts;
pub use lane::Bell;
pub use listen::{ControlSocket, ListenError};
pub use offload::{Cut, Impossible, complete};
pub use parse::{Frame, Packet, Version, payload};
pub use report::{
    CountersReport, DeviceReport, DropReport, FlowReport, MirrorReport, PortReport, StationReport,
    SwitchReport, WorkerReport,
};
pub use serve::{Options, ServeError, Server};
pub use switch::Switch;

/// Packets that are handled together.
pub(crate) const BURST: usize = 32;
