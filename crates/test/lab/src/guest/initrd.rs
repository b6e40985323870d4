//! The initial file system of a guest: busybox, programs with their libraries, and kernel modules, as a cpio archive.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// File modes in an archive.
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// A cpio archive under construction, in the `newc` format of Linux.
#[derive(Debug, Default)]
pub(super) struct Initrd {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Initrd {
    /// Adds a folder and its parents.
    pub(super) fn folder(&mut self, name: &str) {
        if name.is_empty() || self.names.contains(name) {
            return;
        }
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.folder(parent);
        }
        self.entry(name, FOLDER, &[]);
    }

    /// Adds an executable file.
    pub(super) fn file(&mut self, name: &str, content: &[u8]) {
        if self.names.contains(name) {
            return;
        }
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.folder(parent);
        }
        self.entry(name, FILE, content);
    }

    /// Adds a program as a name in `/bin`, stripped of debug information, with its shared libraries.
    pub(super) fn program(&mut self, name: &str, path: &Path) -> io::Result<()> {
        let stripped = tempfile::NamedTempFile::new()?;
        let status = Command::new("strip").arg("-o").args([stripped.path(), path]).status();
        let content = match status {
            Ok(status) if status.success() => fs::read(stripped.path())?,
            _ => fs::read(path)?,
        };
        self.file(&format!("bin/{name}"), &content);
        // `ldd` fails for a static program, which has no libraries.
        let listed = Command::new("ldd").arg(path).output()?;
        for word in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
            if let Some(library) = word.strip_prefix('/') {
                self.file(library, &fs::read(word)?);
            }
        }
        Ok(())
    }

    /// Adds busybox with links for all its commands.
    pub(super) fn busybox(&mut self) -> io::Result<()> {
        let path = ["/bin/busybox", "/usr/bin/busybox"]
            .into_iter()
            .find(|path| fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o111 != 0))
            .ok_or_else(|| io::Error::other("busybox is not installed (package busybox-static)"))?;
        self.file("bin/busybox", &fs::read(path)?);
        let listed = Command::new(path).arg("--list").output()?;
        for name in String::from_utf8_lossy(&listed.stdout).lines() {
            let name = format!("bin/{name}");
            if !self.names.contains(&name) {
                self.entry(&name, LINK, b"busybox");
            }
        }
        Ok(())
    }

    /// Adds the wanted modules that are not built in, with their dependencies. Returns the names that were found.
    pub(super) fn modules(&mut self, kernel: &Path, wanted: &[&str]) -> io::Result<Vec<String>> {
        let version = fs::read_to_string(kernel.join("version"))?;
        let folder = format!("lib/modules/{}", version.trim());
        let modules = kernel.join("modules");
        let listed = fs::read_to_string(modules.join("modules.dep"))?;
        let stem = |path: &str| {
            let name = Path::new(path).file_stem().unwrap_or_default();
            name.to_string_lossy().replace('-', "_")
        };
        let mut own = String::new();
        let mut found = Vec::new();
        for line in listed.lines() {
            let Some((path, needs)) = line.split_once(':') else {
                continue;
            };
            if !wanted.contains(&stem(path).as_str()) {
                continue;
            }
            found.push(stem(path));
            for file in needs.split_whitespace().chain([path]) {
                self.file(&format!("{folder}/{file}"), &fs::read(modules.join(file))?);
                let line = listed.lines().find(|l| l.split(':').next() == Some(file));
                own.push_str(line.unwrap_or_default());
                own.push('\n');
            }
        }
        self.file(&format!("{folder}/modules.dep"), own.as_bytes());
        Ok(found)
    }

    /// Writes the archive to a file.
    pub(super) fn write(mut self, path: &PathBuf) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, &[]);
        fs::write(path, &self.bytes)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let number = self.names.len() + 1;
        self.names.insert(name.to_owned());
        let (length, name_length) = (content.len(), name.len() + 1);
        let links = 1;
        let head = format!(
            "070701{number:08x}{mode:08x}{0:08x}{0:08x}{links:08x}{0:08x}{length:08x}{0:08x}{0:08x}{0:08x}{0:08x}\
             {name_length:08x}{0:08x}",
            0
        );
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
