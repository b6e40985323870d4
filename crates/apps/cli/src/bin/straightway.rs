//! The `straightway` command as a program of its own.

use std::{ffi::OsString, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    straightway_cli::run(&args)
}
