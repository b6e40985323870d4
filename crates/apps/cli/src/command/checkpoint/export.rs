//! `straightway checkpoint export`: writes a checkpoint as a plain model.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use serde_json::json;
use straightway_checkpoint::Restorer;
use straightway_core::{Bytes, text::counted};
use straightway_stores::Session;
use straightway_weights::FileSaver;

use super::{ReadArgs, print_lines};
use crate::command::{output::print_json, watch::Watch};

/// The default of the library, [`EXPORT_BYTES`](straightway_checkpoint::EXPORT_BYTES), as it is typed.
const EXPORT_SIZE: &str = "5GB";

/// Write a checkpoint as plain safetensors files in the layout of Hugging Face.
///
/// Every tensor is whole, regardless of the number of ranks that saved it. Values that are not tensors are left out.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    read: ReadArgs,

    /// The target: a new or empty folder.
    #[arg(value_name = "TARGET")]
    target: PathBuf,

    /// The maximum size of a file.
    #[arg(long, value_name = "SIZE", default_value = EXPORT_SIZE)]
    shard_size: Bytes,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let session = Session::new();
    let checkpoint = args.read.open()?;
    let target = args.read.of.store.stores(&session)?.locate(&args.target)?;
    let ends = [&checkpoint.location(), &target];
    let executor = args.read.tuning.write_executor(&session, &ends)?;
    let restorer = Restorer::new(*executor.settings())?;
    let mut saver = FileSaver::new(Arc::new(executor));
    saver.progress = Arc::clone(restorer.progress());
    let bytes = checkpoint.manifest().bytes().saturating_mul(2);
    let watch = Watch::begin(restorer.progress(), bytes, Some(&target));
    let exported = restorer.export(&checkpoint, &saver, target, args.shard_size.0)?;
    drop(watch);
    if args.read.json {
        let json = json!({
            "files": exported.files,
            "tensors": exported.tensors,
            "bytes": exported.bytes,
            "left_out": exported.left_out,
        });
        print_json(&json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = vec![format!(
        "{}, {}, in {}",
        counted(exported.tensors as u64, "tensor"),
        Bytes(exported.bytes),
        counted(exported.files.len() as u64, "file")
    )];
    if !exported.left_out.is_empty() {
        let names = exported.left_out.join(", ");
        lines.push(format!("left out (not tensors): {names}"));
    }
    print_lines(&lines)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_size_is_that_of_the_library() {
        assert_eq!(EXPORT_SIZE.parse(), Ok(Bytes(straightway_checkpoint::EXPORT_BYTES)));
    }
}
