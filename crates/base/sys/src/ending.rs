//! The exit of the process.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    /// glibc's `atexit` with the status: <https://man7.org/linux/man-pages/man3/on_exit.3.html>.
    #[cfg(target_env = "gnu")]
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Ends the process at once, with all its threads. Nothing is flushed, dropped or waited for.
pub fn end_now(status: u8) -> ! {
    // SAFETY: a process may exit at any time.
    unsafe { libc::_exit(status.into()) }
}

/// Makes the process exit with its status without running the exit handlers of loaded libraries.
///
/// A program calls it last: cuFile 1.15 crashes in its exit handler after it refused a file, and a
/// successful run would end with a segmentation fault.
pub fn skip_exit_handlers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the handler is a function of the right type and needs no argument. Registered last,
    // it runs first, and ends the process without running the others.
    unsafe {
        extern "C" fn end(status: c_int, _: *mut c_void) {
            // SAFETY: a process may exit at any time.
            unsafe { libc::_exit(status) }
        }
        on_exit(end, std::ptr::null_mut());
    }
}
