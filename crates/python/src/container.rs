//! The header of a safetensors file that is in memory.

use pyo3::{prelude::*, types::PyBytes};
use straightway_pipeline::weights::Header;

use crate::error::OrRaise;

/// A tensor of a header: name, dtype, shape, and where in the file its bytes begin and end.
type Entry = (String, &'static str, Vec<u64>, u64, u64);

/// The tensors of a safetensors file whose bytes are `data`, in the order in which they lie there. Every rule of the
/// format is checked.
#[pyfunction]
pub(crate) fn parse_header(data: &Bound<'_, PyBytes>) -> PyResult<Vec<Entry>> {
    let data = data.as_bytes();
    let header = Header::parse("the data", data, data.len() as u64).or_raise()?;
    let entry = |tensor: &straightway_pipeline::weights::Tensor| {
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
