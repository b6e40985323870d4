//! `straightway load`: a model's weights into memory, as a program that starts with it would.

use std::{process::ExitCode, time::Instant};

use straightway_core::Seconds;
use straightway_pipeline::verify::verify_loaded;

use super::{
    output::{print, print_receipt},
    wanted::Wanted,
    watch::Watch,
};

/// Load a model's weights into memory, and say which way they went.
///
/// The model is a safetensors file, a folder, or an index file. What is not selected is not read.
/// The weights are let go again: this is what a program that starts with the model would wait for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Read everything again by another route and compare.
    #[arg(long)]
    verify: bool,

    /// Write the receipt as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    wanted: Wanted,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let wanted = &args.wanted;
    let loader = wanted.loader()?;
    let start = Instant::now();
    let model = wanted.model()?;
    let headers_s = start.elapsed().as_secs_f64();
    let selection = wanted.chosen.of(&model)?;
    let start = Instant::now();
    let prepared = loader.prepare(&model, &selection, wanted.device)?;
    let memory_s = start.elapsed().as_secs_f64();
    let passes = if args.verify { 2 } else { 1 };
    let watch = Watch::begin(&loader.progress, selection.bytes() * passes);
    let mut weights = prepared.load()?;
    if args.verify {
        let layout = loader.layout(&model, &selection, wanted.device);
        verify_loaded(&loader, &model, &layout, &mut weights)?;
    }
    drop(watch);
    if !args.json {
        let (headers, memory) = (Seconds(headers_s), Seconds(memory_s));
        print(&format!(
            "{} of {} tensors in {} files, to {}: headers {headers}, memory {memory}\n",
            weights.tensors.len(),
            model.tensors.len(),
            model.shards.len(),
            wanted.device.to_string().trim_end_matches(':'),
        ))?;
    }
    print_receipt(&weights.receipt, args.json)?;
    Ok(ExitCode::SUCCESS)
}
