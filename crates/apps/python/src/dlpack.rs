//! DLPack: passes a tensor from one library to another without a copy.
//!
//! The structs are those of the published C header, version 0.8, which every consumer still accepts.

pub(crate) mod taken;

use std::ffi::{CStr, c_void};

use pyo3::{exceptions::PyMemoryError, ffi, prelude::*};
use smallvec::{SmallVec, smallvec};
use straightway_core::Place;
use straightway_weights::{Dtype, Shape, whole_bytes};

use crate::memory::Memory;

const DEVICE_CPU: i32 = 1;
const DEVICE_CUDA: i32 = 2;

/// The name of a capsule whose tensor was not consumed yet.
const UNUSED_CAPSULE: &CStr = c"dltensor";

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Parts {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: Type,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
pub(crate) struct Managed {
    tensor: Parts,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A tensor to export.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a Shape,
}

/// The allocation behind a capsule: the struct that it points to, its shape, and the memory.
struct Owned {
    managed: Managed,
    shape: SmallVec<[i64; 4]>,
    _memory: Memory,
}

/// The device in DLPack's numbers.
pub(crate) fn device(place: Place) -> (i32, i32) {
    match place {
        // The CPU reaches memory in a BAR by its mapping.
        Place::Host | Place::P2p(_) => (DEVICE_CPU, 0),
        Place::Gpu(number) => (DEVICE_CUDA, i32::try_from(number).unwrap_or(i32::MAX)),
    }
}

/// The dtype in DLPack's numbers; `None` for dtypes that most consumers do not know. Those are exported as bytes, and
/// the consumer views them as the dtype.
pub(crate) fn code(dtype: Dtype) -> Option<(u8, u8)> {
    let code = match dtype {
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => 0,
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => 1,
        Dtype::F16 | Dtype::F32 | Dtype::F64 => 2,
        Dtype::Bf16 => 4,
        Dtype::C64 => 5,
        Dtype::Bool => 6,
        _ => return None,
    };
    Some((code, u8::try_from(dtype.bits()).ok()?))
}

/// A capsule with the tensor. The memory lives as long as the capsule, or the consumer of its tensor.
pub(crate) fn capsule<'py>(py: Python<'py>, tensor: &View<'_>) -> PyResult<Bound<'py, PyAny>> {
    let end = tensor.at.checked_add(tensor.bytes);
    let needed = tensor.shape.elements().and_then(|n| whole_bytes(n, tensor.dtype));
    assert!(
        end.is_some_and(|end| end <= tensor.memory.bytes()) && needed == Some(tensor.bytes),
        "a tensor must lie inside its memory"
    );
    // The cast cannot overflow: no tensor that fits into memory has a dimension of 2^63.
    let (shape, (code, bits)): (SmallVec<[i64; 4]>, _) = match code(tensor.dtype) {
        Some(code) => (tensor.shape.iter().map(|d| d.cast_signed()).collect(), code),
        None => (smallvec![tensor.bytes.cast_signed()], (1, 8)),
    };
    let (kind, number) = device(tensor.memory.place());
    let owned = Box::into_raw(Box::new(Owned {
        managed: Managed {
            tensor: Parts {
                data: (tensor.memory.address() + tensor.at) as *mut c_void,
                device: Device { kind, number },
                dimensions: i32::try_from(shape.len()).unwrap_or(i32::MAX),
                dtype: Type { code, bits, lanes: 1 },
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        shape,
        _memory: tensor.memory.clone(),
    }));
    // SAFETY: the allocation is ours and does not move from here on; the shape may lie inside it. The struct that the
    // capsule points to lies in it too, and `delete` finds the allocation by the context.
    unsafe {
        (*owned).managed.tensor.shape = (*owned).shape.as_mut_ptr();
        (*owned).managed.context = owned.cast();
        let managed = &raw mut (*owned).managed;
        let capsule = ffi::PyCapsule_New(managed.cast(), UNUSED_CAPSULE.as_ptr(), Some(drop_capsule));
        if capsule.is_null() {
            drop(Box::from_raw(owned));
            return Err(PyMemoryError::new_err("cannot make a capsule"));
        }
        Ok(Bound::from_owned_ptr(py, capsule))
    }
}

/// Called by the consumer of the tensor when it is done with it.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the context is the allocation that `capsule` made, and this is called once.
    unsafe { drop(Box::from_raw((*managed).context.cast::<Owned>())) }
}

/// Called when the capsule is freed. A tensor that was not consumed is freed too.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once with the capsule. A consumer of the tensor renames the capsule.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNUSED_CAPSULE.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, UNUSED_CAPSULE.as_ptr());
            delete(managed.cast());
        }
    }
}
