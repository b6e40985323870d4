//! The `straightway` command.
//!
//! Each command is a file under `command/` with an `Args` (from which the help, the completions and
//! the man page come) and a `run` that answers with an exit code: 0 yes, 1 no, 2 error. Data goes
//! to stdout, talk to stderr.

mod command;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// Moves bytes between storage and memory by the straightest way, and says which way they went.
#[derive(Debug, Parser)]
#[command(name = "straightway", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(command::plan::Args),
    Sim(command::sim::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Plan(args) => command::plan::run(args),
        Command::Sim(args) => command::sim::run(args),
    };
    done.unwrap_or_else(|error| refuse(&error))
}

/// Says what went wrong, and how to mend it where that is known.
fn refuse(error: &anyhow::Error) -> ExitCode {
    let mut stderr = io::stderr().lock();
    // A closed stderr leaves nobody to tell.
    _ = writeln!(stderr, "error: {error:#}");
    let known = error.downcast_ref::<straightway_core::Error>();
    if let Some(hint) = known.and_then(straightway_core::Error::hint) {
        _ = writeln!(stderr, "hint: {hint}");
    }
    ExitCode::from(2)
}
