//! How much memory there is for the agent and for those whom it serves.

use std::fs;
use std::path::Path;

/// Memory of the machine, in bytes, or what the control groups allow that this process is in, where that is less.
pub(crate) fn bytes() -> u64 {
    let machine = nix::sys::sysinfo::sysinfo().map_or(1 << 30, |info| info.ram_total());
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    least_limit(&groups, limit).map_or(machine, |least| least.min(machine))
}

/// The least that a group of these, or one above it, allows: `groups` as in `/proc/PID/cgroup` (cgroups(7)), of either version. In a
/// container its own group is the root of what is mounted, whatever the path says. `limit` reads a file; "max" is none.
fn least_limit(groups: &str, limit: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
    let files = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let of_memory = controllers.split(',').any(|name| name == "memory");
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if of_memory => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return None,
        };
        Some((root, path.trim_start_matches('/'), name))
    });
    files
        .flat_map(|(root, path, name)| {
            let groups = Path::new(path).ancestors();
            let files = groups.map(move |group| Path::new(root).join(group).join(name));
            files.collect::<Vec<_>>()
        })
        .filter_map(|file| limit(&file))
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_all_groups_above_counts() {
        let limits = [
            ("/sys/fs/cgroup/memory/pods/one/memory.limit_in_bytes", 300),
            ("/sys/fs/cgroup/memory/pods/memory.limit_in_bytes", 200),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", 900),
            ("/sys/fs/cgroup/slice/memory.max", 500),
            ("/sys/fs/cgroup/cpu/slice/memory.limit_in_bytes", 1),
        ];
        let limit = |path: &Path| {
            let found = limits.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, bytes)| *bytes)
        };
        let first = "9:name=systemd:/\n4:memory:/pods/one\n1:cpu:/slice\n0::/\n";
        assert_eq!(least_limit(first, limit), Some(200));
        assert_eq!(least_limit("0::/slice/service\n", limit), Some(500));
        assert_eq!(least_limit("4:cpu,memory:/gone\n", limit), Some(900));
        assert_eq!(least_limit("0::/\nnonsense\n", limit), None);
    }
}
