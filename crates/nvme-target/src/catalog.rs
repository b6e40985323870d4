//! Which namespaces there are: what was asked to be served, looked at again whenever that may have changed.
//!
//! A name keeps its number for as long as it is there. A file that is replaced under its name keeps both and gets a new
//! version, a file that grew or shrank a new length; hosts are told of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::FileTypeExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use straightway_core::{Error, Kind, Result};
use straightway_nvme::index::{Index, IndexEntry, is_index_name};

use crate::{
    backing::{Backing, Stamp},
    identity::uuid,
};

/// The largest number of a namespace, and the most of them.
pub(crate) const NAMESPACES_MAX: u32 = 4096;

/// The most ANA groups: as many as Linux has.
pub(crate) const GROUPS_MAX: usize = 128;

/// How deep folders below a served folder are looked into.
const DEPTH_MAX: usize = 16;

/// Something to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, a block device, or a folder with a namespace for each file below it. Names begin with the last part of
    /// the path.
    Path(PathBuf),
    /// Memory of this name and length, lost at the end.
    Memory {
        /// Its name in the index.
        name: String,
        /// Its length.
        bytes: u64,
    },
}

/// A namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) nsid: u32,
    pub(crate) uuid: [u8; 16],
    pub(crate) ana_group: u32,
    pub(crate) backing: Backing,
}

/// The namespaces at some time.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Grows with each change.
    pub(crate) generation: u64,
    pub(crate) namespaces: BTreeMap<u32, Arc<Namespace>>,
    /// The index page.
    pub(crate) index: Vec<u8>,
}

/// Names and what they stand for.
#[derive(Debug)]
pub(crate) struct Catalog {
    nqn: String,
    sources: Vec<Source>,
    block_shift: u8,
    is_writable: bool,
    entries: BTreeMap<Vec<u8>, Entry>,
    generation: u64,
    /// The lowest number that was never used.
    next_nsid: u32,
}

#[derive(Clone, Debug)]
struct Entry {
    /// `None` for what is empty.
    namespace: Option<Arc<Namespace>>,
    stamp: Option<Stamp>,
}

impl Catalog {
    pub(crate) fn new(nqn: &str, sources: Vec<Source>, block_shift: u8, is_writable: bool) -> Self {
        Self {
            nqn: nqn.to_owned(),
            sources,
            block_shift,
            is_writable,
            entries: BTreeMap::new(),
            generation: 0,
            next_nsid: 1,
        }
    }

