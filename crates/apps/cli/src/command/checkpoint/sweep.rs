//! `straightway checkpoint sweep`: removes leftovers of crashed saves and removals.

use std::{process::ExitCode, time::Duration};

use serde_json::json;
use straightway_core::Seconds;

use super::{FolderArgs, print_lines};
use crate::command::output::print_json;

/// Remove what crashed saves and removals left behind: shards and records without a step, and unfinished uploads.
///
/// Files of a step are never removed. In a local folder the lock shows which jobs are alive, and --age has no effect. A
/// bucket has no lock: there, files are removed if nothing was added to them for --age. A save that is under way is
/// lost if it takes longer than that.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    of: FolderArgs,

    /// The minimum age of what is removed from a bucket; with 0 everything is removed, and no job may be saving.
    #[arg(long, value_name = "TIME", default_value = "7d")]
    age: Seconds,

    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let age = Duration::try_from_secs_f64(args.age.0)?;
    let swept = args.of.steps()?.sweep_left(age)?;
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
