//! `straightway checkpoint`: lists, checks, compares, prunes, exports, restores and benchmarks checkpoints.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use straightway_checkpoint::{Checkpoint, Steps};
use straightway_core::{Result, Uri, text::shown};
use straightway_io::store::Missing;
use straightway_stores::Session;

mod bench;
mod diff;
mod export;
mod ls;
mod prune;
mod restore;
mod sweep;
mod tag;
mod trial;
mod trial_dir;
mod verify;

use super::{output::print, stores::StoreArgs};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(ls::Args),
    Verify(verify::Args),
    Diff(diff::Args),
    Prune(prune::Args),
    Sweep(sweep::Args),
    Tag(tag::Args),
    Export(export::Args),
    Restore(restore::Args),
    Bench(bench::Args),
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Ls(args) => ls::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Prune(args) => prune::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Tag(args) => tag::run(args),
        Command::Export(args) => export::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Bench(args) => bench::run(args),
    }
}

/// Writes lines to stdout. A line feed inside a line is part of a name and is escaped.
fn print_lines(lines: &[String]) -> anyhow::Result<()> {
    let lines: Vec<_> = lines.iter().map(|line| shown(line)).collect();
    print(&(lines.join("\n") + "\n"))
}

/// Opens the checkpoints in a folder, or below a URI.
fn steps(folder: &Path, store: &StoreArgs) -> Result<Steps> {
    Steps::find(&*store.stores(&Session::new())?, &Uri::parse(folder)?, Missing::Refuse)
}

/// A folder of checkpoints, and one of its steps.
#[derive(Clone, Debug, clap::Args)]
struct StepArgs {
    /// The folder of checkpoints, or its URI.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// The step [default: the latest].
    #[arg(long, value_name = "N")]
    step: Option<u64>,

    #[command(flatten)]
    store: StoreArgs,
}

impl StepArgs {
    fn open(&self) -> Result<Checkpoint> {
        let store = steps(&self.folder, &self.store)?;
        match self.step {
            Some(step) => store.checkpoint(step),
            None => store.open_latest(),
        }
    }
}
