//! `straightway load`: loads a model's weights into memory, as a program that uses the model would.

use std::{process::ExitCode, time::Instant};

use straightway_core::{Seconds, text::counted};
use straightway_stores::Session;
use straightway_weights::{Model, verify_loaded};

use super::{
    load_args::LoadArgs,
    output::{print, print_receipt},
    watch::Watch,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Read everything again by another route and compare.
    #[arg(long)]
    verify: bool,

    /// Write the receipt as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let load = &args.load;
    let session = Session::new();
    let at = load.location(&session)?;
    let loader = load.loader(&session, &at)?;
    let start = Instant::now();
    let model = Model::open(at)?;
    let headers_s = start.elapsed().as_secs_f64();
    let selection = load.selection.of(&model)?;
    let start = Instant::now();
    let prepared = loader.prepare(&model, &selection, load.device)?;
    let memory_s = start.elapsed().as_secs_f64();
    let passes = if args.verify { 2 } else { 1 };
    let watch = Watch::begin(&loader.progress, selection.bytes() * passes, None);
    let mut weights = prepared.run()?;
    if args.verify {
        let layout = loader.layout(&model, &selection, load.device);
        verify_loaded(&loader, &model, &layout, &mut weights)?;
    }
    drop(watch);
    if !args.json {
        let (headers, memory) = (Seconds(headers_s), Seconds(memory_s));
        print(&format!(
            "{} of {} in {}, to {}: headers read in {headers}, memory allocated in {memory}\n",
            weights.tensors.len(),
            counted(model.tensors.len() as u64, "tensor"),
            counted(model.shards.len() as u64, "file"),
            load.device.in_words(),
        ))?;
    }
    print_receipt(&weights.receipt, args.json)?;
    Ok(ExitCode::SUCCESS)
}
