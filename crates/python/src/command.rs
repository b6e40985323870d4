//! The `straightway` command, for the script that the package installs.

use std::{ffi::OsString, io::Write, process::ExitCode};

use pyo3::prelude::*;

/// Runs the command with these arguments, of which the first is its own name, and answers with its exit code. The
/// process is the command's alone: it sets its own hooks, limits and log.
#[pyfunction]
#[expect(
    clippy::disallowed_methods,
    reason = "nothing is written, only flushed"
)]
pub(crate) fn command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    let code = py.detach(|| {
        let code = straightway_cli::run(&args);
        // Rust does this where a program of its own ends. A reader that went away has seen what it wanted.
        let _ = std::io::stdout().flush();
        code
    });
    // The number of an exit code can only be found by comparing.
    let is_it = |number: &u8| ExitCode::from(*number) == code;
    (0..=u8::MAX).find(is_it).unwrap_or(2)
}
