//! The C interface of libcufile: structs with the layout of CUDA 13.0's header, and the entry points, each of
//! which may be missing.

use std::ffi::{c_int, c_long, c_void};

use straightway_core::{Error, ErrorKind, Result};

use super::{
    code::{OpCode, Status},
    paths::Paths,
};

pub(super) type RawHandle = *mut c_void;

/// `cuFileRead` and `cuFileWrite`: handle, base of the memory, length, offsets in file and memory.
pub(super) type TransferFn = unsafe extern "C" fn(RawHandle, *mut c_void, usize, c_long, c_long) -> isize;

/// `CUfileDescr_t` for a POSIX descriptor.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Description {
    /// 1: a file descriptor.
    pub(super) kind: u32,
    pub(super) handle: DescriptorUnion,
    pub(super) fs_ops: *const c_void,
}

/// A C union of an `int` and a pointer: the descriptor is in its first four bytes.
#[derive(Debug)]
#[repr(C, align(8))]
pub(super) struct DescriptorUnion {
    pub(super) fd: c_int,
    pub(super) rest: u32,
}

/// `CUfileDrvProps_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct DriverProperties {
    pub(super) nvfs_version_major: u32,
    pub(super) nvfs_version_minor: u32,
    pub(super) poll_threshold_kib: usize,
    pub(super) direct_io_kib_max: usize,
    pub(super) status_flags: u32,
    pub(super) control_flags: u32,
    pub(super) feature_flags: u32,
    pub(super) device_cache_kib_max: u32,
    pub(super) buffer_cache_kib: u32,
    pub(super) device_pinned_kib_max: u32,
    pub(super) batch_io_max: u32,
    pub(super) batch_io_timeout_ms: u32,
}

/// `CUfilePerGpuStats_t`, of which the path and byte counters are used.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GpuCounters {
    pub(super) uuid: [u8; 16],
    pub(super) read_bytes: u64,
    pub(super) read_rate_and_time: [u64; 3],
    pub(super) reads: Paths,
    pub(super) read_dynamic_sparse_inline: [u64; 3],
    pub(super) read_errors: u64,
    pub(super) write_bytes: u64,
    pub(super) write_rate_and_time: [u64; 3],
    pub(super) writes: Paths,
    pub(super) write_dynamic: u64,
    pub(super) write_errors: u64,
    pub(super) registrations: [u64; 5],
}

// The sizes that a C compiler gives the header's structs on x86-64 (cuFile 1.15, 1.18 and 1.19).
const _: () = assert!(size_of::<Status>() == 8);
const _: () = assert!(size_of::<Description>() == 24);
const _: () = assert!(size_of::<DriverProperties>() == 56);
const _: () = assert!(size_of::<GpuCounters>() == 248);
// The offset of a field in the middle also checks the fields before it: after the UUID come 13 words of
// reads, and `n_p2p_writes` is the sixth word of writes.
const _: () = assert!(std::mem::offset_of!(GpuCounters, writes) == 16 + 13 * 8 + 4 * 8);

macro_rules! entry_points {
    ($( $field:ident = $symbol:literal ( $($argument:ty),* ) $(-> $result:ty)?; )*) => {
        /// The functions of libcufile that this crate calls, if the library has them.
        #[derive(Debug)]
        pub(super) struct Api {
            $( $field: Option<unsafe extern "C" fn($($argument),*) $(-> $result)?>, )*
        }

        impl Api {
            pub(super) fn resolve(library: &libloading::Library) -> Self {
                Self {
                    // SAFETY: the signatures are those of cufile.h, the same in all versions that
                    // have the symbol.
                    $( $field: unsafe { library.get($symbol) }.ok().map(|f| *f), )*
                }
            }

            // Each function, or `Unsupported` with the missing symbol.
            $(
                pub(super) fn $field(
                    &self,
                ) -> Result<unsafe extern "C" fn($($argument),*) $(-> $result)?> {
                    self.$field.ok_or_else(|| missing($symbol))
                }
            )*
        }
    };
}

entry_points! {
    driver_open = "cuFileDriverOpen"() -> Status;
    driver_close = "cuFileDriverClose_v2"() -> Status;
    driver_close_v1 = "cuFileDriverClose"() -> Status;
    driver_get_properties = "cuFileDriverGetProperties"(*mut DriverProperties) -> Status;
    get_version = "cuFileGetVersion"(*mut c_int) -> Status;
    set_parameter_bool = "cuFileSetParameterBool"(u32, bool) -> Status;
    handle_register = "cuFileHandleRegister"(*mut RawHandle, *mut Description) -> Status;
    handle_deregister = "cuFileHandleDeregister"(RawHandle);
    buf_register = "cuFileBufRegister"(*const c_void, usize, c_int) -> Status;
    buf_deregister = "cuFileBufDeregister"(*const c_void) -> Status;
    read = "cuFileRead"(RawHandle, *mut c_void, usize, c_long, c_long) -> isize;
    // The header declares the memory const here, which makes no difference to the caller.
    write = "cuFileWrite"(RawHandle, *mut c_void, usize, c_long, c_long) -> isize;
    set_stats_level = "cuFileSetStatsLevel"(c_int) -> Status;
    stats_start = "cuFileStatsStart"() -> Status;
    stats_stop = "cuFileStatsStop"() -> Status;
    get_stats_l3 = "cuFileGetStatsL3"(*mut c_void) -> Status;
}

fn missing(symbol: &str) -> Error {
    let message = format!("it has no {symbol}: it is too old");
    Error::new(ErrorKind::Unsupported, "use", "libcufile", message)
        .with_hint("install the cuFile library of a newer CUDA version")
}

impl Status {
    /// `Ok`, or the error of an operation on `target`.
    pub(super) fn ok(self, operation: &'static str, target: impl std::fmt::Display) -> Result<()> {
        if self.op == OpCode::SUCCESS {
            return Ok(());
        }
        let cuda = match self.cuda {
            0 => String::new(),
            code => format!(", CUDA error {code}"),
        };
        let message = format!("{}{cuda}", self.op);
        let error = Error::new(self.op.kind(), operation, target, message);
        Err(match self.op.hint() {
            Some(hint) => error.with_hint(hint),
            None => error,
        })
    }
}
