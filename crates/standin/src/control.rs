//! What a test can say to the shared object, and ask of it.

use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::ptr;

use crate::plan::Plan;
use crate::world::{changed, world};

/// Puts a plan in force; 0 if it was understood.
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

/// Holds every copy back (1) or lets them go (0).
#[unsafe(no_mangle)]
extern "C" fn standin_hold(is_held: i32) {
    world().is_held = is_held != 0;
    changed();
}

/// How many of a kind there are; `u64::MAX` for a kind that is none.
#[unsafe(no_mangle)]
unsafe extern "C" fn standin_count(what: *const c_char) -> u64 {
    // SAFETY: the caller passes a NUL-terminated string.
    let what = unsafe { CStr::from_ptr(what) }.to_string_lossy();
    world().count(&what).unwrap_or(u64::MAX)
}

/// Writes the calls made and the misuses seen, a line each, into `text`; answers the length of all.
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
