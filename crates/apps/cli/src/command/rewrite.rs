//! `straightway rewrite`: rewrites a model's files, so that they can be read directly from the drive.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use straightway_core::{Bytes, Choice};
use straightway_stores::Session;
use straightway_weights::{FileSaver, Model};

use super::{
    output::print_receipt,
    stores::{CacheArgs, StoreArgs},
    tuning::Tuning,
    watch::Watch,
    words::one_of,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A safetensors file, a folder of them, or an index file.
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// The target: a file for a single file, else a folder, which is created if it is missing.
    #[arg(value_name = "DST")]
    target: PathBuf,

    /// Divide the tensors among files of at most this size, such as 5GB, with an index.
    #[arg(long, value_name = "SIZE")]
    shard_size: Option<Bytes>,

    /// The route of the bytes.
    #[arg(long, value_parser = one_of(&Choice::WORDS), default_value = "auto")]
    route: Choice,

    /// Write the receipt as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    tuning: Tuning,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    cache: CacheArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let session = Session::new();
    let sources = args.store.stores_through(&args.cache, &session)?;
    // Stores behind a cache are read-only.
    let apart = args.cache.is_given().then(|| args.store.stores(&session));
    let apart = apart.transpose()?;
    let targets = apart.as_ref().unwrap_or(&sources);
    let source = sources.locate(&args.source)?;
    let target = targets.locate(&args.target)?;
    let executor = Arc::new(args.tuning.executor(&session, &[&source, &target])?);
    let saver = FileSaver {
        choice: args.route,
        ..FileSaver::new(executor)
    };
    let model = Model::open(source)?;
    // Every byte is read and written.
    let watch = Watch::begin(&saver.progress, model.bytes() * 2, Some(&target));
    let receipt = saver.rewrite(&model, target, args.shard_size.map(|size| size.0))?;
    drop(watch);
    print_receipt(&receipt, args.json)?;
    Ok(ExitCode::SUCCESS)
}
