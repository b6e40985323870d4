//! `straightway rm`: removes objects, all objects below a prefix, or incomplete uploads.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use straightway_core::{Bytes, Error, ErrorKind, Scheme, Seconds, Uri, text::shown};
use straightway_io::{
    Store,
    store::{Durability, Location, Missing, NAMES_MAX, StoreExt, Sweep, Verb, list_all, too_many_names},
};
use straightway_stores::Session;

use super::{output::print, stores::StoreArgs};

/// The maximum depth of --recursive.
const DEPTH_MAX: usize = 256;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to remove: `s3://BUCKET/KEY`, or with --recursive `s3://BUCKET/PREFIX`.
    #[arg(required = true, value_name = "URI")]
    uris: Vec<PathBuf>,

    /// Remove everything below the name.
    #[arg(short, long)]
    recursive: bool,

    /// List what would be removed, and remove nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Abort incomplete uploads below the name, whose parts are billed, instead of removing objects.
    #[arg(long, conflicts_with_all = ["recursive", "dry_run"])]
    uploads: bool,

    /// With --uploads, only uploads that are at least this old. Younger ones may be under way.
    #[arg(long, value_name = "TIME", default_value = "7d", requires = "uploads")]
    older_than: Seconds,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stores = args.store.stores(&Session::new())?;
    let mut places = Vec::new();
    // All names are checked before anything is removed.
    for name in &args.uris {
        let uri = Uri::parse(name)?;
        let at = Location::from(stores.find(&uri)?);
        if uri.scheme() == Scheme::Path {
            let message = "it is a local file or folder";
            let error = Error::new(ErrorKind::Invalid, "remove", at.describe(), message);
            return Err(error.with_hint("use `rm`").into());
        }
        if !at.store.verbs().has(Verb::Remove) {
            return Err(at.store.lacks(Verb::Remove).into());
        }
        places.push(at);
    }
    for at in &places {
        if args.uploads {
            let age = Duration::from_secs_f64(args.older_than.0.max(0.0));
            for name in at.below(Missing::Refuse)?.sweep(Sweep::OlderThan(age))? {
                print(&format!("aborted the upload of {}\n", shown(&name)))?;
            }
        } else if args.recursive {
            remove_below(args, at)?;
        } else {
            remove_one(args, at)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn remove_one(args: &Args, at: &Location) -> anyhow::Result<()> {
    let opened = match at.open() {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let hint = "--recursive removes what is below a prefix; `straightway ls` lists it";
            return Err(error.with_hint(hint).into());
        }
        Err(error) => return Err(error.into()),
    };
    if !args.dry_run {
        at.store.remove(at.name.as_os_str(), Durability::Synced)?;
    }
    print_removal(args, &at.describe(), opened.object().bytes)
}

fn remove_below(args: &Args, at: &Location) -> anyhow::Result<()> {
    let name = at.name.to_string_lossy();
    let name = name.trim_end_matches('/');
    if name.is_empty() {
        let message = "that is everything in the bucket";
        let error = Error::new(ErrorKind::Invalid, "remove", at.describe(), message);
        return Err(error.with_hint("name a prefix in it").into());
    }
    let inside = at.below(Missing::Refuse)?;
    let mut found = Vec::new();
    collect_below(&*inside, DEPTH_MAX, &mut found, &mut 0)?;
    if found.is_empty() {
        let message = "nothing is below it";
        return Err(Error::new(ErrorKind::NotFound, "remove", at.describe(), message)
            .with_hint("without --recursive one object is removed")
            .into());
    }
    if !args.dry_run {
        at.store.clear(name.as_ref())?;
    }
    for (name, bytes) in &found {
        print_removal(args, name, *bytes)?;
    }
    Ok(())
}

/// Adds the names and lengths of the objects below a store. `names` counts the names of the whole tree.
fn collect_below(
    store: &dyn Store,
    depth: usize,
    found: &mut Vec<(String, u64)>,
    names: &mut usize,
) -> anyhow::Result<()> {
    if depth == 0 {
        anyhow::bail!("prefixes are nested deeper than {DEPTH_MAX}");
    }
    let listing = list_all(store)?;
    *names += listing.objects.len() + listing.folders.len();
    if *names > NAMES_MAX {
        return Err(too_many_names(store.describe("".as_ref()), NAMES_MAX).into());
    }
    for object in &listing.objects {
        let bytes = object.bytes.unwrap_or_default();
        found.push((store.describe(&object.name), bytes));
    }
    for folder in &listing.folders {
        collect_below(&*store.below(folder, Missing::Refuse)?, depth - 1, found, names)?;
    }
    Ok(())
}

fn print_removal(args: &Args, name: &str, bytes: u64) -> anyhow::Result<()> {
    let verb = if args.dry_run { "would remove" } else { "removed" };
    print(&format!("{verb} {} ({})\n", shown(name), Bytes(bytes)))
}
