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
