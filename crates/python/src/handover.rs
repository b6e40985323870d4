//! Tensors of ours made into those of another library.

use std::{sync::Arc, thread::Builder};

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
    py: Python<'py>,
    was_on: bool,
}

/// From this many new objects on they count as old when the pause ends. The collector would else go through all of them
/// at the next allocation: 30 ms for 200,000 tensors on an H200 host, a tenth of their load.
const MANY_OBJECTS: usize = 20_000;

impl<'py> Pause<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        // SAFETY: the interpreter's lock is held, as `py` shows.
        let was_on = unsafe { ffi::PyGC_Disable() } == 1;
        Self { py, was_on }
    }

    /// Has the collector take all objects for old ones, where many are new. To freeze and to unfreeze them moves a list
    /// and looks at none of them. Who has frozen objects already keeps them so.
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

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if self.was_on {
            // Without it the collector only has more to do.
            let _ = self.age();
            // SAFETY: as above.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// Has a thread let go of what describes many tensors, a moment before its owner does: nobody waits for that.
pub(crate) fn let_go_aside<T: Send + Sync + 'static>(described: &Arc<T>, tensors: usize) {
    if tensors >= MANY_OBJECTS {
        let kept = Arc::clone(described);
        // Without the thread the owner lets go of it.
        let _ = Builder::new()
            .name("straightway-drop".to_owned())
            .spawn(move || drop(kept));
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
