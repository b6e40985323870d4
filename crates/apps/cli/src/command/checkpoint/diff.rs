//! `straightway checkpoint diff`: compares two steps.

use std::process::ExitCode;

use serde_json::json;
use straightway_checkpoint::{Checkpoint, Restorer, StepChange};
use straightway_core::text::counted;
use straightway_stores::Session;

use super::{FolderArgs, print_lines};
use crate::command::{output::print_json, tuning::Tuning, watch::Watch, words::whole};

/// Compare two steps, tensor by tensor.
///
/// Exits with 0 if they are equal, 1 if not.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    of: FolderArgs,

    /// The first step.
    #[arg(value_name = "BEFORE", value_parser = whole(0..=u64::MAX))]
    before: u64,

    /// The second step.
    #[arg(value_name = "AFTER", value_parser = whole(0..=u64::MAX))]
    after: u64,

    /// Write the result as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    tuning: Tuning,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = args.of.steps()?;
    let restorer = Restorer::on(&args.tuning.executor(&Session::new(), &[&store.location()])?);
    let (before, after) = (store.checkpoint(args.before)?, store.checkpoint(args.after)?);
    let bytes = |checkpoint: &Checkpoint| checkpoint.manifest().bytes();
    let bytes = bytes(&before).saturating_add(bytes(&after));
    let watch = Watch::begin(restorer.progress(), bytes, None);
    let difference = restorer.diff(&before, &after)?;
    drop(watch);
    let is_same = difference.changes.is_empty();
    if args.json {
        let change = |(name, change): &(String, StepChange)| match change {
            StepChange::Added => json!({ "tensor": name, "change": "added" }),
            StepChange::Removed => json!({ "tensor": name, "change": "removed" }),
            StepChange::Reshaped(before, after) => {
                json!({ "tensor": name, "change": "reshaped", "before": before, "after": after })
            }
            StepChange::Bytes { different, of } => {
                json!({ "tensor": name, "change": "bytes", "different_bytes": different, "bytes": of })
            }
        };
        let changes: Vec<_> = difference.changes.iter().map(change).collect();
        let json = json!({ "is_same": is_same, "same": difference.same, "changes": changes });
        print_json(&json)?;
    } else {
        let line = |(name, change): &(String, StepChange)| match change {
            StepChange::Added => format!("+ {name}"),
            StepChange::Removed => format!("- {name}"),
            StepChange::Reshaped(before, after) => format!("! {name}: {before} became {after}"),
            StepChange::Bytes { different, of } => {
                format!("~ {name}: {different} of {of} bytes differ")
            }
        };
        let mut lines: Vec<_> = difference.changes.iter().map(line).collect();
        let verb = if difference.same == 1 { "is" } else { "are" };
        lines.push(format!("{} {verb} the same", counted(difference.same as u64, "tensor")));
        print_lines(&lines)?;
    }
    Ok(ExitCode::from(u8::from(!is_same)))
}
