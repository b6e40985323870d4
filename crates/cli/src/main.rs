//! The `straightway` command.
//!
//! Each command is a file under `command/` with an `Args` (from which the help, the completions and
//! the man page come) and a `run` that answers with an exit code: 0 yes, 1 no, 2 error. Data goes
//! to stdout, talk to stderr.

mod command;

use std::process::ExitCode;

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
    Doctor(command::doctor::Args),
}

fn main() -> ExitCode {
    let answer = match Cli::parse().command {
        Command::Doctor(args) => command::doctor::run(&args),
    };
    answer.unwrap_or_else(|error| {
        #[expect(
            clippy::print_stderr,
            reason = "errors are talk, and talk goes to stderr"
        )]
        {
            eprintln!("error: {error:#}");
        }
        ExitCode::from(2)
    })
}
