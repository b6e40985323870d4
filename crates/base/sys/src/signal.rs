//! Signals that ask a process to stop, and whether they were ignored when it started.
//!
//! `nohup` and a shell's `&` start a program with some signals ignored. If the program set a handler for such a
//! signal anyway, a Ctrl-C for another program would stop it.

use std::{mem::MaybeUninit, ptr};

use libc::{SIG_IGN, SIGHUP, SIGINT, SIGTERM, c_int};

const STOPPING: [c_int; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The stop signals that were ignored at one point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored([bool; STOPPING.len()]);

impl Ignored {
    /// The stop signals that are ignored now.
    pub fn now() -> Self {
        Self(STOPPING.map(is_ignored))
    }

    /// Ignores them again, whatever handler was set since.
    pub fn restore(self) {
        for (signal, _) in STOPPING.into_iter().zip(self.0).filter(|(_, was)| *was) {
            // SAFETY: ignoring a signal runs no code and accesses no memory.
            unsafe { libc::signal(signal, SIG_IGN) };
        }
    }
}

fn is_ignored(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no handler is set. The result is written to a structure of the right type, for which all zeroes are
    // valid.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == SIG_IGN
}
