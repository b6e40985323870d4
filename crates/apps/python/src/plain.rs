//! Converts plain data to Python objects.
//!
//! Every name that is looked up is in a table of `checkpoint`, which also checked the arguments of every call.

use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyByteArray, PyBytes, PyDict, PyFrozenSet, PyList, PyModule, PySet, PyTuple},
};
use straightway_checkpoint::{Array, Maker, NumpyType, Plain, PythonName, Sequence};

use crate::error::OrRaise;

/// The value of a text from `_plain.encoded`.
#[pyfunction]
pub(crate) fn plain_decoded<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    let value = py.detach(|| Plain::decode(text)).or_raise()?;
    made(py, &value)
}

/// The value of a pickle that contains only plain types. No code of the pickle is run.
#[pyfunction]
pub(crate) fn plain_unpickled<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let value = Plain::unpickle(data).or_raise()?;
    made(py, &value)
}

/// The object, or an error if Python does not accept the value: a 13th month, a list as a key.
fn made<'py>(py: Python<'py>, value: &Plain) -> PyResult<Bound<'py, PyAny>> {
    object(py, value).map_err(|error| {
        let message = format!("cannot decode a value of the checkpoint: {}", error.value(py));
        let refused = PyValueError::new_err(message);
        refused.set_cause(py, Some(error));
        refused
    })
}

fn object<'py>(py: Python<'py>, value: &Plain) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Plain::None => py.None().into_bound(py),
        Plain::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Plain::Int(value) => value.into_pyobject(py)?.into_any(),
        Plain::Long(bytes) => {
            let options = PyDict::new(py);
            options.set_item("signed", true)?;
            let int = PyModule::import(py, "builtins")?.getattr("int")?;
            int.call_method("from_bytes", (PyBytes::new(py, bytes), "little"), Some(&options))?
        }
        Plain::Float(value) => value.into_pyobject(py)?.into_any(),
        Plain::Text(text) => text.into_pyobject(py)?.into_any(),
        Plain::Surrogates(bytes) => PyBytes::new(py, bytes).call_method1("decode", ("utf-8", "surrogatepass"))?,
        Plain::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Plain::Items(kind, items) => sequence(py, *kind, items)?,
        Plain::Pairs(pairs) => dictionary(py, pairs)?.into_any(),
        Plain::Name(name) => named(py, *name)?,
        Plain::Object(maker, arguments) => call(py, *maker, arguments)?,
        Plain::Dtype(dtype) => numpy_type(py, dtype)?,
        Plain::Array(value) => array(py, value)?,
        other => {
            return Err(PyValueError::new_err(format!("{other:?} is not known here")));
        }
    })
}

fn objects<'py>(py: Python<'py>, values: &[Plain]) -> PyResult<Vec<Bound<'py, PyAny>>> {
    values.iter().map(|value| object(py, value)).collect()
}

fn sequence<'py>(py: Python<'py>, kind: Sequence, items: &[Plain]) -> PyResult<Bound<'py, PyAny>> {
    let items = objects(py, items)?;
    Ok(match kind {
        Sequence::List => PyList::new(py, items)?.into_any(),
        Sequence::Tuple => PyTuple::new(py, items)?.into_any(),
        Sequence::Set => PySet::new(py, items)?.into_any(),
        Sequence::FrozenSet => PyFrozenSet::new(py, items)?.into_any(),
    })
}

fn dictionary<'py>(py: Python<'py>, pairs: &[(Plain, Plain)]) -> PyResult<Bound<'py, PyDict>> {
    let dictionary = PyDict::new(py);
    for (key, value) in pairs {
        dictionary.set_item(object(py, key)?, object(py, value)?)?;
    }
    Ok(dictionary)
}

fn named(py: Python<'_>, name: PythonName) -> PyResult<Bound<'_, PyAny>> {
    PyModule::import(py, name.module)?.getattr(name.attribute)
}

fn call<'py>(py: Python<'py>, maker: Maker, arguments: &[Plain]) -> PyResult<Bound<'py, PyAny>> {
    let class = named(py, maker.name())?;
    let mut arguments = objects(py, arguments)?;
    let options = PyDict::new(py);
    if let (Some(keyword), Some(last)) = (maker.keyword(), arguments.last()) {
        options.set_item(keyword, last)?;
        arguments.pop();
    }
    class.call(PyTuple::new(py, arguments)?, Some(&options))
}

fn numpy_type<'py>(py: Python<'py>, dtype: &NumpyType) -> PyResult<Bound<'py, PyAny>> {
    let class = PyModule::import(py, "numpy")?.getattr("dtype")?;
    match dtype {
        NumpyType::Basic(basic) => class.call1((&basic.code,)),
        NumpyType::Extension(name) => class.call1((PyModule::import(py, "ml_dtypes")?.getattr(*name)?,)),
        NumpyType::Rows(within, shape) => class.call1(((numpy_type(py, within)?, PyTuple::new(py, shape)?),)),
        NumpyType::Fields(item_bytes, fields) => {
            let types = fields.iter().map(|field| numpy_type(py, &field.dtype));
            let record = PyDict::new(py);
            record.set_item("names", fields.iter().map(|field| &field.name).collect::<Vec<_>>())?;
            record.set_item("formats", types.collect::<PyResult<Vec<_>>>()?)?;
            record.set_item("offsets", fields.iter().map(|field| field.offset).collect::<Vec<_>>())?;
            if fields.iter().any(|field| field.title.is_some()) {
                record.set_item("titles", fields.iter().map(|field| &field.title).collect::<Vec<_>>())?;
            }
            record.set_item("itemsize", item_bytes)?;
            class.call1((record,))
        }
        other => Err(PyValueError::new_err(format!("{other:?} is not known here"))),
    }
}

fn array<'py>(py: Python<'py>, value: &Array) -> PyResult<Bound<'py, PyAny>> {
    let dtype = numpy_type(py, &value.dtype)?;
    let class = PyModule::import(py, "numpy")?.getattr("ndarray")?;
    // NumPy checks that the buffer is long enough. Nothing else holds the buffer.
    let options = PyDict::new(py);
    options.set_item("order", if value.is_fortran { "F" } else { "C" })?;
    options.set_item("dtype", dtype)?;
    if !value.data.is_empty() {
        options.set_item("buffer", PyByteArray::new(py, &value.data))?;
    }
    let array = class.call((PyTuple::new(py, &value.shape)?,), Some(&options))?;
    if value.is_scalar {
        array.get_item(PyTuple::empty(py))
    } else {
        Ok(array)
    }
}
