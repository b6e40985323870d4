//! `straightway checkpoint verify`: checks every byte of a step.

use std::process::ExitCode;

use serde_json::json;
use straightway_core::Bytes;

use super::{ReadArgs, print_lines};
use crate::command::{output::print_json, watch::Watch};

/// Read all of a checkpoint and check every byte of it.
///
/// Exits with 0 if it is intact, 1 if it is damaged. The damage is listed, with whether parity can repair it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    read: ReadArgs,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let checkpoint = args.read.open()?;
    let restorer = args.read.restorer(&checkpoint)?;
    let manifest = checkpoint.manifest();
    let images = manifest.image_bytes();
    let watch = Watch::begin(restorer.progress(), images, None);
    let verdict = restorer.verify(&checkpoint)?;
    drop(watch);
    let is_whole = verdict.damage.is_empty();
    if args.read.json {
        let json = json!({
            "step": manifest.step,
            "is_whole": is_whole,
            "is_mendable": is_whole || verdict.is_mendable,
            "bytes": images,
            "read_bytes": verdict.receipt.storage_bytes,
            "chunks": verdict.chunks,
            "damage": verdict.damage,
            "receipt": verdict.receipt,
        });
        print_json(&json)?;
    } else {
        let step = manifest.step;
        let mut lines = verdict.damage;
        lines.push(match (is_whole, verdict.is_mendable) {
            (true, _) => format!("step {step} is whole: {} checked", Bytes(images)),
            (false, true) => format!("step {step} is damaged; parity can repair it"),
            (false, false) => format!("step {step} is damaged"),
        });
        print_lines(&lines)?;
    }
    Ok(ExitCode::from(u8::from(!is_whole)))
}
