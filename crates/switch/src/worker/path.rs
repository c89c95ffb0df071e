//! How long packets may be that leave by tunnels: what the kernel knows of their paths.

use std::time::Instant;

use super::{Attached, Worker};
use crate::lane::Mail;

impl Worker {
    /// Tunnels have another MTU from now on whose path has become narrower, or may have become wider.
    pub(super) fn ask_paths(&mut self, now: Instant) {
        let mut asked = Vec::new();
        for endpoint in self.endpoints.iter_mut().flatten() {
            asked.extend(endpoint.take_narrower());
        }
        let mut endpoints = self.endpoints.iter_mut().flatten();
        // One at a time, since packets wait meanwhile.
        let due = endpoints.find_map(|endpoint| endpoint.take_due(now));
        if let Some(state) = due.and_then(|port| self.states.get_mut(usize::from(port))) {
            // One that did not know the tunnel yet is told again.
            state.is_mtu_told = false;
        }
        asked.extend(due);
        for port in asked {
            let Some(plan) = self.plan.as_ref().and_then(|plan| plan.port(port)) else {
                continue;
            };
            let config = plan.tunnel.as_ref();
            if let Some(mtu) = config.and_then(|config| config.path_mtu().ok()) {
                let mtu = plan.mtu_max.map_or(mtu, |most| most.min(mtu));
                self.tell_mtu(port, mtu.into());
            }
        }
    }

    /// What is too long is dropped, and its sender told, by the worker that it came to.
    pub(crate) fn tell_mtu(&mut self, port: u16, mtu: usize) {
        let Some(state) = self.states.get_mut(usize::from(port)) else {
            return;
        };
        if state.mtu == mtu && state.is_mtu_told {
            return;
        }
        state.mtu = mtu;
        state.is_mtu_told = true;
        for lane in self.lanes.iter_mut().flatten() {
            // What does not fit is told again when the path is asked for again.
            state.is_mtu_told &= lane.send(Mail::Mtu(port, mtu)).is_ok();
        }
    }

    /// Another worker has said it.
    pub(super) fn set_mtu(&mut self, port: u16, mtu: usize) {
        if let Some(state) = self.states.get_mut(usize::from(port)) {
            state.mtu = mtu;
        }
    }

    /// Of this worker's tunnels, what fits.
    pub(super) fn mtus(&self) -> Vec<(u16, u16)> {
        let numbered = (0..).zip(&self.ports).zip(&self.states);
        let tunnels = numbered.filter_map(|((number, attached), state)| {
            let is_tunnel = matches!(attached, Some(Attached::Tunnel(_)));
            // None before a plan has it.
            let mtu = u16::try_from(state.mtu).ok()?;
            is_tunnel.then_some((number, mtu))
        });
        tunnels.collect()
    }
}
