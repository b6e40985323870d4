//! For tests: whether a figure is what a source says, within its tolerance.

/// Fails unless `value` is `expected` within a relative `tolerance`.
///
/// # Panics
///
/// Where it is not.
#[track_caller]
pub fn near(value: f64, expected: f64, tolerance: f64) {
    assert!(
        (value / expected - 1.0).abs() <= tolerance,
        "{value} is not {expected} within {tolerance}"
    );
}
