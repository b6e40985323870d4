//! `straightway ls`: lists the objects of a store below a name.

use std::{path::PathBuf, process::ExitCode, time::UNIX_EPOCH};

use serde_json::json;
use straightway_core::{Bytes, Error, ErrorKind, Uri};
use straightway_io::{
    Store,
    store::{Location, Missing, Named, open_one, pages},
};

use super::{
    output::{print, print_json_line},
    stores::StoreArgs,
};

/// The maximum depth of --recursive.
const DEPTH_MAX: usize = 256;

/// The most names on a page, as in S3.
const PAGE_NAMES: usize = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to list: `s3://BUCKET[/PREFIX]`, `nvme-tcp://HOST[:PORT]/[NQN/]`, or a folder.
    #[arg(value_name = "URI")]
    uri: PathBuf,

    /// List all levels, and not only the first.
    #[arg(short, long)]
    recursive: bool,

    /// Write a JSON object per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let uri = Uri::parse(&args.uri)?;
    let at = Location::from(args.store.stores()?.find(&uri)?);
    let mut count = 0;
    match at.below(Missing::Refuse) {
        Ok(inside) => list(args, &*inside, "", DEPTH_MAX, &mut count)?,
        // A file, or a store that cannot list.
        Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported) => {}
        Err(error) => return Err(error.into()),
    }
    if count == 0 && !at.name.as_os_str().is_empty() {
        // It may be an object itself.
        let opened = open_one(&*at.store, at.name.as_os_str());
        match opened {
            Ok(opened) => {
                let named = Named {
                    bytes: Some(opened.object().bytes),
                    tag: opened.tag(),
                    ..Named::new(&at.name)
                };
                show(args, "", &named)?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let message = "there is no such object, and there are no objects below it";
                return Err(Error::new(ErrorKind::NotFound, "list", at.describe(), message)
                    .with_hint("list the folder above it")
                    .into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists a store page by page. `before` is its path relative to the start of the listing.
fn list(args: &Args, store: &dyn Store, before: &str, depth: usize, count: &mut u64) -> anyhow::Result<()> {
    for page in pages(store, PAGE_NAMES) {
        let page = page?;
        for object in &page.objects {
            *count += 1;
            show(args, before, object)?;
        }
        for folder in &page.folders {
            *count += 1;
            let name = format!("{before}{}/", folder.display());
            if !args.recursive {
                show_folder(args, &name)?;
            } else if depth == 0 {
                anyhow::bail!("{name} is nested deeper than {DEPTH_MAX}");
            } else {
                list(args, &*store.below(folder, Missing::Refuse)?, &name, depth - 1, count)?;
            }
        }
    }
    Ok(())
}

fn show(args: &Args, before: &str, object: &Named) -> anyhow::Result<()> {
    let name = format!("{before}{}", object.name.display());
    if args.json {
        let since = object.modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        return print_json_line(&json!({
            "name": name,
            "bytes": object.bytes,
            "modified_s": since.map(|since| since.as_secs()),
        }));
    }
    let size = object
        .bytes
        .map_or_else(|| "-".to_owned(), |bytes| Bytes(bytes).to_string());
    print(&format!("{size:>10}  {name}\n"))
}

fn show_folder(args: &Args, name: &str) -> anyhow::Result<()> {
    if args.json {
        return print_json_line(&json!({ "folder": name }));
    }
    print(&format!("{:>10}  {name}\n", ""))
}
