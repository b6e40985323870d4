//! The control functions that tests call in the shared object.

use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::ptr;

use crate::plan::Plan;
use crate::world::{changed, world};

/// Sets a plan; returns 0 if it is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn standin_plan(text: *const c_char) -> i32 {
    // SAFETY: the caller passes a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let Ok(plan) = Plan::parse(&text) else {
        return 1;
    };
    world().set_plan(plan);
    changed();
    0
}

/// Pauses (1) or resumes (0) all copies.
#[unsafe(no_mangle)]
extern "C" fn standin_hold(is_held: i32) {
    world().is_held = is_held != 0;
    changed();
}

/// The number of objects of a kind; `u64::MAX` for an unknown kind.
#[unsafe(no_mangle)]
unsafe extern "C" fn standin_count(what: *const c_char) -> u64 {
    // SAFETY: the caller passes a NUL-terminated string.
    let what = unsafe { CStr::from_ptr(what) }.to_string_lossy();
    world().count(&what).unwrap_or(u64::MAX)
}

/// Writes the calls and the misuses, one per line, into `text`. Returns the total length.
#[unsafe(no_mangle)]
unsafe extern "C" fn standin_report(text: *mut c_char, room: usize) -> usize {
    let world = world();
    let mut report = String::new();
    for (name, count) in world.calls() {
        writeln!(report, "call {name} {count}").expect("writing to a string cannot fail");
    }
    for misuse in &world.misuses {
        writeln!(report, "misuse {misuse}").expect("writing to a string cannot fail");
    }
    let len = report.len().min(room);
    // SAFETY: the caller has `room` bytes at `text`.
    unsafe { ptr::copy_nonoverlapping(report.as_ptr(), text.cast(), len) };
    report.len()
}
