//! What the system has to spare: the machine, and the control groups (cgroups) that this process is in, as in a container.

use std::fs;
use std::path::Path;

#[cfg(all(test, not(loom)))]
mod tests;

/// Bytes of memory; `None` where the system does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Room {
    pub(super) free: Option<u64>,
    pub(super) total: Option<u64>,
}

impl Room {
    /// What is left for this process. `root` is `/`, but in tests.
    pub(super) fn of_process(root: &Path) -> Self {
        let info = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let machine = Self { free: kilobytes(&info, "MemAvailable"), total: kilobytes(&info, "MemTotal") };
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let limits = groups.lines().filter_map(Hierarchy::of).flat_map(|(hierarchy, path)| {
            let folder = root.join(hierarchy.folder);
            path.ancestors().map(move |group| hierarchy.room(&folder.join(group))).collect::<Vec<_>>()
        });
        limits.fold(machine, Self::least)
    }

    fn least(self, other: Self) -> Self {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self { free: least(self.free, other.free), total: least(self.total, other.total) }
    }
}

/// The files of one version of control groups (Linux, `admin-guide/cgroup-v2` and `cgroup-v1/memory`).
#[derive(Clone, Copy)]
struct Hierarchy {
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Of `memory.stat`: what is used but given back when needed.
    reclaimable: &'static str,
}

const SECOND: Hierarchy = Hierarchy {
    folder: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file ",
};
const FIRST: Hierarchy = Hierarchy {
    folder: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file ",
};

impl Hierarchy {
    /// What a line of `/proc/self/cgroup`, `number:controllers:path`, says of memory. A container may see its own group as the
    /// root of what is mounted, so folders that are not there say nothing, and those above count too.
    fn of(line: &str) -> Option<(Self, &Path)> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let hierarchy = match controllers {
            "" => SECOND,
            _ if controllers.split(',').any(|controller| controller == "memory") => FIRST,
            _ => return None,
        };
        Some((hierarchy, Path::new(path.trim_start_matches('/'))))
    }

    /// What the group of `folder` leaves; its root, and `max`, have no limit.
    fn room(self, folder: &Path) -> Room {
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let Some(limit) = number(self.limit) else { return Room::default() };
        let statistics = read("memory.stat").unwrap_or_default();
        let reclaimable =
            statistics.lines().find_map(|line| line.strip_prefix(self.reclaimable)?.parse().ok());
        let used = number(self.used).unwrap_or(0).saturating_sub(reclaimable.unwrap_or(0));
        Room { free: Some(limit.saturating_sub(used)), total: Some(limit) }
    }
}

/// The figure of `field` in the text of a file of `/proc`, in bytes.
pub(super) fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
