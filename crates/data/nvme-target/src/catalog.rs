//! The catalog of namespaces, updated by scanning the sources.
//!
//! A name keeps its NSID while it exists, also while its file is empty and has no namespace. A replaced file keeps name
//! and NSID and gets a new version. A file that grew or shrank gets a new length. Hosts are notified of each change.
//! Versions are looked at more often than by scans: see [`crate::version`].

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::FileTypeExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::index::{IndexEntry, NameIndex, is_index_name};
use straightway_sys::nonce::fill_random;

use crate::{
    backing::{Backing, Stamp, unusable},
    identity::{self, uuid},
    namespace::Namespace,
    served_path::{Links, ServedPath},
    table::{Served, Table},
    version::Version,
};

/// The largest NSID, and the maximum number of namespaces.
pub(crate) const NAMESPACES_MAX: u32 = 4096;

/// The maximum number of ANA groups, as in Linux.
pub(crate) const GROUPS_MAX: usize = 128;

/// The maximum depth of folders below a served folder.
const DEPTH_MAX: usize = 16;

/// A source of namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceSource {
    /// A file, a block device, or a folder with a namespace for each file below it. Names begin with the last component
    /// of the path.
    Path(PathBuf),
    /// Memory with this name and length. Its content is lost when the target ends.
    Memory {
        /// Its name in the index.
        name: String,
        /// Its length.
        bytes: u64,
    },
}

/// The names and their namespaces.
#[derive(Debug)]
pub(crate) struct Catalog {
    nqn: String,
    sources: Vec<NamespaceSource>,
    block_shift: u8,
    is_writable: bool,
    links: Links,
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Increases with each change.
    pub(crate) revision: u64,
    /// Increases when a name is added or removed, or when the NSID in an entry changes. A host keeps the offsets of the
    /// entries until then. A file that grows all the time must not keep hosts from reading the index.
    generation: u64,
    /// The lowest NSID that was never used; beyond [`NAMESPACES_MAX`] if all were.
    next_nsid: u32,
    /// The boot of this machine.
    boot: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    served: Arc<Served>,
    /// The NSID of the name. A file that was always empty has none.
    nsid: Option<u32>,
    stamp: Option<Stamp>,
}

impl Entry {
    /// The NSID in the index; `None` for an empty file.
    fn shown_nsid(&self) -> Option<u32> {
        self.served.namespace.as_ref().map(|namespace| namespace.nsid)
    }
}

impl Catalog {
    pub(crate) fn new(
        nqn: &str,
        sources: Vec<NamespaceSource>,
        block_shift: u8,
        is_writable: bool,
        links: Links,
    ) -> Self {
        Self {
            nqn: nqn.to_owned(),
            sources,
            block_shift,
            is_writable,
            links,
            entries: BTreeMap::new(),
            revision: 0,
            generation: 0,
            next_nsid: 1,
            boot: identity::boot(),
        }
    }

    /// Scans all sources. Returns the NSIDs that were added, removed or changed. If a source cannot be read, it fails
    /// and changes nothing.
    pub(crate) fn scan(&mut self) -> Result<BTreeSet<u32>> {
        let mut found = BTreeMap::new();
        for (number, source) in self.sources.iter().enumerate() {
            let mut own = BTreeMap::new();
            scan_source(source, self.links, &mut own)?;
            for (name, place) in own {
                if found.contains_key(&name) {
                    return Err(duplicate(&name));
                }
                found.insert(name, (place, group_of(number)));
            }
        }
        if found.len() > NAMESPACES_MAX as usize {
            let why = format!("it has more than {NAMESPACES_MAX} files");
            return Err(Error::new(ErrorKind::Invalid, "serve", &self.nqn, why));
        }
        let mut entries = BTreeMap::new();
        let mut changed = BTreeSet::new();
        let (mut next_nsid, mut is_changed) = (self.next_nsid, false);
        for (name, (place, ana_group)) in found {
            let before = self.entries.get(&name);
            let is_first_use = before.is_none() && next_nsid <= NAMESPACES_MAX;
            let ids = NewIds {
                nsid: self.free_nsid(next_nsid, &entries),
                ana_group,
                salt: if is_first_use { 0 } else { self.revision },
            };
            let entry = match self.updated(&name, &place, before, ids) {
                Ok(entry) => entry,
                // It was removed after it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if let Some(entry) = &entry {
                is_changed = true;
                changed.extend(before.and_then(Entry::shown_nsid));
                changed.extend(entry.shown_nsid());
                if entry.nsid == Some(ids.nsid) {
                    next_nsid = next_nsid.max(ids.nsid + 1);
                }
            }
            let entry = entry.or_else(|| before.cloned());
            entries.insert(name, entry.expect("an unchanged name existed before"));
        }
        let gone = self.entries.iter().filter(|(name, _)| !entries.contains_key(*name));
        changed.extend(gone.filter_map(|(_, entry)| entry.shown_nsid()));
        let places = |(name, entry): (&Vec<u8>, &Entry)| (name.clone(), entry.shown_nsid());
        let is_moved = !self.entries.iter().map(places).eq(entries.iter().map(places));
        self.entries = entries;
        self.next_nsid = next_nsid;
        self.generation += u64::from(is_moved);
        self.revision += u64::from(is_changed || is_moved);
        Ok(changed)
    }

