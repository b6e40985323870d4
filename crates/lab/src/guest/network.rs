//! A guest without drives: loopback, ram disks and files in memory, for tests of NVMe over TCP with Linux's own host
//! and target.

use std::{
    fs, io,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use super::{NEWEST, initrd::Initrd, kernel};

/// What to boot.
#[derive(Clone, Copy, Debug)]
pub struct NetworkGuest<'a> {
    /// Programs to take along, with their names in the guest.
    pub programs: &'a [(&'a str, &'a Path)],
    /// Kernel modules to take along. The script loads them.
    pub modules: &'a [&'a str],
    /// What to run: for busybox's shell.
    pub script: &'a str,
    /// How long the guest may take.
    pub seconds_max: u32,
}

/// The memory of the guest: programs with their libraries are unpacked into it.
const MEMORY_MIB: u32 = 1536;

impl NetworkGuest<'_> {
    /// Boots it and waits until it has ended. Answers what it printed.
    pub fn run(&self) -> io::Result<String> {
        let kernel = kernel(NEWEST)?;
        let folder = TempDir::new()?;
        let at = |name: &str| folder.path().join(name);
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
        initrd.write(&at("initrd"))?;
        let out = Command::new("timeout")
            .arg(self.seconds_max.to_string())
            .arg("qemu-system-x86_64")
            .args(["-accel", "tcg,thread=multi,tb-size=256"])
            // Strings are copied byte by byte where the emulated processor claims to do that fast.
            .args(["-cpu", "max,-erms", "-smp", "2", "-M", "q35"])
            .args(["-m", &MEMORY_MIB.to_string()])
            .args(["-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-monitor", "none", "-serial", "file:serial"])
            .args(["-initrd", "initrd", "-append"])
            // On a busy machine the kernel measures the TSC wrongly and may find no timer.
            .arg("console=ttyS0 quiet panic=-1 mitigations=off nokaslr clocksource=hpet no_timer_check")
            .arg("-kernel")
            .arg(kernel.join("kernel"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()?;
        let log = fs::read(at("serial")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).replace('\r', "");
        if !log.contains("guest: done") {
            let why = String::from_utf8_lossy(&out.stderr);
            let why = format!("the guest did not end well: {why}\n{log}");
            return Err(io::Error::other(why));
        }
        Ok(log)
    }
}
