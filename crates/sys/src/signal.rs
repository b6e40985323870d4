//! Signals that ask a process to stop, and whether its parent wants it to hear them.
//!
//! `nohup` and a shell's `&` start a program with signals ignored. A program that sets a handler for such a
//! signal all the same would be stopped by a Ctrl-C that was meant for another.

use std::{mem::MaybeUninit, ptr};

use libc::{SIG_IGN, SIGHUP, SIGINT, SIGTERM, c_int};

const STOPPING: [c_int; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Which signals that ask to stop were ignored at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored([bool; STOPPING.len()]);

impl Ignored {
    /// Those that are ignored now.
    pub fn now() -> Self {
        Self(STOPPING.map(is_ignored))
    }

    /// Ignores them again, whatever was set meanwhile.
    pub fn restore(self) {
        for (signal, _) in STOPPING.into_iter().zip(self.0).filter(|(_, was)| *was) {
            // SAFETY: to ignore a signal runs no code and touches no memory.
            unsafe { libc::signal(signal, SIG_IGN) };
        }
    }
}

fn is_ignored(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is set, and the answer goes to a structure of the right type, which all zeroes are a value of.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == SIG_IGN
}