    /// The table of all namespaces.
    pub(crate) fn table(&self) -> Result<Table> {
        let served = || self.entries.values().map(|entry| &entry.served);
        let namespaces = served().filter_map(|served| served.namespace.clone());
        let entries = self.entries.iter().map(|(name, Entry { served, .. })| IndexEntry {
            nsid: served.namespace.as_ref().map_or(0, |n| n.nsid),
            is_writable: served.namespace.as_ref().is_some_and(|n| n.backing.is_writable),
            bytes: served.bytes,
            // It is replaced when the page is read.
            version: 0,
            name: name.clone(),
        });
        let index = NameIndex {
            generation: self.generation,
            boot: self.boot,
            entries: entries.collect(),
        };
        let versions = index.version_offsets().zip(served().cloned());
        let too_long = "the names of its files are too long for its index";
        Ok(Table {
            revision: self.revision,
            namespaces: namespaces.map(|n| (n.nsid, n)).collect(),
            versions: versions.collect(),
            index: index
                .encode()
                .ok_or_else(|| Error::new(ErrorKind::Invalid, "serve", &self.nqn, too_long))?,
        })
    }

    /// The new entry of a name; `None` if it is unchanged.
    fn updated(&self, name: &[u8], place: &Place, before: Option<&Entry>, ids: NewIds) -> Result<Option<Entry>> {
        let path = match place {
            Place::Memory(_) if before.is_some() => return Ok(None),
            Place::Memory(bytes) => return self.memory(name, *bytes, ids).map(Some),
            Place::Path(path) => path,
        };
        let fail = |error| unusable(path.path(), error);
        let meta = path.metadata().map_err(fail)?;
        let is_device = meta.file_type().is_block_device();
        let mut now = Stamp::of(&meta);
        let known = before.and_then(|entry| Some((&*entry.served, entry.stamp?)));
        // Files of two folders can have the same name, one after the other.
        let known = known.filter(|(served, was)| served.path.as_ref() == Some(path) && was.is_same_file(&now));
        let open = known.and_then(|(served, _)| served.namespace.as_ref());
        if let Some(namespace) = open.filter(|_| is_device) {
            now.bytes = namespace.backing.device_bytes().map_err(fail)?;
        }
        if let Some((_, was)) = known {
            // Writes through the target change the times of a device and of a writable file. They are no new version.
            let is_written = is_device || open.is_some_and(|namespace| namespace.backing.is_writable);
            if was == now || is_written && was.bytes == now.bytes {
                return Ok(None);
            }
        }
        let (backing, stamp) = match open {
            Some(namespace) if !is_device => (namespace.backing.resized(now.bytes), now),
            _ => Backing::open(path, self.block_shift, self.is_writable)?,
        };
        let version = match known {
            // A resized file keeps its version, because hosts have counted changes in it.
            Some((served, was)) if !is_device && was.is_same_file(&stamp) => Arc::clone(&served.version),
            _ => {
                let watched = if is_device { stamp.without_times() } else { stamp };
                Arc::new(Version::new(stamp.version(), Some(watched), ids.salt))
            }
        };
        let nsid = before.and_then(|entry| entry.nsid);
        let bytes = backing.bytes;
        let namespace = (bytes > 0).then(|| {
            Arc::new(Namespace {
                nsid: nsid.unwrap_or(ids.nsid),
                uuid: uuid(&[self.nqn.as_bytes(), name]),
                ana_group: ids.ana_group,
                backing,
                version: Arc::clone(&version),
            })
        });
        Ok(Some(Entry {
            nsid: namespace.as_ref().map(|n| n.nsid).or(nsid),
            stamp: Some(stamp),
            served: Arc::new(Served {
                namespace,
                path: Some(path.clone()),
                bytes,
                version,
            }),
        }))
    }

    /// Memory under a name. Its content is lost with the target, so it has another identity after each start. A host
    /// that copies into it while the target restarts then stops instead of leaving its first part empty.
    fn memory(&self, name: &[u8], bytes: u64, ids: NewIds) -> Result<Entry> {
        let shown = String::from_utf8_lossy(name);
        let mut salt = [0; 16];
        fill_random(&mut salt).map_err(|error| Error::os("draw random bytes for", &shown, error))?;
        let backing = Backing::memory(&shown, bytes, self.block_shift)?;
        let base = salt.first_chunk().expect("it has 16 bytes");
        let namespace = Namespace {
            nsid: ids.nsid,
            uuid: uuid(&[self.nqn.as_bytes(), name, &salt]),
            ana_group: ids.ana_group,
            backing,
            version: Arc::new(Version::new(u64::from_le_bytes(*base), None, 0)),
        };
        let version = Arc::clone(&namespace.version);
        Ok(Entry {
            nsid: Some(ids.nsid),
            stamp: None,
            served: Arc::new(Served {
                namespace: Some(Arc::new(namespace)),
                path: None,
                bytes,
                version,
            }),
        })
    }

