//! The memory that this process can still use: what the machine has available, and what its control groups allow.
//!
//! The kernel does not refuse memory beyond the limit of a control group. It kills a process of the group when the
//! memory is used. So an allocation has to be compared with the limits first: that of the group of this process, and
//! that of each group around it. A container sees its own group only, as the root of the mount.
//!
//! Page cache counts as used by a group, but the kernel evicts it before it kills anything. Swap counts as free, as far
//! as the group may use it.

use std::{
    fmt,
    path::{Component, Path, PathBuf},
    time::{Duration, Instant},
};

use straightway_core::{Bytes, Lock};

use crate::{
    mount::{Mount, Mounts},
    root::Root,
};

/// Version 1 reports about this much if a group has no limit.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// The memory that a process can still use, by the limit that leaves the least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// The number of bytes.
    pub bytes: u64,
    /// The limit of a control group that leaves this much. `None` if it is the machine that has no more.
    pub limit: Option<GroupLimit>,
}

/// The memory limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// The file with the limit.
    pub file: PathBuf,
    /// The limit.
    pub bytes: u64,
}

impl fmt::Display for GroupLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", Bytes(self.bytes), self.file.display())
    }
}

impl FreeMemory {
    /// The memory that is left by the machine of a root and by the control groups of this process there. `None` if the
    /// machine does not report it.
    pub fn of(root: &Root) -> Option<Self> {
        let machine = Self::of_machine(root)?;
        let groups = root
            .text(MEMBERSHIP)
            .and_then(|membership| Groups::of(root, membership));
        let limited = groups.and_then(|groups| groups.least(root));
        Some(match limited {
            Some(limited) if limited.bytes < machine.bytes => limited,
            _ => machine,
        })
    }

    /// What the machine of a root has available, whatever control groups allow. `None` if it does not report it.
    pub(crate) fn of_machine(root: &Root) -> Option<Self> {
        let bytes = machine_bytes(root)?;
        Some(Self { bytes, limit: None })
    }

    /// The memory that the control groups of this process leave it. `None` if none has a limit, or had one a moment ago.
    pub fn in_groups() -> Option<Self> {
        static KNOWN: Lock<Known> = Lock::new(Known {
            groups: None,
            unlimited_since: None,
        });
        let root = Root::machine();
        let mut known = KNOWN.lock();
        let is_recent = |since: Instant| since.elapsed() < UNLIMITED_TIME;
        if known.unlimited_since.is_some_and(is_recent) {
            return None;
        }
        // Finding the groups takes longer than reading their limits. They are found again if the process was moved.
        let membership = root.text(MEMBERSHIP)?;
        if known
            .groups
            .as_ref()
            .is_none_or(|groups| groups.membership != membership)
        {
            known.groups = Groups::of(&root, membership);
        }
        let least = known.groups.as_ref()?.least(&root);
        known.unlimited_since = least.is_none().then(Instant::now);
        least
    }
}

/// What is known about the control groups of this process.
struct Known {
    groups: Option<Groups>,
    /// When they were found to have no limit.
    unlimited_since: Option<Instant>,
}

/// The time for which groups without a limit are not asked again. A small load makes several checks in a few
/// milliseconds.
const UNLIMITED_TIME: Duration = Duration::from_millis(100);

/// Available memory and free swap.
fn machine_bytes(root: &Root) -> Option<u64> {
    let text = root.text(MEMORY)?;
    Some(field_kib(&text, "MemAvailable:")?.saturating_add(field_kib(&text, "SwapFree:").unwrap_or(0)))
}

const MEMORY: &str = "/proc/meminfo";

/// A field of a file such as /proc/meminfo, in bytes.
fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// The file that names the control groups of this process.
const MEMBERSHIP: &str = "/proc/self/cgroup";

