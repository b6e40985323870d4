//! The `straightway` command.
//!
//! Each command is described here, and is a file under `command/` with its `Args` and a `run` that returns an exit code:
//! 0 yes, 1 no, 2 error, 130 interrupted. Both are the source of the help, the completions and the man pages, with the
//! examples of `examples.txt`. Data goes to stdout, messages to stderr.
//!
//! It is a library because the command exists twice: as a program, and in the Python package.

mod command;
mod deferred;
pub mod examples;
mod hint;
mod section;
mod usage;

use std::{ffi::OsString, process::ExitCode};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use command::{
    invocation::{ColourChoice, Invocation},
    output::{say, say_json_error},
};
use deferred::Deferred;
use straightway_core::{Error, ErrorKind, text::shown};
use straightway_scenario::check::Refusals;

/// The version, with the commit if this was built in a checkout.
const VERSION: &str = env!("VERSION_WITH_COMMIT");

/// Moves bytes between storage and memory by the most direct route, and reports the route taken.
#[derive(Debug, Parser)]
#[command(name = "straightway", version = VERSION, max_term_width = 100, after_help = examples::help(""))]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print more to stderr; repeat (-vv, -vvv) for more detail.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    /// When to use colours: `auto`, `always` or `never`.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        default_value = "auto",
        hide_possible_values = true
    )]
    color: ColourChoice,
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
    /// Show or clear the drive profile and what transfers have learned.
    ///
    /// `straightway bench` writes the profile. It provides the defaults of later reads, and receipts name it.
    Profile(Deferred<command::profile::Args>),
    /// Write the completions for a shell to stdout.
    ///
    /// They complete commands, options, the words that an option takes, scenarios and devices. The examples show where
    /// each shell looks for them; the folder must exist. A new shell uses them.
    Completions(Deferred<command::completions::Args>),
    /// Write the man pages, one for each command, into a folder.
    ///
    /// `man straightway-copy` finds them below a folder of `manpath`, in `man1`: for all users
    /// /usr/local/share/man/man1, for one user ~/.local/share/man/man1.
    Man(Deferred<command::man::Args>),
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
    Invocation::begin(args);
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
        Command::Profile(Deferred(args)) => command::profile::run(&args),
        Command::Completions(Deferred(args)) => command::completions::run::<Cli>(&args),
        Command::Man(Deferred(args)) => command::man::run::<Cli>(&args),
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
/// shell's `*` matched.
fn parsed(args: &[OsString]) -> Cli {
    let invocation = Invocation::current();
    let parse = |args: Vec<OsString>| {
        let mut matches = Cli::command()
            .color(invocation.for_parser())
            .try_get_matches_from(args)?;
        invocation.set_command(command_of(&matches));
        Cli::from_arg_matches_mut(&mut matches)
    };
    parse(args.to_vec()).unwrap_or_else(|error| {
        let escaped = args.iter().map(|arg| shown(&arg.to_string_lossy()).into_owned().into());
        let same = parse(escaped.collect()).err();
        let is_error = error.use_stderr();
        if invocation.is_json && is_error {
            let text = same.as_ref().unwrap_or(&error).render().to_string();
            say_json_error(&shown(parser_message(&text)), parser_hint(&text).as_deref(), "usage");
            std::process::exit(error.exit_code());
        }
        if let Some(same) = same {
            usage::with_near_suggestions_only(same).exit();
        }
        // The escaped arguments are valid: print the escaped message of the original error.
        say(&shown(&error.render().to_string()));
        std::process::exit(error.exit_code());
    })
}

/// The words of the command that runs, joined by hyphens: `plan-s3`.
fn command_of(matches: &ArgMatches) -> String {
    let mut words = Vec::new();
    let mut at = matches;
    while let Some((word, below)) = at.subcommand() {
        words.push(word);
        at = below;
    }
    words.join("-")
}

/// The message of the argument parser: its first paragraph, in one line, without the label.
fn parser_message(text: &str) -> &str {
    let first = text.split("\n\n").next().unwrap_or(text);
    first.trim_start_matches("error: ").trim()
}

/// The tips of the argument parser.
fn parser_hint(text: &str) -> Option<String> {
    let tips: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tip: "))
        .collect();
    (!tips.is_empty()).then(|| shown(&tips.join("; ")).into_owned())
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
    let hint = ours.and_then(hint::hint);
    if Invocation::current().is_json {
        let kind = ours.map_or("other", |error| error.kind().name());
        say_json_error(&error_line(error), hint.as_deref(), kind);
    } else {
        say(&format!("error: {}", error_line(error)));
        if let Some(hint) = hint {
            say(&format!("hint: {hint}"));
        }
    }
    match ours.map(Error::kind) {
        Some(ErrorKind::Cancelled) => ExitCode::from(command::interrupt::INTERRUPTED),
        _ => ExitCode::from(2),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The words of an example, without `straightway` and a redirection.
    fn words(line: &str) -> Vec<String> {
        let line = line.split(" > ").next().unwrap_or_default();
        line.split(' ').map(|word| word.trim_matches('\'').to_owned()).collect()
    }

    #[test]
    fn every_example_is_parsed() {
        for (page, examples) in examples::pages() {
            for example in examples {
                let parsed = Cli::try_parse_from(words(example.line));
                assert!(parsed.is_ok(), "{}: {}", example.line, parsed.unwrap_err());
                let is_of_page = example.line.starts_with(format!("straightway {page}").trim());
                assert!(is_of_page || page == "target", "{page}: {}", example.line);
                assert!(
                    !example.does.is_empty() && !example.does.ends_with('.'),
                    "{}",
                    example.line
                );
            }
        }
    }

    #[test]
    fn every_page_has_two_or_three_examples_in_examples_txt() {
        fn check(command: &clap::Command, page: &str) {
            let count = examples::of(page).len();
            assert!(
                (2..=3).contains(&count),
                "`{page}` has {count} examples: see src/examples.txt"
            );
            for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
                check(below, format!("{page} {}", below.get_name()).trim());
            }
        }
        let mut command = Cli::command();
        command.build();
        check(&command, "");
    }

    #[test]
    fn options_of_stores_and_tuning_are_the_only_ones_under_their_headings() {
        fn check(command: &clap::Command, page: &str, options: &mut usize) {
            let stores = ["endpoint", "region", "profile", "nvme_path", "cache", "cache_size"];
            for arg in command.get_arguments() {
                let (id, heading) = (arg.get_id().as_str(), arg.get_help_heading());
                let is_own = ["json", "step", "shard_size", "device", "filter"].contains(&id);
                assert!(!arg.is_positional() || heading.is_none(), "{page}: {id}");
                assert!(
                    !is_own || !matches!(heading, Some("Object stores" | "Tuning")),
                    "{page}: {id}"
                );
                if stores.contains(&id) {
                    assert_eq!(
                        (heading, arg.is_hide_short_help_set()),
                        (Some("Object stores"), true),
                        "{page}"
                    );
                    *options += 1;
                }
            }
            for below in command.get_subcommands() {
                check(below, &format!("{page} {}", below.get_name()), options);
            }
        }
        let mut command = Cli::command();
        command.build();
        let mut options = 0;
        check(&command, "straightway", &mut options);
        assert!(options > 50, "{options}");
    }
}
