//! Converts our tensors to those of another library.

use std::{sync::Arc, thread::Builder};

use pyo3::{ffi, prelude::*, types::PyDict};
use straightway_weights::Placed;

use crate::{
    dlpack::{self, View},
    memory::Memory,
    tensor::Tensor,
};

/// Disables Python's cycle collector while it lives. With hundreds of thousands of new objects the collector would scan
/// all of them repeatedly, which takes longer than making them, and none of them is garbage.
pub(crate) struct PausedCollector<'py> {
    /// Proves that the interpreter's lock is held while this lives.
    py: Python<'py>,
    was_on: bool,
}

/// From this many new objects on, they are moved to the old generation when the pause ends. Otherwise the collector
/// would scan all of them at the next allocation: 30 ms for 200,000 tensors on an H200 host, a tenth of their load.
const MANY_OBJECTS: usize = 20_000;

impl<'py> PausedCollector<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        // SAFETY: the interpreter's lock is held, as `py` shows.
        let was_on = unsafe { ffi::PyGC_Disable() } == 1;
        Self { py, was_on }
    }

    /// Moves all objects to the old generation if many are new. Freezing and unfreezing moves a list and visits no
    /// object. A program that has frozen objects itself is left alone.
    fn age(&self) -> PyResult<()> {
        let gc = self.py.import("gc")?;
        let (young, _, _): (usize, usize, usize) = gc.call_method0("get_count")?.extract()?;
        if young < MANY_OBJECTS {
            return Ok(());
        }
        let frozen: usize = gc.call_method0("get_freeze_count")?.extract()?;
        if frozen == 0 {
            gc.call_method0("freeze")?;
            gc.call_method0("unfreeze")?;
        }
        Ok(())
    }
}

impl Drop for PausedCollector<'_> {
    fn drop(&mut self) {
        if self.was_on {
            // A failure only makes the collector slower.
            let _ = self.age();
            // SAFETY: as above.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// Moves the drop of the descriptions of many tensors to a thread, so that the owner's drop does not wait for it.
pub(crate) fn drop_in_background<T: Send + Sync + 'static>(described: &Arc<T>, tensors: usize) {
    if tensors >= MANY_OBJECTS {
        let kept = Arc::clone(described);
        // Without the thread, the owner's drop frees it.
        let _ = Builder::new()
            .name("straightway-drop".to_owned())
            .spawn(move || drop(kept));
    }
}

/// Converts our tensors to another library's.
pub(crate) fn converted_tensors<'py>(
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

/// Converts our tensors to another library's, and adds them to `tensors`.
pub(crate) fn add<'py, 'a>(
    tensors: &Bound<'py, PyDict>,
    ours: impl Iterator<Item = (&'a Memory, &'a Placed)>,
    take: Option<&Bound<'py, PyAny>>,
    convert: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = tensors.py();
    let _pause = PausedCollector::new(py);
    for (memory, placed) in ours {
        tensors.set_item(
            &*placed.name,
            convert_tensor(py, (memory, placed.at), placed, take, convert)?,
        )?;
    }
    Ok(())
}

/// Converts one of our tensors, at an offset of its memory, to another library's.
pub(crate) fn convert_tensor<'py>(
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
