//! A guest without drives: loopback, ram disks and files in memory, for tests of NVMe over TCP with Linux's own host
//! and target.

use std::{io, path::Path, time::Duration};

use tempfile::TempDir;

use super::{NEWEST, boot::Machine, initrd::Initrd, kernel};

/// What to boot.
#[derive(Clone, Copy, Debug)]
pub struct NetworkGuest<'a> {
    /// Programs to take along, with their names in the guest.
    pub programs: &'a [(&'a str, &'a Path)],
    /// Kernel modules to take along. The script loads them.
    pub modules: &'a [&'a str],
    /// What to run: for busybox's shell.
    pub script: &'a str,
    /// How long the guest may take once it is up.
    pub time_max: Duration,
}

/// The memory of the guest: programs with their libraries are unpacked into it.
const MEMORY_MIB: &str = "1536";

impl NetworkGuest<'_> {
    /// Boots it and waits until it has ended. Answers what it printed.
    pub fn run(&self) -> io::Result<String> {
        let kernel = kernel(NEWEST)?;
        let folder = TempDir::new()?;
        let mut initrd = Initrd::default();
        for name in [
            "proc", "sys", "dev", "tmp", "run", "mnt", "sbin", "etc/nvme",
        ] {
            initrd.folder(name);
        }
        // Before busybox, whose programs give way to those of the same name.
        for (name, path) in self.programs {
            initrd.program(name, path)?;
        }
        initrd.busybox()?;
        initrd.modules(&kernel, self.modules)?;
        initrd.file("init", include_bytes!("network.sh"));
        initrd.file("run.sh", self.script.as_bytes());
        initrd.write(&folder.path().join("initrd"))?;
        Machine {
            kernel: &kernel,
            folder: folder.path(),
            // On a busy machine the kernel measures the TSC wrongly and may find no timer.
            append: "clocksource=hpet no_timer_check",
            // Strings are copied byte by byte where the emulated processor claims to do that fast.
            arguments: &["-cpu", "max,-erms", "-m", MEMORY_MIB].map(str::to_owned),
            time_max: self.time_max,
        }
        .run()
    }
}
