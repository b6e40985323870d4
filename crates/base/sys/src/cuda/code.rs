//! The result code of a driver call. It is a plain number, not a closed enum, because a newer driver may
//! return an unknown code.

use straightway_core::ErrorKind;

/// The result code of a CUDA driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Code(pub u32);

impl Code {
    /// The call succeeded.
    pub const SUCCESS: Self = Self(0);
    /// An argument is invalid.
    pub const INVALID_VALUE: Self = Self(1);
    /// Device memory, or memory to pin, ran out.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// The library is the toolkit's stub, not a driver.
    pub const STUB_LIBRARY: Self = Self(34);
    /// Another process uses the device exclusively, or its compute mode is prohibited.
    pub const DEVICE_UNAVAILABLE: Self = Self(46);
    /// The machine has no CUDA device.
    pub const NO_DEVICE: Self = Self(100);
    /// There is no device with this ordinal.
    pub const INVALID_DEVICE: Self = Self(101);
    /// The handle is not or no longer valid.
    pub const INVALID_HANDLE: Self = Self(400);
    /// Not an error: work before an event or in a stream is not done yet.
    pub const NOT_READY: Self = Self(600);
    /// The context was destroyed or reset.
    pub const CONTEXT_DESTROYED: Self = Self(709);
    /// The device does not support the operation.
    pub const NOT_SUPPORTED: Self = Self(801);
    /// The library and the kernel module are of different versions.
    pub const SYSTEM_DRIVER_MISMATCH: Self = Self(803);

    /// Codes after which the context runs nothing more: ECC error, deinitialised, illegal address, launch
    /// timeout and failure, destroyed context, hardware faults.
    const FATAL: [u32; 10] = [4, 214, 700, 702, 709, 714, 715, 717, 718, 719];

    /// `Ok` for success, else the code.
    pub(crate) fn ok(self) -> Result<(), Self> {
        if self == Self::SUCCESS { Ok(()) } else { Err(self) }
    }

    /// Whether the context is dead, so that none of its copies can be in flight.
    pub(crate) fn is_fatal(self) -> bool {
        Self::FATAL.contains(&self.0)
    }

    /// The class of the error.
    pub(crate) fn kind(self) -> ErrorKind {
        match self {
            Self::INVALID_VALUE | Self::INVALID_DEVICE | Self::INVALID_HANDLE => ErrorKind::Invalid,
            Self::NO_DEVICE | Self::STUB_LIBRARY | Self::NOT_SUPPORTED | Self::SYSTEM_DRIVER_MISMATCH => {
                ErrorKind::Unsupported
            }
            _ => ErrorKind::Transient,
        }
    }
}
