//! Limits of memory and of CPU time that the process's control groups set, as containers and service managers do.

use std::path::{Path, PathBuf};

use super::tree::{Tree, field};

/// Where a version of control groups stores the memory limit.
struct Version {
    mount: &'static str,
    /// Controller in the process's list; version 2 has one list for all.
    controller: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Fields of `memory.stat` with file pages in bytes, which the kernel drops when memory is needed.
    reclaimable: [&'static str; 2],
}

const VERSIONS: [Version; 2] = [
    Version {
        mount: "sys/fs/cgroup",
        controller: "",
        limit: "memory.max",
        usage: "memory.current",
        reclaimable: ["inactive_file ", "active_file "],
    },
    Version {
        mount: "sys/fs/cgroup/memory",
        controller: "memory",
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        reclaimable: ["total_inactive_file ", "total_active_file "],
    },
];

/// Memory that the process may still use, in bytes, under the tightest limit of its groups; `None` if none
/// has a limit.
pub(super) fn available_bytes(tree: &Tree) -> Option<u64> {
    let groups = tree.text("proc/self/cgroup")?;
    let of_version = VERSIONS.iter().filter_map(|version| {
        let folders = folders(&groups, version.controller, version.mount)?;
        folders.filter_map(|folder| version.room(tree, &folder)).min()
    });
    of_version.min()
}

/// Whole CPUs that the process may keep busy, at least 1, under the tightest quota of its groups; `None` if
/// none has a quota.
pub(super) fn cpus(tree: &Tree) -> Option<usize> {
    let groups = tree.text("proc/self/cgroup")?;
    let read = |folder: &Path, name| tree.text(folder.join(name).to_str()?);
    let unified = folders(&groups, "", "sys/fs/cgroup").into_iter().flatten();
    let unified = unified.filter_map(|folder| whole_cpus(&read(&folder, "cpu.max")?));
    let of_controller = folders(&groups, "cpu", "sys/fs/cgroup/cpu").into_iter().flatten();
    let of_controller = of_controller.filter_map(|folder| {
        let [quota, period] = ["cpu.cfs_quota_us", "cpu.cfs_period_us"].map(|n| read(&folder, n));
        whole_cpus(&format!("{} {}", quota?, period?))
    });
    unified.chain(of_controller).min()
}

/// Whole CPUs of a quota and a period in microseconds, at least 1. `None` if there is no quota (`max`, or -1), or the
/// text cannot be read.
///
/// Threads that wait for others spin. One thread more than the quota allows would use up the time of all, and they
/// would stand still until the next period begins: fractions of a CPU do not count.
fn whole_cpus(text: &str) -> Option<usize> {
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    let (quota, period) = (fields.next()?.ok()?, fields.next()?.ok()?);
    usize::try_from(quota.checked_div(period)?.max(1)).ok()
}

/// Folder of the process's group in the hierarchy with this controller, and the folders of the groups above it.
fn folders<'a>(
    groups: &'a str,
    controller: &str,
    mount: &'a str,
) -> Option<impl Iterator<Item = PathBuf> + 'a> {
    let path = group(groups, controller)?;
    // In a container the path may be the host's, and the container's own group is the mount.
    let above = Path::new(path.trim_start_matches('/')).ancestors();
    Some(above.map(move |group| Path::new(mount).join(group)))
}

/// The process's group in the hierarchy with this controller, from the text of `/proc/self/cgroup`.
fn group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

impl Version {
    /// Memory left in the group in `folder`; `None` if it has no limit.
    fn room(&self, tree: &Tree, folder: &Path) -> Option<u64> {
        let read = |name| tree.text(folder.join(name).to_str()?);
        let number = |name| read(name)?.parse::<u64>().ok();
        let (limit, usage) = (number(self.limit)?, number(self.usage)?);
        let stat = read("memory.stat").unwrap_or_default();
        let files: u64 = self.reclaimable.iter().filter_map(|name| field(&stat, name)).sum();
        Some(limit.saturating_sub(usage.saturating_sub(files)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_group_of_each_version_is_found() {
        let groups = "9:name=systemd:/\n4:cpu,memory:/a/b:c\n0::/user.slice\n";
        assert_eq!(group(groups, "memory"), Some("/a/b:c"));
        assert_eq!(group(groups, ""), Some("/user.slice"));
        assert_eq!(group("1:cpu:/\n", "memory"), None);
    }

    #[test]
    fn what_a_group_leaves_counts_files_as_free() {
        let folder = std::env::temp_dir().join(format!("leap-cgroup-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let room = |limit: &str| {
            for (name, text) in [
                ("memory.max", limit),
                ("memory.current", "700\n"),
                ("memory.stat", "anon 300\ninactive_file 250\nactive_file 150\n"),
            ] {
                fs::write(folder.join(name), text).unwrap();
            }
            VERSIONS[0].room(&Tree::new(&folder), Path::new(""))
        };
        assert_eq!(["1000\n", "200\n", "max\n"].map(room), [Some(700), Some(0), None]);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(VERSIONS[0].room(&Tree::new(&folder), Path::new("")), None);
    }

    #[test]
    fn a_quota_of_time_is_whole_cpus() {
        for (text, cpus) in [
            ("200000 100000", Some(2)),
            ("250000 100000", Some(2)),
            ("5000 100000", Some(1)),
            ("18446744073709551615 1", Some(usize::MAX)),
            ("max 100000", None),
            ("-1 100000", None),
            ("200000 0", None),
            ("200000", None),
            ("", None),
        ] {
            assert_eq!(whole_cpus(text), cpus, "{text:?}");
        }
    }

    #[test]
    fn the_tightest_quota_above_the_process_counts() {
        let root = std::env::temp_dir().join(format!("leap-cgroup-cpu-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let tree = Tree::new(&root);
        assert_eq!(cpus(&tree), None);
        write("proc/self/cgroup", "0::/box.slice/job\n");
        assert_eq!(cpus(&tree), None);
        write("sys/fs/cgroup/box.slice/job/cpu.max", "max 100000\n");
        write("sys/fs/cgroup/box.slice/cpu.max", "300000 100000\n");
        assert_eq!(cpus(&tree), Some(3));
        // In a container, whose own group is the mount.
        write("sys/fs/cgroup/cpu.max", "150000 100000\n");
        assert_eq!(cpus(&tree), Some(1));
        // Version 1.
        write("proc/self/cgroup", "3:cpuset:/x\n2:cpu,cpuacct:/a/b\n");
        assert_eq!(cpus(&tree), None);
        write("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
        write("sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
        assert_eq!(cpus(&tree), None);
        write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n");
        write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000\n");
        assert_eq!(cpus(&tree), Some(2));
        fs::remove_dir_all(&root).unwrap();
    }
}
