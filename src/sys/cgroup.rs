//! Limits of memory that the process's control groups set, as containers and service managers do.

use std::path::Path;

use super::tree::{Tree, field};

/// Where a version of control groups has what.
struct Version {
    mount: &'static str,
    /// Controller in the process's list; version 2 has one list for all.
    controller: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Pages of files, which make room for others when it is needed.
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

/// Memory that the process may still use, in bytes: what the tightest group above it leaves; `None`
/// if none has a limit.
pub(super) fn available_bytes(tree: &Tree) -> Option<u64> {
    let groups = tree.text("proc/self/cgroup")?;
    let of_version = VERSIONS.iter().filter_map(|version| {
        let path = group(&groups, version.controller)?;
        // In a container the path may be the host's, and the container's own group is the mount.
        let above = Path::new(path.trim_start_matches('/')).ancestors();
        above.filter_map(|group| version.room(tree, &Path::new(version.mount).join(group))).min()
    });
    of_version.min()
}

/// The process's group in the hierarchy with this controller, of `/proc/self/cgroup`.
fn group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

impl Version {
    /// What the group in `folder` leaves; `None` if it has no limit.
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
}
