//! Blocks of calls whose receipts are summed: `straightway.trace()`.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use straightway_core::Receipt as CoreReceipt;

use crate::receipt::Receipt;

/// The number of blocks that are open in this process. While there is none, calls do not ask for them.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Counts a block that is opened or closed.
#[pyfunction]
pub(crate) fn count_trace(is_open: bool) {
    if is_open {
        OPEN.fetch_add(1, Ordering::Relaxed);
    } else {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The sum of receipts, for a block that took `seconds`.
#[pyfunction]
pub(crate) fn sum_receipts(receipts: Vec<Bound<'_, Receipt>>, seconds: f64) -> Receipt {
    Receipt(CoreReceipt::sum(receipts.iter().map(|one| &one.get().0), seconds))
}

/// The blocks that the caller is in, if any.
pub(crate) fn current(py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
    if OPEN.load(Ordering::Relaxed) == 0 {
        return Ok(None);
    }
    let blocks = py.import("straightway._trace")?.call_method0("current")?;
    Ok(blocks.is_truthy()?.then(|| blocks.unbind()))
}

/// Adds a receipt to the blocks that its call was made in.
pub(crate) fn add(py: Python<'_>, blocks: &Py<PyAny>, receipt: &CoreReceipt) -> PyResult<()> {
    for block in blocks.bind(py).try_iter()? {
        block?.call_method1("add", (Receipt(receipt.clone()),))?;
    }
    Ok(())
}
