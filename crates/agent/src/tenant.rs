//! Whose a program is: quotas are kept for tenants, and who asks sees what is its tenant's.
//!
//! A program in a container is its container's, or its pod's, whatever user it runs as: root in a container is not the machine's.
//! Container engines put every container into a control group that has its number in its name, and Kubernetes puts those below the
//! pod's (cgroups(7)). Only the outermost name counts: what lies below, whoever is in there may have made. Where users make control
//! groups themselves, which systemd lets them do below `user@UID.service`, that is the outermost, and they are the user's. So it is
//! below every group that was given to a user (`Delegate=yes`, `User=`): whose directory it is could have made each name in it.
//!
//! Whoever cannot be told is nobody's: a process that cannot be looked at, and one that came by the socket of containers and is in no
//! group with a number. Those share a quota, and see nothing but what is their own.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::unistd::geteuid;

/// The bytes of a container's number: 64 hexadecimal digits.
const CONTAINER_BYTES: usize = 32;
/// The bytes of a pod's unique id: a UUID.
const POD_BYTES: usize = 16;

/// Whose a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Tenant {
    User(u32),
    Container([u8; CONTAINER_BYTES]),
    Pod([u8; POD_BYTES]),
    Nobody,
}

/// Where a program runs, as its control groups name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Containment {
    container: Option<[u8; CONTAINER_BYTES]>,
    pod: Option<[u8; POD_BYTES]>,
    user: Option<u32>,
}

impl Containment {
    /// From the text of `/proc/PID/cgroup`.
    pub(crate) fn parse(text: &str) -> Containment {
        Containment::told_by(text, owner)
    }

    /// From such a text: lines of number, controllers and path. `owner` says whose the directory of these controllers and that path is.
    fn told_by(text: &str, owner: impl Fn(&str, &str) -> Option<u32>) -> Containment {
        let mut all = text.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let found = Containment::of_path(path, |above| owner(controllers, above));
            (found != Containment::default()).then_some(found)
        });
        // Of several hierarchies, the first that tells.
        all.next().unwrap_or_default()
    }

    fn of_path(path: &str, owner: impl Fn(&str) -> Option<u32>) -> Containment {
        let mut found = Containment::default();
        let mut above = String::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if found == Containment::default() {
                found.user = owner(&above).filter(|uid| *uid != 0);
            }
            if found == Containment::default() {
                found.user = manager_of_user(name);
                found.pod = pod_in(name);
            }
            // Below a pod, or below what is a user's, it says which container; it does not say whose.
            found.container = found.container.or_else(|| container_in(name));
            above.push('/');
            above.push_str(name);
        }
        found
    }

    /// Whose a process of this user is. One that is in the agent's own container or pod, `own`, shares its fate: only its user counts. One
    /// that came by the socket of containers is in one.
    pub(crate) fn tenant(&self, uid: u32, own: &Containment, by_containers: bool) -> Tenant {
        match *self {
            Containment { user: Some(_), .. } if uid == 0 => Tenant::User(uid),
            Containment {
                user: Some(user), ..
            } => Tenant::User(user),
            Containment { pod: Some(pod), .. } if !self.shares_container(own) => Tenant::Pod(pod),
            Containment {
                container: Some(container),
                ..
            } if !self.shares_container(own) => Tenant::Container(container),
            _ if by_containers => Tenant::Nobody,
            _ => Tenant::User(uid),
        }
    }

    /// Whether both are one container, or one pod, or in none. A user may give groups of its own the number of anybody's container.
    pub(crate) fn shares_container(&self, other: &Containment) -> bool {
        let place = |one: &Containment| {
            (
                one.user,
                one.pod,
                one.container.filter(|_| one.pod.is_none()),
            )
        };
        place(self) == place(other)
    }

    /// Whether it is in a container or pod.
    pub(crate) fn is_contained(&self) -> bool {
        self.container.is_some() || self.pod.is_some()
    }

    /// The container's number, as engines print it in full.
    pub(crate) fn container(&self) -> Option<String> {
        self.container.map(|bytes| hexadecimal(&bytes))
    }

    /// The number of the container whose a program of this tenant is. `None`: it is in none, or what says so could be a user's own making.
    pub(crate) fn container_of(&self, tenant: Tenant) -> Option<String> {
        match tenant {
            Tenant::Container(_) | Tenant::Pod(_) => self.container(),
            Tenant::User(_) | Tenant::Nobody => None,
        }
    }

    /// The pod's unique id.
    pub(crate) fn pod(&self) -> Option<String> {
        let digits = hexadecimal(&self.pod?);
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32]
            .map(|range| digits.get(range).unwrap_or_default());
        Some(parts.join("-"))
    }
}

