//! The `straightway` command.
//!
//! Each command is a file under `command/` with an `Args` (from which the help, the completions and
//! the man page come) and a `run` that answers with an exit code: 0 yes, 1 no, 2 error, 130
//! interrupted. Data goes to stdout, talk to stderr.

mod command;

use std::{io::Write, process::ExitCode};

use clap::{Parser, Subcommand};
use straightway_core::{Error, Kind};

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
    Copy(command::copy::Args),
    Load(command::load::Args),
    Inspect(command::inspect::Args),
    Rewrite(command::rewrite::Args),
    Checkpoint(command::checkpoint::Args),
    Bench(command::bench::Args),
    Doctor(command::doctor::Args),
    Completions(command::completions::Args),
    Man(command::completions::ManArgs),
}

fn main() -> ExitCode {
    straightway_sys::limit::raise_open_files();
    straightway_sys::limit::survive_file_limit();
    let answer = match Cli::parse().command {
        Command::Plan(args) => command::plan::run(args),
        Command::Sim(args) => command::sim::run(args),
        Command::Copy(args) => command::copy::run(&args),
        Command::Load(args) => command::load::run(&args),
        Command::Inspect(args) => command::inspect::run(&args),
        Command::Rewrite(args) => command::rewrite::run(&args),
        Command::Checkpoint(args) => command::checkpoint::run(&args),
        Command::Bench(args) => command::bench::run(&args),
        Command::Doctor(args) => command::doctor::run(&args),
        Command::Completions(args) => command::completions::run::<Cli>(&args),
        Command::Man(args) => command::completions::run_man::<Cli>(&args),
    };
    let code = answer.unwrap_or_else(|error| complain(&error));
    straightway_sys::ending::end_at_once();
    code
}

/// Says what went wrong and what to do about it, and answers with the exit code for it.
fn complain(error: &anyhow::Error) -> ExitCode {
    let ours = error.downcast_ref::<Error>();
    // A reader that went away (`| head`) has seen what it wanted.
    let plain = error
        .downcast_ref::<std::io::Error>()
        .map(std::io::Error::kind);
    let json = error.downcast_ref::<serde_json::Error>();
    let cause = plain.or_else(|| json.and_then(serde_json::Error::io_error_kind));
    if cause == Some(std::io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let mut talk = std::io::stderr().lock();
    // If stderr is gone, the exit code is all that is left to say it with.
    let _ = writeln!(talk, "error: {error:#}");
    if let Some(hint) = ours.and_then(Error::hint) {
        let _ = writeln!(talk, "hint: {hint}");
    }
    match ours.map(Error::kind) {
        // 128 + SIGINT, as shells have it.
        Some(Kind::Cancelled) => ExitCode::from(130),
        _ => ExitCode::from(2),
    }
}
