//! Words that Python code passes: a device, a route, a priority.

use pyo3::{exceptions::PyValueError, prelude::*};
use straightway_core::{Choice, Class, Place};

pub(crate) fn place(device: &str) -> PyResult<Place> {
    let unknown = |_| {
        let message = format!("a device is cpu, or cuda and a number such as cuda:0, not {device:?}");
        PyValueError::new_err(message)
    };
    device.parse().map_err(unknown)
}

/// The route choice of a name.
pub(crate) fn choice(route: &str) -> PyResult<Choice> {
    let unknown = |_| {
        let message = format!("a route is auto, direct, staged or buffered, not {route:?}");
        PyValueError::new_err(message)
    };
    route.parse().map_err(unknown)
}

/// The class of a priority.
pub(crate) fn class(priority: &str) -> PyResult<Class> {
    let all = [Class::Now, Class::Soon, Class::Background];
    let found = all.into_iter().find(|class| class.to_string() == priority);
    found.ok_or_else(|| {
        let message = format!("a priority is now, soon or background, not {priority:?}");
        PyValueError::new_err(message)
    })
}
