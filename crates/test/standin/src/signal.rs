//! Stop signals, for tests that send them.

/// Restores the default action of ignored stop signals in this process and its children. Tests may run with them
/// ignored.
pub fn restore_stop_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: neither the default action nor ignoring a signal runs code of this process.
        unsafe {
            let before = libc::signal(signal, libc::SIG_DFL);
            // An existing handler is kept.
            if before != libc::SIG_IGN && before != libc::SIG_ERR {
                libc::signal(signal, before);
            }
        }
    }
}
