//! A real Linux kernel in QEMU, with NVMe drives of which one has a controller memory buffer: memory in a PCI BAR that
//! other drives reach by peer-to-peer DMA.
//!
//! QEMU emulates the processor as well, on every machine: under KVM the guest ended with an emulation failure. The
//! kernel comes from `tools/guest-kernel`. What a test runs inside is a script for busybox's shell, with programs that
//! are taken along; what it prints is [`Ran::log`], and where the drives' DMA went is [`Ran::trace`].

mod boot;
mod initrd;
mod network;
mod trace;

use std::{
    fs::{self, File},
    io,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use tempfile::TempDir;

use boot::Machine;
use initrd::Initrd;
pub use network::NetworkGuest;
pub use trace::{Command as Traced, Dma, Drive, Trace};

/// How the drives hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Below one PCIe switch.
    Switch,
    /// On the root complex of a processor that Linux lets forward peer-to-peer DMA.
    Root,
    /// On the root complex of a processor that it does not.
    Refused,
}

/// What to boot.
#[derive(Clone, Copy, Debug)]
pub struct Guest<'a> {
    /// Which kernel: [`NEWEST`], or a version such as `6.16`, for the last one of it.
    pub series: &'a str,
    /// How the drives hang together.
    pub topology: Topology,
    /// Programs to take along, with their names in the guest.
    pub programs: &'a [(&'a str, &'a Path)],
    /// Kernel modules beside those of the drives.
    pub modules: &'a [&'a str],
    /// What to run: for busybox's shell. `init.sh` says what variables and functions there are.
    pub script: &'a str,
}

/// A guest that has ended.
#[derive(Debug)]
pub struct Ran {
    /// What it printed.
    pub log: String,
    /// What its drives did.
    pub trace: Trace,
    folder: TempDir,
}

/// The newest kernel that `tools/guest-kernel` finds.
pub const NEWEST: &str = "newest";

/// How long a guest may take once it is up. Alone on two cores it takes a minute.
const TIME_MAX: Duration = Duration::from_mins(5);

/// The bytes of the provider's memory.
const BAR_BYTES: u64 = 64 << 20;

/// Modules that every guest has.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];

/// What is taken of QEMU's trace.
const EVENTS: [&str; 4] = ["map_addr", "read", "write", "admin_cmd"];