impl Tenant {
    /// Whether two programs are one tenant's. Those that cannot be told are not.
    pub(crate) fn is_one_with(self, other: Tenant) -> bool {
        self == other && self != Tenant::Nobody
    }

    /// Root, and the user that the agent runs as.
    pub(crate) fn may_stop_agent(self) -> bool {
        matches!(self, Tenant::User(uid) if uid == 0 || uid == geteuid().as_raw())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tenant::User(uid) => write!(f, "user {uid}"),
            Tenant::Container(bytes) => write!(f, "container {}", hexadecimal(&bytes[..6])),
            Tenant::Pod(bytes) => write!(f, "pod {}", hexadecimal(bytes)),
            Tenant::Nobody => f.write_str("nobody"),
        }
    }
}

/// Whose a control group's directory is. `None`: it is not to be seen from here, such as from an agent in a container.
fn owner(controllers: &str, path: &str) -> Option<u32> {
    if path.split('/').any(|name| name == "..") {
        return None;
    }
    let hierarchies = match controllers {
        "" => ["unified", "."],
        named => [named.strip_prefix("name=").unwrap_or(named), "."],
    };
    let mut found = hierarchies
        .into_iter()
        .map(|hierarchy| fs::metadata(format!("/sys/fs/cgroup/{hierarchy}{path}")));
    found.find_map(Result::ok).map(|found| found.uid())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that a text of just so many hexadecimal digits says.
fn bytes<const COUNT: usize>(text: &str) -> Option<[u8; COUNT]> {
    if text.len() != 2 * COUNT || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; COUNT];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// `libpod-<number>`, `docker-<number>.scope`, `cri-containerd:<number>` and their like, or the number alone. Not `libpod-conmon-<number>`:
/// there the engine watches over the container.
fn container_in(name: &str) -> Option<[u8; CONTAINER_BYTES]> {
    if name.contains("conmon") {
        return None;
    }
    let name = name.strip_suffix(".scope").unwrap_or(name);
    bytes(name.rsplit(['-', ':']).next()?)
}

/// `pod<uid>`, or with systemd `kubepods-besteffort-pod<uid, with _ for ->.slice`.
fn pod_in(name: &str) -> Option<[u8; POD_BYTES]> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let (before, uid) = name.rsplit_once("pod")?;
    if !(before.is_empty() || before.starts_with("kubepods")) {
        return None;
    }
    bytes(&uid.replace(['-', '_'], ""))
}

