//! `straightway load`: a model's weights into memory, as a program that starts with it would.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Instant};

use straightway_core::{Place, Seconds};
use straightway_io::Executor;
use straightway_pipeline::{
    verify::verify_loaded,
    weights::{Loader, Model},
};

use super::{
    chosen::{Chosen, device},
    output::{print, print_receipt},
    tuning::{RouteChoice, Tuning},
    watch::Watch,
};

/// Load a model's weights into memory, and say which way they went.
///
/// The model is a safetensors file, a folder, or an index file. What is not selected is not read.
/// The weights are let go again: this is what a program that starts with the model would wait for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A safetensors file, a folder of them, or an index file.
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Whose memory: `host` or `cuda:0`.
    #[arg(long, value_name = "DEVICE", default_value = "host", value_parser = device)]
    device: Place,

    /// Which way the bytes are to go.
    #[arg(long, value_enum, default_value_t)]
    route: RouteChoice,

    /// Read everything again by another route and compare.
    #[arg(long)]
    verify: bool,

    /// Write the receipt as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    chosen: Chosen,

    #[command(flatten)]
    tuning: Tuning,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let executor = Arc::new(Executor::new(args.tuning.settings(&args.path)?)?);
    let loader = Loader {
        choice: args.route.into(),
        ..Loader::new(executor)
    };
    let start = Instant::now();
    let model = Model::open(&args.path)?;
    let headers_s = start.elapsed().as_secs_f64();
    let selection = args.chosen.of(&model)?;
    let start = Instant::now();
    let prepared = loader.prepare(&model, &selection, args.device)?;
    let memory_s = start.elapsed().as_secs_f64();
    let passes = if args.verify { 2 } else { 1 };
    let watch = Watch::begin(&loader.progress, selection.bytes() * passes);
    let mut weights = prepared.load()?;
    if args.verify {
        let layout = loader.layout(&model, &selection, args.device);
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
            args.device.to_string().trim_end_matches(':'),
        ))?;
    }
    print_receipt(&weights.receipt, args.json)?;
    Ok(ExitCode::SUCCESS)
}
