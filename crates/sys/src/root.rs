//! The file system as seen from a root that can be replaced.
//!
//! What a machine is made of stands in /sys, /proc, /run, /etc and /dev. Everything that looks
//! there looks through a [`Root`]: `/` on a live machine, a folder in a test or for a capture sent
//! in from a machine one cannot log in to. Symbolic links are followed inside the root, as a chroot
//! would: sysfs is mostly links, and an absolute one must not lead out to the machine we run on.
//!
//! A [`Capture`] is the same in memory.
//!
//! Nothing read here is trusted: reads and listings are bounded, only regular files are opened (a
//! FIFO would block for ever), text that is not UTF-8 is read with replacement characters.

mod capture;

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::{self, File},
    io::{self, BufReader, Cursor, Read},
    path::{Component, Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use straightway_core::{Error, Kind, Result};

pub use self::capture::{Capture, Entry};
use crate::plain_file::open_plain;

/// The most bytes read of one file. A page is what sysfs gives; the mount table of a machine with
/// thousands of containers and a kernel's configuration stay below it.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// The most entries listed of one folder.
pub const ENTRIES_MAX: usize = 65_536;

/// The most bytes searched for a word: a kernel's symbol table has about 15 MB.
pub const SEARCH_BYTES_MAX: u64 = 64 << 20;

/// The most symbolic links followed on one path; the kernel's own limit.
const LINKS_MAX: usize = 40;

/// Where `/` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Folder(PathBuf),
    Memory(Arc<Capture>),
}

impl Default for Root {
    fn default() -> Self {
        Self::machine()
    }
}

impl Root {
    /// The machine we run on.
    pub fn machine() -> Self {
        Self::at("/")
    }

    /// A folder laid out like a machine's `/`.
    pub fn at(base: impl Into<PathBuf>) -> Self {
        Self {
            place: Place::Folder(base.into()),
        }
    }

    /// A capture in memory.
    pub fn of(capture: Arc<Capture>) -> Self {
        Self {
            place: Place::Memory(capture),
        }
    }

    /// Whether this is the machine we run on, so that system calls tell of the same one.
    pub fn is_machine(&self) -> bool {
        matches!(&self.place, Place::Folder(base) if base == Path::new("/"))
    }

    /// Where `inside` is for a system call, if it is anywhere; links in it are not followed.
    pub fn outside(&self, inside: impl AsRef<Path>) -> Option<PathBuf> {
        let inside = inside.as_ref();
        match &self.place {
            Place::Folder(base) => Some(base.join(inside.strip_prefix("/").unwrap_or(inside))),
            Place::Memory(_) => None,
        }
    }