/// `user@UID.service`.
fn manager_of_user(name: &str) -> Option<u32> {
    name.strip_prefix("user@")?
        .strip_suffix(".service")?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: &str = "2f5102ae29a3f18ca9d56498b35440b8d44b2e53c824bb006d3e1a7ab852383e";
    const POD: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

    fn parse(path: &str) -> Containment {
        Containment::told_by(&format!("0::/{path}\n"), |_, _| Some(0))
    }

    #[test]
    fn containers_are_known_by_the_names_that_engines_give_their_groups() {
        for path in [
            format!("libpod_parent/libpod-{NUMBER}"),
            format!("machine.slice/libpod-{NUMBER}.scope/container"),
            format!("docker/{NUMBER}"),
            format!("system.slice/docker-{NUMBER}.scope"),
            format!("k8s.io/{NUMBER}"),
            format!("../../{NUMBER}"),
        ] {
            let found = parse(&path);
            assert_eq!(found.container().as_deref(), Some(NUMBER), "{path}");
            let tenant = found.tenant(0, &Containment::default(), true);
            assert!(matches!(tenant, Tenant::Container(_)), "{path}");
            assert_eq!(tenant, found.tenant(1000, &Containment::default(), true));
            assert_eq!(found.tenant(1000, &found, false), Tenant::User(1000));
        }
    }

    #[test]
    fn containers_of_a_pod_are_the_pod_s() {
        let underscores = POD.replace('-', "_");
        for path in [
            format!("kubepods/besteffort/pod{POD}/{NUMBER}"),
            format!(
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{underscores}.slice/cri-containerd-{NUMBER}.scope"
            ),
        ] {
            let found = parse(&path);
            assert_eq!(found.pod().as_deref(), Some(POD), "{path}");
            assert_eq!(found.container().as_deref(), Some(NUMBER), "{path}");
            assert!(matches!(
                found.tenant(0, &Containment::default(), true),
                Tenant::Pod(_)
            ));
        }
    }

    #[test]
    fn the_first_hierarchy_that_tells_is_believed() {
        let text = format!("12:hugetlb:/\n4:memory:/docker/{NUMBER}\n0::/\n");
        assert_eq!(
            Containment::told_by(&text, |_, _| None)
                .container()
                .as_deref(),
            Some(NUMBER)
        );
    }

    #[test]
    fn everything_else_is_its_user_s() {
        for path in [
            "",
            "user.slice/user-7.slice/session-1.scope",
            "system.slice/nginx.service",
            "podium",
            "docker/12ab",
        ] {
            assert_eq!(
                parse(path).tenant(7, &Containment::default(), false),
                Tenant::User(7),
                "{path}"
            );
        }
        let watcher = format!("machine.slice/libpod-conmon-{NUMBER}.scope");
        assert_eq!(parse(&watcher), Containment::default());
        let made_by_hand =
            format!("user.slice/user-7.slice/user@7.service/user.slice/libpod-{NUMBER}.scope");
        let found = parse(&made_by_hand);
        assert_eq!(
            found.tenant(100_999, &Containment::default(), false),
            Tenant::User(7)
        );
        assert_eq!(found.container().as_deref(), Some(NUMBER));
        let named = parse(&format!("machine.slice/libpod-{NUMBER}.scope"));
        assert!(found.shares_container(&found) && named.shares_container(&named));
        assert!(!found.shares_container(&named) && !named.shares_container(&found));
    }

    #[test]
    fn names_below_what_was_given_to_a_user_are_the_user_s() {
        let own = Containment::default();
        let owner = |_: &str, path: &str| Some(if path.starts_with("/s/given") { 7 } else { 0 });
        let tenant = |path: &str| {
            let found = Containment::told_by(&format!("1:memory:{path}\n"), owner);
            found.tenant(7, &own, false)
        };
        for name in [
            format!("libpod-{NUMBER}"),
            format!("pod{POD}"),
            "user@8.service".to_owned(),
        ] {
            assert_eq!(
                tenant(&format!("/s/given/{name}")),
                Tenant::User(7),
                "{name}"
            );
            assert_ne!(tenant(&format!("/s/{name}")), Tenant::User(7), "{name}");
        }
        // An engine gives a container its own group: its name is the engine's.
        let given = |_: &str, path: &str| {
            Some(if path.len() > NUMBER.len() {
                100_000
            } else {
                0
            })
        };
        let found = Containment::told_by(&format!("0::/docker/{NUMBER}/init.scope\n"), given);
        assert!(matches!(
            found.tenant(100_000, &own, true),
            Tenant::Container(_)
        ));
        assert_eq!(super::owner("", "/../x"), None);
    }

    #[test]
    fn only_a_number_that_an_engine_has_given_says_which_container_it_is() {
        let own = Containment::default();
        let number = |path: &str, own: &Containment| {
            let found = parse(path);
            found.container_of(found.tenant(7, own, true))
        };
        let docker = format!("docker/{NUMBER}");
        let pod = format!("kubepods/pod{POD}/{NUMBER}");
        for path in [&docker, &pod] {
            assert_eq!(number(path, &own).as_deref(), Some(NUMBER), "{path}");
            assert_eq!(number(path, &parse(path)), None, "{path}");
        }
        let of_user = format!("user@7.service/libpod-{NUMBER}.scope");
        assert_eq!(number(&of_user, &own), None);
        assert_eq!(number("mycontainer", &own), None);
        let given = Containment::told_by(&format!("0::/given/{NUMBER}\n"), |_, _| Some(7));
        assert_eq!(given.container_of(given.tenant(7, &own, true)), None);
    }

    #[test]
    fn names_that_were_made_inside_a_container_do_not_count() {
        let own = Containment::default();
        let honest = parse(&format!("docker/{NUMBER}"));
        let stranger = NUMBER.replace('2', "3");
        for inner in ["user@0.service".to_owned(), stranger, format!("pod{POD}")] {
            let found = parse(&format!("docker/{NUMBER}/{inner}"));
            assert_eq!(
                found.tenant(0, &own, true),
                honest.tenant(0, &own, true),
                "{inner}"
            );
            assert!(found.shares_container(&honest), "{inner}");
        }
    }

    #[test]
    fn whoever_came_by_the_socket_of_containers_and_has_no_number_is_nobody() {
        let named = parse("mycontainer");
        assert_eq!(
            named.tenant(0, &Containment::default(), true),
            Tenant::Nobody
        );
        assert_eq!(
            named.tenant(0, &Containment::default(), false),
            Tenant::User(0)
        );
    }
}
