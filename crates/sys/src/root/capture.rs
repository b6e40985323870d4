//! A machine's files in memory: a capture that is examined without a file system under it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Files by their absolute paths. A folder is there if it is named or if something is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    entries: BTreeMap<PathBuf, Entry>,
}

/// What is under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file with these bytes.
    File(Vec<u8>),
    /// A symbolic link that points there.
    Link(PathBuf),
    /// A folder.
    Folder,
}

impl Capture {
    /// Reads all that is in `folder`, which is laid out like a machine's `/`.
    pub fn of(folder: &Path) -> io::Result<Self> {
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
                capture.entries.insert(path, found);
            }
        }
        Ok(capture)
    }

    /// The paths of all files, in order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let files = self.entries.iter();
        files.filter_map(|(path, entry)| matches!(entry, Entry::File(_)).then_some(path.as_path()))
    }

    /// Puts something under a name, over what is there.
    pub fn set(&mut self, path: impl Into<PathBuf>, entry: Entry) {
        self.entries.insert(path.into(), entry);
    }

    /// Removes what is under a name, but nothing below it.
    pub fn remove(&mut self, path: &Path) {
        self.entries.remove(path);
    }

    /// What is under a name; links are not followed.
    pub(super) fn entry(&self, path: &Path) -> Option<&Entry> {
        if let Some(entry) = self.entries.get(path) {
            return Some(entry);
        }
        let is_folder = path == Path::new("/") || self.below(path).next().is_some();
        is_folder.then_some(&Entry::Folder)
    }

    /// The names in a folder.
    pub(super) fn list(&self, folder: &Path) -> Vec<String> {
        let name = |path: &'_ Path| {
            let name = path.strip_prefix(folder).ok()?.components().next()?;
            name.as_os_str().to_str().map(str::to_owned)
        };
        let mut names: Vec<_> = self
            .below(folder)
            .filter_map(|(path, _)| name(path))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What is below a folder, however deep.
    fn below<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = (&'a PathBuf, &'a Entry)> {
        // A path's parts are compared one by one, so what is below a folder follows right after it.
        let after = self.entries.range(folder.to_owned()..);
        after
            .skip_while(move |(path, _)| *path == folder)
            .take_while(move |(path, _)| path.starts_with(folder))
    }
}
