//! The file system as seen from a root that can be replaced.
//!
//! /sys, /proc, /run, /etc and /dev describe a machine. All code reads them through a [`Root`]: `/` on a
//! live machine, or a folder in a test or with a capture of another machine. Symbolic links are resolved
//! inside the root, as in a chroot: sysfs is mostly links, and an absolute link must not lead out to the
//! machine that runs the program.
//!
//! Nothing read here is trusted. Reads and listings are bounded, only regular files are opened (a FIFO
//! would block forever), and text that is not UTF-8 is read with replacement characters.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fmt, fs,
    io::{self, BufRead, BufReader, Read},
    path::{Component, Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use straightway_core::{Error, Result};

use crate::plain_file::{open_plain, read_all};

/// The most bytes read of one file. Files in sysfs are at most a page; the mount table of a machine with
/// thousands of containers and a kernel's configuration stay below this limit.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// The room for a file of unknown length. Most files of the kernel are no longer.
const PAGE_BYTES: u64 = 4096;

/// The most entries listed of one folder.
pub const ENTRIES_MAX: usize = 65_536;

/// The most bytes searched for a word: a kernel's symbol table has about 15 MB.
pub const SEARCH_BYTES_MAX: u64 = 64 << 20;

/// The most symbolic links followed on one path; the kernel's limit.
const LINKS_MAX: usize = 40;

/// A root of the file system.
#[derive(Clone, Debug)]
pub struct Root {
    files: Arc<dyn FileTree>,
}

/// The files of a root, by their absolute paths inside it.
pub trait FileTree: fmt::Debug + Send + Sync {
    /// The kind of a path; `None` if it does not exist. Links are not followed.
    fn look(&self, path: &Path) -> Option<PathKind>;

    /// The sorted names in a folder; empty if it cannot be read.
    fn list(&self, path: &Path) -> Vec<String>;

    /// Opens a regular file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + '_>>;

    /// The folder of this machine that contains the files, if there is one.
    fn base(&self) -> Option<&Path> {
        None
    }
}

/// The kind of a path.
#[derive(Debug)]
pub enum PathKind {
    /// A symbolic link, with its target.
    Link(PathBuf),
    /// Anything else.
    Other,
}

impl Default for Root {
    fn default() -> Self {
        Self::machine()
    }
}

impl Root {
    /// The machine that runs the program.
    pub fn machine() -> Self {
        Self::at("/")
    }

    /// A folder with the layout of a machine's `/`.
    pub fn at(base: impl Into<PathBuf>) -> Self {
        Self::of(Arc::new(FolderTree(base.into())))
    }

    /// Another source of files, such as memory.
    pub fn of(files: Arc<dyn FileTree>) -> Self {
        Self { files }
    }

    /// Whether this is the machine that runs the program, so that system calls refer to it.
    pub fn is_machine(&self) -> bool {
        self.files.base() == Some(Path::new("/"))
    }

    /// The path of `inside` for a system call, if the root is a folder. Links are not resolved.
    pub fn outside(&self, inside: impl AsRef<Path>) -> Option<PathBuf> {
        Some(below(self.files.base()?, inside.as_ref()))
    }

    /// Resolves links and dots in `path`. Returns an absolute path inside the root, or `None` if it does not exist.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let (path, complete) = self.walk(path.as_ref());
        complete.then_some(path)
    }

    /// Resolves links and dots in the part of `path` that exists, and appends the rest unchanged.
    pub fn reach(&self, path: impl AsRef<Path>) -> PathBuf {
        self.walk(path.as_ref()).0
    }

    /// Whether `path` exists.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.resolve(path).is_some()
    }

    /// The bytes of a file, up to [`FILE_BYTES_MAX`]; a longer one is an error.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        read_all(self.open(path)?, PAGE_BYTES, FILE_BYTES_MAX, path)
    }

    /// The trimmed text of a file; `None` if it cannot be read.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = self.read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The value of a file that contains one number or other parsable value.
    pub fn value<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The value of a file that contains one hexadecimal number such as `0x10de`.
    pub fn hex(&self, path: impl AsRef<Path>) -> Option<u32> {
        let text = self.text(path)?;
        u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
    }

    /// The sorted names in a folder; empty if it cannot be read.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let inside = self.resolve(path);
        inside.map_or_else(Vec::new, |inside| self.files.list(&inside))
    }

    /// Whether a line of a file contains `word`. The file may be long, such as the kernel's symbol table.
    pub fn contains(&self, path: impl AsRef<Path>, word: &str) -> Result<bool> {
        let path = path.as_ref();
        let mut reader = BufReader::new(self.open(path)?.take(SEARCH_BYTES_MAX));
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line);
            if read.map_err(|e| Error::os("read", path.display(), e))? == 0 {
                return Ok(false);
            }
            if String::from_utf8_lossy(&line).contains(word) {
                return Ok(true);
            }
        }
    }

    fn open(&self, path: &Path) -> Result<Box<dyn Read + '_>> {
        // On the machine itself, the kernel resolves links to the same file.
        let opened = if self.is_machine() {
            self.files.open(path)
        } else {
            self.files.open(&self.walk(path).0)
        };
        opened.map_err(|e| Error::os("read", path.display(), e))
    }

    /// Resolves `path` inside the root. The flag says whether all of it exists.
    fn walk(&self, path: &Path) -> (PathBuf, bool) {
        let mut pending: VecDeque<OsString> = names(path).collect();
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        while let Some(name) = pending.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let target = match self.files.look(&next) {
                Some(PathKind::Link(target)) => target,
                Some(PathKind::Other) => {
                    at = next;
                    continue;
                }
                None => return (join_rest(next, pending), false),
            };
            links += 1;
            if links > LINKS_MAX {
                return (join_rest(next, pending), false);
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                pending.push_front(name);
            }
        }
        (at, true)
    }
}

