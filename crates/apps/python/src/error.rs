//! Converts our errors to Python exceptions.

use pyo3::{
    exceptions::{PyFileNotFoundError, PyOSError, PyRuntimeError},
    import_exception,
    prelude::*,
};
use straightway_core::{Error, ErrorKind, hint::Setting};

// All are a `ValueError`. `_errors.py` says what else each is.
import_exception!(straightway._errors, SafetensorError);
import_exception!(straightway._errors, MissingTensorError);
import_exception!(straightway._errors, ExistsError);
import_exception!(straightway._errors, BusyError);
import_exception!(straightway._errors, DamagedError);
import_exception!(straightway._errors, ChangedError);

/// The exception of an error.
pub(crate) fn exception(error: &Error) -> PyErr {
    let text = text(error);
    if let Some(code) = error.os_code() {
        // Python chooses the class by the number: PermissionError, IsADirectoryError and so on.
        return PyOSError::new_err((code, text));
    }
    match error.kind() {
        ErrorKind::AlreadyExists => ExistsError::new_err(text),
        ErrorKind::Busy => BusyError::new_err(text),
        ErrorKind::Precondition => ChangedError::new_err(text),
        ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
        ErrorKind::Corrupt => DamagedError::new_err(text),
        ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::NotFolder => SafetensorError::new_err(text),
        ErrorKind::Transient => PyOSError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// Its message, with the hint below it.
pub(crate) fn text(error: &Error) -> String {
    match error.hint_worded(argument) {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}

/// A setting as Python code gives it.
fn argument(setting: Setting<'_>) -> String {
    let Setting { name, value } = setting;
    let quoted = value.map(|value| format!("{value:?}"));
    match (storage_option(name), quoted) {
        (Some(key), Some(value)) => format!("storage_options={{{key:?}: {value}}}"),
        (Some(key), None) => format!("storage_options[{key:?}]"),
        (None, Some(value)) => format!("{name}={value}"),
        (None, None) => name.to_owned(),
    }
}

/// The key in `storage_options` of a setting that is given there.
fn storage_option(name: &str) -> Option<&str> {
    match name {
        "endpoint" => Some("endpoint_url"),
        "region" | "sse_customer_key" => Some(name),
        _ => None,
    }
}

/// `?` on our results in functions that Python calls.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for straightway_core::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| exception(&error))
    }
}
