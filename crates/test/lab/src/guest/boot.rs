//! Boots a guest and waits until it has ended.

use std::{
    fs, io,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// The timeout for the first output line of a guest. On two idle cores it takes eight seconds.
const BOOT_TIME_MAX: Duration = Duration::from_secs(90);

/// The maximum number of boots of a guest that prints nothing. On a busy machine an emulated processor misses the
/// interrupts by which the kernel finds its timers. The kernel then stops before the first program runs.
const BOOTS_MAX: usize = 3;

/// QEMU arguments of every guest, which runs in its folder. `bench/guest.py` uses them too.
const QEMU: &str = include_str!("qemu.args");

/// Kernel parameters of every guest. `bench/guest.py` uses them too.
const KERNEL: &str = include_str!("kernel.args");

/// The number of processors of a guest.
const CPUS: &str = "2";

/// The virtual machine to boot.
pub(super) struct Machine<'a> {
    /// The folder of its kernel.
    pub(super) kernel: &'a Path,
    /// The folder with `initrd` and the drives.
    pub(super) folder: &'a Path,
    /// Additional kernel parameters.
    pub(super) append: &'a str,
    /// Additional QEMU arguments.
    pub(super) arguments: &'a [String],
    /// The timeout of the guest after boot.
    pub(super) time_max: Duration,
}

impl Machine<'_> {
    /// Boots the machine and waits until it has ended. Returns its console output.
    pub(super) fn run(&self) -> io::Result<String> {
        let mut last = String::new();
        for _ in 0..BOOTS_MAX {
            let mut qemu = self.start()?;
            let booted = self.wait(&mut qemu, BOOT_TIME_MAX, |log| log.contains("guest: up"))?;
            let status = match booted {
                Some(status) => Some(status),
                None => self.wait(&mut qemu, self.time_max, |_| false)?,
            };
            qemu.kill()?;
            let said = qemu.wait_with_output()?.stderr;
            let log = self.log();
            if log.contains("guest: done") {
                return Ok(log);
            }
            let how = status.map_or("it took too long".to_owned(), |status| status.to_string());
            let said = String::from_utf8_lossy(&said);
            last = format!("the guest failed: {how} {said}\n{log}");
            if log.contains("guest: up") {
                break;
            }
        }
        Err(io::Error::other(last))
    }

    fn start(&self) -> io::Result<Child> {
        let serial = self.folder.join("serial");
        if serial.exists() {
            fs::remove_file(serial)?;
        }
        let append = format!("{} {}", KERNEL.trim_end(), self.append);
        Command::new("qemu-system-x86_64")
            .args(QEMU.split_whitespace())
            .args(self.arguments)
            .args(["-smp", CPUS, "-append", &append, "-kernel"])
            .arg(self.kernel.join("kernel"))
            .current_dir(self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    }

    /// Waits until the guest has ended, `is_enough` accepts its output, or `time_max` is over. Returns the exit status
    /// if it ended.
    fn wait(
        &self,
        qemu: &mut Child,
        time_max: Duration,
        is_enough: impl Fn(&str) -> bool,
    ) -> io::Result<Option<ExitStatus>> {
        let start = Instant::now();
        while start.elapsed() < time_max {
            if let Some(status) = qemu.try_wait()? {
                return Ok(Some(status));
            }
            if is_enough(&self.log()) {
                break;
            }
            sleep(Duration::from_millis(100));
        }
        Ok(None)
    }

    fn log(&self) -> String {
        let log = fs::read(self.folder.join("serial")).unwrap_or_default();
        String::from_utf8_lossy(&log).replace('\r', "")
    }
}
