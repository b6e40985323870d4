//! The memory of an array of another library, held until the transfers that use it have ended.
//!
//! An array is anything with Python's buffer protocol, DLPack, or `__cuda_array_interface__`. What it exported is given
//! back with the interpreter's lock held. A transfer may end on a thread that does not have the lock: the export is then
//! put on a list, which the main thread and the next calls of this package empty.

use std::{
    ffi::{c_char, c_int, c_void},
    mem,
    pin::Pin,
    ptr,
};

use pyo3::{
    exceptions::{PyBufferError, PyTypeError, PyValueError},
    ffi,
    prelude::*,
    types::PyDict,
};
use straightway_core::Place;
use straightway_sys::PerProcess;

use super::layout::Layout;
use crate::dlpack::taken::Taken;

/// What the memory of an array is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Its bytes are written to a file.
    Taken,
    /// It is filled from a file.
    Filled,
}

/// An array: its memory, and what keeps it.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) place: Place,
    pub(crate) layout: Layout,
    pub(crate) export: Export,
    /// The stream that `__cuda_array_interface__` names.
    pub(crate) stream: Option<u64>,
}

/// What keeps the memory of an array. It is given back on drop.
#[derive(Debug)]
pub(crate) struct Export(Option<Held>);

#[derive(Debug)]
enum Held {
    Buffer(Pin<Box<BufferView>>),
    Tensor(Taken),
    Object(Py<PyAny>),
}

/// `Py_buffer`. Its layout is part of the stable interface since Python 3.11 and was the same in 3.10.
#[repr(C)]
#[derive(Debug)]
struct BufferView {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

// SAFETY: the view is only read, and only released with the interpreter's lock.
unsafe impl Send for BufferView {}
// SAFETY: as above.
unsafe impl Sync for BufferView {}

const BUFFER_STRIDES: c_int = 0x0010 | 0x0008;
const BUFFER_WRITABLE: c_int = 0x0001;

// pyo3 does not declare these for the stable interface of 3.10, whose interpreters have them too.
unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut BufferView, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut BufferView);
    fn Py_AddPendingCall(function: unsafe extern "C" fn(*mut c_void) -> c_int, argument: *mut c_void) -> c_int;
}

/// Exports to give back, of transfers that ended on other threads.
static ENDED: PerProcess<Vec<Held>> = PerProcess::new();

impl Array {
    /// The memory of an array.
    pub(crate) fn of(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        // SAFETY: the object is alive and the interpreter's lock is held.
        if unsafe { PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            return match Self::of_buffer(object, access) {
                Err(raised) => Self::of_view(object, access, raised),
                array => array,
            };
        }
        let py = object.py();
        let plain = py.import("straightway._arrays")?.call_method1("plain", (object,))?;
        if plain.hasattr("__dlpack__")? {
            match Self::of_dlpack(&plain, access) {
                Err(_) if plain.hasattr("__cuda_array_interface__")? => {}
                array => return array,
            }
        }
        if plain.hasattr("__cuda_array_interface__")? {
            return Self::of_cuda(&plain, access);
        }
        let message = format!(
            "{} is not an array: it has neither the buffer protocol, nor __dlpack__, nor __cuda_array_interface__",
            object.get_type().name()?
        );
        Err(PyTypeError::new_err(message))
    }

    fn of_buffer(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        let mut view = Box::pin(BufferView {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: ptr::null_mut(),
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        });
        let flags = match access {
            Access::Taken => BUFFER_STRIDES,
            Access::Filled => BUFFER_STRIDES | BUFFER_WRITABLE,
        };
        // SAFETY: the view is a place for the answer that does not move, and the interpreter's lock is held.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let dimensions = usize::try_from(view.ndim).unwrap_or(0);
        let (shape, strides) = (view.shape, view.strides);
        // SAFETY: with these flags shape and strides have an entry for each dimension.
        let list = |start: *mut isize| unsafe {
            if start.is_null() || dimensions == 0 {
                Vec::new()
            } else {
                std::slice::from_raw_parts(start, dimensions)
                    .iter()
                    .map(|n| *n as i64)
                    .collect()
            }
        };
        let (address, item_bytes) = (view.buf.addr() as u64, view.itemsize.max(0).cast_unsigned() as u64);
        let (shape, strides) = (list(shape), list(strides));
        let export = Export(Some(Held::Buffer(view)));
        Ok(Self {
            place: Place::Host,
            layout: Layout::new(address, item_bytes, &shape, Some(&strides))?,
            export,
            stream: None,
        })
    }

