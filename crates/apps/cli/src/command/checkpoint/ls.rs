//! `straightway checkpoint ls`: lists the steps of a folder.

use std::process::ExitCode;

use serde_json::json;
use straightway_checkpoint::{Manifest, Steps};
use straightway_core::{Bytes, Result};
use straightway_report::{Cell, Column, Page, Table, Unit};

use super::{FolderArgs, print_lines};
use crate::command::output::Output;

/// List the complete checkpoints of a folder.
///
/// Saves that are under way or crashed are not listed. A step with a damaged manifest or tags is listed with the error.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    of: FolderArgs,

    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = args.of.steps()?;
    let columns = [
        Column::new("step", Unit::Count),
        Column::new("ranks", Unit::Count),
        Column::new("tensors", Unit::Count),
        Column::new("size", Unit::Bytes),
        Column::new("written", Unit::Bytes),
        Column::new("parity", Unit::Count),
        Column::text("refers to"),
        Column::text("tags"),
    ];
    let mut table = Table::new("", columns);
    let mut list = Vec::new();
    let mut code = ExitCode::SUCCESS;
    let steps = steps(&store)?;
    if steps.is_empty() && args.output.is_text_alone() {
        print_lines(&[format!("no checkpoint is in {}", store.folder().display())])?;
        return Ok(ExitCode::SUCCESS);
    }
    for step in steps {
        let found = store
            .manifest(step)
            .and_then(|manifest| Ok((manifest, store.tags(step)?)));
        let (manifest, tags) = match found {
            Ok(found) => found,
            Err(error) => {
                code = ExitCode::from(1);
                list.push(json!({ "step": step, "error": error.to_string() }));
                let blank = || Cell::from("");
                table.push([
                    Cell::from(step),
                    blank(),
                    blank(),
                    blank(),
                    blank(),
                    blank(),
                    error.to_string().into(),
                    blank(),
                ]);
                continue;
            }
        };
        let referenced = manifest.referenced();
        let words: Vec<_> = referenced.iter().map(u64::to_string).collect();
        table.push([
            Cell::from(step),
            manifest.world.into(),
            manifest.tensors.len().into(),
            Bytes(manifest.bytes()).into(),
            Bytes(manifest.written_bytes()).into(),
            manifest.parity.len().into(),
            words.join(", ").into(),
            tags.join(", ").into(),
        ]);
        list.push(json!({
            "step": step,
            "world": manifest.world,
            "run": manifest.run,
            "tensors": manifest.tensors.len(),
            "bytes": manifest.bytes(),
            "written_bytes": manifest.written_bytes(),
            "parity": manifest.parity.len(),
            "refers_to": referenced,
            "tags": tags,
        }));
    }
    let page = Page::new(store.folder().display().to_string()).section("", [table.into()]);
    args.output.write(&page, &json!({ "steps": list }))?;
    Ok(code)
}

/// The steps of a folder. A folder that is itself a step is an error: it was probably named by mistake.
fn steps(store: &Steps) -> Result<Vec<u64>> {
    let steps = store.steps()?;
    if steps.is_empty() && Manifest::is_in(&store.folder()) {
        return Err(store.none().with_hint("name the folder above it"));
    }
    Ok(steps)
}
