//! What a device that forwards packets has been found to do.

use serde::{Deserialize, Serialize};

use super::Latency;

/// What was found in one trial. No packet came changed, twice or out of order: such a trial fails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Packets {
    /// Lengths in bytes without the frame check sequence, or `imix`.
    pub sizes: String,
    /// The highest rates at which no more than a share was lost, as longer runs have verified them; the smallest share first.
    pub rates: Vec<PacketRate>,
    /// Packets a second that came when they were sent as fast as the port took them.
    pub most: f64,
    /// The share of these that was lost.
    pub most_loss: f64,
    /// Packets a second that the generator brings to itself: no device can be found faster. Zero: it cannot, by such a port.
    pub own: f64,
    /// Latencies at shares of the first of the rates.
    pub latencies: Vec<PacketLatency>,
    /// How many runs it took.
    pub runs: u64,
    /// How many of them count although something else had a processor.
    pub disturbed: u64,
}

/// The highest rate of one share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PacketRate {
    /// The share that could be lost, from 0 to 1.
    pub loss: f64,
    /// Packets a second; zero: none was found.
    pub rate: f64,
}

/// Latencies at a share of a rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PacketLatency {
    /// From 0 to 1.
    pub share: f64,
    /// Packets a second.
    pub rate: f64,
    /// The share that was lost.
    pub loss: f64,
    /// From when a packet was due until it was taken.
    pub latency: Latency,
}
