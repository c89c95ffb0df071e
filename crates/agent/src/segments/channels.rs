//! Memory of channels: pools and links.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_shm::{link, pool};

use super::{Charge, Refusal, Segments};
use crate::quota::Payer;
use crate::tenant::Tenant;

/// What two participants share.
#[derive(Debug)]
pub(crate) struct LinkMemory {
    pub(crate) link: OwnedFd,
    /// Of the link alone.
    pub(crate) bytes: u64,
    pub(crate) directions: u32,
    /// What the second replies from.
    pub(crate) replies: Option<OwnedFd>,
}

impl Segments {
    /// A participant of a channel, which counts as a program. `false`: its tenant has too many of these.
    #[must_use]
    pub(crate) fn take_participant(&mut self, tenant: Tenant) -> bool {
        self.quota.take_client(tenant)
    }

    /// It is gone.
    pub(crate) fn give_back_participant(&mut self, tenant: Tenant) {
        self.quota.give_back_client(tenant);
    }

    /// A pool, and whether it is of huge pages.
    pub(crate) fn create_pool(
        &mut self,
        tenant: Tenant,
        bytes: u64,
    ) -> Result<(OwnedFd, bool), Refusal> {
        let charge = Charge::Pool { tenant, bytes };
        self.charge(&[charge])?;
        self.make(charge, || pool::create(bytes), |(fd, _)| fd.as_fd())
    }

    /// A pool that exists already. If it is charged to somebody, that remains so: it is there once.
    pub(crate) fn adopt_pool(
        &mut self,
        tenant: Tenant,
        bytes: u64,
        fd: OwnedFd,
    ) -> Result<OwnedFd, Refusal> {
        if self.is_watched(fd.as_fd())? {
            return Ok(fd);
        }
        let charge = Charge::Pool { tenant, bytes };
        self.charge(&[charge])?;
        self.make(charge, || Ok(fd), |fd| fd.as_fd())
    }

    /// The memory of a link, of which the first pays for the pool for replies.
    pub(crate) fn create_link(
        &mut self,
        payers: [Payer; 2],
        slots: u32,
        reply_bytes: Option<u64>,
    ) -> Result<LinkMemory, Refusal> {
        let directions = if reply_bytes.is_some() { 2 } else { 1 };
        let bytes = link::link_bytes(slots, directions) as u64;
        let link_charge = Charge::Link { payers, bytes };
        let tenant = payers[0].tenant;
        let replies_charge = reply_bytes.map(|bytes| Charge::Pool { tenant, bytes });
        // All or nothing, before any memory is made: what is made and given up again would be taken for memory that has come back.
        let charges: Vec<Charge> = [link_charge].into_iter().chain(replies_charge).collect();
        self.charge(&charges)?;
        let made = self.make(
            link_charge,
            || link::create(slots, directions),
            |fd| fd.as_fd(),
        );
        let replies = replies_charge.map(|charge| {
            let create = || pool::create(reply_bytes.unwrap_or(0));
            self.make(charge, create, |(fd, _)| fd.as_fd())
        });
        Ok(LinkMemory {
            link: made?,
            bytes,
            directions,
            replies: replies.transpose()?.map(|(fd, _)| fd),
        })
    }

    /// Whether memory of channels has come back since the last call.
    pub(crate) fn has_freed_channels(&mut self) -> bool {
        std::mem::take(&mut self.freed_channels)
    }

    /// Bytes of pools and links that exist.
    pub(crate) fn channel_bytes(&self) -> u64 {
        self.quota.channel_bytes()
    }

    /// Charges all of it, or nothing.
    fn charge(&mut self, charges: &[Charge]) -> Result<(), Refusal> {
        for (index, charge) in charges.iter().enumerate() {
            let allowed = match *charge {
                Charge::Pool { tenant, bytes } => self.quota.take_channel_bytes(tenant, bytes),
                Charge::Link { payers, bytes } => self.quota.take_link(payers, bytes),
                _ => false,
            };
            if !allowed {
                for charge in &charges[..index] {
                    self.uncharge(charge);
                }
                return Err(Refusal::Quota);
            }
        }
        Ok(())
    }

    fn uncharge(&mut self, charge: &Charge) {
        match *charge {
            Charge::Pool { tenant, bytes } => self.quota.give_back_channel_bytes(tenant, bytes),
            Charge::Link { payers, bytes } => self.quota.give_back_link(payers, bytes),
            _ => {}
        }
    }

    /// Makes and watches what is charged already; gives the charge back when that fails.
    fn make<T>(
        &mut self,
        charge: Charge,
        make: impl FnOnce() -> io::Result<T>,
        fd: impl Fn(&T) -> BorrowedFd<'_>,
    ) -> Result<T, Refusal> {
        let made = make().map_err(Refusal::from).and_then(|made| {
            self.watch(fd(&made), charge)?;
            Ok(made)
        });
        if made.is_err() {
            self.uncharge(&charge);
        }
        made
    }

    /// The memory has gone.
    pub(super) fn handle_channel_gone(&mut self, charge: &Charge) {
        self.uncharge(charge);
        self.freed_channels = true;
    }

    /// Whether memory is charged to somebody already.
    fn is_watched(&self, fd: BorrowedFd<'_>) -> Result<bool, Refusal> {
        let watch = self.add_watch(fd)?;
        let is_known = self.charges.contains_key(&watch);
        if !is_known {
            self.inotify.rm_watch(watch).map_err(io::Error::from)?;
        }
        Ok(is_known)
    }
}
