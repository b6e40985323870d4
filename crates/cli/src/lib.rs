//! The `straightway` command.
//!
//! Each command is a file under `command/` with an `Args` (from which the help, the completions and
//! the man page come) and a `run` that answers with an exit code: 0 yes, 1 no, 2 error, 130
//! interrupted. Data goes to stdout, talk to stderr.
//!
//! A library, because the command exists twice: as a program of its own, and in the Python package.

mod command;
pub mod log;
pub mod stores;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use command::output::say;
use straightway_core::{Error, Kind, text::shown};
use straightway_scenario::check::Refusals;

/// Moves bytes between storage and memory by the straightest way, and says which way they went.
#[derive(Debug, Parser)]
#[command(name = "straightway", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Say more on stderr; twice or three times for more still.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(command::plan::Args),
    Sim(command::sim::Args),
    Copy(command::copy::Args),
    Load(command::load::Args),
    Inspect(command::inspect::Args),
    Ls(command::ls::Args),
    Rm(command::rm::Args),
    Rewrite(command::rewrite::Args),
    Checkpoint(command::checkpoint::Args),
    Target(command::target::Args),
    Bench(command::bench::Args),
    Doctor(command::doctor::Args),
    Completions(command::completions::Args),
    Man(command::completions::ManArgs),
}

/// Runs the command with these arguments, of which the first is its own name.
pub fn run(args: &[OsString]) -> ExitCode {
    // What a panic says may name a stranger's tensor.
    std::panic::set_hook(Box::new(|panic| {
        let trace = std::backtrace::Backtrace::capture();
        let has_trace = trace.status() == std::backtrace::BacktraceStatus::Captured;
        say(&format!(
            "{panic}{}",
            if has_trace {
                format!("\n{trace}")
            } else {
                String::new()
            }
        ));
    }));
    straightway_sys::limit::raise_open_files();
    straightway_sys::limit::survive_file_limit();
    let cli = parsed(args);
    if let Err(error) = command::verbosity::listen(cli.verbose) {
        return complain(&error.into());
    }
    let answer = match cli.command {
        Command::Plan(args) => command::plan::run(args),
        Command::Sim(args) => command::sim::run(args),
        Command::Copy(args) => command::copy::run(&args),
        Command::Load(args) => command::load::run(&args),
        Command::Inspect(args) => command::inspect::run(&args),
        Command::Ls(args) => command::ls::run(&args),
        Command::Rm(args) => command::rm::run(&args),
        Command::Rewrite(args) => command::rewrite::run(&args),
        Command::Checkpoint(args) => command::checkpoint::run(&args),
        Command::Target(args) => command::target::run(&args),
        Command::Bench(args) => command::bench::run(&args),
        Command::Doctor(args) => command::doctor::run(&args, cli.verbose > 0),
        Command::Completions(args) => command::completions::run::<Cli>(&args),
        Command::Man(args) => command::completions::run_man::<Cli>(&args),
    };
    let code = answer.unwrap_or_else(|error| complain(&error));
    straightway_sys::ending::end_at_once();
    code
}

/// An error and its causes in one line. Only refusals of a scenario have a line each; a line feed in any other
/// message is part of a name, and must not make a second line.
fn told(error: &anyhow::Error) -> String {
    let cause = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<Refusals>() {
        Some(refusals) => refusals.to_string(),
        None => shown(&cause.to_string()).into_owned(),
    };
    error.chain().map(cause).collect::<Vec<_>>().join(": ")
}

/// The command line. What is wrong with it is said of the arguments as they can be shown: one may be a name that a
/// shell's `*` found.
fn parsed(args: &[OsString]) -> Cli {
    Cli::try_parse_from(args).unwrap_or_else(|error| {
        let shown_args = args
            .iter()
            .map(|arg| shown(&arg.to_string_lossy()).into_owned());
        if let Err(same) = Cli::try_parse_from(shown_args) {
            same.exit();
        }
        // What was wrong is gone once it is escaped; the message still has it.
        say(&shown(&error.render().to_string()));
        std::process::exit(error.exit_code());
    })
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
    say(&format!("error: {}", told(error)));
    if let Some(hint) = ours.and_then(Error::hint) {
        say(&format!("hint: {hint}"));
    }
    match ours.map(Error::kind) {
        // 128 + SIGINT, as shells have it.
        Some(Kind::Cancelled) => ExitCode::from(130),
        _ => ExitCode::from(2),
    }
}
