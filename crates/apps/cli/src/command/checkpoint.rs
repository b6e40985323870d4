//! `straightway checkpoint`: lists, checks, compares, prunes, exports, restores and benchmarks checkpoints.

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;
use straightway_checkpoint::{Checkpoint, Restorer, Steps};
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

use super::{output::print, stores::StoreArgs, tuning::Tuning, words::whole};

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

/// A folder of checkpoints.
#[derive(Debug, clap::Args)]
struct FolderArgs {
    /// The folder of checkpoints, or its URI.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    #[command(flatten)]
    store: StoreArgs,
}

impl FolderArgs {
    /// Opens the checkpoints in the folder, or below the URI.
    fn steps(&self) -> Result<Steps> {
        Steps::find(
            &*self.store.stores(&Session::new())?,
            &Uri::parse(&self.folder)?,
            Missing::Refuse,
        )
    }
}

/// A step that is read, and how.
#[derive(Debug, clap::Args)]
struct ReadArgs {
    #[command(flatten)]
    of: FolderArgs,

    /// The step [default: the latest].
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    step: Option<u64>,

    /// Write the result as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    tuning: Tuning,
}

impl ReadArgs {
    fn open(&self) -> Result<Checkpoint> {
        let steps = self.of.steps()?;
        match self.step {
            Some(step) => steps.checkpoint(step),
            None => steps.open_latest(),
        }
    }

    /// The restorer of a checkpoint that was opened.
    fn restorer(&self, checkpoint: &Checkpoint) -> anyhow::Result<Restorer> {
        Ok(Restorer::on(
            &self.tuning.executor(&Session::new(), &[&checkpoint.location()])?,
        ))
    }
}
