//! `straightway checkpoint sweep`: what crashed saves and removals left, removed.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use serde_json::json;
use straightway_core::Seconds;

use super::print_lines;
use crate::command::output::print_json;

/// Remove what crashed saves and removals left behind: shards and records without a step, and unfinished uploads.
///
/// What a step consists of is never removed. In a local folder the lock tells which jobs are alive, and --age means
/// nothing. A bucket has no lock: there, what nothing was added to for --age counts as left. A save that is under way is
/// lost if it takes longer than that.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder of checkpoints, or its URI.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// How long nothing was added to what is removed from a bucket; with 0 all goes, and no job may be saving.
    #[arg(long, value_name = "TIME", default_value = "7d")]
    age: Seconds,

    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let age = Duration::try_from_secs_f64(args.age.0)?;
    let swept = super::steps(&args.folder)?.sweep_left(age)?;
    if args.json {
        print_json(&json!({ "swept": swept }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines: Vec<_> = swept.iter().map(|name| format!("swept {name}")).collect();
    if lines.is_empty() {
        lines.push("nothing was left behind".to_owned());
    }
    print_lines(&lines)?;
    Ok(ExitCode::SUCCESS)
}
