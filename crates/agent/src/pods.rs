//! Names of Kubernetes' pods, which the kernel does not know: the kubelet of this machine keeps the logs of each pod in a directory that
//! has its namespace, its name and its unique id in its own name. No API server is asked.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::text::printable;

/// Where the kubelet keeps logs.
pub(crate) const LOGS: &str = "/var/log/pods";

/// `NAMESPACE/NAME` by unique id, of the pods of this machine. Empty where there are none, or they may not be looked at.
pub(crate) fn names(logs: &Path) -> HashMap<String, String> {
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
    }
}
