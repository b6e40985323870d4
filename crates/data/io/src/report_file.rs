//! A report, trace or profile that a command writes.
//!
//! It is written under a temporary name and renamed, so nothing is ever truncated in place. It replaces only an older
//! file of its kind, so that a mistyped path cannot destroy a model. Pipes, terminals and other character devices, such
//! as `/dev/stdout`, are written to directly. A block device is refused.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::plain_file::open_plain;

use crate::{FileDraft, draft::device_refused, store::Draft};

/// A report that is being written. Dropped before `finish`, it leaves nothing behind.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A file that appears when it is whole.
    Draft(FileDraft),
    /// A character device or a pipe.
    Stream(fs::File),
}

impl ReportFile {
    /// Begins a report at `path`. An existing file must be empty or start with `mark`, as every older report of its
    /// kind does.
    pub fn begin(path: &Path, mark: impl AsRef<[u8]>) -> Result<Self> {
        let failed = |e| Error::os("write", path.display(), e);
        Self::check(path, mark.as_ref())?;
        let place = match fs::metadata(path) {
            Ok(there) if !there.is_file() && !there.is_dir() => {
                let stream = fs::OpenOptions::new().write(true).open(path).map_err(failed)?;
                // Another file may have the name by now.
                check_stream(path, &stream.metadata().map_err(failed)?)?;
                Place::Stream(stream)
            }
            _ => Place::Draft(FileDraft::new(path, 0)?),
        };
        Ok(Self {
            path: path.to_owned(),
            place,
        })
    }

    /// Returns an error if `path` is a file that a report may not replace, or a block device.
    pub fn check(path: &Path, mark: impl AsRef<[u8]>) -> Result<()> {
        let kind = fs::metadata(path).map(|there| there.file_type());
        let failed = |e| Error::os("write", path.display(), e);
        if kind.as_ref().is_ok_and(FileTypeExt::is_block_device) {
            return Err(device_refused(path));
        }
        if !kind.is_ok_and(|kind| kind.is_file()) || is_marked(path, mark.as_ref()).map_err(failed)? {
            return Ok(());
        }
        let why = "it exists and is not an older report, so it would be lost";
        Err(Error::new(ErrorKind::Invalid, "write to", path.display(), why)
            .with_hint("choose another name, or remove the file first"))
    }

    /// Writes the report under its name.
    pub fn finish(self, text: &str) -> Result<()> {
        self.finish_bytes(text.as_bytes())
    }

    /// Like [`finish`](Self::finish), with a report that is not text.
    pub fn finish_bytes(self, content: &[u8]) -> Result<()> {
        match self.place {
            Place::Draft(draft) => {
                // The first draft showed that the folder is writable; now the length is known.
                drop(draft);
                let draft = FileDraft::new(&self.path, content.len() as u64)?;
                draft.write_all_at(0, content)?;
                draft.commit()
            }
            Place::Stream(mut stream) => {
                let written = stream.write_all(content);
                written.map_err(|e| Error::os("write", self.path.display(), e))
            }
        }
    }
}

/// Returns an error unless a report may be written to this directly.
fn check_stream(path: &Path, there: &fs::Metadata) -> Result<()> {
    let kind = there.file_type();
    if kind.is_block_device() {
        return Err(device_refused(path));
    }
    if kind.is_char_device() || kind.is_fifo() || kind.is_socket() {
        return Ok(());
    }
    let why = "it was replaced while it was opened";
    Err(Error::new(ErrorKind::Transient, "write to", path.display(), why).with_hint("try again"))
}

/// Whether a file is empty or starts with `mark`.
fn is_marked(path: &Path, mark: &[u8]) -> std::io::Result<bool> {
    let mut front = Vec::new();
    open_plain(path)?.take(mark.len() as u64).read_to_end(&mut front)?;
    Ok(front.is_empty() || front == mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, symlink};

    const MARK: &str = "<!DOCTYPE html>";

    fn written(path: &Path, text: &str) -> Result<()> {
        ReportFile::begin(path, MARK)?.finish(text)
    }

    #[test]
    fn a_report_replaces_only_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let (report, model) = (folder.path().join("r.html"), folder.path().join("m"));
        fs::write(&model, "weights").unwrap();
        for text in ["<!DOCTYPE html>1", "<!DOCTYPE html>2"] {
            written(&report, text).unwrap();
            assert_eq!(fs::read_to_string(&report).unwrap(), text);
        }
        let link = folder.path().join("link");
        symlink(&model, &link).unwrap();
        for target in [&model, &link] {
            let error = written(target, "<!DOCTYPE html>").unwrap_err();
            assert!(
                error.to_string().ends_with("not an older report, so it would be lost"),
                "{error}"
            );
        }
        assert_eq!(fs::read_to_string(&model).unwrap(), "weights");
        // A symlink or hard link to an older report is not written through.
        let (two, hard) = (folder.path().join("two"), folder.path().join("hard"));
        symlink(&report, &two).unwrap();
        fs::hard_link(&report, &hard).unwrap();
        written(&two, "<!DOCTYPE html>3").unwrap();
        written(&hard, "<!DOCTYPE html>4").unwrap();
        assert_eq!(fs::read_to_string(&report).unwrap(), "<!DOCTYPE html>2");
    }

    #[test]
    fn an_unfinished_report_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.html");
        written(&path, "<!DOCTYPE html>1").unwrap();
        drop(ReportFile::begin(&path, MARK).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "<!DOCTYPE html>1");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        written(Path::new("/dev/null"), "text").unwrap();
        let kind = fs::metadata("/dev/null").unwrap().file_type();
        assert!(kind.is_char_device());
    }
}
