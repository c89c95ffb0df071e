//! Names of Kubernetes' pods, which the kernel does not know: the kubelet of this machine keeps the logs of each pod in a directory that
//! has its namespace, its name and its unique id in its own name. No API server is asked.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::clients::Client;
use crate::text::printable;

/// Where the kubelet keeps logs.
const LOGS: &str = "/var/log/pods";
/// As long as it is unchanged the directory is not read more often, however many pods are not found in it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A change may have the time of one that was before it.
const SAME_TIME: Duration = Duration::from_millis(20);

/// The names of pods that were asked for.
#[derive(Debug)]
pub(crate) struct PodNames {
    logs: PathBuf,
    /// `NAMESPACE/NAME` by unique id.
    known: RefCell<HashMap<String, String>>,
    /// When the directory was read, and when it had been changed then. `None`: it may have been changed since at the same time.
    looked_at: Cell<Option<(Instant, Option<SystemTime>)>>,
}

impl Default for PodNames {
    fn default() -> PodNames {
        PodNames::of(Path::new(LOGS))
    }
}

impl PodNames {
    fn of(logs: &Path) -> PodNames {
        PodNames {
            logs: logs.to_owned(),
            known: RefCell::default(),
            looked_at: Cell::default(),
        }
    }

    /// The name of the pod that a program is in.
    pub(crate) fn of_client(&self, client: &Client) -> Option<String> {
        self.find(&client.containment.pod()?)
    }

    /// A program's tenant, for people.
    pub(crate) fn tenant_name(&self, client: &Client) -> String {
        let pod = self.of_client(client);
        pod.map_or_else(|| client.tenant.to_string(), |name| format!("pod {name}"))
    }

    /// The name of the pod with this unique id, for ever the same. `None`: the kubelet has none, or it may not be looked at.
    pub(crate) fn find(&self, uid: &str) -> Option<String> {
        let found = self.known.borrow().get(uid).cloned();
        if found.is_some() {
            return found;
        }
        let now = Instant::now();
        let changed_at = fs::metadata(&self.logs).and_then(|logs| logs.modified());
        let changed_at = changed_at
            .ok()
            .filter(|at| at.elapsed().is_ok_and(|age| age > SAME_TIME));
        let is_same = |(at, then): (Instant, Option<SystemTime>)| {
            now < at + LOOK_AGAIN && then == changed_at && then.is_some()
        };
        if self.looked_at.get().is_some_and(is_same) {
            return None;
        }
        self.looked_at.set(Some((now, changed_at)));
        *self.known.borrow_mut() = names(&self.logs);
        self.known.borrow().get(uid).cloned()
    }
}

/// Of the pods of this machine.
fn names(logs: &Path) -> HashMap<String, String> {
    let entries = fs::read_dir(logs).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| name_in(entry.file_name().to_str()?))
        .collect()
}

/// `NAMESPACE_NAME_UID`; neither a namespace nor a name has an underscore.
fn name_in(directory: &str) -> Option<(String, String)> {
    let mut parts = directory.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then(|| {
        (
            uid.to_owned(),
            printable(format!("{namespace}/{name}").as_bytes()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_as_the_kubelet_names_the_directory_of_its_logs() {
        let logs = tempfile::tempdir().unwrap();
        for directory in ["shop_cache-0_6ba7b810-9dad", "no-pod", "a_b_c_d", "_x"] {
            fs::create_dir(logs.path().join(directory)).unwrap();
        }
        let found = names(logs.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found["6ba7b810-9dad"], "shop/cache-0");
        assert!(names(&logs.path().join("none")).is_empty());
        let pods = PodNames::of(logs.path());
        assert_eq!(pods.find("6ba7b810-9dad").unwrap(), "shop/cache-0");
        assert_eq!(pods.find("x"), None);
        fs::create_dir(logs.path().join("shop_cache-1_x")).unwrap();
        assert_eq!(pods.find("x").unwrap(), "shop/cache-1");
    }
}
