//! `straightway ls`: lists the objects of a store below a name.

use std::{
    borrow::Cow,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::json;
use straightway_core::{Bytes, Error, ErrorKind, Uri, Utc, text::shown};
use straightway_io::{
    Store,
    store::{Location, Missing, NAMES_MAX, Named, StoreExt, open_one, pages, too_many_names},
};
use straightway_stores::Session;

use super::{
    output::{print, print_json_line},
    stores::StoreArgs,
    words::whole,
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
    #[arg(long, value_name = "NAMES", default_value_t = NAMES_MAX, value_parser = whole(1..=usize::MAX))]
    limit: usize,

    /// Write a JSON object per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let uri = Uri::parse(&*listed_name(&args.uri))?;
    let at = Location::from(args.store.stores(&Session::new())?.find(&uri)?);
    let mut lister = Lister {
        args,
        at: &at,
        count: 0,
        total: Total::default(),
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
                let entry = Entry::of(&*at.store, "", &named);
                entry.show(args.json)?;
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
    if lister.count > 0 && !args.json {
        print(&lister.total.line())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The name to list. An NQN alone is a subsystem, with or without a slash; elsewhere it is its first namespace.
fn listed_name(typed: &Path) -> Cow<'_, Path> {
    let is_subsystem = |text: &&str| {
        let below = text.strip_prefix("nvme-tcp://").and_then(|rest| rest.split_once('/'));
        below.is_some_and(|(_, name)| !name.is_empty() && !name.contains('/'))
    };
    match typed.to_str().filter(is_subsystem) {
        Some(text) => Cow::Owned(PathBuf::from(format!("{text}/"))),
        None => Cow::Borrowed(typed),
    }
}

/// Lists a store page by page, and counts the names.
struct Lister<'a> {
    args: &'a Args,
    /// The start of the listing.
    at: &'a Location,
    count: usize,
    total: Total,
}

impl Lister<'_> {
    /// Lists a store. `before` is its path relative to the start of the listing.
    fn list(&mut self, store: &dyn Store, before: &str, depth: usize) -> anyhow::Result<()> {
        for page in pages(store, PAGE_NAMES) {
            let page = page?;
            for object in &page.objects {
                self.count_name()?;
                let entry = Entry::of(store, before, object);
                entry.show(self.args.json)?;
                self.total.add(&entry);
            }
            for folder in &page.folders {
                self.count_name()?;
                let name = format!("{before}{}/", folder.display());
                if !self.args.recursive {
                    show_folder(self.args, &name)?;
                    self.total.folders += 1;
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

/// The objects that were listed.
#[derive(Debug, Default)]
struct Total {
    objects: usize,
    bytes: u64,
    folders: usize,
}

impl Total {
    fn add(&mut self, entry: &Entry) {
        self.objects += 1;
        self.bytes += entry.bytes.unwrap_or(0);
    }

    fn line(&self) -> String {
        let counted = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let objects = counted(self.objects, "object");
        let folders = match self.folders {
            0 => String::new(),
            count => format!(", and {} (-r lists what is in them)", counted(count, "folder")),
        };
        let size = Bytes(self.bytes).to_string();
        format!("{size:>10}  {:20}  in {objects}{folders}\n", "")
    }
}

/// A line of the listing.
struct Entry {
    name: String,
    bytes: Option<u64>,
    modified: Option<SystemTime>,
    /// The path that a symbolic link contains.
    points_to: Option<String>,
}

impl Entry {
    /// An object of a store. The listing of a folder has only names, so its files are examined here. The size and the
    /// date of a link are those of the file that it leads to.
    fn of(store: &dyn Store, before: &str, object: &Named) -> Self {
        let mut entry = Self {
            name: format!("{before}{}", object.name.display()),
            bytes: object.bytes,
            modified: object.modified,
            points_to: None,
        };
        if let Some(path) = store.path(&object.name) {
            let meta = fs::metadata(&path).ok();
            let file = meta.as_ref().filter(|meta| meta.is_file());
            entry.bytes = entry.bytes.or(file.map(fs::Metadata::len));
            entry.modified = entry.modified.or(meta.and_then(|meta| meta.modified().ok()));
            entry.points_to = fs::read_link(&path).ok().map(|to| to.display().to_string());
        }
        entry
    }

    fn show(&self, as_json: bool) -> anyhow::Result<()> {
        if as_json {
            let since = self.modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let mut line = json!({
                "name": self.name,
                "bytes": self.bytes,
                "modified_s": since.map(|since| since.as_secs()),
            });
            if let Some(points_to) = &self.points_to {
                line["points_to"] = json!(points_to);
            }
            return print_json_line(&line);
        }
        let size = self
            .bytes
            .map_or_else(|| "-".to_owned(), |bytes| Bytes(bytes).to_string());
        let date = self.modified.map(|time| Utc(time).to_string()).unwrap_or_default();
        let link = self.points_to.as_deref().map(|to| format!(" -> {}", shown(to)));
        let link = link.unwrap_or_default();
        print(&format!("{size:>10}  {date:20}  {}{link}\n", shown(&self.name)))
    }
}

fn show_folder(args: &Args, name: &str) -> anyhow::Result<()> {
    if args.json {
        return print_json_line(&json!({ "folder": name }));
    }
    print(&format!("{:>10}  {:20}  {}\n", "", "", shown(name)))
}