impl Guest<'_> {
    /// Whether guests with a kernel of this series can be booted here; `false`, with a printed reason, where not.
    pub fn is_possible(series: &str) -> bool {
        match kernel(series) {
            Ok(_) => true,
            Err(error) => {
                #[expect(
                    clippy::print_stderr,
                    reason = "what is skipped is counted by this line"
                )]
                {
                    eprintln!("skipped: no guest: {error}");
                }
                false
            }
        }
    }

    /// Boots it and waits until it has ended.
    pub fn run(&self) -> io::Result<Ran> {
        let kernel = kernel(self.series)?;
        let folder = TempDir::new()?;
        let at = |name: &str| folder.path().join(name);
        self.initrd(&kernel)?.write(&at("initrd"))?;
        for drive in Drive::ALL {
            File::create(at(&format!("{drive:?}.img")))?.set_len(drive.bytes())?;
        }
        fs::write(at("A.img"), pattern(Drive::A.bytes()))?;
        fs::copy(at("A.img"), at("V.img"))?;
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096"])
            .arg(at("D.img"))
            .output()?;
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            return Err(io::Error::other(why));
        }
        let log = Machine {
            kernel: &kernel,
            folder: folder.path(),
            append: "tsc=reliable",
            arguments: &self.arguments(),
            time_max: TIME_MAX,
        }
        .run()?;
        let traced = fs::read(at("trace")).unwrap_or_default();
        let traced = String::from_utf8_lossy(&traced);
        let trace = bar(&log).map(|bar| Trace::read(&traced, &bar));
        Ok(Ran {
            trace: trace.ok_or_else(|| io::Error::other(format!("no BAR memory: {log}")))?,
            log,
            folder,
        })
    }

    fn initrd(&self, kernel: &Path) -> io::Result<Initrd> {
        let mut initrd = Initrd::default();
        for folder in ["proc", "sys", "dev", "tmp", "run", "mnt", "sbin"] {
            initrd.folder(folder);
        }
        // Before busybox, whose programs give way to those of the same name.
        for (name, path) in self.programs {
            initrd.program(name, path)?;
        }
        initrd.busybox()?;
        let wanted: Vec<_> = MODULES.iter().chain(self.modules).copied().collect();
        let found = initrd.modules(kernel, &wanted)?;
        initrd.file("modules.wanted", found.join("\n").as_bytes());
        initrd.file("init", include_bytes!("guest/init.sh"));
        let bar = "echo \"guest: BAR $(sed -n 3p /sys/bus/pci/devices/$P/resource)\"\n";
        initrd.file("run.sh", format!("{bar}{}", self.script).as_bytes());
        Ok(initrd)
    }

    fn arguments(&self) -> Vec<String> {
        // Strings are copied byte by byte where the emulated processor claims to do that fast.
        let processor = match self.topology {
            Topology::Switch => "max,-erms",
            Topology::Root => "EPYC",
            Topology::Refused => "Nehalem",
        };
        let mut all = ["-cpu", processor, "-m", "1024", "-D", "trace"]
            .map(str::to_owned)
            .to_vec();
        let mut add = |option: &str, value: String| all.extend([option.to_owned(), value]);
        for event in EVENTS {
            add("-trace", format!("pci_nvme_{event}"));
        }
        self.add_drives(&mut add);
        all
    }

    /// The drives, and the ports that they are behind.
    fn add_drives(&self, add: &mut dyn FnMut(&str, String)) {
        let is_switched = self.topology == Topology::Switch;
        if is_switched {
            add(
                "-device",
                "pcie-root-port,id=root,chassis=1,slot=1".to_owned(),
            );
            add("-device", "x3130-upstream,id=up,bus=root".to_owned());
        }
        for drive in Drive::ALL {
            let number = drive as u64;
            let bus = if is_switched {
                add(
                    "-device",
                    format!("xio3130-downstream,id=port{drive:?},bus=up,chassis=2,slot={number}"),
                );
                format!(",bus=port{drive:?}")
            } else {
                String::new()
            };
            let memory = if drive == Drive::B {
                format!(",cmb_size_mb={}", BAR_BYTES >> 20)
            } else {
                String::new()
            };
            add(
                "-drive",
                format!("file={drive:?}.img,if=none,id=drive{drive:?},format=raw"),
            );
            add(
                "-device",
                format!("nvme,id=nvme{drive:?},serial={drive:?},max_ioqpairs=4{memory}{bus}"),
            );
            add(
                "-device",
                format!("nvme-ns,drive=drive{drive:?},bus=nvme{drive:?},nsid={number}"),
            );
        }
        add(
            "-drive",
            "file=V.img,if=none,id=driveV,format=raw".to_owned(),
        );
        add("-device", "virtio-blk-pci,drive=driveV".to_owned());
    }
}

impl Ran {
    /// The image of a drive, as the guest left it.
    pub fn image(&self, drive: Drive) -> PathBuf {
        self.folder.path().join(format!("{drive:?}.img"))
    }

    /// What follows a word at the beginning of each line that has it.
    pub fn said<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        self.log
            .lines()
            .filter_map(move |line| line.strip_prefix(word))
    }
}

/// What drive A has: each word of eight bytes says where it is.
pub fn pattern(bytes: u64) -> Vec<u8> {
    let word = |at: u64| {
        let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
        (mixed ^ (mixed >> 29)).to_le_bytes()
    };
    (0..bytes / 8).flat_map(word).collect()
}

/// The folder of a kernel of `series`.
fn kernel(series: &str) -> io::Result<PathBuf> {
    for (program, package) in [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("mkfs.ext4", "e2fsprogs"),
        ("busybox", "busybox-static"),
    ] {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$0\"", program])
            .output()?;
        if !found.status.success() {
            let why = format!("{program} is not installed (package {package})");
            return Err(io::Error::other(why));
        }
    }
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/guest-kernel");
    let found = Command::new(tool).arg(series).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if found.status.success() {
        Ok(text(&found.stdout).into())
    } else {
        Err(io::Error::other(text(&found.stderr)))
    }
}

/// Where the provider's BAR is, by the line that the guest printed of it.
fn bar(log: &str) -> Option<Range<u64>> {
    let line = log.lines().find_map(|l| l.strip_prefix("guest: BAR "))?;
    let mut ends = line.split_whitespace();
    let mut end = || u64::from_str_radix(ends.next()?.strip_prefix("0x")?, 16).ok();
    let (first, last) = (end()?, end()?);
    (first > 0).then_some(first..last + 1)
}
