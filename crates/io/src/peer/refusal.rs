//! Why peer-to-peer DMA cannot be had, in words: the kernel's answers are numbers that mean different things by version
//! and driver.

use straightway_core::{Error, Kind, PciAddress};
use straightway_sys::File;

use super::drive::{Drive, Driver};

/// The version of Linux that reports success and gives the drive a wrong address.
pub const BROKEN: (u32, u32) = (6, 16);

/// The first version whose md was seen to pass peer-to-peer DMA on; 6.18 was seen to refuse it.
pub const MD_MIN: (u32, u32) = (7, 2);

/// `EREMOTEIO`, which Rust has no name for.
const REMOTE_IO: i32 = 121;
const FAULT: i32 = 14;
const INVALID: i32 = 22;

/// What stands in the way.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The kernel is known to do it wrong.
    BrokenKernel,
    /// So many bytes of so many were wrong after a success.
    WrongData(u64, u64),
    /// The kernel's answer.
    Os(std::io::Error),
}

/// Whether a version of Linux gives drives wrong addresses.
pub fn is_broken(version: (u32, u32)) -> bool {
    version == BROKEN
}

impl Refusal {
    /// The error about a file.
    pub(super) fn error(
        &self,
        file: &File,
        drive: &Drive,
        provider: PciAddress,
        kernel: &str,
    ) -> Error {
        let (why, hint) = self.words(drive, provider, kernel);
        let path = file.path().display();
        let (kind, operation) = match self {
            Self::WrongData(..) => (Kind::Corrupt, "trust peer-to-peer DMA with"),
            _ => (Kind::Unsupported, "go by peer-to-peer DMA with"),
        };
        Error::new(kind, operation, path, why).with_hint(hint)
    }

    /// What stands in the way, and what mends it.
    fn words(&self, drive: &Drive, provider: PciAddress, kernel: &str) -> (String, String) {
        let name = &drive.name;
        let elsewhere =
            "keep the file on an NVMe drive of this machine, without LVM or a loop device";
        match self {
            Self::BrokenKernel => (
                format!("Linux {kernel} gives drives wrong addresses for BAR memory and reports success"),
                "boot Linux 6.12, or 6.17 and later".to_owned(),
            ),
            Self::WrongData(wrong, of) => (
                format!(
                    "Linux {kernel} reported success between {name} and {provider}, and {wrong} of {of} bytes \
                     are wrong"
                ),
                "boot another kernel, and report this one".to_owned(),
            ),
            Self::Os(source) => match (source.raw_os_error(), drive.driver) {
                (Some(REMOTE_IO | INVALID), Driver::Nvme) => (
                    format!(
                        "Linux allows no path between {name} and {provider} ({source}): they share no PCIe switch, \
                         and it does not know that this processor forwards peer-to-peer DMA"
                    ),
                    "put both below one switch, or use a machine with an AMD Zen or a listed Intel processor"
                        .to_owned(),
                ),
                (Some(REMOTE_IO), Driver::Md) => (
                    format!(
                        "md passes peer-to-peer DMA on since Linux {}.{} only, and only where all members take it \
                         ({source})",
                        MD_MIN.0, MD_MIN.1
                    ),
                    "boot a later kernel, or use a single drive".to_owned(),
                ),
                (Some(REMOTE_IO), driver) => (
                    format!("the driver of {name} ({}) takes no peer-to-peer DMA ({source})", word(driver)),
                    elsewhere.to_owned(),
                ),
                (Some(FAULT), _) => (
                    format!("Linux {kernel} does not let BAR memory be used for this I/O ({source})"),
                    "boot Linux 6.2 or later, without a file system of its own kind".to_owned(),
                ),
                _ => (
                    format!("the attempt between {name} and {provider} failed: {source}"),
                    "`straightway doctor` says what peer-to-peer DMA takes".to_owned(),
                ),
            },
        }
    }
}

fn word(driver: Driver) -> &'static str {
    match driver {
        Driver::Nvme => "NVMe",
        Driver::NvmeFabric => "NVMe over fabrics",
        Driver::Md => "md",
        Driver::DeviceMapper => "device mapper",
        Driver::Virtio => "virtio",
        Driver::Loop => "loop",
        Driver::Memory => "memory",
        Driver::Other => "not NVMe",
    }
}

#[cfg(test)]
mod tests {
    use straightway_sys::kernel::major_minor;

    use super::*;

    fn words(errno: i32, driver: Driver, kernel: &str) -> String {
        let drive = Drive {
            name: "d0".to_owned(),
            driver,
            identity: String::new(),
        };
        let source = std::io::Error::from_raw_os_error(errno);
        let provider = "0000:04:00.0".parse().unwrap();
        Refusal::Os(source).words(&drive, provider, kernel).0
    }

    #[test]
    fn an_answer_of_the_kernel_means_different_things_by_driver() {
        let no_path = "allows no path between d0 and 0000:04:00.0";
        assert!(words(REMOTE_IO, Driver::Nvme, "6.12.95").contains(no_path));
        assert!(words(INVALID, Driver::Nvme, "7.2.12").contains(no_path));
        for driver in [
            Driver::Virtio,
            Driver::Loop,
            Driver::DeviceMapper,
            Driver::NvmeFabric,
        ] {
            let seen = words(REMOTE_IO, driver, "7.2.12");
            assert!(seen.contains("takes no peer-to-peer DMA"), "{seen}");
        }
        assert!(words(REMOTE_IO, Driver::Md, "6.18.15").contains("since Linux 7.2"));
        assert!(words(FAULT, Driver::Nvme, "6.1.0").contains("Linux 6.1.0 does not let"));
    }

    #[test]
    fn only_the_version_that_was_seen_to_lie_is_broken() {
        let broken = |release| major_minor(release).is_some_and(is_broken);
        assert!(broken("6.16.12+deb14-amd64") && broken("6.16-rc1"));
        for release in [
            "6.12.95",
            "6.17.13",
            "7.2.12+deb13-cloud-amd64",
            "6.1",
            "",
            "x",
        ] {
            assert!(!broken(release), "{release}");
        }
    }
}