    /// An NSID for a new namespace. It was never used before, because hosts may still know an old namespace by its
    /// NSID. When all have been used, it is the lowest free one.
    fn free_nsid(&self, next: u32, new: &BTreeMap<Vec<u8>, Entry>) -> u32 {
        if next <= NAMESPACES_MAX {
            return next;
        }
        let all = self.entries.values().chain(new.values());
        let taken: BTreeSet<u32> = all.filter_map(|entry| entry.nsid).collect();
        // If all names change at once, NSIDs of removed names are reused at once.
        let own: BTreeSet<u32> = new.values().filter_map(|entry| entry.nsid).collect();
        (1..=NAMESPACES_MAX)
            .find(|nsid| !taken.contains(nsid))
            .or_else(|| (1..=NAMESPACES_MAX).find(|nsid| !own.contains(nsid)))
            .expect("there are as many numbers as names")
    }
}

/// The identifiers of a new namespace.
#[derive(Clone, Copy, Debug)]
struct NewIds {
    nsid: u32,
    ana_group: u32,
    /// The salt of a new version; 0 if the name and the NSID are used for the first time.
    salt: u64,
}

/// The ANA group of a source: one per source, up to the maximum number of groups.
pub(crate) fn group_of(source: usize) -> u32 {
    let number = u32::try_from(source % GROUPS_MAX).expect("there are few");
    number + 1
}

/// The location of a namespace's bytes.
#[derive(Debug)]
enum Place {
    Path(ServedPath),
    Memory(u64),
}

fn scan_source(source: &NamespaceSource, links: Links, found: &mut BTreeMap<Vec<u8>, Place>) -> Result<()> {
    let (name, place) = match source {
        NamespaceSource::Memory { name, bytes } => (name.as_bytes().to_vec(), Place::Memory(*bytes)),
        NamespaceSource::Path(path) => {
            let fail = |error| unusable(path, error);
            let meta = fs::metadata(path).map_err(fail)?;
            // `.` and symbolic links have a name only after they are resolved.
            let name = if let Some(name) = path.file_name() {
                name.to_owned()
            } else {
                let whole = path.canonicalize().map_err(fail)?;
                whole.file_name().unwrap_or(OsStr::new("root")).to_owned()
            };
            let name = name.as_bytes().to_vec();
            if meta.is_dir() {
                let scanned = ScannedFolder {
                    folder: path,
                    relative: PathBuf::new(),
                    links,
                };
                return scanned.scan(&name, DEPTH_MAX, found);
            }
            (name, Place::Path(ServedPath::named(path)))
        }
    };
    insert(name, place, found)
}

/// A folder below a served one.
struct ScannedFolder<'a> {
    /// The served folder.
    folder: &'a Path,
    /// The path of this folder in it.
    relative: PathBuf,
    links: Links,
}

impl ScannedFolder<'_> {
    /// Adds the files below it, under names that begin with `prefix`.
    fn scan(&self, prefix: &[u8], depth: usize, found: &mut BTreeMap<Vec<u8>, Place>) -> Result<()> {
        let folder = self.folder.join(&self.relative);
        let fail = |error| Error::os("list", folder.display(), error);
        for entry in fs::read_dir(&folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = [prefix, b"/", entry.file_name().as_bytes()].concat();
            let relative = self.relative.join(entry.file_name());
            // A link to a file is followed, because model caches consist of them. A link to a folder is not, because it
            // may form a cycle.
            let kind = entry.file_type().map_err(fail)?;
            if kind.is_dir() && depth > 0 {
                Self { relative, ..*self }.scan(&name, depth - 1, found)?;
            } else {
                let path = ServedPath::inside(self.folder, &relative, self.links);
                match path.metadata() {
                    Ok(meta) if meta.is_file() => insert(name, Place::Path(path), found)?,
                    Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                        return Err(unusable(path.path(), error));
                    }
                    _ => {}
                }
            }
            if found.len() > NAMESPACES_MAX as usize {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn insert(name: Vec<u8>, place: Place, found: &mut BTreeMap<Vec<u8>, Place>) -> Result<()> {
    let shown = String::from_utf8_lossy(&name).into_owned();
    if !is_index_name(&name) {
        let why = "its name cannot be in an index";
        return Err(Error::new(ErrorKind::Invalid, "serve", shown, why));
    }
    if found.contains_key(&name) {
        return Err(duplicate(&name));
    }
    found.insert(name, place);
    Ok(())
}

fn duplicate(name: &[u8]) -> Error {
    let why = "two sources have this name";
    Error::new(ErrorKind::Invalid, "serve", String::from_utf8_lossy(name), why)
}
