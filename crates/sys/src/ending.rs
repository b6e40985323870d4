//! How a process ends.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    /// glibc's `atexit` with the status: <https://man7.org/linux/man-pages/man3/on_exit.3.html>.
    #[cfg(target_env = "gnu")]
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Makes the process end with its own status, whatever the exit handlers of the libraries that it
/// has loaded would do.
///
/// For a program of ours, as its very last act: cuFile 1.15 crashes in its exit handler after it
/// refused a file, and an answer that was given and written would end as a segmentation fault.
pub fn end_at_once() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the handler is a function of the right type and needs no argument. Registered last,
    // it runs first, and ends the process without running the others.
    unsafe {
        extern "C" fn end(status: c_int, _: *mut c_void) {
            // SAFETY: the one thing that a process may always do.
            unsafe { libc::_exit(status) }
        }
        on_exit(end, std::ptr::null_mut());
    }
}
