//! Who meets whom by a name. Without a rule a name is its tenant's own: nobody else can take it. With a rule in the configuration it is
//! one name for all whom the rule lets take part, and for nobody else.

use millrace_wire::{ChannelName, Open};
use serde::Deserialize;

use crate::labels::{self, Labels};
use crate::naming::{fits, is_pattern, name_of};
use crate::tenant::Tenant;

/// What patterns that mean control groups begin with; a path follows.
const CGROUP: &str = "cgroup:";
/// What patterns that mean labels of containers begin with; `KEY=VALUE` follows.
const LABEL: &str = "label:";

/// A `[[channel]]` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelRule {
    /// The channels that are meant: a name, or the beginning of names and a `*`.
    pub name: String,
    /// Who may publish, or be a client.
    pub send: Vec<String>,
    /// Who may subscribe, or be a server.
    pub receive: Vec<String>,
}

/// Those who can meet: all of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ChannelKey {
    pub(crate) scope: Scope,
    /// Clients and servers, who do not meet publishers and subscribers.
    pub(crate) two_way: bool,
    pub(crate) name: ChannelName,
}

/// Whose a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// Of all whom a rule lets take part.
    Rule,
    /// One tenant's own.
    Tenant(Tenant),
}

/// Who wants to take part.
pub(crate) struct Applicant<'a> {
    pub(crate) tenant: Tenant,
    /// `NAMESPACE/NAME`, where that is known.
    pub(crate) pod: Option<String>,
    /// The text of its `/proc/PID/cgroup`, which is read only where a rule asks for it.
    pub(crate) groups: &'a dyn Fn() -> Option<String>,
    /// The labels of its container, which are read only where a rule asks for one.
    pub(crate) labels: &'a dyn Fn() -> Option<Labels>,
}

impl ChannelRule {
    /// What is wrong with it.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let beginning = self.name.strip_suffix('*').unwrap_or(&self.name);
        let is_name = ChannelName::new(beginning).is_ok();
        if !is_name && self.name != "*" {
            return Err(format!(
                "channel has the name {:?}; it must be a channel's name, or the beginning of names and a `*`",
                self.name
            ));
        }
        let mut patterns = self.send.iter().chain(&self.receive);
        let means_nothing = |pattern: &&String| match pattern.strip_prefix(LABEL) {
            Some(pattern) => !labels::is_pattern(pattern),
            None => !is_pattern(pattern, &["cgroup:/"]),
        };
        let Some(pattern) = patterns.find(means_nothing) else {
            return Ok(());
        };
        let wanted = if pattern.starts_with(LABEL) {
            "`label:KEY=VALUE`, of plain characters, the key at most 63 and the value at most 255, and have a `*` at its end at most; \
             the key is without millrace.dev/"
        } else {
            "`*`, or begin with pod/, container/, user/, cgroup:/ or label: and have a `*` at its end at most"
        };
        Err(format!(
            "channel {:?} has the pattern {pattern:?}; it must be {wanted}",
            self.name
        ))
    }
}

/// The channel that somebody takes part in. `None`: that is not allowed.
pub(crate) fn find(
    rules: &[ChannelRule],
    open: &Open,
    applicant: &Applicant<'_>,
) -> Option<ChannelKey> {
    let mut rules = rules.iter();
    let scope = match rules.find(|rule| fits(&rule.name, open.name.as_str())) {
        Some(rule) => {
            let admitted = if open.role.sends() {
                &rule.send
            } else {
                &rule.receive
            };
            applicant.is_meant(admitted).then_some(Scope::Rule)?
        }
        None if applicant.tenant == Tenant::Nobody => return None,
        None => Scope::Tenant(applicant.tenant),
    };
    Some(ChannelKey {
        scope,
        two_way: open.role.is_two_way(),
        name: open.name,
    })
}

