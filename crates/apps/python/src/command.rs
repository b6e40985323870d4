//! The `straightway` command, for the script that the package installs.

use std::{ffi::OsString, io::Write, process::ExitCode};

use pyo3::prelude::*;

/// Runs the command with these arguments, the first of which is its own name, and returns its exit code. The process
/// must do nothing else: the command sets hooks, limits and the log.
#[pyfunction]
#[expect(clippy::disallowed_methods, reason = "nothing is written, only flushed")]
pub(crate) fn command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    let code = py.detach(|| {
        let code = straightway_cli::run(&args);
        // A Rust program does this at its end. A closed pipe is not an error: the reader has seen enough.
        let _ = std::io::stdout().flush();
        code
    });
    // `ExitCode` does not expose its number: compare.
    let is_it = |number: &u8| ExitCode::from(*number) == code;
    (0..=u8::MAX).find(is_it).unwrap_or(2)
}
