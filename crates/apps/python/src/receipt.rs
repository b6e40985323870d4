//! The Python class of a receipt.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::{
    exceptions::{PyAttributeError, PyValueError},
    prelude::*,
    types::{PyDict, PyModule, PyType},
};
use straightway_core::{Bytes, Rate, Seconds};

/// Fields that the JSON form leaves out if they have no value. As attributes they are `None` then.
const OPTIONAL: [&str; 4] = ["registration", "requests", "sockets", "verified"];

/// The receipt of a transfer: bytes by route and reason, and what limited the speed. `str()` is a readable table; the
/// fields are those of the JSON form.
#[pyclass(frozen, module = "straightway")]
#[derive(Debug)]
pub(crate) struct Receipt(pub(crate) straightway_core::Receipt);

#[pymethods]
impl Receipt {
    /// A receipt from its JSON form.
    #[new]
    fn new(json: &str) -> PyResult<Self> {
        let parsed = serde_json::from_str(json);
        parsed
            .map(Self)
            .map_err(|error| PyValueError::new_err(format!("cannot read a receipt from JSON: {error}")))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (String,)) {
        (py.get_type::<Self>(), (self.to_json(),))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.0 == other.get().0)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.to_json().hash(&mut hasher);
        hasher.finish()
    }

    /// The fields and methods, for completion.
    fn __dir__<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let class = py.get_type::<Self>();
        let fields = self.to_dict(py)?;
        for name in OPTIONAL {
            if !fields.contains(name)? {
                fields.set_item(name, py.None())?;
            }
        }
        Ok(class.dir()?.iter().chain(fields.keys().iter()).collect())
    }

    /// The receipt as an HTML table, for notebooks.
    fn _repr_html_(&self) -> String {
        let escaped = |text: &str| {
            let text = text.replace('&', "&amp;");
            text.replace('<', "&lt;").replace('>', "&gt;")
        };
        let row = |(name, value): (&str, String)| {
            format!(
                "<tr><th style=\"text-align:left\">{name}</th><td>{}</td></tr>",
                escaped(&value)
            )
        };
        let receipt = &self.0;
        let mut rows = vec![
            ("bytes", Bytes(receipt.bytes).to_string()),
            ("seconds", Seconds(receipt.seconds).to_string()),
            ("rate", Rate(receipt.rate_bytes_per_s).to_string()),
        ];
        rows.extend(receipt.routes.iter().map(|r| {
            let text = format!("{}: {} ({})", r.route, Bytes(r.bytes), r.reason);
            ("route", text)
        }));
        rows.push(("bound by", receipt.bound_by.to_string()));
        rows.extend(receipt.warnings.iter().map(|w| ("warning", w.clone())));
        let rows: String = rows.into_iter().map(row).collect();
        format!("<table>{rows}</table>")
    }

    /// The receipt as JSON.
    fn to_json(&self) -> String {
        serde_json::to_string(&self.0).expect("a receipt is plain data")
    }

    /// The receipt as dictionaries and lists.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let parsed = PyModule::import(py, "json")?.call_method1("loads", (self.to_json(),))?;
        Ok(parsed.cast_into()?)
    }

    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        match self.to_dict(py)?.get_item(name)? {
            Some(value) => Ok(value),
            None if OPTIONAL.contains(&name) => Ok(py.None().into_bound(py)),
            None => Err(PyAttributeError::new_err(format!("a receipt has no field `{name}`"))),
        }
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let receipt = &self.0;
        let mut routes: Vec<_> = receipt.routes.iter().map(|row| row.route.to_string()).collect();
        routes.sort_unstable();
        routes.dedup();
        format!(
            "<Receipt: {} in {} by [{}], bound by {}>",
            Bytes(receipt.bytes),
            Seconds(receipt.seconds),
            routes.join(", "),
            receipt.bound_by
        )
    }
}
