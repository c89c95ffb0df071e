//! Who may have how much. Pure bookkeeping: what is charged and when it is given back is `segments`' business.
//!
//! Each end of a connection pays for half of its segment, and an end whose ring has grown for that, so the sum of what is charged is
//! the memory that exists.

use std::collections::HashMap;

use crate::config::QuotaConfig;
use crate::offers::ClientId;
use crate::tenant::Tenant;

/// Who pays for one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Payer {
    pub(crate) client: ClientId,
    pub(crate) tenant: Tenant,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Charged {
    clients: u32,
    /// Connections that have not said hello.
    silent: u32,
    ends: u32,
    bytes: u64,
    /// Of pools and links.
    channel_bytes: u64,
}

impl Charged {
    const NOTHING: Charged = Charged {
        clients: 0,
        silent: 0,
        ends: 0,
        bytes: 0,
        channel_bytes: 0,
    };
}

/// What is in use, and the limits.
#[derive(Debug)]
pub(crate) struct Quota {
    limits: QuotaConfig,
    bytes_limit: u64,
    tenants: HashMap<Tenant, Charged>,
    ends_of_client: HashMap<ClientId, u32>,
    /// Links of participants, as long as their memory is there.
    links_of_client: HashMap<ClientId, u32>,
    bytes: u64,
    /// What of these is pools and links.
    channel_bytes: u64,
}

impl Quota {
    pub(crate) fn new(limits: QuotaConfig, bytes_limit: u64) -> Quota {
        Quota {
            limits,
            bytes_limit,
            tenants: HashMap::new(),
            ends_of_client: HashMap::new(),
            links_of_client: HashMap::new(),
            bytes: 0,
            channel_bytes: 0,
        }
    }

    /// Charges one more client to a tenant. `false`: the limit is reached, and nothing is charged.
    #[must_use]
    pub(crate) fn take_client(&mut self, tenant: Tenant) -> bool {
        let charged = self.tenants.entry(tenant).or_default();
        let allowed = charged.clients < self.limits.clients_per_tenant;
        charged.clients += u32::from(allowed);
        allowed
    }

    pub(crate) fn give_back_client(&mut self, tenant: Tenant) {
        self.change(tenant, |charged| {
            charged.clients = charged.clients.saturating_sub(1)
        });
    }

    /// Charges one more connection that has not said hello, of as many as it may have clients. `false`: nothing is charged.
    #[must_use]
    pub(crate) fn take_silent(&mut self, tenant: Tenant) -> bool {
        let charged = self.tenants.entry(tenant).or_default();
        let allowed = charged.silent < self.limits.clients_per_tenant;
        charged.silent += u32::from(allowed);
        allowed
    }

    pub(crate) fn give_back_silent(&mut self, tenant: Tenant) {
        self.change(tenant, |charged| {
            charged.silent = charged.silent.saturating_sub(1)
        });
    }

    /// Charges a segment to its two ends. `false`: a limit is reached, and nothing is charged.
    #[must_use]
    pub(crate) fn take_segment(&mut self, payers: [Payer; 2], segment_bytes: u64) -> bool {
        if !self.take_end(payers[0], segment_bytes / 2) {
            return false;
        }
        if !self.take_end(payers[1], segment_bytes / 2) {
            self.give_back_end(payers[0], segment_bytes / 2);
            return false;
        }
        true
    }

    pub(crate) fn give_back_segment(&mut self, payers: [Payer; 2], segment_bytes: u64) {
        for payer in payers {
            self.give_back_end(payer, segment_bytes / 2);
        }
    }

    /// Charges bytes to a tenant. `false`: a limit is reached, and nothing is charged.
    #[must_use]
    pub(crate) fn take_bytes(&mut self, tenant: Tenant, bytes: u64) -> bool {
        let has = self.tenants.get(&tenant).map_or(0, |charged| charged.bytes);
        let allowed =
            has + bytes <= self.limits.bytes_per_tenant && self.bytes + bytes <= self.bytes_limit;
        if allowed {
            self.tenants.entry(tenant).or_default().bytes += bytes;
            self.bytes += bytes;
        }
        allowed
    }

