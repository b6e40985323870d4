//! Ctrl-C, and the other signals that ask to stop.

use straightway_sys::signal::Ignored;

/// Calls `stop` on SIGINT, SIGTERM and SIGHUP. One that the parent of this process had it ignore (`nohup`, a shell's `&`)
/// stays ignored. The first call in a process counts.
pub(crate) fn on_interrupt(stop: impl FnMut() + Send + 'static) {
    let ignored = Ignored::now();
    let _ = ctrlc::set_handler(stop);
    ignored.restore();
}
