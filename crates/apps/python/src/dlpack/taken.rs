//! A tensor of another library, taken from its capsule.

use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
};

use pyo3::{
    exceptions::{PyBufferError, PyTypeError},
    ffi,
    prelude::*,
    types::PyDict,
};
use straightway_core::Place;

use super::{DEVICE_CPU, DEVICE_CUDA, Managed, Parts, UNUSED_CAPSULE};

/// Pinned host memory.
const DEVICE_CUDA_HOST: i32 = 3;

/// The name of a capsule whose tensor was taken.
const USED_CAPSULE: &CStr = c"used_dltensor";

/// The names of capsules with a version.
const UNUSED_VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// The flag of a tensor that must not be written to.
const READ_ONLY: u64 = 1;

/// A tensor with the version of its struct, as DLPack 1 has it.
#[repr(C)]
pub(crate) struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Parts,
}

/// A tensor that another library keeps until [`release`](Self::release) is called.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Of DLPack before 1.
    Plain(NonNull<Managed>),
    /// Of DLPack 1.
    Versioned(NonNull<ManagedVersioned>),
}

impl std::fmt::Debug for Managed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Managed")
    }
}

impl std::fmt::Debug for ManagedVersioned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ManagedVersioned")
    }
}

// SAFETY: the struct belongs to whoever has the pointer, and its deleter is called with the interpreter's lock.
unsafe impl Send for Taken {}
// SAFETY: through a reference it is only read.
unsafe impl Sync for Taken {}

/// What a tensor says of itself.
#[derive(Debug)]
pub(crate) struct TakenView {
    pub(crate) place: Place,
    pub(crate) address: u64,
    pub(crate) item_bytes: u64,
    pub(crate) shape: Vec<i64>,
    /// In bytes.
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) is_read_only: bool,
}

impl Taken {
    /// Takes the tensor of an object with `__dlpack__`. Its library does not wait for a stream.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let (kind, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        let wanted = PyDict::new(py);
        if kind == DEVICE_CUDA {
            wanted.set_item("stream", -1)?;
        }
        wanted.set_item("max_version", (1, 0))?;
        let capsule = match object.call_method("__dlpack__", (), Some(&wanted)) {
            Err(raised) if raised.is_instance_of::<PyTypeError>(py) => {
                wanted.del_item("max_version")?;
                object.call_method("__dlpack__", (), Some(&wanted))?
            }
            capsule => capsule?,
        };
        let raw = capsule.as_ptr();
        // SAFETY: the object is alive and the interpreter's lock is held. A pointer under one of these names is the
        // struct of that version, by DLPack's rules; a consumer renames the capsule, and then owns the struct.
        unsafe {
            if ffi::PyCapsule_IsValid(raw, UNUSED_VERSIONED.as_ptr()) == 1 {
                let managed = ffi::PyCapsule_GetPointer(raw, UNUSED_VERSIONED.as_ptr()).cast::<ManagedVersioned>();
                let managed = NonNull::new(managed).ok_or_else(not_dlpack)?;
                if managed.as_ref().major != 1 {
                    return Err(PyBufferError::new_err("its DLPack is newer than version 1"));
                }
                ffi::PyCapsule_SetName(raw, USED_VERSIONED.as_ptr());
                return Ok(Self::Versioned(managed));
            }
            if ffi::PyCapsule_IsValid(raw, UNUSED_CAPSULE.as_ptr()) == 1 {
                let managed = ffi::PyCapsule_GetPointer(raw, UNUSED_CAPSULE.as_ptr()).cast::<Managed>();
                let managed = NonNull::new(managed).ok_or_else(not_dlpack)?;
                ffi::PyCapsule_SetName(raw, USED_CAPSULE.as_ptr());
                return Ok(Self::Plain(managed));
            }
        }
        Err(not_dlpack())
    }

    /// What the tensor says of itself.
    pub(crate) fn view(&self) -> PyResult<TakenView> {
        // SAFETY: the struct is ours until it is released.
        let (parts, is_read_only) = unsafe {
            match self {
                Self::Plain(managed) => (&managed.as_ref().tensor, false),
                Self::Versioned(managed) => {
                    let managed = managed.as_ref();
                    (&managed.tensor, managed.flags & READ_ONLY != 0)
                }
            }
        };
        let place = match parts.device.kind {
            DEVICE_CPU | DEVICE_CUDA_HOST => Place::Host,
            DEVICE_CUDA => Place::Gpu(u32::try_from(parts.device.number).map_err(|_| not_dlpack())?),
            other => {
                let message = format!("its memory is on a device of DLPack's kind {other}, not on the host or a GPU");
                return Err(PyBufferError::new_err(message));
            }
        };
        let bits = u64::from(parts.dtype.bits) * u64::from(parts.dtype.lanes);
        if bits == 0 || !bits.is_multiple_of(8) {
            return Err(PyBufferError::new_err("its elements are not whole bytes"));
        }
        let item_bytes = bits / 8;
        let dimensions = usize::try_from(parts.dimensions).map_err(|_| not_dlpack())?;
        // SAFETY: shape and strides, where they are not null, have an entry for each dimension.
        let list = |start: *mut i64| unsafe {
            (!start.is_null()).then(|| std::slice::from_raw_parts(start, dimensions).to_vec())
        };
        let shape = list(parts.shape)
            .or((dimensions == 0).then(Vec::new))
            .ok_or_else(not_dlpack)?;
        let in_bytes = |stride: i64| stride.checked_mul(item_bytes.cast_signed());
        let strides = list(parts.strides).map(|strides| strides.into_iter().map(in_bytes).collect::<Option<Vec<_>>>());
        let strides = strides.map(|strides| strides.ok_or_else(not_dlpack)).transpose()?;
        Ok(TakenView {
            place,
            address: parts.data.addr() as u64 + parts.byte_offset,
            item_bytes,
            shape,
            strides,
            is_read_only,
        })
    }

    /// Gives the tensor back to its library.
    pub(crate) fn release(self, _: Python<'_>) {
        // SAFETY: the struct is ours, and is given back once. A library without a deleter has nothing to free.
        unsafe {
            match self {
                Self::Plain(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Self::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

fn not_dlpack() -> PyErr {
    PyBufferError::new_err("its `__dlpack__` does not return a tensor")
}
