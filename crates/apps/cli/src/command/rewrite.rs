//! `straightway rewrite`: rewrites a model's files, so that they can be read directly from the drive.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use straightway_copy::{Copier, CopyJob};
use straightway_core::{Bytes, Choice, Result};
use straightway_io::store::Location;
use straightway_stores::Session;
use straightway_weights::{FileSaver, Model};

use super::{
    output::{print, print_receipt},
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

    /// Write only the tensors, without the other files of the folder.
    #[arg(long)]
    weights_only: bool,

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
    let others = if args.weights_only {
        None
    } else {
        OtherFiles::of(&model, &target)?
    };
    // Every byte is read and written.
    let watch = Watch::begin(&saver.progress, model.bytes() * 2, Some(&target));
    let copy_others = || match &others {
        Some(others) => others.copy(&saver),
        None => Ok(()),
    };
    let shard_bytes = args.shard_size.map(|size| size.0);
    let mut receipt = saver.rewrite_then(&model, target, shard_bytes, copy_others)?;
    drop(watch);
    receipt.warnings.extend(others.as_ref().and_then(OtherFiles::warning));
    if !args.json {
        print(&others.as_ref().map(OtherFiles::line).unwrap_or_default())?;
    }
    print_receipt(&receipt, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Suffixes of files with weights. Those of the model are rewritten, and others are not copied: they may be as large.
const WEIGHTS: [&str; 12] = [
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".distcp",
];

/// The files of a model's folder that are not weights: configuration, tokenizer, and what else is there.
struct OtherFiles {
    job: CopyJob,
    /// The weights in the folder that are not the model's, relative to it.
    left_out: Vec<String>,
}

impl OtherFiles {
    /// The other files of a model that was opened as a folder. Without them, a new folder could not be used by other
    /// programs.
    fn of(model: &Model, target: &Location) -> Result<Option<Self>> {
        let source = model.location();
        let is_file = matches!(&model.shards[..], [one] if one.path == model.path);
        let is_index = model.path.extension().is_some_and(|suffix| suffix == "json");
        if is_file || is_index || source.is_same(target) {
            return Ok(None);
        }
        let own: Vec<_> = model.shards.iter().map(|shard| shard.path.clone()).collect();
        let real = |at: &Location| at.path().and_then(|path| fs::canonicalize(path).ok());
        let (folder, new) = (real(&source), real(target));
        let left_out = RefCell::new(Vec::new());
        let is_wanted = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_target = new.is_some() && folder.as_ref().map(|folder| folder.join(path)) == new;
            let is_weights = WEIGHTS.iter().any(|suffix| name.ends_with(suffix));
            if is_weights && !own.contains(&source.name.join(path)) && !name.ends_with("safetensors.index.json") {
                left_out.borrow_mut().push(path.display().to_string());
            }
            !name.starts_with('.') && !is_weights && !is_target
        };
        let job = CopyJob::contents(&source, target, is_wanted)?;
        Ok(Some(Self {
            job,
            left_out: left_out.into_inner(),
        }))
    }

    fn copy(&self, saver: &FileSaver) -> Result<()> {
        if self.job.pairs.is_empty() {
            return Ok(());
        }
        let copier = Copier {
            executor: &saver.executor,
            choice: Choice::Auto,
            progress: Arc::clone(&saver.progress),
        };
        copier.run(&self.job).map(drop)
    }

    fn line(&self) -> String {
        match self.job.pairs.len() {
            0 => String::new(),
            1 => format!("1 other file of the folder was copied ({})\n", Bytes(self.job.bytes())),
            count => format!(
                "{count} other files of the folder were copied ({})\n",
                Bytes(self.job.bytes())
            ),
        }
    }

    fn warning(&self) -> Option<String> {
        let first = self.left_out.first()?;
        let more = match self.left_out.len() - 1 {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        Some(format!(
            "{first}{more} were not copied: they are weights, and not those of the model"
        ))
    }
}
