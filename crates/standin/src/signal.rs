//! Signals that ask a process to stop, for tests that send them.

/// Lets the signals that ask to stop end the process again, and those that it starts: tests may run ignoring them.
pub fn let_stop() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: neither the default nor to ignore a signal runs any code of ours.
        unsafe {
            let before = libc::signal(signal, libc::SIG_DFL);
            // A handler that is there is wanted.
            if before != libc::SIG_IGN && before != libc::SIG_ERR {
                libc::signal(signal, before);
            }
        }
    }
}
