//! The driver's entry points, resolved once.
//!
//! All symbols are resolved when the driver is loaded. A symbol that an older driver lacks is then named in
//! the error, and is not a panic during a transfer.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemcpyAttributes, CUstream, CUuuid, culib, is_culib_present,
};
use libloading::Library;
use straightway_core::{Error, ErrorKind, Result};

use super::code::Code;

macro_rules! entry_points {
    (required { $( $field:ident = $symbol:literal ( $($argument:ty),* ); )* }
     optional { $( $maybe:ident = $maybe_symbol:literal ( $($maybe_argument:ty),* ); )* }) => {
        /// The functions of the driver that this crate calls.
        pub(crate) struct Api {
            $( pub(crate) $field: unsafe extern "C" fn($($argument),*) -> Code, )*
            $( pub(crate) $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> Code>, )*
        }

        impl Api {
            /// Looks up every function in `library`. The first missing one is an error.
            fn resolve(library: &Library) -> Result<Self> {
                Ok(Self {
                    $(
                        // SAFETY: the signature is the one cuda.h of CUDA 12.8 gives this symbol,
                        // and the driver never changes the signature of a symbol.
                        $field: *unsafe { library.get($symbol) }.map_err(|_| missing($symbol))?,
                    )*
                    $(
                        // SAFETY: as above.
                        $maybe: unsafe { library.get($maybe_symbol) }.ok().map(|f| *f),
                    )*
                })
            }
        }
    };
}

entry_points! {
    required {
        init = "cuInit"(c_uint);
        driver_get_version = "cuDriverGetVersion"(*mut c_int);
        get_error_name = "cuGetErrorName"(Code, *mut *const c_char);
        device_get_count = "cuDeviceGetCount"(*mut c_int);
        device_get = "cuDeviceGet"(*mut CUdevice, c_int);
        device_get_name = "cuDeviceGetName"(*mut c_char, c_int, CUdevice);
        device_get_attribute = "cuDeviceGetAttribute"(*mut c_int, c_uint, CUdevice);
        device_get_pci_bus_id = "cuDeviceGetPCIBusId"(*mut c_char, c_int, CUdevice);
        device_get_uuid = "cuDeviceGetUuid_v2"(*mut CUuuid, CUdevice);
        device_total_mem = "cuDeviceTotalMem_v2"(*mut usize, CUdevice);
        primary_ctx_retain = "cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice);
        primary_ctx_release = "cuDevicePrimaryCtxRelease_v2"(CUdevice);
        ctx_push = "cuCtxPushCurrent_v2"(CUcontext);
        ctx_pop = "cuCtxPopCurrent_v2"(*mut CUcontext);
        mem_get_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
        mem_alloc = "cuMemAlloc_v2"(*mut CUdeviceptr, usize);
        mem_free = "cuMemFree_v2"(CUdeviceptr);
        mem_host_register = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
        mem_host_unregister = "cuMemHostUnregister"(*mut c_void);
        pointer_get_attribute = "cuPointerGetAttribute"(*mut c_void, c_uint, CUdeviceptr);
        memcpy_to_device = "cuMemcpyHtoD_v2"(CUdeviceptr, *const c_void, usize);
        memcpy_to_host = "cuMemcpyDtoH_v2"(*mut c_void, CUdeviceptr, usize);
        memcpy_to_device_async =
            "cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream);
        memcpy_to_host_async = "cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream);
        stream_create = "cuStreamCreate"(*mut CUstream, c_uint);
        stream_destroy = "cuStreamDestroy_v2"(CUstream);
        stream_synchronize = "cuStreamSynchronize"(CUstream);
        stream_wait_event = "cuStreamWaitEvent"(CUstream, CUevent, c_uint);
        event_create = "cuEventCreate"(*mut CUevent, c_uint);
        event_destroy = "cuEventDestroy_v2"(CUevent);
        event_record = "cuEventRecord"(CUevent, CUstream);
        event_query = "cuEventQuery"(CUevent);
    }
    optional {
        // Since 12.0.
        ctx_get_id = "cuCtxGetId"(CUcontext, *mut u64);
        // Since 12.8. The plain name keeps the first signature, with the index of what failed.
        memcpy_batch_async = "cuMemcpyBatchAsync"(
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CUmemcpyAttributes,
            *mut usize, usize, *mut usize, CUstream
        );
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// The driver's name for a code, with its number.
    pub(crate) fn name(&self, code: Code) -> String {
        let mut text = std::ptr::null();
        // SAFETY: `text` is a valid place for a pointer; on success the driver stores a static
        // string there, and on failure it stores null or leaves our null.
        let found = unsafe { (self.get_error_name)(code, &raw mut text) };
        if found != Code::SUCCESS || text.is_null() {
            return format!("CUDA error {}", code.0);
        }
        // SAFETY: checked not null; the driver's names are static, NUL-terminated strings.
        let name = unsafe { CStr::from_ptr(text) };
        format!("{} ({})", name.to_string_lossy(), code.0)
    }

    /// Returns an error unless the code is success.
    pub(crate) fn check(&self, code: Code, operation: &'static str, target: impl fmt::Display) -> Result<()> {
        code.ok().map_err(|code| self.error(code, operation, target))
    }

    /// The error for a call that failed with this code.
    pub(crate) fn error(&self, code: Code, operation: &'static str, target: impl fmt::Display) -> Error {
        Error::new(code.kind(), operation, target, self.name(code))
    }

    /// The function table. The library is loaded on first use.
    pub(crate) fn load() -> Result<&'static Self> {
        static TABLE: OnceLock<Api> = OnceLock::new();
        if let Some(table) = TABLE.get() {
            return Ok(table);
        }
        // SAFETY: loading libcuda runs its initialisers, which every CUDA program runs.
        if !unsafe { is_culib_present() } {
            let hint = "install the NVIDIA driver, or run the container with its GPU support";
            return Err(not_loaded("no libcuda.so.1 is on the library path").with_hint(hint));
        }
        // SAFETY: as above; the look-up that just succeeded is the one made here.
        let table = Self::resolve(unsafe { culib() })?;
        Ok(TABLE.get_or_init(|| table))
    }
}

fn missing(symbol: &str) -> Error {
    let message = format!("the driver has no {symbol}: it is too old");
    not_loaded(message).with_hint("install a newer NVIDIA driver")
}

fn not_loaded(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, "load", "the CUDA driver", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_a_symbol_is_unsupported_and_names_it() {
        // SAFETY: the C library is loaded in every process already.
        let libc = unsafe { Library::new("libc.so.6") }.unwrap();
        let error = Api::resolve(&libc).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("cuInit"), "{error}");
    }
}
