//! The agent: the daemon of one machine that introduces the two ends of a connection to each other.
//!
//! Programs under Millrace offer their connections to it. When both ends of one are offered, and the kernel's facts show
//! that they are the two ends of one connection, the agent makes a segment of shared memory and hands it to both. It is not
//! on the path of any byte (but for those of a recall), holds no program's socket, and can stop and start again under running programs.
//!
//! One thread, one epoll set, no timers that tick. In reading order:
//!
//! - `server`: the event loop; `reception`: programs come in and speak; `clients`: one connected program and what waits to be sent to it;
//! - `introductions`: from an offer to a pair; `offers`: who waits for whom, without I/O; `proof` and `sock_diag`: the kernel's facts;
//! - `pairings`: who was introduced to whom; `recall`: bytes of a ring whose reader leaves go by the sender's kernel socket;
//! - `segments`: memory for rings, and `quota`: who may have how much; `tenant`: whose a program is;
//! - `channels`: those who send and receive messages by name, and have no connections; `labels`: of containers, which rules go by;
//! - `awaited`: programs for which an agent in the background stays;
//! - `questions`, `answers` and `report`: answers to `millrace ps`; `pods`: names of pods;
//!   `roads`: which road, and why; `addresses`: of what was not offered;
//! - `metrics` and `http`: for Prometheus;
//! - `config`, `place` (the socket's file), `query` (the asking side, for the command line).

#![deny(unsafe_code)]

mod addresses;
mod answers;
mod awaited;
mod bpf;
mod channels;
mod clients;
mod config;
mod distant;
mod growth;
mod http;
mod introductions;
mod labels;
mod memory;
mod metrics;
mod naming;
mod netlink;
mod offers;
mod packet_rules;
mod pairings;
mod place;
mod pods;
mod policy;
mod proof;
mod query;
mod questions;
mod quota;
mod recall;
mod reception;
mod report;
mod roads;
mod segments;
mod server;
mod sock_diag;
mod sys;
mod tenant;
mod text;
mod tracking;

pub use bpf::text as bpf_text;
pub use channels::{
    ChannelEndReport, ChannelLinkReport, ChannelReport, ChannelRule, ChannelsReport, FlowReport,
};
pub use config::{Config, ConfigError, QuotaConfig};
pub use http::Endpoint;
pub use labels::{LABELS_DIRECTORY, Labels, file_in as labels_file_in};
pub use place::{CONTAINERS_DIRECTORY, PlaceError, ROOT_SOCKET, own_directory, socket_in};
pub use proof::Capabilities;
pub use query::{Answerer, AskError, ask, channels, connections, status, status_and_stay};
pub use report::{ConnectionReport, ConnectionsReport, DirectionReport, EndReport, StatusReport};
pub use server::{Agent, AgentError, Options};
pub use text::printable;
