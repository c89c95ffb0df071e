//! The packet processing function of a 5G user plane: GTP-U between two sides, and between tunnels and a data network.
//!
//! What becomes of packets is without I/O: bytes and time go in, and what is to be sent comes out. Around it is a shell that has ports,
//! files and sockets, and decides nothing about packets.
//!
//! In reading order: `bearer` (what there is), `table` (where it is kept), `function` (what becomes of a message), `cause` (why one is
//! dropped); what it uses: `paths` (do peers live), `meter` (how much may pass), `hold` (what waits), `mark` and `inner` (users' packets),
//! `delivery` (what became of packets on the radio), `event` (what others should know). Beside it, for who has the ports: `fragment` and
//! `reassembly` (outer packets in parts).
//!
//! Then `ethernet`, `ip`, `arp`, `icmp`, `checksum` (what is around messages), `link` (why a frame is dropped), `neighbour` and `route`
//! (where things go), `node` (a packet's way through all of it). The shell: `config`, `spec` (a bearer as it is asked for), `store` (what
//! outlives the process), `registry` (which bearers there are), `post` and `worker` (threads with ports), `told` (events of all of them),
//! `trace` (a bearer's frames), `running` (all of it), `report`, `observed` and `metrics`, `api` and `http` (how it is asked), `serve`.

#![forbid(unsafe_code)]

mod api;
mod arp;
mod bearer;
mod blocks;
mod cause;
mod checksum;
mod config;
mod delivery;
mod ethernet;
mod event;
mod fragment;
mod function;
mod hold;
mod http;
mod icmp;
mod inner;
mod ip;

mod link;
mod mark;
mod meter;
mod metrics;
mod neighbour;
mod node;
mod observed;
mod paths;
mod post;
#[cfg(test)]
mod random;
mod reassembly;
mod registry;
mod report;
mod route;
mod running;
mod serve;
mod spec;
mod store;
mod table;
mod told;
mod trace;
mod worker;

pub use api::{Api, OPENAPI};
pub use bearer::{BEARERS_MAX, Bearer, BearerId, Flows, MeterId, Peer, Side, Thresholds, Usage};
pub use cause::{Cause, Drops};
pub use config::{
    Config, ConfigError, HoldConfig, PortConfig, ReassemblyConfig, SupervisionConfig,
};
pub use delivery::{Came, Delivery, State, Told};
pub use ethernet::Mac;
pub use event::{Due, Event, Report, Sending};
pub use fragment::{Fragment, Piece, emit_v4_fragment_place, emit_v6_fragment_header, pieces};
pub use function::{Function, HEADER_BYTES_MAX, Outer, Reply, Settings, Verdict};
pub use hold::{HeldCounts, HoldLimits};
pub use http::{Answer, AskError, Client, Pieces, Question};
pub use link::{LinkCause, LinkCounts};
pub use mark::Marking;
pub use meter::Limit;
pub use neighbour::Known;
pub use node::{BURST, Interface, Node, Outs, Whose};
pub use observed::{
    EventCounts, EventList, EventReport, HeldReport, PathCounts, PathList, PathReport,
};
pub use paths::{PathId, PathState, Supervision};
pub use reassembly::{Outcome, Reassembler, ReassemblyLimits};
pub use registry::{ChangeError, Put, Registry};
pub use report::{
    Added, BearerList, BearerReport, CountReport, DeliveryReport, DropReport, NeighbourReport,
    PortReport, Refusal, StageReport, StatusReport, TeidReport, UeList, UeReport, UsageReport,
    WorkerReport,
};
pub use route::Prefix;
pub use running::Running;
pub use serve::{Options, ServeError, Server, own_socket};
pub use spec::{BearerSpec, FarEnd, Gates, Treatment, UeSpec};
pub use store::{Loaded, Store, StoreError};
pub use table::{Changing, Table};
