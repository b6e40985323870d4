//! `straightway checkpoint tag`: a name for a step, which keeps it from being pruned.

use std::{path::PathBuf, process::ExitCode};

use straightway_pipeline::checkpoint::Store;

/// Give a step a tag, which keeps it from being pruned.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder of checkpoints.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Which step.
    #[arg(value_name = "STEP")]
    step: u64,

    /// The tag: letters, digits, `_`, `-` and `.`.
    #[arg(value_name = "TAG")]
    tag: String,

    /// Take the tag away again.
    #[arg(long)]
    remove: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = Store::open(&args.folder)?;
    if args.remove {
        store.untag(args.step, &args.tag)?;
    } else {
        store.tag(args.step, &args.tag)?;
    }
    Ok(ExitCode::SUCCESS)
}
