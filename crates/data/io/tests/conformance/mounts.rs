//! The systems that hold the suite's objects: the memory store, a web server, and file systems: the checkout's own,
//! tmpfs, and others on loop devices where this process may mount them.
//!
//! The suite mounts in its own namespace, which ends with its process: nothing stays mounted, and no loop device stays
//! attached, however the process ends. The images are unlinked once they are mounted.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

/// A file system, store or server that cases run on. Except over NVMe and in memory, writes go to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum System {
    Checkout,
    Tmpfs,
    Ext4Blocks1K,
    Ext4Blocks4K,
    XfsBlocks1K,
    XfsBlocks4K,
    Btrfs,
    Memory,
    Web,
    /// S3 behind a proxy that injects faults.
    S3Faulty,
    /// A web server behind such a proxy.
    WebFaulty,
    /// A web server with TLS on connections that break.
    TlsFaulty,
    /// A web server behind such a proxy, through a local cache.
    CachedFaulty,
    /// A target of NVMe/TCP on connections that break, read and written.
    NvmeFaulty,
}

/// xfs needs at least 300 MiB. Images are sparse.
const IMAGE_BYTES: u64 = 512 << 20;

impl System {
    pub(crate) const ALL: [Self; 9] = [
        Self::Checkout,
        Self::Tmpfs,
        Self::Ext4Blocks1K,
        Self::Ext4Blocks4K,
        Self::XfsBlocks1K,
        Self::XfsBlocks4K,
        Self::Btrfs,
        Self::Memory,
        Self::Web,
    ];

    /// Systems behind faulty networks, which have their own suite.
    pub(crate) const FAULTY: [Self; 5] = [
        Self::S3Faulty,
        Self::WebFaulty,
        Self::TlsFaulty,
        Self::CachedFaulty,
        Self::NvmeFaulty,
    ];

    /// Whether its objects come over a network.
    pub(crate) fn is_remote(self) -> bool {
        self == Self::Web || Self::FAULTY.contains(&self)
    }

    /// Whether every file on it supports O_DIRECT. On btrfs that depends on the file; for the checkout it is unknown.
    pub(crate) fn has_direct(self) -> bool {
        !matches!(self, Self::Checkout | Self::Tmpfs | Self::Btrfs | Self::Memory) && !self.is_remote()
    }

    /// The command that makes the file system, without the image.
    fn maker(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Ext4Blocks1K => Some(&["mkfs.ext4", "-q", "-F", "-b", "1024"]),
            Self::Ext4Blocks4K => Some(&["mkfs.ext4", "-q", "-F", "-b", "4096"]),
            Self::XfsBlocks1K => Some(&["mkfs.xfs", "-q", "-f", "-b", "size=1024"]),
            Self::XfsBlocks4K => Some(&["mkfs.xfs", "-q", "-f", "-b", "size=4096"]),
            Self::Btrfs => Some(&["mkfs.btrfs", "-q", "-f"]),
            _ => None,
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Checkout => "checkout",
            Self::Tmpfs => "tmpfs",
            Self::Ext4Blocks1K => "ext4-1k",
            Self::Ext4Blocks4K => "ext4-4k",
            Self::XfsBlocks1K => "xfs-1k",
            Self::XfsBlocks4K => "xfs-4k",
            Self::Btrfs => "btrfs",
            Self::Memory => "memory",
            Self::Web => "web",
            Self::S3Faulty => "s3-faulty",
            Self::WebFaulty => "web-faulty",
            Self::TlsFaulty => "tls-faulty",
            Self::CachedFaulty => "cached-faulty",
            Self::NvmeFaulty => "nvme-faulty",
        })
    }
}

/// The available file systems, each with a folder on it.
#[derive(Debug)]
pub(crate) struct Mounts {
    folders: BTreeMap<System, PathBuf>,
    mounted: Vec<PathBuf>,
    /// Held so that they are removed last.
    _folders: [Arc<tempfile::TempDir>; 2],
}

impl Mounts {
    /// Mounts all file systems that it can if `may_mount`, and prints the reason for each that it cannot.
    pub(crate) fn new(may_mount: &Result<(), String>) -> Self {
        let checkout = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let base = Arc::new(tempfile::tempdir().unwrap());
        let mut mounts = Self {
            // The memory store and the web server need no file system of their own.
            folders: [System::Checkout, System::Memory, System::Web]
                .map(|system| (system, checkout.path().to_owned()))
                .into(),
            mounted: Vec::new(),
            _folders: [Arc::new(checkout), Arc::clone(&base)],
        };
        for system in System::ALL {
            if mounts.folders.contains_key(&system) {
                continue;
            }
            let folder = base.path().join(system.to_string());
            fs::create_dir(&folder).unwrap();
            let done = may_mount.clone().and_then(|()| match system.maker() {
                None => run("mount", &["-t", "tmpfs", "tmpfs"], &folder),
                Some(maker) => mount_image(maker, &folder),
            });
            match done {
                Ok(()) => {
                    mounts.mounted.push(folder.clone());
                    mounts.folders.insert(system, folder);
                }
                Err(reason) => eprintln!("left out: {system}: {reason}"),
            }
        }
        mounts
    }

    /// A folder on that file system, if there is one.
    pub(crate) fn folder(&self, system: System) -> Option<&Path> {
        self.folders.get(&system).map(PathBuf::as_path)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for folder in &self.mounted {
            // The loop device is detached with its last user.
            if let Err(reason) = run("umount", &["--lazy"], folder) {
                eprintln!("{reason}");
            }
        }
    }
}

/// Makes a file system in a fresh image and mounts that.
fn mount_image(maker: &[&str], folder: &Path) -> Result<(), String> {
    let image = folder.with_extension("image");
    let file = fs::File::create(&image).map_err(|e| e.to_string())?;
    file.set_len(IMAGE_BYTES).map_err(|e| e.to_string())?;
    let [program, options @ ..] = maker else {
        panic!("a maker has a name")
    };
    let name = image.to_str().expect("the folder for temporary files has a plain name");
    let mounted = run(program, options, &image).and_then(|()| run("mount", &["-o", "loop", name], folder));
    fs::remove_file(&image).map_err(|e| e.to_string())?;
    mounted
}

/// Runs a command on a path. If it fails, returns its first line of output.
fn run(program: &str, options: &[&str], path: &Path) -> Result<(), String> {
    let output = Command::new(program).args(options).arg(path).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let first = words.lines().next().unwrap_or("it failed");
    Err(format!("{program}: {first}"))
}