impl Applicant<'_> {
    fn is_meant(&self, patterns: &[String]) -> bool {
        let name = name_of(self.tenant, self.pod.as_deref());
        let ask = |kind| patterns.iter().any(|pattern| pattern.starts_with(kind));
        let asks_group = ask(CGROUP);
        let group = asks_group.then(|| group_in(&(self.groups)()?)).flatten();
        let labels = ask(LABEL).then(self.labels).flatten();
        patterns.iter().any(|pattern| {
            if let Some(pattern) = pattern.strip_prefix(CGROUP) {
                group.as_ref().is_some_and(|group| fits(pattern, group))
            } else if let Some(pattern) = pattern.strip_prefix(LABEL) {
                labels.as_ref().is_some_and(|labels| labels.fit(pattern))
            } else {
                pattern == "*" || name.as_ref().is_some_and(|name| fits(pattern, name))
            }
        })
    }
}

/// The path of the control group in the hierarchy that systemd keeps. One that is not below the agent's own root does not count.
fn group_in(text: &str) -> Option<String> {
    let path = |controllers: &str| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.strip_prefix(controllers)?.strip_prefix(':')
        })
    };
    // Where both are there, the second is in use.
    let path = path("name=systemd").or_else(|| path(""))?;
    (!path.split('/').any(|name| name == "..")).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use millrace_wire::{CHANNEL_ABI, Role};

    use super::*;

    fn open(name: &str, role: Role) -> Open {
        Open {
            version_min: 2,
            version_max: 2,
            abi: CHANNEL_ABI,
            role,
            overwrites: false,
            pool: None,
            id: 0,
            pool_bytes: 65_536,
            slots: 2,
            peers: 0,
            name: ChannelName::new(name).unwrap(),
            group: None,
        }
    }

    #[derive(serde::Deserialize)]
    struct Rules {
        channel: Vec<ChannelRule>,
    }

    fn rules(text: &str) -> Vec<ChannelRule> {
        let rules: Rules = toml::from_str(text).unwrap();
        for rule in &rules.channel {
            rule.validate().unwrap();
        }
        rules.channel
    }

    fn scope_of(rules: &[ChannelRule], who: (Tenant, Option<&str>), open: &Open) -> Option<Scope> {
        let applicant = Applicant {
            tenant: who.0,
            pod: who.1.map(str::to_owned),
            groups: &|| Some("0::/system.slice/lb.service\n".to_owned()),
            labels: &|| {
                let is_contained = matches!(who.0, Tenant::Container(_) | Tenant::Pod(_));
                let found = Labels::of_annotations([("millrace.dev/role", "worker-1")]);
                is_contained.then_some(found)
            },
        };
        find(rules, open, &applicant).map(|key| key.scope)
    }

    const USER: (Tenant, Option<&str>) = (Tenant::User(1000), None);
    const NOBODY: (Tenant, Option<&str>) = (Tenant::Nobody, None);

    #[test]
    fn a_name_without_a_rule_is_its_tenant_s_own() {
        let news = open("news", Role::Publisher);
        assert_eq!(scope_of(&[], USER, &news), Some(Scope::Tenant(USER.0)));
        assert_eq!(scope_of(&[], NOBODY, &news), None);
    }

    #[test]
    fn the_first_rule_that_fits_a_name_says_who_may_send_and_who_may_receive() {
        let rules = rules(
            "[[channel]]\nname = 'upf/*'\nsend = ['pod/core/lb-*', 'user/1000']\nreceive = ['pod/core/worker-1']
            [[channel]]\nname = 'upf/x'\nsend = ['*']
            [[channel]]\nname = 'all'\nsend = ['*']\nreceive = ['*']",
        );
        let pod = |name| (Tenant::Pod([1; 16]), name);
        let (send, receive) = (Role::Client, Role::Server);
        for (who, name, role, allowed) in [
            (pod(Some("core/lb-7")), "upf/x", send, true),
            (pod(Some("core/lb-7")), "upf/x", receive, false),
            (pod(Some("core/worker-1")), "upf/x", Role::Subscriber, true),
            (pod(Some("core/worker-12")), "upf/x", receive, false),
            (USER, "upf/x", Role::Publisher, true),
            // A pod that is called like a user is not that user.
            (pod(Some("user/1000")), "upf/x", send, false),
            (pod(None), "upf/x", send, false),
            (NOBODY, "upf/x", send, false),
            (NOBODY, "all", receive, true),
            (pod(None), "all", send, true),
        ] {
            let expected = allowed.then_some(Scope::Rule);
            assert_eq!(
                scope_of(&rules, who, &open(name, role)),
                expected,
                "{who:?} {name} {role:?}"
            );
        }
        let own = Some(Scope::Tenant(USER.0));
        assert_eq!(scope_of(&rules, USER, &open("upf", send)), own);
    }

    #[test]
    fn control_groups_are_meant_by_their_path() {
        let allows = |pattern: &str| {
            let rule = ChannelRule {
                name: "*".to_owned(),
                send: vec![pattern.to_owned()],
                receive: Vec::new(),
            };
            rule.validate().unwrap();
            scope_of(&[rule], NOBODY, &open("x", Role::Publisher)).is_some()
        };
        assert!(allows("cgroup:/system.slice/lb.service") && allows("cgroup:/system.slice/*"));
        assert!(!allows("cgroup:/system.slice") && !allows("user/*"));
        let hybrid = "3:cpu:/a\n1:name=systemd:/b:c\n0::/\n";
        assert_eq!(group_in(hybrid).as_deref(), Some("/b:c"));
        assert_eq!(group_in("0::/../x"), None);
        assert_eq!(group_in(""), None);
    }

    #[test]
    fn containers_are_meant_by_their_labels() {
        let allows = |pattern: &str, tenant| {
            let rule = ChannelRule {
                name: "*".to_owned(),
                send: vec!["user/9".to_owned(), pattern.to_owned()],
                receive: Vec::new(),
            };
            rule.validate().unwrap();
            scope_of(&[rule], (tenant, None), &open("x", Role::Client)).is_some()
        };
        for tenant in [Tenant::Container([1; 32]), Tenant::Pod([1; 16])] {
            assert!(allows("label:role=worker-1", tenant));
            assert!(allows("label:role=worker-*", tenant));
            assert!(!allows("label:role=worker", tenant));
            assert!(!allows("label:site=*", tenant));
        }
        for tenant in [USER.0, Tenant::Nobody] {
            assert!(!allows("label:role=*", tenant));
        }
    }

    #[test]
    fn labels_are_read_only_where_a_rule_asks() {
        let rules = rules("[[channel]]\nname = '*'\nsend = ['pod/*']\nreceive = ['label:a=b']");
        let applicant = |labels| Applicant {
            tenant: USER.0,
            pod: None,
            groups: &|| panic!("no rule asks"),
            labels,
        };
        let send = find(
            &rules,
            &open("x", Role::Publisher),
            &applicant(&|| panic!()),
        );
        assert_eq!(send, None);
        let receive = find(&rules, &open("x", Role::Server), &applicant(&|| None));
        assert_eq!(receive, None);
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
        let wrong = |name: &str, pattern: &str| {
            let rule = ChannelRule {
                name: name.to_owned(),
                send: vec![pattern.to_owned()],
                receive: Vec::new(),
            };
            rule.validate().unwrap_err()
        };
        for name in ["", "a*b", "/x", "a b", "**"] {
            assert!(wrong(name, "*").contains("name"), "{name}");
        }
        let others = ["", "core/lb", "user", "user/*0", "cgroup:x", "pod*", "**"];
        let labels = ["label:", "label:*", "label:role", "label:=x", "label:a=*b"];
        for pattern in others.into_iter().chain(labels) {
            let error = wrong("x", pattern);
            assert!(error.contains(&format!("{pattern:?}")), "{pattern}");
            assert!(error.contains("label:"), "{pattern}");
        }
        assert!(wrong("x", "label:role").contains("label:KEY=VALUE"));
    }
}