    /// Looks at all sources. Answers the numbers that were added, removed or changed. What cannot be read is an error,
    /// and then nothing changes.
    pub(crate) fn scan(&mut self) -> Result<BTreeSet<u32>> {
        let mut found = BTreeMap::new();
        for (number, source) in self.sources.iter().enumerate() {
            let mut own = BTreeMap::new();
            look(source, &mut own)?;
            for (name, place) in own {
                if found.contains_key(&name) {
                    return Err(twice(&name));
                }
                found.insert(name, (place, group_of(number)));
            }
        }
        if found.len() > NAMESPACES_MAX as usize {
            let why = format!("it has more than {NAMESPACES_MAX} files");
            return Err(Error::new(Kind::Invalid, "serve", &self.nqn, why));
        }
        let mut entries = BTreeMap::new();
        let mut changed = BTreeSet::new();
        let mut next_nsid = self.next_nsid;
        let nsid_of = |entry: Option<&Entry>| Some(entry?.namespace.as_ref()?.nsid);
        for (name, (place, ana_group)) in found {
            let before = self.entries.get(&name);
            let fresh = Fresh {
                nsid: self.free_nsid(next_nsid, &entries),
                ana_group,
            };
            let entry = match self.renewed(&name, &place, before, fresh) {
                Ok(entry) => entry,
                // It went away after it was listed.
                Err(error) if error.kind() == Kind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if let Some(entry) = &entry {
                changed.extend(nsid_of(before));
                changed.extend(nsid_of(Some(entry)));
                if nsid_of(Some(entry)) == Some(fresh.nsid) {
                    next_nsid = fresh.nsid + 1;
                }
            }
            let entry = entry.or_else(|| before.cloned());
            entries.insert(name, entry.expect("what is not new was there before"));
        }
        let gone = self
            .entries
            .iter()
            .filter(|(name, _)| !entries.contains_key(*name));
        changed.extend(gone.filter_map(|(_, entry)| nsid_of(Some(entry))));
        let is_same = |(name, entry): (&Vec<u8>, &Entry)| {
            let before = self.entries.get(name);
            before.is_some_and(|before| before.stamp == entry.stamp)
        };
        let is_changed = !changed.is_empty()
            || entries.len() != self.entries.len()
            || !entries.iter().all(is_same);
        self.entries = entries;
        self.next_nsid = next_nsid;
        self.generation += u64::from(is_changed);
        Ok(changed)
    }

    /// The table of what was found.
    pub(crate) fn table(&self) -> Result<Table> {
        let namespaces = self.entries.values().filter_map(|e| e.namespace.clone());
        let entries = self.entries.iter().map(|(name, entry)| IndexEntry {
            nsid: entry.namespace.as_ref().map_or(0, |n| n.nsid),
            is_writable: entry
                .namespace
                .as_ref()
                .is_some_and(|n| n.backing.is_writable),
            bytes: entry.namespace.as_ref().map_or(0, |n| n.backing.bytes),
            version: entry.stamp.map_or(0, |stamp| stamp.version()),
            name: name.clone(),
        });
        let index = Index {
            generation: self.generation,
            entries: entries.collect(),
        };
        let too_long = "the names of its files are too long for its index";
        Ok(Table {
            generation: self.generation,
            namespaces: namespaces.map(|n| (n.nsid, n)).collect(),
            index: index
                .encode()
                .ok_or_else(|| Error::new(Kind::Invalid, "serve", &self.nqn, too_long))?,
        })
    }

    /// What a name stands for now; `None` where that is what it stood for.
    fn renewed(
        &self,
        name: &[u8],
        place: &Place,
        before: Option<&Entry>,
        fresh: Fresh,
    ) -> Result<Option<Entry>> {
        let (backing, stamp) = match (place, before) {
            (Place::Memory(_), Some(_)) => return Ok(None),
            (Place::Memory(bytes), None) => {
                let shown = String::from_utf8_lossy(name);
                (Backing::memory(&shown, *bytes, self.block_shift)?, None)
            }
            (Place::Path(path), before) => {
                let known =
                    before.and_then(|entry| Some((entry.namespace.as_ref()?, entry.stamp?)));
                let fail = |error| Error::os("serve", path.display(), error);
                let meta = fs::metadata(path).map_err(fail)?;
                let is_device = meta.file_type().is_block_device();
                let now = Stamp::of(&meta);
                match known {
                    // Whoever writes to a device through us changes its time too, so only its length counts.
                    Some((_, was)) if is_device => {
                        let (backing, stamp) =
                            Backing::open(path, self.block_shift, self.is_writable)?;
                        if stamp.bytes == was.bytes && stamp.is_same_file(&was) {
                            return Ok(None);
                        }
                        (backing, Some(stamp))
                    }
                    Some((_, was)) if was == now => return Ok(None),
                    Some((namespace, was)) if was.is_same_file(&now) => {
                        // Writes through us change the time of a writable file, and are no news.
                        if was.bytes == now.bytes && namespace.backing.is_writable {
                            return Ok(None);
                        }
                        (namespace.backing.resized(now.bytes), Some(now))
                    }
                    _ if before.is_some_and(|e| e.namespace.is_none())
                        && now.bytes == 0
                        && !is_device =>
                    {
                        return Ok(None);
                    }
                    _ => {
                        let (backing, stamp) =
                            Backing::open(path, self.block_shift, self.is_writable)?;
                        (backing, Some(stamp))
                    }
                }
            }
        };
        let nsid = before
            .and_then(|entry| entry.namespace.as_ref())
            .map(|namespace| namespace.nsid);
        let namespace = (backing.bytes > 0).then(|| {
            Arc::new(Namespace {
                nsid: nsid.unwrap_or(fresh.nsid),
                uuid: uuid(&[self.nqn.as_bytes(), name]),
                ana_group: fresh.ana_group,
                backing,
            })
        });
        Ok(Some(Entry { namespace, stamp }))
    }

    /// A number for a new namespace: one that was never used, since hosts may still know an old one by its number. When
    /// all were used, the lowest that nothing has.
    fn free_nsid(&self, next: u32, new: &BTreeMap<Vec<u8>, Entry>) -> u32 {
        if next <= NAMESPACES_MAX {
            return next;
        }
        let all = self.entries.values().chain(new.values());
        let taken: BTreeSet<u32> = all
            .filter_map(|entry| entry.namespace.as_ref().map(|n| n.nsid))
            .collect();
        // Names may be exchanged all at once; then some numbers go over at once too.
        let own: BTreeSet<u32> = new
            .values()
            .filter_map(|entry| entry.namespace.as_ref().map(|n| n.nsid))
            .collect();
        (1..=NAMESPACES_MAX)
            .find(|nsid| !taken.contains(nsid))
            .or_else(|| (1..=NAMESPACES_MAX).find(|nsid| !own.contains(nsid)))
            .expect("there are as many numbers as names")
    }
}

/// The numbers of a namespace that is new.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    nsid: u32,
    ana_group: u32,
}

