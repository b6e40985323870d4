//! `straightway checkpoint tag`: a name for a step, which keeps it from being pruned.

use std::process::ExitCode;

use serde_json::json;

use super::FolderArgs;
use crate::command::{output::print_json, words::whole};

/// Give a step a tag, which keeps it from being pruned.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    of: FolderArgs,

    /// The step.
    #[arg(value_name = "STEP", value_parser = whole(0..=u64::MAX))]
    step: u64,

    /// The tag: letters, digits, `_`, `-` and `.`.
    #[arg(value_name = "TAG")]
    tag: String,

    /// Remove the tag.
    #[arg(long)]
    remove: bool,

    /// Write the step and its resulting tags as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = args.of.steps()?;
    if args.remove {
        store.untag(args.step, &args.tag)?;
    } else {
        store.tag(args.step, &args.tag)?;
    }
    if args.json {
        let json = json!({ "step": args.step, "tags": store.tags(args.step)? });
        print_json(&json)?;
    }
    Ok(ExitCode::SUCCESS)
}
