//! `straightway ls`: lists the objects of a store below a name.

use std::{path::PathBuf, process::ExitCode, time::UNIX_EPOCH};

use serde_json::json;
use straightway_core::{Bytes, Error, ErrorKind, Uri, text::shown};
use straightway_io::{
    Store,
    store::{Location, Missing, NAMES_MAX, Named, open_one, pages, too_many_names},
};
use straightway_stores::Session;

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

    /// Stop with an error after this many names: a faulty service may list names forever.
    #[arg(long, value_name = "NAMES", default_value_t = NAMES_MAX)]
    limit: usize,

    /// Write a JSON object per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let uri = Uri::parse(&args.uri)?;
    let at = Location::from(args.store.stores(&Session::new())?.find(&uri)?);
    let mut lister = Lister {
        args,
        at: &at,
        count: 0,
    };
    match at.below(Missing::Refuse) {
        Ok(inside) => lister.list(&*inside, "", DEPTH_MAX)?,
        // An object, a version of one, or a store that cannot list.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFolder | ErrorKind::Invalid | ErrorKind::Unsupported
            ) => {}
        Err(error) => return Err(error.into()),
    }
    if lister.count == 0 && !at.name.as_os_str().is_empty() {
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

/// Lists a store page by page, and counts the names.
struct Lister<'a> {
    args: &'a Args,
    /// The start of the listing.
    at: &'a Location,
    count: usize,
}

impl Lister<'_> {
    /// Lists a store. `before` is its path relative to the start of the listing.
    fn list(&mut self, store: &dyn Store, before: &str, depth: usize) -> anyhow::Result<()> {
        for page in pages(store, PAGE_NAMES) {
            let page = page?;
            for object in &page.objects {
                self.count_name()?;
                show(self.args, before, object)?;
            }
            for folder in &page.folders {
                self.count_name()?;
                let name = format!("{before}{}/", folder.display());
                if !self.args.recursive {
                    show_folder(self.args, &name)?;
                } else if depth == 0 {
                    anyhow::bail!("{} is nested deeper than {DEPTH_MAX}", shown(&name));
                } else {
                    self.list(&*store.below(folder, Missing::Refuse)?, &name, depth - 1)?;
                }
            }
        }
        Ok(())
    }

    /// Counts a name. Fails if there are more than the limit.
    fn count_name(&mut self) -> anyhow::Result<()> {
        if self.count == self.args.limit {
            let error = too_many_names(self.at.describe(), self.args.limit);
            return Err(error.with_hint("list a longer prefix, or raise --limit").into());
        }
        self.count += 1;
        Ok(())
    }
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
    print(&format!("{size:>10}  {}\n", shown(&name)))
}

fn show_folder(args: &Args, name: &str) -> anyhow::Result<()> {
    if args.json {
        return print_json_line(&json!({ "folder": name }));
    }
    print(&format!("{:>10}  {}\n", "", shown(name)))
}
