//! The layout of an array in memory: rows of equal length at equal distances.

use pyo3::{exceptions::PyValueError, prelude::*};
use straightway_core::{Extent, Move};

/// The most rows of all arrays of one call. Each is a move of its own.
pub(crate) const ROWS_MAX: u64 = 1 << 20;

/// Rows of equal length at equal distances. A contiguous array is one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The lowest address.
    pub(crate) start: u64,
    /// From the lowest address to the end of the highest row.
    pub(crate) span_bytes: u64,
    rows: u64,
    row_bytes: u64,
    /// The offset of the first row from the lowest address: not 0 if the stride is negative.
    first: u64,
    stride: i64,
}

impl Layout {
    /// The layout of an array of these sizes and strides in bytes. Without strides it is contiguous.
    pub(crate) fn new(address: u64, item_bytes: u64, shape: &[i64], strides: Option<&[i64]>) -> PyResult<Self> {
        let too_large = || PyValueError::new_err("the array is larger than the address space");
        let mut row_bytes = item_bytes;
        if item_bytes == 0 || shape.contains(&0) {
            return Ok(Self::default());
        }
        if shape.iter().any(|size| *size < 0) || strides.is_some_and(|strides| strides.len() != shape.len()) {
            return Err(PyValueError::new_err(
                "the shape and the strides of the array do not fit each other",
            ));
        }
        for (at, &size) in shape.iter().enumerate().skip(1).rev() {
            let stride = strides.map(|strides| strides[at]);
            if size > 1 && stride.is_some_and(|stride| i64::try_from(row_bytes) != Ok(stride)) {
                return Err(PyValueError::new_err(
                    "only the first dimension of an array may have gaps, and this one has strides in others too\n\
                     hint: make it contiguous first (`numpy.ascontiguousarray`, `tensor.contiguous()`)",
                ));
            }
            row_bytes = row_bytes.checked_mul(size.cast_unsigned()).ok_or_else(too_large)?;
        }
        let rows = shape.first().map_or(1, |size| size.cast_unsigned());
        let dense = i64::try_from(row_bytes).map_err(|_| too_large())?;
        let stride = strides.and_then(|strides| strides.first().copied()).unwrap_or(dense);
        if rows == 1 || stride == dense {
            let bytes = row_bytes.checked_mul(rows).ok_or_else(too_large)?;
            return Self::checked(Self {
                start: address,
                span_bytes: bytes,
                rows: 1,
                row_bytes: bytes,
                first: 0,
                stride: 0,
            });
        }
        if stride.unsigned_abs() < row_bytes {
            return Err(PyValueError::new_err(
                "rows of the array overlap\nhint: use a copy of it",
            ));
        }
        if rows > ROWS_MAX {
            let message = format!("the array has more than {ROWS_MAX} rows with gaps\nhint: make it contiguous first");
            return Err(PyValueError::new_err(message));
        }
        let reach = (rows - 1).checked_mul(stride.unsigned_abs()).ok_or_else(too_large)?;
        let first = if stride < 0 { reach } else { 0 };
        Self::checked(Self {
            start: address.checked_sub(first).ok_or_else(too_large)?,
            span_bytes: reach.checked_add(row_bytes).ok_or_else(too_large)?,
            rows,
            row_bytes,
            first,
            stride,
        })
    }

    fn checked(self) -> PyResult<Self> {
        let is_inside = self.start != 0 && self.start.checked_add(self.span_bytes).is_some();
        let refused = || PyValueError::new_err("the array has no memory of its own");
        is_inside.then_some(self).ok_or_else(refused)
    }

    /// The number of its bytes, without gaps.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows * self.row_bytes
    }

    /// The number of its rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The moves between these bytes and a file from `offset` on.
    pub(crate) fn moves(&self, offset: u64) -> impl Iterator<Item = Move> {
        let Self {
            rows,
            row_bytes,
            first,
            stride,
            ..
        } = *self;
        (0..rows).map(move |row| Move {
            object: 0,
            extent: Extent::new(offset + row * row_bytes, row_bytes),
            at: first.wrapping_add_signed(row.cast_signed() * stride),
        })
    }
}
