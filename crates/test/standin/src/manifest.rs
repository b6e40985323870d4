//! A machine's files as one text: a capture that is short enough to read and review.
//!
//! sysfs has thousands of one-line files and links. A manifest lists only the relevant ones, one line per device.
//! [`expand`] writes them to a folder for `straightway_sys::root::Root::at`. Several manifests can be expanded over
//! each other: a healthy machine, then its defects.
//!
//! ```text
//! # A comment.
//! /proc/version = Linux version 6.8.0        one file and its text
//! /dev/nvidia0 =                             an empty file
//! /sys/block/vda/queue rotational=0 dax=0    several files in a folder
//! pci /sys/devices/pci0000:00/0000:00:02.0 vendor=0x1af4   the same, with its link in /sys/bus/pci
//! /sys/dev/block/254:0 -> ../../block/vda    a symbolic link
//! /dev/shm/                                  an empty folder
//! /proc/mounts <<                            a file of several lines, each after a bar
//! | proc /proc proc rw 0 0
//! /sys/.../config bytes 512 0x104:0d00 0x10a:1d00          zeros, with bytes set at offsets
//! !/run/udev                                 removes what earlier lines made
//! ```

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The maximum size of a file from a `bytes` line.
const BYTES_MAX: usize = 1 << 20;

/// Writes the files of `manifest` into the folder `base`, over existing files.
pub fn expand(manifest: &str, base: &Path) -> io::Result<()> {
    let mut lines = manifest.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let entry = Entry { base, line, index };
        if let Some(path) = line.strip_suffix(" <<") {
            let mut text = String::new();
            while let Some((_, more)) = lines.next_if(|(_, next)| next.starts_with('|')) {
                let more = &more[1..];
                text.push_str(more.strip_prefix(' ').unwrap_or(more));
                text.push('\n');
            }
            entry.write(path, text.as_bytes())?;
        } else {
            entry.expand()?;
        }
    }
    Ok(())
}

/// One line of a manifest.
struct Entry<'a> {
    base: &'a Path,
    line: &'a str,
    index: usize,
}

impl Entry<'_> {
    fn expand(&self) -> io::Result<()> {
        let line = self.line;
        if let Some(path) = line.strip_prefix('!') {
            return self.remove(path);
        }
        if let Some((path, target)) = line.split_once(" -> ") {
            return self.link(path, Path::new(target.trim()));
        }
        if let Some(path) = line.strip_suffix(" =") {
            return self.write(path, b"");
        }
        if let Some((path, text)) = line.split_once(" = ") {
            return self.write(path, format!("{text}\n").as_bytes());
        }
        if let Some((path, bytes)) = line.split_once(" bytes ") {
            return self.write(path, &self.bytes(bytes)?);
        }
        let (is_pci, line) = match line.strip_prefix("pci ") {
            Some(rest) => (true, rest.trim_start()),
            None => (false, line),
        };
        let mut words = line.split_whitespace();
        let folder = words.next().ok_or_else(|| self.wrong("no path"))?;
        self.make(&self.place(folder)?)?;
        for word in words {
            let (name, text) = word.split_once('=').ok_or_else(|| self.wrong("expected name=text"))?;
            let path = format!("{folder}/{name}");
            // Spaces separate the words, so a text with spaces uses underscores.
            self.write(&path, format!("{}\n", text.replace('_', " ")).as_bytes())?;
        }
        if is_pci {
            let address = folder.rsplit('/').next().unwrap_or_default();
            let target = Path::new("../../..").join(folder.trim_start_matches("/sys/"));
            self.link(&format!("/sys/bus/pci/devices/{address}"), &target)?;
        }
        Ok(())
    }

    fn bytes(&self, text: &str) -> io::Result<Vec<u8>> {
        let mut words = text.split_whitespace();
        let length = words.next().and_then(|word| word.parse().ok());
        let length = length
            .filter(|length| *length <= BYTES_MAX)
            .ok_or_else(|| self.wrong("expected a length"))?;
        let mut bytes = vec![0; length];
        for word in words {
            let set = word.split_once(':').and_then(|(offset, hex)| {
                let offset = usize::from_str_radix(offset.strip_prefix("0x")?, 16).ok()?;
                let values: Option<Vec<u8>> = (0..hex.len())
                    .step_by(2)
                    .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
                    .collect();
                let values = values?;
                bytes
                    .get_mut(offset..offset.checked_add(values.len())?)?
                    .copy_from_slice(&values);
                Some(())
            });
            set.ok_or_else(|| self.wrong("expected 0xOFFSET:HEX inside the length"))?;
        }
        Ok(bytes)
    }

    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let place = self.place(path)?;
        self.make(place.parent().unwrap_or(self.base))?;
        fs::write(&place, bytes).map_err(|e| self.failed(&e))
    }

    fn link(&self, path: &str, target: &Path) -> io::Result<()> {
        let place = self.place(path)?;
        self.make(place.parent().unwrap_or(self.base))?;
        match fs::remove_file(&place) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(self.failed(&e)),
            _ => symlink(target, &place).map_err(|e| self.failed(&e)),
        }
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let place = self.place(path)?;
        let removed = if place.is_dir() && !place.is_symlink() {
            fs::remove_dir_all(&place)
        } else {
            fs::remove_file(&place)
        };
        removed.map_err(|e| self.failed(&e))
    }

    fn make(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder).map_err(|e| self.failed(&e))
    }

    /// The place of a path below the base. The path must be absolute and without `..`.
    fn place(&self, path: &str) -> io::Result<PathBuf> {
        let inside = path.trim().strip_prefix('/');
        let inside = inside.filter(|inside| !inside.split('/').any(|name| name == ".."));
        Ok(self
            .base
            .join(inside.ok_or_else(|| self.wrong("expected an absolute path without .."))?))
    }

    fn wrong(&self, message: &str) -> io::Error {
        let (number, line) = (self.index + 1, self.line);
        io::Error::other(format!("manifest line {number}: {message}: {line:?}"))
    }

    fn failed(&self, error: &io::Error) -> io::Error {
        self.wrong(&error.to_string())
    }
}
