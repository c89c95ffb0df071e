//! How a function is.

use std::net::IpAddr;

use crate::hold::HoldLimits;
use crate::paths::Supervision;

/// Messages about errors in a second, at most: whoever sends to tunnels that there are not is not to be answered for each packet.
pub(crate) const ERRORS_PER_SECOND: u32 = 100;
/// How the function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Error indications and lists of extension headers, in a second, and as many of ICMP.
    pub errors_per_second: u32,
    /// The longest packet towards either side, in a tunnel with its headers; 0: of any length. What is longer and may not be cut up is not
    /// sent, and its sender is told.
    pub mtu: [usize; 2],
    /// In whose name senders are told so, by IPv4 and IPv6; none: in that of the packet's receiver.
    pub gateways: [Option<IpAddr>; 2],
    /// Whether peers are asked if they live.
    pub supervision: Option<Supervision>,
    /// What paused bearers hold.
    pub hold: HoldLimits,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            errors_per_second: ERRORS_PER_SECOND,
            mtu: [0; 2],
            gateways: [None; 2],
            supervision: None,
            hold: HoldLimits::default(),
        }
    }
}