/// The ANA group of what a source serves: one for each source, as far as there are groups.
pub(crate) fn group_of(source: usize) -> u32 {
    let number = u32::try_from(source % GROUPS_MAX).expect("there are few");
    number + 1
}

/// Where bytes are.
#[derive(Debug)]
enum Place {
    Path(PathBuf),
    Memory(u64),
}

fn look(source: &Source, found: &mut BTreeMap<Vec<u8>, Place>) -> Result<()> {
    let (name, place) = match source {
        Source::Memory { name, bytes } => (name.as_bytes().to_vec(), Place::Memory(*bytes)),
        Source::Path(path) => {
            let fail = |error| Error::os("serve", path.display(), error);
            let meta = fs::metadata(path).map_err(fail)?;
            // `.` and links have a name only once they are resolved.
            let name = if let Some(name) = path.file_name() {
                name.to_owned()
            } else {
                let whole = path.canonicalize().map_err(fail)?;
                whole.file_name().unwrap_or(OsStr::new("root")).to_owned()
            };
            let name = name.as_bytes().to_vec();
            if meta.is_dir() {
                return look_below(path, &name, DEPTH_MAX, found);
            }
            (name, Place::Path(path.clone()))
        }
    };
    insert(name, place, found)
}

fn look_below(
    folder: &Path,
    prefix: &[u8],
    depth: usize,
    found: &mut BTreeMap<Vec<u8>, Place>,
) -> Result<()> {
    let fail = |error| Error::os("list", folder.display(), error);
    for entry in fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = [prefix, b"/", entry.file_name().as_bytes()].concat();
        // A link to a file is followed, as caches of models are made of them; one to a folder is not, since it may
        // lead in a circle.
        let kind = entry.file_type().map_err(fail)?;
        if kind.is_dir() && depth > 0 {
            look_below(&entry.path(), &name, depth - 1, found)?;
        } else if fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file()) {
            insert(name, Place::Path(entry.path()), found)?;
        }
        if found.len() > NAMESPACES_MAX as usize {
            return Ok(());
        }
    }
    Ok(())
}

fn insert(name: Vec<u8>, place: Place, found: &mut BTreeMap<Vec<u8>, Place>) -> Result<()> {
    let shown = String::from_utf8_lossy(&name).into_owned();
    if !is_index_name(&name) {
        let why = "its name cannot be in an index";
        return Err(Error::new(Kind::Invalid, "serve", shown, why));
    }
    if found.contains_key(&name) {
        return Err(twice(&name));
    }
    found.insert(name, place);
    Ok(())
}

fn twice(name: &[u8]) -> Error {
    let why = "two things to serve have this name";
    Error::new(Kind::Invalid, "serve", String::from_utf8_lossy(name), why)
}
