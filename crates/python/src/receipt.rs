//! A receipt, as Python sees it.

use pyo3::{
    exceptions::PyAttributeError,
    prelude::*,
    types::{PyDict, PyModule},
};

/// What happened: bytes by route and reason, what bound the speed. `str()` is the table for people;
/// the fields are those of the JSON form.
#[pyclass(frozen, module = "straightway")]
#[derive(Debug)]
pub(crate) struct Receipt(pub(crate) straightway_core::Receipt);

#[pymethods]
impl Receipt {
    /// It as JSON.
    fn to_json(&self) -> String {
        serde_json::to_string(&self.0).expect("a receipt is plain data")
    }

    /// It as dictionaries and lists.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let parsed = PyModule::import(py, "json")?.call_method1("loads", (self.to_json(),))?;
        Ok(parsed.cast_into()?)
    }

    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let absent = || PyAttributeError::new_err(format!("a receipt has no field `{name}`"));
        self.to_dict(py)?.get_item(name)?.ok_or_else(absent)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Receipt: {} in {}>",
            straightway_core::Bytes(self.0.bytes),
            straightway_core::Seconds(self.0.seconds)
        )
    }
}
