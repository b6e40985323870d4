//! The CUDA driver of this machine, its version and its devices.

use std::fmt;

use straightway_core::{Error, ErrorKind, Result};

use super::api::Api;
use super::code::Code;
use super::device::Device;

/// The oldest supported driver. CUDA 11.4 introduced the device UUID of MIG slices, which cuFile's counters
/// use as a key, and is the first version with a released cuFile.
pub const DRIVER_VERSION_MIN: Version = Version(11_040);

/// A version of the driver or cuFile: 1000 × major + 10 × minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The loaded and initialised CUDA driver.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    api: &'static Api,
    version: Version,
}

impl Driver {
    /// Loads and initialises the driver. The error says why this machine has no usable one.
    pub fn load() -> Result<Self> {
        let api = Api::load()?;
        let mut number = 0;
        // SAFETY: `number` is a valid place for the answer; the call needs no initialisation.
        let code = unsafe { (api.driver_get_version)(&raw mut number) };
        api.check(code, "query the version of", "the CUDA driver")?;
        let version = Version(u32::try_from(number).unwrap_or(0));
        if version < DRIVER_VERSION_MIN {
            let message = format!("it supports CUDA {version}, but {DRIVER_VERSION_MIN} is the minimum");
            let error = Error::new(ErrorKind::Unsupported, "use", "the CUDA driver", message);
            return Err(error.with_hint("install a newer NVIDIA driver"));
        }
        // SAFETY: flags must be zero and are; it may be called any number of times.
        let code = unsafe { (api.init)(0) };
        code.ok().map_err(|code| not_initialised(api, code))?;
        Ok(Self { api, version })
    }

    /// The newest CUDA version that the driver supports.
    pub fn version(self) -> Version {
        self.version
    }

    /// The number of visible devices.
    pub fn device_count(self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: `count` is a valid place for the answer, and the driver is initialised.
        let code = unsafe { (self.api.device_get_count)(&raw mut count) };
        self.api.check(code, "count the devices of", "the CUDA driver")?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The device with this ordinal.
    pub fn device(self, ordinal: u32) -> Result<Device> {
        let count = self.device_count()?;
        if ordinal >= count {
            let message = format!("the driver sees {count} device(s), counted from 0");
            let target = format_args!("cuda:{ordinal}");
            return Err(Error::new(ErrorKind::Invalid, "use", target, message)
                .with_hint("list the devices with `nvidia-smi -L`"));
        }
        Device::find(self.api, ordinal)
    }
}

/// Initialisation fails because of the machine, never because of the request, so it is always `Unsupported`.
fn not_initialised(api: &Api, code: Code) -> Error {
    let (message, hint) = match code {
        Code::NO_DEVICE => ("it sees no GPU", "see `nvidia-smi` and CUDA_VISIBLE_DEVICES"),
        Code::STUB_LIBRARY => (
            "the library found is the toolkit's stub",
            "take the toolkit's `stubs` folder off LD_LIBRARY_PATH",
        ),
        Code::SYSTEM_DRIVER_MISMATCH => (
            "the library and the kernel module are of different versions",
            "reload the NVIDIA kernel module, or restart the machine",
        ),
        _ => ("it does not initialise", "see `nvidia-smi` and `dmesg`"),
    };
    let message = format!("{message}: {}", api.name(code));
    Error::new(ErrorKind::Unsupported, "use", "the CUDA driver", message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_shown_as_major_and_minor() {
        assert_eq!(Version(12_080).to_string(), "12.8");
        assert_eq!(Version(13_000).to_string(), "13.0");
    }
}
