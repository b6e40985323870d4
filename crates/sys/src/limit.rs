//! How much the system lets a process have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
