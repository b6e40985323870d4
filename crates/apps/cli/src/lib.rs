//! The `straightway` command.
//!
//! Each command is described here, and is a file under `command/` with its `Args` and a `run` that returns an exit code:
//! 0 yes, 1 no, 2 error, 130 interrupted. Both are the source of the help, the completions and the man pages. Data goes
//! to stdout, messages to stderr.
//!
//! It is a library because the command exists twice: as a program, and in the Python package.

mod command;
mod deferred;
mod hint;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use command::output::say;
use deferred::Deferred;
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
    /// Plan a cluster: checkpoints, ingest, transports, architectures and more
    Plan(Deferred<command::plan::Args>),
    /// Simulate a machine's PCIe tree or a cluster's fabric, event by event
    Sim(Deferred<command::sim::Args>),
    /// Copy files and folders by the most direct route, and report the route taken.
    ///
    /// Each file appears under its name when it is complete and durable, or not at all. With `host:` or `cuda:0` as the
    /// target, the bytes are read into that memory and then discarded: this measures what a program that loads the file
    /// would wait for. `p2p:` and a PCI address is memory in a BAR of that device, which drives reach by peer-to-peer DMA.
    ///
    /// Symbolic links that leave a folder are followed, so that the snapshot of a model hub arrives as files; --links says
    /// otherwise. A copy that fails or is interrupted removes the folders that it made. A name that exists as it is written
    /// is not a pattern. `straightway cp` is the same command.
    #[command(alias = "cp")]
    Copy(Deferred<command::copy::Args>),
    /// Load a model's weights into memory, and report the route taken.
    ///
    /// The model is a safetensors file, a folder, or an index file. Only selected tensors are read. The weights are then
    /// discarded: this measures what a program that loads the model would wait for.
    Load(Deferred<command::load::Args>),
    /// Show a model's tensors and files, and how they would be loaded.
    ///
    /// Names, dtypes, shapes, sizes and alignment. Only headers are read. The routes shown depend on which parts of the
    /// files are in the page cache now.
    Inspect(Deferred<command::inspect::Args>),
    /// List the objects below a URI or folder, with their sizes and dates, and a total.
    ///
    /// Folders (common prefixes of keys) end with a slash. Names are printed page by page, and nothing is opened. Dates are
    /// in UTC. The size and the date of a symbolic link are those of its file. Control characters in names are escaped;
    /// --json has the exact names.
    Ls(Deferred<command::ls::Args>),
    /// Remove objects from an object store.
    ///
    /// A name is one object; with --recursive it is everything below it. With --dry-run, objects are listed and nothing is
    /// removed. Local files are not removed: use `rm`.
    Rm(Deferred<command::rm::Args>),
    /// Rewrite a model's files with their data on page boundaries.
    ///
    /// Tensors and metadata stay unchanged, and so do the names of the files, unless --shard-size divides the tensors among
    /// new ones. The new model appears when all of it is durable. The other files of a folder (configuration, tokenizer) are
    /// copied, except hidden ones and weights in other files, which the receipt names.
    Rewrite(Deferred<command::rewrite::Args>),
    /// List, check, compare, prune, export, restore and benchmark checkpoints.
    Checkpoint(Deferred<command::checkpoint::Args>),
    /// Show, check, measure and remove KV caches on disk.
    ///
    /// A KV cache is a folder with chunks of an inference engine's cache, found by key: bounded in bytes, checked on every
    /// load, and shared by processes. Rust programs create and use it through the crate `kv`.
    Kv(Deferred<command::kv::Args>),
    /// Serve files, folders and block devices over NVMe/TCP.
    ///
    /// Each file is a namespace of one subsystem, which Linux, SPDK and `nvme-tcp://` addresses of Straightway can read. It
    /// runs until it is interrupted, and then reports what each host did. Hosts cannot write unless --writable is given.
    /// Files that appear, grow or are replaced below a served folder are detected, and hosts are notified.
    Target(Deferred<command::target::Args>),
    /// Measure the drive behind PATH by each route, over block sizes and depths.
    ///
    /// Every point is a real transfer through the executor that `copy` uses. At the best point of each route, the route and
    /// its stages are then measured in turn, for `plan compare`. The result is stored as this machine's profile, which
    /// provides the defaults of later reads. An object by URI is read with several request sizes and numbers of requests in
    /// flight.
    Bench(Deferred<command::bench::Args>),
    /// Diagnose whether bytes can go directly into GPU memory and, if not, what prevents it.
    ///
    /// Examines the driver and platform, the fabric, and the file system and drives of PATH, then makes a real transfer.
    /// Problems come first, with the command that fixes each. Exits with 0 if the direct route is proven, 1 if it is not, 2
    /// on an error. For a bucket it reports whether it can be read, how fast, and what limits that; with --write, whether
    /// saves and copies to it are safe. For other objects by URI it reports whether they can be read, how fast, and the
    /// round trips, retransmits and stalls of the connections. With --verbose, checks that passed or do not apply are shown
    /// too.
    Doctor(Deferred<command::doctor::Args>),
    /// Write the completions for a shell to stdout.
    Completions(Deferred<command::completions::Args>),
    /// Write the man pages, one for each command, into a folder.
    Man(Deferred<command::completions::ManArgs>),
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
        Command::Plan(Deferred(args)) => command::plan::run(args),
        Command::Sim(Deferred(args)) => command::sim::run(args),
        Command::Copy(Deferred(args)) => command::copy::run(&args),
        Command::Load(Deferred(args)) => command::load::run(&args),
        Command::Inspect(Deferred(args)) => command::inspect::run(&args),
        Command::Ls(Deferred(args)) => command::ls::run(&args),
        Command::Rm(Deferred(args)) => command::rm::run(&args),
        Command::Rewrite(Deferred(args)) => command::rewrite::run(&args),
        Command::Checkpoint(Deferred(args)) => command::checkpoint::run(&args),
        Command::Kv(Deferred(args)) => command::kv::run(&args),
        Command::Target(Deferred(args)) => command::target::run(&args),
        Command::Bench(Deferred(args)) => command::bench::run(&args),
        Command::Doctor(Deferred(args)) => command::doctor::run(&args, cli.verbose > 0),
        Command::Completions(Deferred(args)) => command::completions::run::<Cli>(&args),
        Command::Man(Deferred(args)) => command::completions::run_man::<Cli>(&args),
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
