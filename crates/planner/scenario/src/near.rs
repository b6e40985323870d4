//! A test helper: compares a figure with its expected value within a tolerance.

/// Asserts that `value` equals `expected` within a relative `tolerance`.
///
/// # Panics
///
/// Panics if it does not.
#[track_caller]
pub fn near(value: f64, expected: f64, tolerance: f64) {
    assert!(
        (value / expected - 1.0).abs() <= tolerance,
        "{value} is not {expected} within {tolerance}"
    );
}
