//! The header of NumPy's array files, for Python.

use pyo3::prelude::*;
use straightway_core::npy::{self, NpyHeader};

use crate::error::OrRaise;

/// The dtype, order, shape and data offset of an array.
type Start = (String, bool, Vec<u64>, u64);

/// The number of bytes of the header of a file that begins with these bytes, and what it says. `None` if it is longer
/// than these bytes.
#[pyfunction]
pub(crate) fn parse_npy(start: &[u8]) -> PyResult<(usize, Option<Start>)> {
    let needed = npy::start_bytes(start).or_raise()?;
    if needed > start.len() {
        return Ok((needed, None));
    }
    let parsed = npy::parse(start).or_raise()?;
    let NpyHeader {
        descr,
        fortran_order,
        shape,
    } = parsed.header;
    Ok((needed, Some((descr, fortran_order, shape, parsed.data_offset))))
}

/// The header of a file with an array.
#[pyfunction]
pub(crate) fn npy_header(descr: String, fortran_order: bool, shape: Vec<u64>) -> PyResult<Vec<u8>> {
    let header = NpyHeader {
        descr,
        fortran_order,
        shape,
    };
    header.to_bytes().or_raise()
}
