//! What a driver call returned: an open number, never a closed enum, because a newer driver may
//! answer with a code that nobody here has heard of.

use straightway_core::Kind;

/// The result code of a CUDA driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Code(pub u32);

impl Code {
    /// The call did what it should.
    pub const SUCCESS: Self = Self(0);
    /// An argument makes no sense to the driver.
    pub const INVALID_VALUE: Self = Self(1);
    /// Device memory, or memory to pin, ran out.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// The library is the toolkit's stub, not a driver.
    pub const STUB_LIBRARY: Self = Self(34);
    /// Another process holds the device exclusively, or it is closed to compute.
    pub const DEVICE_UNAVAILABLE: Self = Self(46);
    /// The machine has no CUDA device.
    pub const NO_DEVICE: Self = Self(100);
    /// The ordinal names no device.
    pub const INVALID_DEVICE: Self = Self(101);
    /// A handle that is not one, or no longer.
    pub const INVALID_HANDLE: Self = Self(400);
    /// Not an error: the work before an event or in a stream is still under way.
    pub const NOT_READY: Self = Self(600);
    /// The device cannot do it.
    pub const NOT_SUPPORTED: Self = Self(801);
    /// The library and the kernel module are of different versions.
    pub const SYSTEM_DRIVER_MISMATCH: Self = Self(803);

    /// Codes after which the context runs nothing any more: ECC error, deinitialised, illegal
    /// address, launch time-out and failure, destroyed context, hardware faults.
    const FATAL: [u32; 10] = [4, 214, 700, 702, 709, 714, 715, 717, 718, 719];

    /// `Ok` for success, else the code.
    pub(crate) fn ok(self) -> Result<(), Self> {
        if self == Self::SUCCESS {
            Ok(())
        } else {
            Err(self)
        }
    }

    /// Whether the context is dead, so that no copy of it can still be under way.
    pub(crate) fn is_fatal(self) -> bool {
        Self::FATAL.contains(&self.0)
    }

    /// What the caller can do about it.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::INVALID_VALUE | Self::INVALID_DEVICE | Self::INVALID_HANDLE => Kind::Invalid,
            Self::NO_DEVICE
            | Self::STUB_LIBRARY
            | Self::NOT_SUPPORTED
            | Self::SYSTEM_DRIVER_MISMATCH => Kind::Unsupported,
            _ => Kind::Transient,
        }
    }
}
