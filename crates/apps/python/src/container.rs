//! Parses the header of a safetensors file in memory.

use pyo3::{prelude::*, types::PyBytes};
use straightway_weights::Header;

use crate::error::OrRaise;

/// A tensor of a header: name, dtype, shape, and the start and end of its bytes in the file.
type Entry = (String, &'static str, Vec<u64>, u64, u64);

/// The tensors of a safetensors file with the bytes `data`, in file order. Every rule of the format is checked.
#[pyfunction]
pub(crate) fn parse_header(data: &Bound<'_, PyBytes>) -> PyResult<Vec<Entry>> {
    let data = data.as_bytes();
    let header = Header::parse("the data", data, data.len() as u64).or_raise()?;
    let entry = |tensor: &straightway_weights::Tensor| {
        (
            tensor.name.to_string(),
            tensor.dtype.name(),
            tensor.shape.iter().copied().collect(),
            tensor.extent.offset,
            tensor.extent.end(),
        )
    };
    Ok(header.tensors.iter().map(entry).collect())
}
