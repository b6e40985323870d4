//! A guest without drives: loopback, RAM disks and files in memory, for NVMe/TCP tests with the host and the target of
//! Linux.

use std::{io, path::Path, time::Duration};

use tempfile::TempDir;

use super::{NEWEST, boot::Machine, initrd::Initrd, kernel};

/// The configuration of a guest.
#[derive(Clone, Copy, Debug)]
pub struct NetworkGuest<'a> {
    /// Programs to include, with their names in the guest.
    pub programs: &'a [(&'a str, &'a Path)],
    /// Kernel modules to include. The script loads them.
    pub modules: &'a [&'a str],
    /// The busybox shell script to run.
    pub script: &'a str,
    /// The timeout of the guest after boot.
    pub time_max: Duration,
}

/// The memory of the guest. Programs and their libraries are unpacked into it.
const MEMORY_MIB: &str = "1536";

impl NetworkGuest<'_> {
    /// Boots the guest and waits until it has ended. Returns its console output.
    pub fn run(&self) -> io::Result<String> {
        let kernel = kernel(NEWEST)?;
        let folder = TempDir::new()?;
        let mut initrd = Initrd::default();
        for name in ["proc", "sys", "dev", "tmp", "run", "mnt", "sbin", "etc/nvme"] {
            initrd.folder(name);
        }
        // Before busybox: programs take precedence over busybox commands of the same name.
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
            // On a busy machine the kernel calibrates the TSC wrongly and may find no timer.
            append: "clocksource=hpet no_timer_check",
            // With `erms`, the emulated processor copies strings byte by byte.
            arguments: &["-cpu", "max,-erms", "-m", MEMORY_MIB].map(str::to_owned),
            time_max: self.time_max,
        }
        .run()
    }
}
