//! How much the system lets a process have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::root::Root;

/// Raises the number of files that may be open at once as far as it goes without asking anyone.
///
/// The usual 1024 is kept low for programs that use `select(2)`, which this one does not; a file
/// here takes two descriptors, and a model has hundreds of files.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Refusal leaves what there was, and a file too many has its own error.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Descriptors that are left to others when files are opened together: lanes start, libraries open what they need.
const SPARE_DESCRIPTORS: u64 = 32;

/// How many files may be open together, each with so many descriptors: `most`, or fewer where the limit of the process is
/// near. At least one.
///
/// Counting open descriptors takes tens of microseconds, so a few files are not checked: they fit into what is spared.
pub fn files_at_once(descriptors_each: u64, most: usize) -> usize {
    if (most as u64).saturating_mul(descriptors_each) <= SPARE_DESCRIPTORS {
        return most.max(1);
    }
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return most;
    };
    // A process that cannot see its descriptors is taken to have few.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64);
    let free = limit.saturating_sub(open + SPARE_DESCRIPTORS);
    usize::try_from(free / descriptors_each).map_or(most, |files| files.clamp(1, most))
}

/// What helps where no more files can be opened.
pub fn open_files_hint() -> String {
    let limit = getrlimit(Resource::Nofile);
    let shown = |limit: Option<u64>| limit.map_or("any number of".to_owned(), |n| n.to_string());
    let now = shown(limit.current);
    if limit.current == limit.maximum {
        return format!(
            "{now} files may be open at once, and that is the hard limit: raise it where the program is started from \
             (LimitNOFILE= in a unit, `docker run --ulimit nofile=65536`, /etc/security/limits.conf)"
        );
    }
    let most = shown(limit.maximum);
    format!(
        "{now} files may be open at once: run `ulimit -n {most}` in the shell that starts the program"
    )
}

/// Makes a file that grows beyond what it may be an error of that write (`EFBIG`), which can be told and cleaned up
/// after, instead of the end of the process.
pub fn survive_file_limit() {
    // SAFETY: nothing runs on the signal from here on, and nothing else is changed.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// How much memory a process could still be given: what is free or could be, and no more than its control group may
/// have. `None` where the machine does not say.
pub fn available_memory(root: &Root) -> Option<u64> {
    let text = root.text("/proc/meminfo")?;
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib << 10)
    };
    let free = field("MemAvailable:")?.saturating_add(field("SwapFree:").unwrap_or(0));
    // A container sees its own group here; `max` is no number.
    let own: Option<u64> = root.value("/sys/fs/cgroup/memory.max");
    Some(own.map_or(free, |own| own.min(free)))
}
