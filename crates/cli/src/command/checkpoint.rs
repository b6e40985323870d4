//! `straightway checkpoint`: checkpoints listed, checked, compared, removed, exported, restored and tried.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use straightway_core::{Result, Uri, text::shown};
use straightway_io::store::Missing;
use straightway_pipeline::checkpoint::{Checkpoint, Steps};

mod bench;
mod diff;
mod export;
mod ls;
mod prune;
mod restore;
mod sweep;
mod tag;
mod trial;
mod verify;
mod yard;

use super::{output::print, stores::stores};

/// List, check, compare, prune, export, restore and try out checkpoints.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
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

/// Does what was asked for.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Ls(args) => ls::run(args),
        What::Verify(args) => verify::run(args),
        What::Diff(args) => diff::run(args),
        What::Prune(args) => prune::run(args),
        What::Sweep(args) => sweep::run(args),
        What::Tag(args) => tag::run(args),
        What::Export(args) => export::run(args),
        What::Restore(args) => restore::run(args),
        What::Bench(args) => bench::run(args),
    }
}

/// Writes lines to stdout. A line feed in one of them is part of a name, and makes no second line.
fn print_lines(lines: &[String]) -> anyhow::Result<()> {
    let lines: Vec<_> = lines.iter().map(|line| shown(line)).collect();
    print(&(lines.join("\n") + "\n"))
}

/// The checkpoints in a folder, or below a URI.
fn steps(folder: &Path) -> Result<Steps> {
    Steps::find(&stores()?, &Uri::parse(folder)?, Missing::Refuse)
}

/// A folder of checkpoints, and one of its steps.
#[derive(Clone, Debug, clap::Args)]
struct Chosen {
    /// The folder of checkpoints, or its URI.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Which step [default: the latest].
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

impl Chosen {
    fn open(&self) -> Result<Checkpoint> {
        let store = steps(&self.folder)?;
        match self.step {
            Some(step) => store.checkpoint(step),
            None => store.open_latest(),
        }
    }
}
