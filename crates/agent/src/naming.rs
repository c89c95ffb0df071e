//! What rules of the configuration call programs: `pod/NAMESPACE/NAME`, `container/NUMBER`, `user/UID`, `nobody`. The kind comes first, so
//! that no pod's name passes for something else.

use crate::tenant::Tenant;

/// What patterns begin with that mean one or several programs.
const KINDS: [&str; 3] = ["pod/", "container/", "user/"];

/// As rules call a program. `pod`: `NAMESPACE/NAME`, where that is known; without it, `None` for a pod.
pub(crate) fn name_of(tenant: Tenant, pod: Option<&str>) -> Option<String> {
    match tenant {
        Tenant::Pod(_) => pod.map(|pod| format!("pod/{pod}")),
        // As in `container 0123456789ab`.
        other => Some(other.to_string().replace(' ', "/")),
    }
}

/// Whether a pattern means something: `*`, a name, or the beginning of names and a `*`. `others`: kinds that are known besides.
pub(crate) fn is_pattern(pattern: &str, others: &[&str]) -> bool {
    let fixed = pattern.strip_suffix('*').unwrap_or(pattern);
    let mut kinds = KINDS.iter().chain(others);
    pattern == "*" || !fixed.contains('*') && kinds.any(|kind| fixed.starts_with(kind))
}

/// Whether a pattern means a name.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}