    /// `path` without links and dots, if it exists, as an absolute path inside the root.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let (path, complete) = self.walk(path.as_ref());
        complete.then_some(path)
    }

    /// `path` without links and dots as far as it exists, and the rest as written.
    pub fn reach(&self, path: impl AsRef<Path>) -> PathBuf {
        self.walk(path.as_ref()).0
    }

    /// Whether something is at `path`.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.resolve(path).is_some()
    }

    /// The bytes of a file, up to [`FILE_BYTES_MAX`]; a longer one is an error.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let mut bytes = Vec::new();
        self.open(path)?
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::os("read", path.display(), e))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let message = format!("it is longer than {FILE_BYTES_MAX} bytes");
            return Err(Error::new(Kind::Corrupt, "read", path.display(), message));
        }
        Ok(bytes)
    }

    /// A file as text without the white space around it; `None` where it cannot be read.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = self.read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file that holds one number, or one other value that can be parsed.
    pub fn value<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// A file that holds one hexadecimal number such as `0x10de`.
    pub fn hex(&self, path: impl AsRef<Path>) -> Option<u32> {
        let text = self.text(path)?;
        u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
    }

    /// The names in a folder in order; none where it cannot be read.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Some(inside) = self.resolve(path) else {
            return Vec::new();
        };
        let base = match &self.place {
            Place::Folder(base) => base.join(inside.strip_prefix("/").unwrap_or(&inside)),
            Place::Memory(capture) => return capture.list(&inside),
        };
        let Ok(entries) = fs::read_dir(base) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .take(ENTRIES_MAX)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// Whether `word` occurs in a file that may be long, such as the kernel's symbol table.
    pub fn contains(&self, path: impl AsRef<Path>, word: &str) -> Result<bool> {
        let path = path.as_ref();
        let mut reader = BufReader::new(self.open(path)?.take(SEARCH_BYTES_MAX));
        let mut window = vec![0; 64 << 10];
        // The tail of the last window stays in front, so that a word across the seam is found.
        let mut kept = 0;
        assert!(!word.is_empty() && word.is_ascii() && word.len() < window.len() / 2);
        loop {
            let count = match reader.read(&mut window[kept..]) {
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Error::os("read", path.display(), e)),
            };
            let filled = kept + count;
            // A word of ASCII survives whatever the window's edges cut through.
            if String::from_utf8_lossy(&window[..filled]).contains(word) {
                return Ok(true);
            }
            if count == 0 {
                return Ok(false);
            }
            kept = filled.min(word.len() - 1);
            window.copy_within(filled - kept..filled, 0);
        }
    }

    fn open(&self, path: &Path) -> Result<Opened<'_>> {
        let (inside, _) = self.walk(path);
        let failed = |e| Error::os("read", path.display(), e);
        match &self.place {
            Place::Folder(base) => {
                let outside = base.join(inside.strip_prefix("/").unwrap_or(&inside));
                Ok(Opened::File(open_plain(&outside).map_err(failed)?))
            }
            Place::Memory(capture) => match capture.entry(&inside) {
                Some(Entry::File(bytes)) => Ok(Opened::Memory(Cursor::new(bytes))),
                Some(_) => Err(failed(io::ErrorKind::IsADirectory.into())),
                None => Err(failed(io::ErrorKind::NotFound.into())),
            },
        }
    }

    /// What a path's last name is, without following it.
    fn look(&self, inside: &Path) -> Seen {
        match &self.place {
            Place::Folder(base) => {
                let outside = base.join(inside.strip_prefix("/").unwrap_or(inside));
                match fs::symlink_metadata(&outside) {
                    // A link that cannot be read leads nowhere.
                    Ok(meta) if meta.is_symlink() => {
                        fs::read_link(outside).map_or(Seen::Nothing, Seen::Link)
                    }
                    Ok(_) => Seen::Other,
                    Err(_) => Seen::Nothing,
                }
            }
            Place::Memory(capture) => match capture.entry(inside) {
                Some(Entry::Link(target)) => Seen::Link(target.clone()),
                Some(Entry::File(_) | Entry::Folder) => Seen::Other,
                None => Seen::Nothing,
            },
        }
    }

    /// Follows `path` inside the root; the flag says whether all of it exists.
    fn walk(&self, path: &Path) -> (PathBuf, bool) {
        let mut pending: VecDeque<OsString> = names(path).collect();
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        while let Some(name) = pending.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let target = match self.look(&next) {
                Seen::Link(target) => target,
                Seen::Other => {
                    at = next;
                    continue;
                }
                Seen::Nothing => return (join_rest(next, pending), false),
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

/// What is under a name.
enum Seen {
    Link(PathBuf),
    Other,
    Nothing,
}

/// A file that is read.
enum Opened<'a> {
    File(File),
    Memory(Cursor<&'a Vec<u8>>),
}

impl Read for Opened<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(into),
            Self::Memory(bytes) => bytes.read(into),
        }
    }
}

/// The names on a path; `.` and the leading `/` say nothing, `..` is kept.
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
pub(crate) fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

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
    fn a_ring_of_links_ends() {
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
        assert_eq!(root.read("/pipe").unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn a_file_beyond_the_bound_is_an_error_and_not_read_in_part() {
        let (folder, root) = root();
        let file = File::create(folder.path().join("long")).unwrap();
        file.set_len(FILE_BYTES_MAX + 1).unwrap();
        assert_eq!(root.read("/long").unwrap_err().kind(), Kind::Corrupt);
        file.set_len(FILE_BYTES_MAX).unwrap();
        assert_eq!(root.read("/long").unwrap().len() as u64, FILE_BYTES_MAX);
    }

    #[test]
    fn a_word_across_the_seam_of_two_windows_is_found() {
        let (folder, root) = root();
        for before in [0, 65_530, 65_531, 65_536, 131_060] {
            let text = format!("{}p2pdma_pgmap_ops", "x".repeat(before));
            fs::write(folder.path().join("kallsyms"), text).unwrap();
            assert!(root.contains("/kallsyms", "p2pdma_pgmap_ops").unwrap());
            assert!(!root.contains("/kallsyms", "p2pdma_pgmap_opt").unwrap());
        }
    }

    #[test]
    fn what_is_missing_is_none_and_names_itself_as_an_error() {
        let (_folder, root) = root();
        assert!(root.list("/sys/block").is_empty());
        assert_eq!(root.text("/proc/version"), None);
        let error = root.read("/proc/version").unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("/proc/version"));
    }
}