/// The files in a folder of this machine.
#[derive(Debug)]
struct FolderTree(PathBuf);

impl FileTree for FolderTree {
    fn look(&self, path: &Path) -> Option<PathKind> {
        let outside = below(&self.0, path);
        if !fs::symlink_metadata(&outside).ok()?.is_symlink() {
            return Some(PathKind::Other);
        }
        // A link that cannot be read counts as missing.
        fs::read_link(outside).ok().map(PathKind::Link)
    }

    fn list(&self, path: &Path) -> Vec<String> {
        let Ok(entries) = fs::read_dir(below(&self.0, path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .take(ENTRIES_MAX)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(open_plain(&below(&self.0, path))?))
    }

    fn base(&self) -> Option<&Path> {
        Some(&self.0)
    }
}

/// The path in `base` of an absolute path inside the root.
fn below(base: &Path, inside: &Path) -> PathBuf {
    base.join(inside.strip_prefix("/").unwrap_or(inside))
}

/// The names on a path without `.` and the leading `/`. `..` is kept.
fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn join_rest(mut at: PathBuf, rest: VecDeque<OsString>) -> PathBuf {
    for name in rest {
        if name == ".." {
            at.pop();
        } else {
            at.push(name);
        }
    }
    at
}

/// The last name of a path.
pub fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use straightway_core::ErrorKind;

    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        (folder, root)
    }

    #[test]
    fn an_absolute_link_stays_inside_the_root() {
        let (folder, root) = root();
        fs::create_dir_all(folder.path().join("opt/driver")).unwrap();
        fs::create_dir(folder.path().join("etc")).unwrap();
        fs::write(folder.path().join("opt/driver/version"), "580\n").unwrap();
        symlink("/opt/driver", folder.path().join("etc/driver")).unwrap();
        assert_eq!(root.value("/etc/driver/version"), Some(580));
        assert_eq!(
            root.resolve("/etc/driver/../driver/version").unwrap(),
            Path::new("/opt/driver/version")
        );
    }

    #[test]
    fn dots_do_not_climb_out_of_the_root() {
        let (folder, root) = root();
        symlink("../../../../../../etc", folder.path().join("up")).unwrap();
        assert_eq!(root.reach("/up/passwd"), Path::new("/etc/passwd"));
        assert!(root.read("/up/passwd").is_err());
    }

    #[test]
    fn a_cycle_of_links_ends() {
        let (folder, root) = root();
        symlink("b", folder.path().join("a")).unwrap();
        symlink("a", folder.path().join("b")).unwrap();
        assert_eq!(root.resolve("/a"), None);
        assert!(root.text("/a").is_none());
    }

    #[test]
    fn a_fifo_is_refused_and_does_not_block() {
        let (folder, root) = root();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert_eq!(root.read("/pipe").unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_file_beyond_the_bound_is_an_error_and_not_read_in_part() {
        let (folder, root) = root();
        let file = fs::File::create(folder.path().join("long")).unwrap();
        file.set_len(FILE_BYTES_MAX + 1).unwrap();
        assert_eq!(root.read("/long").unwrap_err().kind(), ErrorKind::Corrupt);
        file.set_len(FILE_BYTES_MAX).unwrap();
        assert_eq!(root.read("/long").unwrap().len() as u64, FILE_BYTES_MAX);
    }

    #[test]
    fn a_word_is_found_wherever_it_stands_in_a_long_line() {
        let (folder, root) = root();
        for before in [0, 65_530, 65_531, 65_536, 131_060] {
            let text = format!("{}p2pdma_pgmap_ops", "x".repeat(before));
            fs::write(folder.path().join("kallsyms"), text).unwrap();
            assert!(root.contains("/kallsyms", "p2pdma_pgmap_ops").unwrap());
            assert!(!root.contains("/kallsyms", "p2pdma_pgmap_opt").unwrap());
        }
    }

    #[test]
    fn a_missing_file_is_none_or_an_error_with_its_name() {
        let (_folder, root) = root();
        assert!(root.list("/sys/block").is_empty());
        assert_eq!(root.text("/proc/version"), None);
        let error = root.read("/proc/version").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("/proc/version"));
    }
}