/// The control groups that limit the memory of this process.
#[derive(Debug)]
struct Groups {
    /// The text that names them.
    membership: String,
    /// The folder of each, innermost first.
    folders: Vec<(Version, PathBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Groups {
    /// The groups that the text `membership` names.
    fn of(root: &Root, membership: String) -> Option<Self> {
        let mounts = Mounts::read(root).ok()?;
        let mut folders = Vec::new();
        for line in membership.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            let version = match controllers {
                "" => Version::Two,
                _ if controllers.split(',').any(|name| name == "memory") => Version::One,
                _ => continue,
            };
            if let Some(mount) = mounts.iter().find(|mount| version.is_at(mount)) {
                folders.extend(folders_of(mount, Path::new(path)).map(|folder| (version, folder)));
            }
        }
        Some(Self { membership, folders })
    }

    /// What the limit leaves that leaves the least.
    fn least(&self, root: &Root) -> Option<FreeMemory> {
        let left = self
            .folders
            .iter()
            .flat_map(|(version, folder)| version.left_by(root, folder));
        left.min_by_key(|free| free.bytes)
    }
}

/// The folder of a group below its mount point, and those of the groups around it.
fn folders_of<'a>(mount: &'a Mount, group: &Path) -> impl Iterator<Item = PathBuf> + use<'a> {
    let is_plain = |path: &&Path| !path.components().any(|part| part == Component::ParentDir);
    // In a container without its own namespace of groups, the mount begins at the container's group. A group outside
    // the mount cannot be seen.
    let inside = group.strip_prefix(&mount.root).ok().filter(is_plain);
    let folder = mount.point.join(inside.unwrap_or(Path::new("")));
    let mut next = Some(folder);
    std::iter::from_fn(move || {
        let folder = next.take()?;
        next = folder
            .parent()
            .filter(|parent| parent.starts_with(&mount.point))
            .map(Path::to_owned);
        Some(folder)
    })
}

impl Version {
    fn is_at(self, mount: &Mount) -> bool {
        match self {
            Self::One => mount.file_system == "cgroup" && mount.option("memory").is_some(),
            Self::Two => mount.file_system == "cgroup2",
        }
    }

    /// What each limit of a group leaves.
    fn left_by(self, root: &Root, folder: &Path) -> Vec<FreeMemory> {
        let value = |name: &str| {
            root.value::<u64>(folder.join(name))
                .filter(|bytes| *bytes < NO_LIMIT_BYTES)
        };
        // Beyond `memory.high` a process is not killed, but it stands still.
        let (limits, usage) = match self {
            Self::One => (&["memory.limit_in_bytes"][..], "memory.usage_in_bytes"),
            Self::Two => (&["memory.max", "memory.high"][..], "memory.current"),
        };
        let limits: Vec<_> = limits.iter().filter_map(|name| Some((*name, value(name)?))).collect();
        if limits.is_empty() {
            return Vec::new();
        }
        let Some(used) = value(usage) else {
            return Vec::new();
        };
        let evictable = evictable_bytes(root, folder);
        let used = used.saturating_sub(evictable);
        let text = root.text(MEMORY).unwrap_or_default();
        let swap_free = field_kib(&text, "SwapFree:").unwrap_or(0);
        let left = |limit: u64| match self {
            Self::One => {
                let left = limit.saturating_sub(used).saturating_add(swap_free);
                // This limit covers memory and swap together.
                let both = value("memory.memsw.limit_in_bytes").zip(value("memory.memsw.usage_in_bytes"));
                both.map_or(left, |(limit, used)| {
                    left.min(limit.saturating_sub(used.saturating_sub(evictable)))
                })
            }
            Self::Two => {
                let swap = value("memory.swap.max").map_or(swap_free, |most| {
                    swap_free.min(most.saturating_sub(value("memory.swap.current").unwrap_or(0)))
                });
                limit.saturating_sub(used).saturating_add(swap)
            }
        };
        let free = |(name, bytes): (&str, u64)| FreeMemory {
            bytes: left(bytes),
            limit: Some(GroupLimit {
                file: folder.join(name),
                bytes,
            }),
        };
        limits.into_iter().map(free).collect()
    }
}

