//! What cuFile answered. Its codes start at 5001, have gaps, and grow with each version.

use std::fmt;

use straightway_core::Kind;

/// A `CUfileOpError`: an open number with a meaning where one is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct OpCode(pub u32);

/// `CUfileError_t`: cuFile's own code, and the driver's where that is the cause.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Status {
    pub(super) op: OpCode,
    pub(super) cuda: u32,
}

impl OpCode {
    /// The call did what it should.
    pub const SUCCESS: Self = Self(0);
    /// Somebody else in this process opened the driver before us.
    pub const DRIVER_ALREADY_OPEN: Self = Self(5026);

    /// What cuFile calls it, in our words.
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
            5012 => "not a device pointer",
            5013 => "memory of a kind cuFile does not take",
            5014 => "the range reaches beyond the allocation",
            5015 => "memory of another context",
            5016 => "beyond the limit of pinned memory",
            5017 => "beyond what is mapped",
            5018 => "a file of a type cuFile does not take",
            5019 => "the file is open with flags cuFile does not take",
            5020 => "the file is not open for direct I/O",
            5022 => "invalid arguments",
            5023 => "the memory is registered already",
            5024 => "the memory is not registered",
            5025 => "access denied to the driver or the file",
            5026 => "the driver is open already",
            5027 => "the file cannot be registered",
            5028 => "the file is registered already",
            5029 => "no GPU found",
            5030 => "an internal error",
            5031 => "no descriptor to be had",
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
            5049 => "direct I/O cannot be had, and compat mode is off",
            _ => return None,
        })
    }

    /// What the caller can do about it.
    pub(super) fn kind(self) -> Kind {
        match self.0 {
            5012..=5015 | 5018 | 5019 | 5022..=5024 | 5028 => Kind::Invalid,
            5006 | 5010 | 5011 | 5016 | 5017 | 5030 | 5031 | 5035..=5037 | 5039..=5044 => {
                Kind::Transient
            }
            _ => Kind::Unsupported,
        }
    }

    /// What mends it, for the codes whose cause has been tracked down.
    pub(super) fn hint(self) -> Option<&'static str> {
        Some(match self.0 {
            5001 | 5033 => "load nvidia-fs (`modprobe nvidia-fs`), or allow cuFile's compat mode",
            5016 | 5017 | 5036 => {
                "register less memory at a time: BAR1 or the pinned limit is full"
            }
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
    fn a_code_nobody_has_heard_of_is_shown_by_its_number() {
        assert_eq!(OpCode(5999).to_string(), "cuFile error 5999");
        assert_eq!(
            OpCode(5001).to_string(),
            "nvidia-fs is not loaded (cuFile error 5001)"
        );
    }
}
