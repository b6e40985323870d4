//! `straightway plan claims`: judges every figure of the four articles.

use std::process::ExitCode;

use straightway_planner::articles;
use straightway_view::claims;

use crate::command::output::Output;

/// List every figure of four articles with a verdict: follows, does not follow, cannot be decided
///
/// The articles are "The IO Wall: Why Storage is the New Bottleneck", "Storage Infrastructure for AI: Bypassing the CPU
/// Tax with GPUDirect & NVMe-oF", "GPUDirect Storage: Engineering the Peer-to-Peer Data Path" and "GPU-Direct Storage
/// Pipeline". Scenarios whose names begin with `article-` are their cases. The copies that were judged name neither an
/// author nor an address.
///
/// Exits with 1 if a computed verdict differs from the recorded one.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    output: Output,
}

/// Judges all figures.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let judged = articles::judge()?;
    args.output
        .write(&claims::page(&judged), &serde_json::to_value(&judged)?)?;
    let same = judged.iter().all(|figure| figure.verdict == figure.kept);
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