/// The memory of a group and the groups inside it that the kernel can take back: page cache and caches of its own.
fn evictable_bytes(root: &Root, folder: &Path) -> u64 {
    let text = root.text(folder.join("memory.stat")).unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found?.trim().parse().ok()
    };
    ["active_file", "inactive_file", "slab_reclaimable"]
        .into_iter()
        // Version 1 has a field for the group alone, and one with this prefix for the groups inside it too.
        .filter_map(|name| field(&format!("total_{name}")).or_else(|| field(name)))
        .sum()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A machine with 64 GiB available, and these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let all = [("proc/meminfo", "MemAvailable: 67108864 kB\nSwapFree: 0 kB\n")];
        for (name, text) in all.iter().chain(files) {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::at(folder.path());
        (folder, root)
    }

    fn limited(files: &[(&str, &str)]) -> (u64, Option<String>) {
        let (_folder, root) = machine(files);
        let free = FreeMemory::of(&root).unwrap();
        (free.bytes, free.limit.map(|limit| limit.file.display().to_string()))
    }

    const V2: (&str, &str) = (
        "proc/self/mountinfo",
        "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    );
    const IN_V2: (&str, &str) = ("proc/self/cgroup", "0::/pods/mine\n");

    #[test]
    fn the_limit_of_a_group_leaves_what_is_not_used_apart_from_page_cache() {
        let (bytes, file) = limited(&[
            V2,
            IN_V2,
            ("sys/fs/cgroup/pods/mine/memory.max", "1000000000\n"),
            ("sys/fs/cgroup/pods/mine/memory.high", "max\n"),
            ("sys/fs/cgroup/pods/mine/memory.current", "700000000\n"),
            (
                "sys/fs/cgroup/pods/mine/memory.stat",
                "anon 300000000\nfile 390000000\ninactive_file 250000000\nactive_file 100000000\nslab_reclaimable \
                 10000000\n",
            ),
        ]);
        assert_eq!(bytes, 1_000_000_000 - (700_000_000 - 360_000_000));
        assert_eq!(file.unwrap(), "/sys/fs/cgroup/pods/mine/memory.max");
    }

    #[test]
    fn the_limits_of_the_groups_around_it_count_too() {
        let files = [
            V2,
            IN_V2,
            ("sys/fs/cgroup/pods/mine/memory.max", "max\n"),
            ("sys/fs/cgroup/pods/mine/memory.current", "0\n"),
            ("sys/fs/cgroup/pods/memory.max", "2000\n"),
            ("sys/fs/cgroup/pods/memory.high", "1500\n"),
            ("sys/fs/cgroup/pods/memory.current", "1000\n"),
        ];
        let around = Some("/sys/fs/cgroup/pods/memory.high".to_owned());
        assert_eq!(limited(&files), (500, around));
        assert_eq!(limited(&files[..4]), (64 << 30, None), "no limit");
        assert_eq!(limited(&files[..1]), (64 << 30, None), "no groups");
    }

    #[test]
    fn swap_that_a_group_may_use_counts_as_free() {
        let files = |swap_max: &'static str| {
            limited(&[
                V2,
                IN_V2,
                ("proc/meminfo", "MemAvailable: 67108864 kB\nSwapFree: 1000 kB\n"),
                ("sys/fs/cgroup/pods/mine/memory.max", "3000000\n"),
                ("sys/fs/cgroup/pods/mine/memory.current", "1000000\n"),
                ("sys/fs/cgroup/pods/mine/memory.swap.max", swap_max),
                ("sys/fs/cgroup/pods/mine/memory.swap.current", "100\n"),
            ])
            .0
        };
        assert_eq!(files("max"), 2_000_000 + 1_024_000);
        assert_eq!(files("5000"), 2_000_000 + 4900);
        assert_eq!(files("0"), 2_000_000);
    }

    #[test]
    fn a_group_of_version_1_is_found_below_its_mount_or_as_the_root_of_it() {
        let limits = [
            ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "3000\n"),
            (
                "sys/fs/cgroup/memory/docker/x/memory.stat",
                "inactive_file 1\ntotal_inactive_file 1500\ntotal_active_file 500\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "700\n"),
        ];
        let host = [
            ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/x\n0::/\n"),
            (
                "proc/self/mountinfo",
                "29 1 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup \
                 cgroup rw,memory\n",
            ),
        ];
        let file = "/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes";
        assert_eq!(limited(&[&host[..], &limits].concat()), (4000, Some(file.to_owned())));
        // The mount of a container begins at its group.
        let container = [
            host[0],
            (
                "proc/self/mountinfo",
                "30 1 0:26 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
        ];
        let file = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(limited(&container), (8000, Some(file.to_owned())));
    }

    #[test]
    fn swap_and_memory_together_are_limited_in_version_1() {
        let (bytes, _) = limited(&[
            ("proc/self/cgroup", "4:memory:/x\n"),
            (
                "proc/self/mountinfo",
                "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("proc/meminfo", "MemAvailable: 67108864 kB\nSwapFree: 1000 kB\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "3000000\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1000000\n"),
            ("sys/fs/cgroup/memory/x/memory.memsw.limit_in_bytes", "3500000\n"),
            ("sys/fs/cgroup/memory/x/memory.memsw.usage_in_bytes", "1000000\n"),
        ]);
        assert_eq!(bytes, 2_500_000);
    }

    #[test]
    fn a_group_outside_the_mount_is_taken_for_the_root_of_it() {
        let (bytes, file) = limited(&[
            V2,
            ("proc/self/cgroup", "0::/../other\n"),
            ("sys/fs/cgroup/memory.max", "3000\n"),
            ("sys/fs/cgroup/memory.current", "1000\n"),
        ]);
        assert_eq!((bytes, file), (2000, Some("/sys/fs/cgroup/memory.max".to_owned())));
    }
}
