//! Ctrl-C, and other signals that request a stop.

use straightway_sys::signal::Ignored;

/// Calls `stop` on SIGINT, SIGTERM and SIGHUP. A signal that was ignored at the start (`nohup`, a shell's `&`) stays
/// ignored. Only the first call in a process has an effect.
pub(crate) fn on_interrupt(stop: impl FnMut() + Send + 'static) {
    let ignored = Ignored::now();
    let _ = ctrlc::set_handler(stop);
    ignored.restore();
}
