//! The `straightway` command.
//!
//! Each command is a file under `command/` with an `Args` (the source of the help, the completions and the man page)
//! and a `run` that returns an exit code: 0 yes, 1 no, 2 error, 130 interrupted. Data goes to stdout, messages to
//! stderr.
//!
//! It is a library because the command exists twice: as a program, and in the Python package.

mod command;
mod hint;
pub mod log;
pub mod stores;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use command::output::say;
use straightway_core::{Error, ErrorKind, text::shown};
use straightway_scenario::check::Refusals;

/// Moves bytes between storage and memory by the most direct route, and reports the route taken.
#[derive(Debug, Parser)]
#[command(name = "straightway", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print more to stderr; repeat (-vv, -vvv) for more detail.
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

/// Runs the command with these arguments, the first of which is its own name.
pub fn run(args: &[OsString]) -> ExitCode {
    // The message of a panic is escaped: it may contain an untrusted name.
    std::panic::set_hook(Box::new(|panic| {
        let trace = std::backtrace::Backtrace::capture();
        let has_trace = trace.status() == std::backtrace::BacktraceStatus::Captured;
        say(&format!(
            "{panic}{}",
            if has_trace { format!("\n{trace}") } else { String::new() }
        ));
    }));
    straightway_sys::limit::raise_open_files();
    straightway_sys::limit::ignore_file_size_signal();
    let cli = parsed(args);
    if let Err(error) = command::verbosity::listen(cli.verbose) {
        return report_error(&error.into());
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
    let code = answer.unwrap_or_else(|error| report_error(&error));
    straightway_sys::ending::skip_exit_handlers();
    code
}

/// An error and its causes in one line. Only refusals of a scenario have a line each. A line feed in any other message
/// is part of a name, and is escaped.
fn error_line(error: &anyhow::Error) -> String {
    let cause = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<Refusals>() {
        Some(refusals) => refusals.to_string(),
        None => shown(&cause.to_string()).into_owned(),
    };
    error.chain().map(cause).collect::<Vec<_>>().join(": ")
}

/// Parses the command line. Errors are reported about the escaped arguments: one may be an untrusted name that a
/// shell's
/// `*` matched.
fn parsed(args: &[OsString]) -> Cli {
    Cli::try_parse_from(args).unwrap_or_else(|error| {
        let shown_args = args.iter().map(|arg| shown(&arg.to_string_lossy()).into_owned());
        if let Err(same) = Cli::try_parse_from(shown_args) {
            same.exit();
        }
        // The escaped arguments are valid: print the escaped message of the original error.
        say(&shown(&error.render().to_string()));
        std::process::exit(error.exit_code());
    })
}

/// Prints an error with its hint, and returns the exit code.
fn report_error(error: &anyhow::Error) -> ExitCode {
    let ours = error.downcast_ref::<Error>();
    // A closed pipe (`| head`) is not an error.
    let plain = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    let json = error.downcast_ref::<serde_json::Error>();
    let cause = plain.or_else(|| json.and_then(serde_json::Error::io_error_kind));
    if cause == Some(std::io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    say(&format!("error: {}", error_line(error)));
    if let Some(hint) = ours.and_then(hint::hint) {
        say(&format!("hint: {hint}"));
    }
    match ours.map(Error::kind) {
        Some(ErrorKind::Cancelled) => ExitCode::from(command::interrupt::INTERRUPTED),
        _ => ExitCode::from(2),
    }
}
