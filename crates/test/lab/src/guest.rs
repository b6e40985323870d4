//! A Linux kernel in QEMU with NVMe drives. One drive has a controller memory buffer: memory in a PCI BAR that other
//! drives access by peer-to-peer DMA.
//!
//! QEMU emulates the processor on every machine, because the guest failed with an emulation error under KVM. The kernel
//! comes from `tools/guest-kernel`. A test provides a busybox shell script and programs to run. The console output is
//! [`GuestOutput::log`], and the DMA of the drives is [`GuestOutput::trace`].

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
pub use trace::{Command as TracedCommand, Dma, DmaTrace, GuestDrive};

/// The PCIe topology of the drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Below one PCIe switch.
    Switch,
    /// On the root complex of a processor on which Linux permits peer-to-peer DMA.
    Root,
    /// On the root complex of a processor on which Linux does not permit it.
    Refused,
}

/// The configuration of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Guest<'a> {
    /// The kernel: [`NEWEST`], or a version such as `6.16` for its last release.
    pub series: &'a str,
    /// The PCIe topology of the drives.
    pub topology: Topology,
    /// Programs to include, with their names in the guest.
    pub programs: &'a [(&'a str, &'a Path)],
    /// Kernel modules to include in addition to those of the drives.
    pub modules: &'a [&'a str],
    /// The busybox shell script to run. `init.sh` defines its variables and functions.
    pub script: &'a str,
}

/// The results of a guest that has ended.
#[derive(Debug)]
pub struct GuestOutput {
    /// Its console output.
    pub log: String,
    /// The DMA of its drives.
    pub trace: DmaTrace,
    folder: TempDir,
}

/// The newest kernel that `tools/guest-kernel` finds.
pub const NEWEST: &str = "newest";

/// The timeout of a guest after boot. On two idle cores it takes a minute.
const TIME_MAX: Duration = Duration::from_mins(5);

/// The size of the provider's BAR memory.
const BAR_BYTES: u64 = 64 << 20;

/// Modules that every guest has.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];

/// The recorded QEMU trace events.
const EVENTS: [&str; 4] = ["map_addr", "read", "write", "admin_cmd"];

impl Guest<'_> {
    /// Whether guests with a kernel of this series can be booted here. Prints the reason if not.
    pub fn is_possible(series: &str) -> bool {
        match kernel(series) {
            Ok(_) => true,
            Err(error) => {
                #[expect(clippy::print_stderr, reason = "skipped tests are counted by this line")]
                {
                    eprintln!("skipped: no guest: {error}");
                }
                false
            }
        }
    }

    /// Boots the guest and waits until it has ended.
    pub fn run(&self) -> io::Result<GuestOutput> {
        let kernel = kernel(self.series)?;
        let folder = TempDir::new()?;
        let at = |name: &str| folder.path().join(name);
        self.initrd(&kernel)?.write(&at("initrd"))?;
        for drive in GuestDrive::ALL {
            File::create(at(&format!("{drive:?}.img")))?.set_len(drive.bytes())?;
        }
        fs::write(at("A.img"), pattern(GuestDrive::A.bytes()))?;
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
        let trace = bar(&log).map(|bar| DmaTrace::read(&traced, &bar));
        Ok(GuestOutput {
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
        // Before busybox: programs take precedence over busybox commands of the same name.
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
        // With `erms`, the emulated processor copies strings byte by byte.
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

    /// Adds the drives and the ports in front of them.
    fn add_drives(&self, add: &mut dyn FnMut(&str, String)) {
        let is_switched = self.topology == Topology::Switch;
        if is_switched {
            add("-device", "pcie-root-port,id=root,chassis=1,slot=1".to_owned());
            add("-device", "x3130-upstream,id=up,bus=root".to_owned());
        }
        for drive in GuestDrive::ALL {
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
            let memory = if drive == GuestDrive::B {
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
        add("-drive", "file=V.img,if=none,id=driveV,format=raw".to_owned());
        add("-device", "virtio-blk-pci,drive=driveV".to_owned());
    }
}

impl GuestOutput {
    /// The image of a drive after the guest ended.
    pub fn image(&self, drive: GuestDrive) -> PathBuf {
        self.folder.path().join(format!("{drive:?}.img"))
    }

    /// The rest of each output line that begins with `word`.
    pub fn said<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        self.log.lines().filter_map(move |line| line.strip_prefix(word))
    }
}

/// The content of drive A: each word of eight bytes encodes its position.
pub fn pattern(bytes: u64) -> Vec<u8> {
    let word = |at: u64| {
        let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
        (mixed ^ (mixed >> 29)).to_le_bytes()
    };
    (0..bytes / 8).flat_map(word).collect()
}

/// The folder of the kernel of `series`.
fn kernel(series: &str) -> io::Result<PathBuf> {
    for (program, package) in [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("mkfs.ext4", "e2fsprogs"),
        ("busybox", "busybox-static"),
    ] {
        let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output()?;
        if !found.status.success() {
            let why = format!("{program} is not installed (package {package})");
            return Err(io::Error::other(why));
        }
    }
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tools/guest-kernel");
    let found = Command::new(tool).arg(series).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if found.status.success() {
        Ok(text(&found.stdout).into())
    } else {
        Err(io::Error::other(text(&found.stderr)))
    }
}

/// The address range of the provider's BAR, from the line that the guest printed.
fn bar(log: &str) -> Option<Range<u64>> {
    let line = log.lines().find_map(|l| l.strip_prefix("guest: BAR "))?;
    let mut ends = line.split_whitespace();
    let mut end = || u64::from_str_radix(ends.next()?.strip_prefix("0x")?, 16).ok();
    let (first, last) = (end()?, end()?);
    (first > 0).then_some(first..last + 1)
}
