//! `straightway checkpoint prune`: steps that need not be kept, removed.

use std::{path::PathBuf, process::ExitCode};

use serde_json::json;
use straightway_pipeline::checkpoint::Retention;

use super::print_lines;
use crate::command::output::print_json;

/// Remove the checkpoints that need not be kept, and what crashed saves left behind.
///
/// Steps with a tag stay, and so does every step that one which stays refers to. A reader at work reads on. A step that
/// cannot be read stays, with what it may refer to, and is named.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder of checkpoints.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// How many of the last steps stay.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,

    /// Steps that are multiples of this stay too.
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,

    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,

    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = super::steps(&args.folder)?;
    let retention = Retention {
        last: args.keep as usize,
        every: args.every,
        ..Retention::default()
    };
    let pruned = if args.dry_run {
        store.plan_prune(&retention)?
    } else {
        store.prune(&retention)?
    };
    if args.json {
        let json = json!({
            "dry_run": args.dry_run,
            "removed": pruned.removed,
            "kept": pruned.kept,
            "left": pruned
                .left
                .iter()
                .map(|(step, why)| json!({ "step": step, "error": why }))
                .collect::<Vec<_>>(),
            "swept": pruned.swept,
        });
        print_json(&json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let verb = if args.dry_run {
        "would remove"
    } else {
        "removed"
    };
    let removed = pruned
        .removed
        .iter()
        .map(|step| format!("{verb} step {step}"));
    let swept = pruned.swept.iter().map(|name| format!("swept {name}"));
    let left = pruned
        .left
        .iter()
        .map(|(step, why)| format!("step {step} stays: {why}"));
    let mut lines: Vec<_> = removed.chain(swept).chain(left).collect();
    lines.push(format!("{} steps stay", pruned.kept.len()));
    print_lines(&lines)?;
    Ok(ExitCode::SUCCESS)
}
