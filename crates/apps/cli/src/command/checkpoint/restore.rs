//! `straightway checkpoint restore`: restores a checkpoint into memory, as a job that resumes would.

use std::{process::ExitCode, time::Instant};

use serde_json::json;
use straightway_checkpoint::Fetched;
use straightway_core::{Bytes, Place, Rate, Seconds, text::counted};

use super::{ReadArgs, print_lines};
use crate::command::{
    output::{print_json, print_receipt},
    watch::Watch,
};

/// Restore a checkpoint into memory, check it, and report how long that took.
///
/// The memory is then freed: this measures what a job that resumes would wait for.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    read: ReadArgs,

    /// The target memory: `host` or `cuda:0`.
    #[arg(long, value_name = "DEVICE", default_value = "host")]
    device: Place,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let checkpoint = args.read.open()?;
    let restorer = args.read.restorer(&checkpoint)?;
    let manifest = checkpoint.manifest();
    let tensors: Vec<_> = manifest.tensors.iter().collect();
    let watch = Watch::begin(restorer.progress(), manifest.bytes(), None);
    let start = Instant::now();
    let gathered = restorer.gather(&checkpoint, &tensors, args.device)?;
    let seconds = start.elapsed().as_secs_f64();
    drop(watch);
    let Fetched {
        receipt,
        chunks,
        rebuilt,
    } = &gathered.fetched;
    let rate = Rate(receipt.bytes as f64 / seconds.max(1e-9));
    if args.read.json {
        let json = json!({
            "step": manifest.step,
            "device": args.device.to_string(),
            "tensors": tensors.len(),
            "bytes": receipt.bytes,
            "read_bytes": receipt.storage_bytes,
            "chunks": chunks,
            "rebuilt": rebuilt,
            "seconds": seconds,
            "rate_bytes_per_s": rate.0,
            "receipt": receipt,
        });
        print_json(&json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines: Vec<_> = rebuilt
        .iter()
        .map(|why| format!("rebuilt from parity: {why}"))
        .collect();
    lines.push(format!(
        "step {} to {}: {}, {}, checked, in {}: {rate}",
        manifest.step,
        args.device.in_words(),
        counted(tensors.len() as u64, "tensor"),
        Bytes(receipt.bytes),
        Seconds(seconds)
    ));
    print_lines(&lines)?;
    print_receipt(receipt, false)?;
    Ok(ExitCode::SUCCESS)
}
