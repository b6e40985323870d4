//! A copy of memory that others may use meanwhile.
//!
//! The bytes of a region are reached through windows, from several threads, by the kernel and by devices. Windows that
//! overlap race. In Rust code such a race is undefined behaviour, whatever the bytes are; outside of it, it is a race for
//! bytes and nothing else. So they are copied by a function that the compiler knows nothing about: the C library's
//! `memcpy`, which is written in assembly, called through a pointer that the compiler cannot see through. It costs
//! what `copy_nonoverlapping` costs.

pub(crate) mod folded;

use std::{ffi::c_void, hint::black_box};

/// Copies `bytes` bytes.
///
/// # Safety
///
/// The source must be valid for reads and the target for writes, and they must not overlap. Others may read and
/// write both meanwhile, as long as no reference to those bytes exists but one that the caller gave up for the call.
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
    type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
    let opaque: Copy = black_box(libc::memcpy as Copy);
    // SAFETY: what the caller promised.
    unsafe { opaque(target.cast(), source.cast(), bytes) };
}
