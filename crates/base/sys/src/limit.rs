//! Resource limits of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to the hard limit.
///
/// The usual soft limit of 1024 protects programs that use `select(2)`, which this one does not. A file
/// here takes two descriptors, and a model has hundreds of files.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // On failure the limit stays, and opening too many files is an error of its own.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Descriptors that are left free when many files are opened: lanes and libraries need some.
const SPARE_DESCRIPTORS: u64 = 32;

/// The number of files to open at once: `most`, or fewer if the process is near its limit. At least one. Each file
/// takes `descriptors_each` descriptors.
///
/// Counting open descriptors takes tens of microseconds. A few files are therefore not checked: they fit into the spare
/// descriptors.
pub fn files_at_once(descriptors_each: u64, most: usize) -> usize {
    if (most as u64).saturating_mul(descriptors_each) <= SPARE_DESCRIPTORS {
        return most.max(1);
    }
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return most;
    };
    // If the descriptors cannot be listed, few are assumed to be open.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64);
    let free = limit.saturating_sub(open + SPARE_DESCRIPTORS);
    usize::try_from(free / descriptors_each).map_or(most, |files| files.clamp(1, most))
}

/// The hint for an error about too many open files.
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
    format!("{now} files may be open at once: run `ulimit -n {most}` in the shell that starts the program")
}

/// Ignores SIGXFSZ, so that a write beyond the file size limit fails with `EFBIG`, which can be reported and cleaned
/// up, instead of killing the process.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal runs no code and changes nothing else.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
