//! Why peer-to-peer DMA is not possible, as messages: the kernel's error codes have different meanings by version and
//! driver.

use straightway_core::{Error, ErrorKind, PciAddress};
use straightway_sys::File;

use super::drive::{Drive, Driver};

/// The version of Linux that reports success and gives the drive a wrong address.
pub const BROKEN: (u32, u32) = (6, 16);

/// The first version whose md was observed to support peer-to-peer DMA; 6.18 was observed to refuse it.
pub const MD_MIN: (u32, u32) = (7, 2);

/// `EREMOTEIO`, for which Rust has no constant.
const REMOTE_IO: i32 = 121;
const FAULT: i32 = 14;
const INVALID: i32 = 22;

/// The obstacle.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The kernel is known to be broken.
    BrokenKernel,
    /// The number of wrong bytes, and of all bytes, after a success code.
    WrongData(u64, u64),
    /// The kernel's error.
    Os(std::io::Error),
}

/// Whether a version of Linux gives drives wrong addresses.
pub fn is_broken(version: (u32, u32)) -> bool {
    version == BROKEN
}

impl Refusal {
    /// The error about a file.
    pub(super) fn error(&self, file: &File, drive: &Drive, provider: PciAddress, kernel: &str) -> Error {
        let (why, hint) = self.message_and_hint(drive, provider, kernel);
        let path = file.path().display();
        let (kind, operation) = match self {
            Self::WrongData(..) => (ErrorKind::Corrupt, "trust peer-to-peer DMA with"),
            _ => (ErrorKind::Unsupported, "go by peer-to-peer DMA with"),
        };
        Error::new(kind, operation, path, why).with_hint(hint)
    }

    /// The obstacle, and how to remove it.
    fn message_and_hint(&self, drive: &Drive, provider: PciAddress, kernel: &str) -> (String, String) {
        let name = &drive.name;
        let elsewhere = "keep the file on an NVMe drive of this machine, without LVM or a loop device";
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
                    format!(
                        "the driver of {name} ({}) does not support peer-to-peer DMA ({source})",
                        driver_name(driver)
                    ),
                    elsewhere.to_owned(),
                ),
                (Some(FAULT), _) => (
                    format!("Linux {kernel} does not let BAR memory be used for this I/O ({source})"),
                    "boot Linux 6.2 or later, and use a file system without an I/O path of its own".to_owned(),
                ),
                _ => (
                    format!("the attempt between {name} and {provider} failed: {source}"),
                    "`straightway doctor` says what peer-to-peer DMA takes".to_owned(),
                ),
            },
        }
    }
}

fn driver_name(driver: Driver) -> &'static str {
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

    fn message(errno: i32, driver: Driver, kernel: &str) -> String {
        let drive = Drive {
            name: "d0".to_owned(),
            driver,
            identity: String::new(),
        };
        let source = std::io::Error::from_raw_os_error(errno);
        let provider = "0000:04:00.0".parse().unwrap();
        Refusal::Os(source).message_and_hint(&drive, provider, kernel).0
    }

    #[test]
    fn an_error_of_the_kernel_has_different_meanings_by_driver() {
        let no_path = "allows no path between d0 and 0000:04:00.0";
        assert!(message(REMOTE_IO, Driver::Nvme, "6.12.95").contains(no_path));
        assert!(message(INVALID, Driver::Nvme, "7.2.12").contains(no_path));
        for driver in [Driver::Virtio, Driver::Loop, Driver::DeviceMapper, Driver::NvmeFabric] {
            let seen = message(REMOTE_IO, driver, "7.2.12");
            assert!(seen.contains("does not support peer-to-peer DMA"), "{seen}");
        }
        assert!(message(REMOTE_IO, Driver::Md, "6.18.15").contains("since Linux 7.2"));
        assert!(message(FAULT, Driver::Nvme, "6.1.0").contains("Linux 6.1.0 does not let"));
    }

    #[test]
    fn only_the_version_observed_to_corrupt_data_is_broken() {
        let broken = |release| major_minor(release).is_some_and(is_broken);
        assert!(broken("6.16.12+deb14-amd64") && broken("6.16-rc1"));
        for release in ["6.12.95", "6.17.13", "7.2.12+deb13-cloud-amd64", "6.1", "", "x"] {
            assert!(!broken(release), "{release}");
        }
    }
}