    pub(crate) fn give_back_bytes(&mut self, tenant: Tenant, bytes: u64) {
        self.change(tenant, |charged| {
            charged.bytes = charged.bytes.saturating_sub(bytes)
        });
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn take_end(&mut self, payer: Payer, bytes: u64) -> bool {
        let charged = self.tenants.get(&payer.tenant).copied().unwrap_or_default();
        let ends = self.ends_of_client.get(&payer.client).copied().unwrap_or(0);
        let allowed = ends < self.limits.ends_per_client
            && charged.ends < self.limits.ends_per_tenant
            && charged.bytes + bytes <= self.limits.bytes_per_tenant
            && self.bytes + bytes <= self.bytes_limit;
        if allowed {
            let more = Charged {
                ends: charged.ends + 1,
                bytes: charged.bytes + bytes,
                ..charged
            };
            self.tenants.insert(payer.tenant, more);
            self.ends_of_client.insert(payer.client, ends + 1);
            self.bytes += bytes;
        }
        allowed
    }

    fn give_back_end(&mut self, payer: Payer, bytes: u64) {
        self.change(payer.tenant, |charged| {
            charged.ends = charged.ends.saturating_sub(1);
            charged.bytes = charged.bytes.saturating_sub(bytes);
        });
        if let Some(ends) = self.ends_of_client.get_mut(&payer.client) {
            *ends = ends.saturating_sub(1);
            if *ends == 0 {
                self.ends_of_client.remove(&payer.client);
            }
        }
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Charges bytes of a pool, or of half a link, to a tenant. `false`: a limit is reached, and nothing is charged.
    #[must_use]
    pub(crate) fn take_channel_bytes(&mut self, tenant: Tenant, bytes: u64) -> bool {
        let charged = self.tenants.get(&tenant);
        let has = charged.map_or(0, |charged| charged.channel_bytes);
        let allowed = has.saturating_add(bytes) <= self.limits.channel_bytes_per_tenant
            && self.bytes.saturating_add(bytes) <= self.bytes_limit;
        if allowed {
            self.tenants.entry(tenant).or_default().channel_bytes += bytes;
            self.bytes += bytes;
            self.channel_bytes += bytes;
        }
        allowed
    }

    pub(crate) fn give_back_channel_bytes(&mut self, tenant: Tenant, bytes: u64) {
        self.change(tenant, |charged| {
            charged.channel_bytes = charged.channel_bytes.saturating_sub(bytes);
        });
        self.bytes = self.bytes.saturating_sub(bytes);
        self.channel_bytes = self.channel_bytes.saturating_sub(bytes);
    }

    /// Charges a link to its two ends. `false`: a limit is reached, and nothing is charged.
    #[must_use]
    pub(crate) fn take_link(&mut self, payers: [Payer; 2], bytes: u64) -> bool {
        let limit = self.limits.channel_links_per_participant;
        let has_room = |payer: &Payer| {
            let links = self.links_of_client.get(&payer.client);
            links.copied().unwrap_or(0) < limit
        };
        if !payers.iter().all(has_room) || !self.take_channel_bytes(payers[0].tenant, bytes / 2) {
            return false;
        }
        if !self.take_channel_bytes(payers[1].tenant, bytes / 2) {
            self.give_back_channel_bytes(payers[0].tenant, bytes / 2);
            return false;
        }
        for payer in payers {
            *self.links_of_client.entry(payer.client).or_default() += 1;
        }
        true
    }

    pub(crate) fn give_back_link(&mut self, payers: [Payer; 2], bytes: u64) {
        for payer in payers {
            self.give_back_channel_bytes(payer.tenant, bytes / 2);
            if let Some(links) = self.links_of_client.get_mut(&payer.client) {
                *links = links.saturating_sub(1);
                if *links == 0 {
                    self.links_of_client.remove(&payer.client);
                }
            }
        }
    }

    /// Bytes of all pools and links that exist.
    pub(crate) fn channel_bytes(&self) -> u64 {
        self.channel_bytes
    }

    /// Changes a tenant's entry, and forgets tenants that have nothing.
    fn change(&mut self, tenant: Tenant, change: impl FnOnce(&mut Charged)) {
        if let Some(charged) = self.tenants.get_mut(&tenant) {
            change(charged);
            if *charged == Charged::NOTHING {
                self.tenants.remove(&tenant);
            }
        }
    }

    /// Bytes of all segments that exist.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most bytes that all segments together may have.
    pub(crate) fn bytes_limit(&self) -> u64 {
        self.bytes_limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Payer = Payer {
        client: ClientId(1),
        tenant: Tenant::User(1000),
    };
    const BOB: Payer = Payer {
        client: ClientId(2),
        tenant: Tenant::User(1001),
    };

    fn quota(change: impl FnOnce(&mut QuotaConfig)) -> Quota {
        let mut limits = QuotaConfig::default();
        change(&mut limits);
        Quota::new(limits, 1 << 40)
    }

    #[test]
    fn each_limit_holds_and_a_refusal_charges_nobody() {
        let cases: [fn(&mut QuotaConfig); 3] = [
            |limits| limits.ends_per_client = 1,
            |limits| limits.ends_per_tenant = 1,
            |limits| limits.bytes_per_tenant = 50,
        ];
        for case in cases {
            let mut quota = quota(case);
            assert!(quota.take_segment([ALICE, BOB], 100));
            assert!(!quota.take_segment([ALICE, BOB], 100));
            assert_eq!(quota.bytes(), 100);
            quota.give_back_segment([ALICE, BOB], 100);
            assert!(!quota.take_segment([ALICE, ALICE], 100), "both ends count");
            assert!(quota.take_segment([BOB, ALICE], 100));
        }
    }

    #[test]
    fn pools_and_links_have_limits_of_their_own_and_count_to_the_total() {
        let mut narrow = quota(|limits| limits.channel_bytes_per_tenant = 100);
        assert!(narrow.take_channel_bytes(ALICE.tenant, 60));
        assert!(!narrow.take_channel_bytes(ALICE.tenant, 60));
        assert!(!narrow.take_link([BOB, ALICE], 100));
        assert_eq!((narrow.channel_bytes(), narrow.bytes()), (60, 60));
        assert!(narrow.take_link([BOB, ALICE], 80));
        assert!(!narrow.take_channel_bytes(ALICE.tenant, u64::MAX));
        assert!(
            narrow.take_segment([ALICE, BOB], 1000),
            "segments have their own"
        );
        narrow.give_back_link([BOB, ALICE], 80);
        narrow.give_back_channel_bytes(ALICE.tenant, 60);
        narrow.give_back_segment([ALICE, BOB], 1000);
        assert_eq!((narrow.channel_bytes(), narrow.bytes()), (0, 0));
        assert!(narrow.tenants.is_empty() && narrow.links_of_client.is_empty());

        let mut few = quota(|limits| limits.channel_links_per_participant = 1);
        assert!(few.take_link([ALICE, BOB], 10));
        assert!(!few.take_link([ALICE, BOB], 10));
        let mut full = Quota::new(QuotaConfig::default(), 100);
        assert!(!full.take_link([ALICE, BOB], 102) && full.take_link([ALICE, BOB], 100));
    }

    #[test]
    fn the_total_holds_whoever_pays() {
        let mut quota = Quota::new(QuotaConfig::default(), 150);
        assert!(quota.take_segment([ALICE, BOB], 100));
        assert!(!quota.take_segment([ALICE, BOB], 100));
        assert_eq!(quota.bytes(), 100);
    }

    #[test]
    fn nothing_is_remembered_of_those_who_gave_everything_back() {
        let mut quota = quota(|limits| limits.clients_per_tenant = 1);
        assert!(quota.take_client(ALICE.tenant));
        assert!(!quota.take_client(ALICE.tenant));
        assert!(quota.take_client(BOB.tenant));
        assert!(quota.take_silent(ALICE.tenant));
        assert!(!quota.take_silent(ALICE.tenant));
        assert!(quota.take_silent(BOB.tenant));
        assert!(quota.take_segment([ALICE, ALICE], 10));
        quota.give_back_segment([ALICE, ALICE], 10);
        quota.give_back_client(ALICE.tenant);
        quota.give_back_client(BOB.tenant);
        for tenant in [ALICE.tenant, BOB.tenant] {
            quota.give_back_silent(tenant);
        }
        assert!(quota.tenants.is_empty() && quota.ends_of_client.is_empty());
    }
}
