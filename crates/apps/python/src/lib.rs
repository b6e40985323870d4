//! The Python package `straightway`: loads and saves weights, checkpoints, raw bytes, copies, the doctor.
//!
//! This is the Rust part of the package. It only converts between Python values and ours; the public modules are in
//! `python/straightway`. Bytes move on threads that do not hold the interpreter's lock. The calling thread checks for
//! Ctrl-C while it waits.

mod arguments;
mod blocks;
mod borrowed;
mod checkpoint;
#[cfg(feature = "command")]
mod command;
mod container;
mod dlpack;
mod error;
mod handover;
mod loading;
mod log;
mod mapped;
mod memory;
mod model;
mod plain;
mod raw;
mod receipt;
mod saving;
mod service;
mod stores;
mod stream;
mod tensor;
mod waiting;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _straightway {
    #[pymodule_export]
    use crate::{
        borrowed::BorrowedTensor,
        checkpoint::{Checkpoint, Saver, Store, fresh_run},
        container::parse_header,
        loading::{Loading, warm},
        mapped::Mapped,
        model::Model,
        plain::{plain_decoded, plain_unpickled},
        raw::{RawFile, Transfer, count_trace, list_objects, npy_header, parse_npy, remove_object, sum_receipts},
        receipt::Receipt,
        saving::save,
        service::{copy, doctor, free_memory},
        stores::{has_store, is_local},
        stream::Stream,
        tensor::Tensor,
    };

    #[cfg(feature = "command")]
    #[pymodule_export]
    use crate::command::command;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::prelude::*;
        // The command sets up its own log, and a process has only one.
        let loaded = module.py().import("sys")?.getattr("modules")?;
        if !loaded.contains("straightway._command")? {
            crate::log::begin();
        }
        Ok(())
    }

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
