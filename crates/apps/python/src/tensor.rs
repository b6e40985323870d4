//! A tensor in memory that PyTorch, NumPy, CuPy and JAX can use.

use pyo3::{
    exceptions::{PyBufferError, PyTypeError},
    prelude::*,
    types::{PyDict, PyTuple},
};
use straightway_core::Place;
use straightway_weights::{Dtype, Shape};

use crate::{
    dlpack::{self, View},
    memory::Memory,
};

/// A tensor that other libraries can use without a copy: `torch.from_dlpack`, `numpy.asarray`, `cupy.from_dlpack`,
/// `jax.dlpack.from_dlpack`.
#[pyclass(frozen, module = "straightway")]
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) memory: Memory,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
}

impl Tensor {
    /// The address of its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address() + self.at
    }

    /// The NumPy name of its dtype; `None` if NumPy does not have it.
    fn numpy_type(&self) -> Option<&'static str> {
        Some(match self.dtype {
            Dtype::Bool => "|b1",
            Dtype::I8 => "|i1",
            Dtype::U8 => "|u1",
            Dtype::I16 => "<i2",
            Dtype::U16 => "<u2",
            Dtype::I32 => "<i4",
            Dtype::U32 => "<u4",
            Dtype::I64 => "<i8",
            Dtype::U64 => "<u8",
            Dtype::F16 => "<f2",
            Dtype::F32 => "<f4",
            Dtype::F64 => "<f8",
            Dtype::C64 => "<c8",
            _ => return None,
        })
    }
}

#[pymethods]
impl Tensor {
    /// Its dtype, as safetensors names it.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// Its shape.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape.iter())
    }

    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// Its device: `cpu` or `cuda:N`.
    #[getter]
    fn device(&self) -> String {
        match self.memory.place() {
            Place::Host => "cpu".to_owned(),
            place @ (Place::Gpu(_) | Place::P2p(_)) => place.to_string(),
        }
    }

    /// Its bytes as a tensor of one dimension, for dtypes that another library does not have.
    fn as_bytes(&self) -> Self {
        Self {
            dtype: Dtype::U8,
            shape: Shape::from_iter([self.bytes]),
            ..self.clone()
        }
    }

    /// NumPy's protocol for tensors in host memory.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        use pyo3::exceptions::PyAttributeError;
        if matches!(self.memory.place(), Place::Gpu(_)) {
            let message = "it is in a GPU's memory: take it with `cupy.from_dlpack`, or load it to `cpu`";
            return Err(PyAttributeError::new_err(message));
        }
        let Some(name) = self.numpy_type() else {
            let message = format!("NumPy has no {}: take `as_bytes()`", self.dtype.name());
            return Err(PyAttributeError::new_err(message));
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", name)?;
        interface.set_item("data", (self.address(), false))?;
        Ok(interface)
    }

    /// Always raises. NumPy calls this if there is no `__array_interface__`. Without it, NumPy would make an array of
    /// one object from the tensor.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__(&self, py: Python<'_>, dtype: Option<Bound<'_, PyAny>>, copy: Option<bool>) -> PyResult<Py<PyAny>> {
        let _ = (dtype, copy);
        match self.__array_interface__(py) {
            Err(missing) => Err(PyTypeError::new_err(missing.value(py).to_string())),
            Ok(_) => Err(PyTypeError::new_err("use `__array_interface__`")),
        }
    }

    /// Its device in DLPack's numbers.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device(self.memory.place())
    }

    /// The tensor in a capsule. All bytes are loaded, so that any stream can use them at once.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (stream, max_version);
        if copy == Some(true) || dl_device.is_some_and(|d| d != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err("a copy or another device is not supported"));
        }
        if dlpack::code(self.dtype).is_none() {
            let message = format!("DLPack has no {}: take `as_bytes()`", self.dtype.name());
            return Err(PyTypeError::new_err(message));
        }
        let view = View {
            memory: &self.memory,
            at: self.at,
            bytes: self.bytes,
            dtype: self.dtype,
            shape: &self.shape,
        };
        dlpack::capsule(py, &view)
    }

    fn __repr__(&self) -> String {
        let shape: Vec<_> = self.shape.iter().map(u64::to_string).collect();
        format!("<Tensor {} [{}] on {}>", self.dtype(), shape.join(", "), self.device())
    }
}
