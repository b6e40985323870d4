//! Our errors as the exceptions that a Python programmer would expect.

use pyo3::{
    exceptions::{PyFileNotFoundError, PyOSError, PyRuntimeError},
    import_exception,
    prelude::*,
};
use straightway_core::{Error, Kind};

// A `ValueError`. The second is a `KeyError` as well.
import_exception!(straightway._errors, SafetensorError);
import_exception!(straightway._errors, MissingTensorError);

/// The exception that says the same.
pub(crate) fn raised(error: &Error) -> PyErr {
    let text = text(error);
    match (error.os_code(), error.kind()) {
        // Python chooses the class by the number: PermissionError, IsADirectoryError and so on.
        (Some(code), _) => PyOSError::new_err((code, text)),
        (None, Kind::NotFound) => PyFileNotFoundError::new_err(text),
        (None, Kind::Invalid | Kind::Corrupt) => SafetensorError::new_err(text),
        (None, Kind::Transient) => PyOSError::new_err(text),
        (None, _) => PyRuntimeError::new_err(text),
    }
}

/// Its message, with the hint below it.
pub(crate) fn text(error: &Error) -> String {
    match error.hint() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}

/// `?` on our results in functions that Python calls.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for straightway_core::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| raised(&error))
    }
}
