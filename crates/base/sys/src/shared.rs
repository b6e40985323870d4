//! A copy of memory that others may access at the same time.
//!
//! The bytes of a region are accessed through windows by several threads, the kernel and devices. Windows that
//! overlap race. In Rust code such a race is undefined behaviour; outside of Rust it only makes the bytes
//! unpredictable. The copy therefore uses a function that is opaque to the compiler: the C library's `memcpy`, which
//! is written in assembly, called through a pointer that the compiler cannot see through. It is as fast as
//! `copy_nonoverlapping`.

pub(crate) mod folded;

use std::{ffi::c_void, hint::black_box};

/// Copies `bytes` bytes.
///
/// # Safety
///
/// The source must be valid for reads and the target for writes, and they must not overlap. Others may read and write
/// both at the same time. No reference to those bytes may exist, except one that the caller does not use during the
/// call.
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
    type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
    let opaque: Copy = black_box(libc::memcpy as Copy);
    // SAFETY: what the caller promised.
    unsafe { opaque(target.cast(), source.cast(), bytes) };
}
