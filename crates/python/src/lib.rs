//! The Python package `straightway`: weights into memory and out of it, checkpoints, copies, the
//! doctor.
//!
//! This is the part of it that is written in Rust, and no more than the edge: it turns Python's
//! values into ours and ours into Python's. What people import stands in `python/straightway`.
//! Bytes move on threads that do not hold the interpreter's lock, and the thread that asked looks
//! for Ctrl-C while it waits.

mod blocks;
mod checkpoint;
mod command;
mod container;
mod dlpack;
mod error;
mod executor;
mod handover;
mod loading;
mod log;
mod mapped;
mod memory;
mod model;
mod plain;
mod receipt;
mod saving;
mod service;
mod stores;
mod stream;
mod subject;
mod tensor;
mod tuning;
mod waiting;

use pyo3::prelude::*;

/// What `straightway` is made of.
#[pymodule]
mod _straightway {
    #[pymodule_export]
    use crate::{
        checkpoint::{Checkpoint, Saver, Store, fresh_run},
        command::command,
        container::parse_header,
        executor::warm,
        loading::Loading,
        mapped::Mapped,
        model::Model,
        plain::{plain_decoded, plain_unpickled},
        receipt::Receipt,
        saving::save,
        service::{copy, doctor},
        stores::{has_store, is_local},
        stream::Stream,
        tensor::Tensor,
    };

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::prelude::*;
        // The command has a log of its own, and a process has one log.
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
