//! Who may be joined with whom, as the configuration says. Only the fast road is meant: whether two programs may connect at all is the
//! network's to say, and who may not be joined talks by the kernel.

use serde::Deserialize;

use crate::naming::{fits, is_pattern, name_of};
use crate::tenant::Tenant;

/// `[join]` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JoinConfig {
    /// How far from each other two programs may be.
    pub within: Within,
    /// Pairs of names that may be joined however far they are.
    pub allow: Vec<[String; 2]>,
    /// Pairs that may not, whatever else is said.
    pub deny: Vec<[String; 2]>,
}

/// What two programs must have in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Within {
    /// Nothing: they are connected.
    #[default]
    Network,
    /// A namespace of Kubernetes, or else the tenant.
    Namespace,
    /// The pod, or the container, or the user.
    Tenant,
}

impl JoinConfig {
    /// Whether it says anything at all.
    pub(crate) fn is_set(&self) -> bool {
        *self != JoinConfig::default()
    }

    /// What is wrong with it.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let pairs = self.allow.iter().chain(&self.deny);
        let wrong = pairs
            .flatten()
            .find(|pattern| !is_pattern(pattern, &["nobody"]));
        wrong.map_or(Ok(()), |pattern| {
            Err(format!(
                "join has the pattern {pattern:?}; it must be `*` or `nobody`, or begin with pod/, container/ or user/ and have a `*` \
                 at its end at most"
            ))
        })
    }

    pub(crate) fn may_join(&self, parties: [&Party; 2]) -> bool {
        let [first, second] = parties;
        let has = |pairs: &[[String; 2]], unknown| {
            let one_way = |[a, b]: &[String; 2], first: &Party, second: &Party| {
                first.is_meant(a, unknown) && second.is_meant(b, unknown)
            };
            let mut pairs = pairs.iter();
            pairs.any(|pair| one_way(pair, first, second) || one_way(pair, second, first))
        };
        let is_one = first.tenant.is_one_with(second.tenant);
        let is_near = match self.within {
            Within::Network => true,
            Within::Namespace => {
                is_one
                    || first
                        .namespace()
                        .is_some_and(|own| second.namespace() == Some(own))
            }
            Within::Tenant => is_one,
        };
        // What has no name may be anybody who is denied, and is nobody who is allowed.
        !has(&self.deny, true) && (is_near || has(&self.allow, false))
    }
}

/// A program's tenant, and the name that rules call it by.
#[derive(Debug)]
pub(crate) struct Party {
    tenant: Tenant,
    /// `None`: a pod whose name is not known.
    name: Option<String>,
}

impl Party {
    /// `pod`: `NAMESPACE/NAME`, where that is known.
    pub(crate) fn new(tenant: Tenant, pod: Option<&str>) -> Party {
        Party {
            tenant,
            name: name_of(tenant, pod),
        }
    }

    fn is_meant(&self, pattern: &str, unknown: bool) -> bool {
        match &self.name {
            Some(name) => fits(pattern, name),
            None => unknown || pattern == "*",
        }
    }

    fn namespace(&self) -> Option<&str> {
        let pod = self.name.as_deref()?.strip_prefix("pod/")?;
        Some(pod.split_once('/')?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u8, name: &str) -> Party {
        Party::new(Tenant::Pod([number; 16]), Some(name))
    }

    fn config(text: &str) -> JoinConfig {
        let config: JoinConfig = toml::from_str(text).unwrap();
        config.validate().unwrap();
        config
    }

    #[test]
    fn the_network_decides_when_nothing_is_said() {
        let nobody = Party::new(Tenant::Nobody, None);
        assert!(!config("").is_set());
        assert!(config("").may_join([&nobody, &pod(1, "a/b")]));
    }

    #[test]
    fn programs_that_have_too_little_in_common_are_not_joined() {
        let [shop, cache, pay] = [
            pod(1, "shop/web-0"),
            pod(2, "shop/cache"),
            pod(3, "pay/web-0"),
        ];
        let [own, other] = [1000, 1001].map(|uid| Party::new(Tenant::User(uid), None));
        let nobody = Party::new(Tenant::Nobody, None);
        let namespace = config("within = 'namespace'");
        for (pair, joined) in [
            ([&shop, &cache], true),
            ([&shop, &pay], false),
            ([&own, &own], true),
            ([&own, &other], false),
            ([&shop, &own], false),
            ([&nobody, &nobody], false),
        ] {
            assert_eq!(namespace.may_join(pair), joined, "{pair:?}");
        }
        let tenant = config("within = 'tenant'");
        assert!(tenant.may_join([&shop, &shop]) && !tenant.may_join([&shop, &cache]));
    }

    #[test]
    fn pairs_are_allowed_and_denied_in_either_order_and_denial_wins() {
        let [shop, pay, db] = [pod(1, "shop/web-0"), pod(2, "pay/web-0"), pod(3, "db/main")];
        let user = Party::new(Tenant::User(1000), None);
        let rules = config(
            "within = 'tenant'\nallow = [['pod/shop/*', 'pod/db/main'], ['user/1000', '*']]\ndeny = [['pod/pay/*', '*']]",
        );
        for (pair, joined) in [
            ([&shop, &db], true),
            ([&db, &shop], true),
            ([&shop, &shop], true),
            ([&user, &db], true),
            ([&pay, &user], false),
            ([&pay, &pay], false),
            // A pod that is called like a user is not that user.
            ([&pod(4, "user/1000"), &db], false),
        ] {
            assert_eq!(rules.may_join(pair), joined, "{pair:?}");
        }
        let unknown = Party::new(Tenant::Pod([9; 16]), None);
        assert!(!rules.may_join([&unknown, &user]), "it may be of `pay`");
        assert!(!rules.may_join([&unknown, &db]));
    }

    #[test]
    fn patterns_that_mean_nothing_are_refused() {
        for pattern in ["", "user/a*b", "**", "shop/*", "pod", "cgroup:/x"] {
            let config = JoinConfig {
                allow: vec![["*".to_owned(), pattern.to_owned()]],
                ..JoinConfig::default()
            };
            assert!(config.validate().unwrap_err().contains(pattern));
        }
    }
}
