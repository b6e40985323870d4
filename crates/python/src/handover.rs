//! Tensors of ours made into those of another library.

use pyo3::{ffi, prelude::*, types::PyDict};
use straightway_pipeline::weights::Placed;

use crate::{
    dlpack::{self, View},
    memory::Memory,
    tensor::Tensor,
};

/// Python's collector of cycles, at rest. Hundreds of thousands of new objects make it look through
/// all of them again and again, which takes longer than making them, and none of them is garbage.
pub(crate) struct Pause<'py> {
    /// Proof that the interpreter's lock is held as long as this lives.
    _locked: Python<'py>,
    was_on: bool,
}

impl<'py> Pause<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        // SAFETY: the interpreter's lock is held, as `py` shows.
        let was_on = unsafe { ffi::PyGC_Disable() } == 1;
        Self {
            _locked: py,
            was_on,
        }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if self.was_on {
            // SAFETY: as above.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// Makes another library's tensors of ours.
pub(crate) fn handed_over<'py>(
    py: Python<'py>,
    memory: &Memory,
    placed: &[Placed],
    take: Option<&Bound<'py, PyAny>>,
    convert: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let tensors = PyDict::new(py);
    let own = placed.iter().map(|placed| (memory, placed));
    add(&tensors, own, take, convert)?;
    Ok(tensors)
}

/// Makes another library's tensors of ours, and adds them to `tensors`.
pub(crate) fn add<'py, 'a>(
    tensors: &Bound<'py, PyDict>,
    ours: impl Iterator<Item = (&'a Memory, &'a Placed)>,
    take: Option<&Bound<'py, PyAny>>,
    convert: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = tensors.py();
    let _pause = Pause::new(py);
    for (memory, placed) in ours {
        tensors.set_item(
            &*placed.name,
            made(py, (memory, placed.at), placed, take, convert)?,
        )?;
    }
    Ok(())
}

/// Makes another library's tensor of one of ours, which begins at an offset of its memory.
pub(crate) fn made<'py>(
    py: Python<'py>,
    (memory, at): (&Memory, u64),
    placed: &Placed,
    take: Option<&Bound<'py, PyAny>>,
    convert: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    match take {
        Some(take) if dlpack::code(placed.dtype).is_some() => {
            let view = View {
                memory,
                at,
                bytes: placed.bytes,
                dtype: placed.dtype,
                shape: &placed.shape,
            };
            take.call1((dlpack::capsule(py, &view)?,))
        }
        _ => convert.call1((Tensor {
            memory: memory.clone(),
            at,
            bytes: placed.bytes,
            dtype: placed.dtype,
            shape: placed.shape.clone(),
        },)),
    }
}
