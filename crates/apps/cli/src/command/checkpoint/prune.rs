//! `straightway checkpoint prune`: removes steps that are not kept.

use std::process::ExitCode;

use serde_json::json;
use straightway_checkpoint::Retention;
use straightway_core::text::counted;

use super::{FolderArgs, print_lines};
use crate::command::{output::print_json, words::whole};

/// Remove checkpoints that are not kept, and leftovers of crashed saves.
///
/// Tagged steps are kept, and so is every step that a kept one references. Readers that are under way are not
/// disturbed. An unreadable step is kept, with every step that it may reference, and is reported.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    of: FolderArgs,

    /// The number of latest steps to keep.
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX))]
    keep: u32,

    /// Also keep steps that are multiples of this.
    #[arg(long, value_name = "M", value_parser = whole(1..=u64::MAX))]
    every: Option<u64>,

    /// Only print what would be done.
    #[arg(long)]
    dry_run: bool,

    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = args.of.steps()?;
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
    let verb = if args.dry_run { "would remove" } else { "removed" };
    let removed = pruned.removed.iter().map(|step| format!("{verb} step {step}"));
    let swept = pruned.swept.iter().map(|name| format!("swept {name}"));
    let left = pruned
        .left
        .iter()
        .map(|(step, why)| format!("step {step} stays: {why}"));
    let mut lines: Vec<_> = removed.chain(swept).chain(left).collect();
    let verb = if pruned.kept.len() == 1 { "stays" } else { "stay" };
    lines.push(format!("{} {verb}", counted(pruned.kept.len() as u64, "step")));
    print_lines(&lines)?;
    Ok(ExitCode::SUCCESS)
}
