//! Folders that stand in for `/proc` and `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use super::Room;

const MIB: u64 = 1 << 20;
const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 8192 kB\nMemFree: 1 kB\nMemAvailable: 4096 kB\n");

/// A folder of `files`, gone with its scope.
struct Root(PathBuf);

impl Root {
    fn of(name: &str, files: &[(&str, &str)]) -> Self {
        let root = Self(std::env::temp_dir().join(format!("bagualu-{}-{name}", std::process::id())));
        for (file, text) in files {
            let file = root.0.join(file);
            fs::create_dir_all(file.parent().unwrap_or(Path::new("."))).expect("a folder");
            fs::write(file, text).expect("a file");
        }
        root
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn room(name: &str, files: &[(&str, &str)]) -> (Option<u64>, Option<u64>) {
    let root = Root::of(name, files);
    let room = Room::of_process(&root.0);
    (room.free, room.total)
}

#[test]
fn without_limits_it_is_the_machine() {
    let groups = [
        MEMINFO,
        ("proc/self/cgroup", "4:memory:/here\n0::/here\n"),
        ("sys/fs/cgroup/here/memory.max", "max\n"),
        ("sys/fs/cgroup/memory/here/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/here/memory.usage_in_bytes", "1048576\n"),
    ];
    let machine = (Some(4 * MIB), Some(8 * MIB));
    assert_eq!(room("plain", &groups[..1]), machine);
    assert_eq!(room("unlimited", &groups), machine);
    assert_eq!(room("nothing", &[]), (None, None), "unknown, not none");
}

#[test]
fn every_group_above_limits_it() {
    let second = [
        MEMINFO,
        ("proc/self/cgroup", "0::/outer/inner\n"),
        ("sys/fs/cgroup/outer/inner/memory.max", "6291456\n"),
        ("sys/fs/cgroup/outer/inner/memory.current", "3145728\n"),
        ("sys/fs/cgroup/outer/inner/memory.stat", "anon 1\ninactive_file 1048576\n"),
        ("sys/fs/cgroup/outer/memory.max", "5242880\n"),
        ("sys/fs/cgroup/outer/memory.current", "4194304\n"),
    ];
    assert_eq!(room("second", &second), (Some(MIB), Some(5 * MIB)));
    assert_eq!(room("inner", &second[..5]), (Some(4 * MIB), Some(6 * MIB)));
    assert_eq!(room("no-machine", &second[1..]), (Some(MIB), Some(5 * MIB)));
}

#[test]
fn the_first_version_and_a_container_that_sees_only_its_own_group() {
    let first = [
        MEMINFO,
        ("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:hugetlb,memory:/engine/of:colons\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3145728\n"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "2097152\n"),
        ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 1048576\n"),
    ];
    assert_eq!(room("first", &first), (Some(2 * MIB), Some(3 * MIB)));
}

/// The machine that this runs on says what it has.
#[test]
fn the_real_one() {
    let Room { free, total } = Room::of_process(Path::new("/"));
    assert!(free <= total, "{free:?} of {total:?}");
    if Path::new("/proc/meminfo").exists() {
        assert!(free.is_some() && total.is_some());
    }
}