    /// The memory of an array of NumPy whose dtype has no buffer format, such as a time or a bfloat16.
    fn of_view(object: &Bound<'_, PyAny>, access: Access, raised: PyErr) -> PyResult<Self> {
        let py = object.py();
        if !raised.is_instance_of::<PyValueError>(py) && !raised.is_instance_of::<PyTypeError>(py) {
            return Err(raised);
        }
        let Ok(size) = object.getattr("itemsize").and_then(|size| size.extract::<u64>()) else {
            return Err(raised);
        };
        match object.call_method1("view", (format!("V{size}"),)) {
            Ok(view) => Self::of_buffer(&view, access),
            Err(_) => Err(raised),
        }
    }

    fn of_dlpack(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        let taken = Taken::of(object)?;
        let seen = taken.view();
        let export = Export(Some(Held::Tensor(taken)));
        let seen = seen?;
        if seen.is_read_only && access == Access::Filled {
            return Err(read_only());
        }
        Ok(Self {
            place: seen.place,
            layout: Layout::new(seen.address, seen.item_bytes, &seen.shape, seen.strides.as_deref())?,
            export,
            stream: None,
        })
    }

    fn of_cuda(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        let interface = object.getattr("__cuda_array_interface__")?;
        let interface = interface.cast::<PyDict>()?;
        let wanted = |name: &str| {
            let absent = || PyValueError::new_err(format!("its __cuda_array_interface__ has no {name:?}"));
            interface.get_item(name)?.ok_or_else(absent)
        };
        let present = |name: &str| PyResult::Ok(interface.get_item(name)?.filter(|value| !value.is_none()));
        if present("mask")?.is_some() {
            return Err(PyValueError::new_err(
                "it is a masked array, and its mask would be lost",
            ));
        }
        let (address, is_read_only): (u64, bool) = wanted("data")?.extract()?;
        if is_read_only && access == Access::Filled {
            return Err(read_only());
        }
        let kind: String = wanted("typestr")?.extract()?;
        let item_bytes = kind.get(2..).and_then(|digits| digits.parse::<u64>().ok());
        let item_bytes = item_bytes.ok_or_else(|| PyValueError::new_err(format!("its typestr {kind:?} is unknown")))?;
        let item_bytes = if kind.as_bytes()[1] == b'U' {
            item_bytes * 4
        } else {
            item_bytes
        };
        let shape: Vec<i64> = wanted("shape")?.extract()?;
        let strides: Option<Vec<i64>> = present("strides")?.map(|strides| strides.extract()).transpose()?;
        let stream: Option<u64> = present("stream")?.map(|stream| stream.extract()).transpose()?;
        let number = object
            .py()
            .import("straightway._arrays")?
            .call_method1("gpu_of", (object,))?;
        Ok(Self {
            place: Place::Gpu(number.extract()?),
            layout: Layout::new(address, item_bytes, &shape, strides.as_deref())?,
            export: Export(Some(Held::Object(object.clone().unbind()))),
            stream,
        })
    }
}

fn read_only() -> PyErr {
    PyBufferError::new_err("the array is read-only, so nothing can be read into it\nhint: use a copy of it")
}

impl Export {
    /// Gives the memory back now.
    pub(crate) fn release(mut self, py: Python<'_>) {
        if let Some(held) = self.0.take() {
            held.release(py);
        }
    }
}

impl Held {
    fn release(self, py: Python<'_>) {
        match self {
            Self::Buffer(mut view) => {
                // SAFETY: the view was filled by `PyObject_GetBuffer`, and is released once, with the lock.
                unsafe { PyBuffer_Release(&raw mut *view) }
            }
            Self::Tensor(taken) => taken.release(py),
            Self::Object(object) => drop(object),
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            let mut ended = ENDED.lock();
            ended.push(held);
            if ended.len() > 1 {
                return;
            }
            drop(ended);
            // SAFETY: this needs no lock, and the function is called with it. After the interpreter's end it is not
            // called, and the process frees the memory.
            unsafe {
                if ffi::Py_IsInitialized() == 1 {
                    Py_AddPendingCall(release_pending, ptr::null_mut());
                }
            }
        }
    }
}

/// Gives back what transfers have left that ended on other threads.
pub(crate) fn release_ended(py: Python<'_>) {
    // A library may call this package from its deleter: the list is not locked meanwhile.
    let ended = mem::take(&mut *ENDED.lock());
    for held in ended {
        held.release(py);
    }
}

/// Called by the main thread of the interpreter, with its lock.
unsafe extern "C" fn release_pending(_: *mut c_void) -> c_int {
    Python::try_attach(release_ended);
    0
}
