//! Error codes of cuFile. They start at 5001, have gaps, and each version adds some.

use std::fmt;

use straightway_core::ErrorKind;

/// A `CUfileOpError`: a plain number, some of which have a known meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct OpCode(pub u32);

/// `CUfileError_t`: cuFile's code, and the CUDA driver's code if that is the cause.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Status {
    pub(super) op: OpCode,
    pub(super) cuda: u32,
}

impl OpCode {
    /// The call succeeded.
    pub const SUCCESS: Self = Self(0);
    /// Other code in this process has already opened the driver.
    pub const DRIVER_ALREADY_OPEN: Self = Self(5026);

    /// A description of the code.
    fn meaning(self) -> Option<&'static str> {
        Some(match self.0 {
            5001 => "nvidia-fs is not loaded",
            5002 | 5003 => "a property is invalid or out of range",
            5004 | 5005 => "the version of nvidia-fs does not match",
            5006 => "the driver is closing",
            5007 => "the platform is not supported",
            5008 => "the file or its file system is not supported",
            5009 => "the GPU is not supported",
            5010 => "an ioctl of nvidia-fs failed",
            5011 => "the CUDA driver failed",
            5012 => "the pointer is not a device pointer",
            5013 => "cuFile does not support this type of memory",
            5014 => "the range exceeds the allocation",
            5015 => "the memory belongs to another context",
            5016 => "beyond the limit of pinned memory",
            5017 => "the range exceeds the mapping",
            5018 => "cuFile does not support this type of file",
            5019 => "the file is open with flags that cuFile does not support",
            5020 => "the file is not open for direct I/O",
            5022 => "invalid arguments",
            5023 => "the memory is already registered",
            5024 => "the memory is not registered",
            5025 => "access denied to the driver or the file",
            5026 => "the driver is already open",
            5027 => "the file cannot be registered",
            5028 => "the file is already registered",
            5029 => "no GPU found",
            5030 => "an internal error",
            5031 => "no file descriptor is available",
            5033 => "nvidia-fs did not initialise",
            5034 => "disabled by configuration for this file",
            5035 | 5037 | 5039..=5042 => "a batch could not be run",
            5036 => "no GPU memory could be pinned",
            5038 => "stream operations are not supported",
            5043 => "out of memory",
            5044 => "the I/O failed",
            5045 => "the buffer could not be registered",
            5047 => "no valid CUDA context",
            5048 => "an internal error of nvidia-fs",
            5049 => "direct I/O is not possible, and compat mode is off",
            _ => return None,
        })
    }

    /// The class of the error.
    pub(super) fn kind(self) -> ErrorKind {
        match self.0 {
            5012..=5015 | 5018 | 5019 | 5022..=5024 | 5028 => ErrorKind::Invalid,
            5006 | 5010 | 5011 | 5016 | 5017 | 5030 | 5031 | 5035..=5037 | 5039..=5044 => ErrorKind::Transient,
            _ => ErrorKind::Unsupported,
        }
    }

    /// A hint, for codes with a known cause.
    pub(super) fn hint(self) -> Option<&'static str> {
        Some(match self.0 {
            5001 | 5033 => "load nvidia-fs (`modprobe nvidia-fs`), or allow cuFile's compat mode",
            5016 | 5017 | 5036 => "register less memory at a time: BAR1 or the pinned limit is full",
            5027 => {
                "cuFile reads the udev database: give the container /run/udev, or see what \
                 `straightway doctor` says of it"
            }
            5049 => "load nvidia-fs or enable P2PDMA, or allow cuFile's compat mode",
            _ => return None,
        })
    }
}

impl fmt::Display for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some(meaning) => write!(f, "{meaning} (cuFile error {})", self.0),
            None => write!(f, "cuFile error {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_code_is_shown_by_its_number() {
        assert_eq!(OpCode(5999).to_string(), "cuFile error 5999");
        assert_eq!(OpCode(5001).to_string(), "nvidia-fs is not loaded (cuFile error 5001)");
    }
}
