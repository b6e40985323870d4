//! A captured machine's files in memory, examined without a file system.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use straightway_sys::root::{FileTree, PathKind};

/// Files by their absolute paths. A folder exists if it has an entry or a child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capture {
    /// The unchanged capture that this one is based on.
    base: Option<Arc<Self>>,
    /// Entries by the bytes of their paths; `None` for removed ones.
    entries: HashMap<Vec<u8>, Option<Entry>>,
    /// All names that were ever added to each folder.
    names: HashMap<Vec<u8>, BTreeSet<Vec<u8>>>,
}

/// The entry of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A file with these bytes.
    File(Vec<u8>),
    /// A symbolic link with this target.
    Link(PathBuf),
    /// A folder.
    Folder,
}

/// The result of looking up a path.
enum Found<'a> {
    There(&'a Entry),
    Removed,
    Nowhere,
}

impl Capture {
    /// Reads everything in `folder`, which is laid out like a machine's `/`.
    pub(crate) fn of(folder: &Path) -> io::Result<Self> {
        let mut capture = Self::default();
        let mut open = vec![(folder.to_owned(), PathBuf::from("/"))];
        while let Some((outside, inside)) = open.pop() {
            for entry in fs::read_dir(&outside)? {
                let entry = entry?;
                let (kind, path) = (entry.file_type()?, inside.join(entry.file_name()));
                let found = if kind.is_symlink() {
                    Entry::Link(fs::read_link(entry.path())?)
                } else if kind.is_dir() {
                    open.push((entry.path(), path.clone()));
                    Entry::Folder
                } else {
                    Entry::File(fs::read(entry.path())?)
                };
                capture.set(&path, found);
            }
        }
        Ok(capture)
    }

    /// A capture that equals `base` until it is changed.
    pub(crate) fn like(base: &Arc<Self>) -> Self {
        Self {
            base: Some(Arc::clone(base)),
            ..Self::default()
        }
    }

    /// The sorted paths of all files that were added here.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let is_file = |entry: &Option<Entry>| matches!(entry, Some(Entry::File(_)));
        let files = self.entries.iter().filter(|(_, entry)| is_file(entry));
        let mut files: Vec<_> = files.map(|(path, _)| PathBuf::from(OsStr::from_bytes(path))).collect();
        files.sort_unstable();
        files
    }

    /// Sets the entry of a path, replacing an existing one.
    pub(crate) fn set(&mut self, path: &Path, entry: Entry) {
        let bytes = path.as_os_str().as_bytes().to_vec();
        self.entries.insert(bytes, Some(entry));
        let mut path = path;
        while let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
            let folder_bytes = folder.as_os_str().as_bytes().to_vec();
            self.names
                .entry(folder_bytes)
                .or_default()
                .insert(name.as_bytes().to_vec());
            path = folder;
        }
    }

    /// Removes the entry of a path, but nothing below it.
    pub(crate) fn remove(&mut self, path: &Path) {
        let path = path.as_os_str().as_bytes().to_vec();
        self.entries.insert(path, None);
    }

    /// The entry of a path. Links are not followed.
    fn entry(&self, path: &Path) -> Option<&Entry> {
        let bytes = path.as_os_str().as_bytes();
        match self.find(bytes) {
            Found::There(entry) => return Some(entry),
            Found::Removed => return None,
            Found::Nowhere => {}
        }
        (bytes == b"/" || self.has_names(bytes)).then_some(&Entry::Folder)
    }

    fn collect<'a>(&'a self, folder: &[u8], names: &mut BTreeSet<&'a [u8]>) {
        names.extend(self.names.get(folder).into_iter().flatten().map(Vec::as_slice));
        if let Some(base) = &self.base {
            base.collect(folder, names);
        }
    }

    fn has_names(&self, folder: &[u8]) -> bool {
        self.names.contains_key(folder) || self.base.as_ref().is_some_and(|base| base.has_names(folder))
    }

    /// Looks up a path.
    fn find(&self, path: &[u8]) -> Found<'_> {
        match (self.entries.get(path), &self.base) {
            (Some(Some(entry)), _) => Found::There(entry),
            (Some(None), _) => Found::Removed,
            (None, Some(base)) => base.find(path),
            (None, None) => Found::Nowhere,
        }
    }
}

impl FileTree for Capture {
    fn look(&self, path: &Path) -> Option<PathKind> {
        Some(match self.entry(path)? {
            Entry::Link(target) => PathKind::Link(target.clone()),
            Entry::File(_) | Entry::Folder => PathKind::Other,
        })
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        let mut names = BTreeSet::new();
        self.collect(folder.as_os_str().as_bytes(), &mut names);
        let is_there = |name: &&[u8]| self.entry(&folder.join(OsStr::from_bytes(name))).is_some();
        let names = names.into_iter().filter(is_there);
        names
            .filter_map(|name| Some(std::str::from_utf8(name).ok()?.to_owned()))
            .collect()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn io::Read + '_>> {
        match self.entry(path) {
            Some(Entry::File(bytes)) => Ok(Box::new(io::Cursor::new(bytes))),
            Some(_) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use straightway_sys::root::Root;

    use super::*;

    #[test]
    fn a_capture_reads_like_its_folder_and_can_be_changed() {
        let folder = tempfile::tempdir().unwrap();
        let manifest =
            "/proc/version = 6.8\n/sys/block/vda/queue dax=0\n/sys/dev/block/8:0 -> ../../block/vda\n/dev/shm/\n";
        straightway_standin::expand(manifest, folder.path()).unwrap();
        let base = Arc::new(Capture::of(folder.path()).unwrap());
        for root in [Root::at(folder.path()), Root::of(Arc::clone(&base) as _)] {
            assert_eq!(root.text("/sys/dev/block/8:0/queue/dax").unwrap(), "0");
            assert_eq!(root.list("/"), ["dev", "proc", "sys"]);
            assert_eq!(root.list("/sys/dev/block"), ["8:0"]);
            assert_eq!(root.list("/sys/dev/block/8:0"), ["queue"]);
            assert!(root.exists("/dev/shm") && root.list("/dev/shm").is_empty());
            assert!(!root.exists("/proc/version/x") && !root.exists("/pro"));
            assert!(root.read("/sys").is_err() && root.read("/none").is_err());
        }
        let mut changed = Capture::like(&base);
        changed.set(Path::new("/proc/version"), Entry::File(b"7".to_vec()));
        changed.set(Path::new("/proc/new"), Entry::Link("version".into()));
        changed.remove(Path::new("/sys/block/vda/queue/dax"));
        let root = Root::of(Arc::new(changed));
        assert_eq!(
            (root.text("/proc/new").unwrap(), root.list("/proc").len()),
            ("7".to_owned(), 2)
        );
        assert!(!root.exists("/sys/block/vda/queue/dax"));
        assert!(root.list("/sys/block/vda/queue").is_empty());
        assert_eq!(base.files().len(), 2);
    }
}
