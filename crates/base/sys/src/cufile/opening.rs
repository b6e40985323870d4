//! `cuFileDriverOpen`, with guards around it.
//!
//! It has been seen to hang (CUDA 13's library, no driver, no `/proc/modules`) and to close or replace
//! descriptor 0 (no nvidia-fs). A call that hangs cannot be stopped. It therefore runs on a separate thread,
//! which is abandoned after a timeout, and the process does not try again.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use straightway_core::{Error, ErrorKind, Lock, Result};

use super::code::{OpCode, Status};
use super::library::Library;
use crate::cuda::Context;

/// Whether a call has missed its deadline. A second call would hang too.
static HUNG: AtomicBool = AtomicBool::new(false);

/// Opens the driver. Returns `false` if it was already open, so that it must not be closed here.
pub(super) fn open(library: Arc<Library>, context: Context, deadline: Duration) -> Result<bool> {
    static ONE_AT_A_TIME: Lock<()> = Lock::new(());
    let _turn = ONE_AT_A_TIME.lock();
    if HUNG.load(Ordering::Relaxed) {
        return Err(failed("an earlier call has not returned yet".into()));
    }
    let call = library.api.driver_open()?;
    let guard = StandardInput::guard().map_err(|e| Error::os("keep", "descriptor 0", e))?;
    let (send, receive) = mpsc::channel();
    let spawned = thread::Builder::new().name("cufile-open".into()).spawn(move || {
        let status = context.enter().map(|_entered| {
            // SAFETY: a CUDA driver and device are there and the context is current; the library
            // stays loaded because this thread holds it.
            unsafe { call() }
        });
        // Both are dropped before the result is sent, so that this thread holds nothing afterwards.
        drop((library, context));
        // If the deadline has passed, the receiver is gone and the result is not needed.
        let _ = send.send(status);
    });
    spawned.map_err(|e| Error::os("start", "a thread to open cuFile", e))?;
    let answer = receive.recv_timeout(deadline);
    guard.restore().map_err(|e| Error::os("restore", "descriptor 0", e))?;
    match answer {
        Ok(Ok(Status {
            op: OpCode::DRIVER_ALREADY_OPEN,
            ..
        })) => Ok(false),
        Ok(Ok(status)) => status.ok("open", "cuFile's driver").map(|()| true),
        Ok(Err(error)) => Err(error),
        Err(_) => {
            HUNG.store(true, Ordering::Relaxed);
            Err(failed(format!("it did not return within {} s", deadline.as_secs_f64())))
        }
    }
}

fn failed(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, "open", "cuFile's driver", message)
        .with_hint("see cufile.log; loads go through the pinned ring meanwhile")
}

/// A copy of descriptor 0 from before the call.
struct StandardInput {
    saved: OwnedFd,
}

impl StandardInput {
    /// Saves descriptor 0. If it is closed, it is first opened on /dev/null.
    fn guard() -> io::Result<Self> {
        // SAFETY: takes plain numbers; a closed descriptor is an error of the call. Because it may be closed, it
        // is not a `BorrowedFd`.
        let saved = unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3) };
        if saved >= 0 {
            // SAFETY: just made, and nobody else's.
            let saved = unsafe { OwnedFd::from_raw_fd(saved) };
            return Ok(Self { saved });
        }
        // 0 is the lowest free number, so the open returns it. It stays open.
        let null = File::open("/dev/null")?;
        let saved = null.try_clone()?.into();
        if null.as_raw_fd() == 0 {
            let _stays_open = null.into_raw_fd();
        }
        Ok(Self { saved })
    }

    /// Restores it if the call closed or replaced it.
    fn restore(self) -> io::Result<()> {
        let own = identity(0)?;
        if own.is_some() && own == identity(self.saved.as_raw_fd())? {
            return Ok(());
        }
        // SAFETY: takes plain numbers. 0 is the process's standard input, which nobody holds as an `OwnedFd`, and what
        // stands there now is not what the process put there.
        if unsafe { libc::dup2(self.saved.as_raw_fd(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// The identity of a descriptor's file; `None` if it is closed.
fn identity(descriptor: RawFd) -> io::Result<Option<(libc::dev_t, libc::ino_t)>> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is a valid place for the answer; a closed descriptor is an error of the call.
    if unsafe { libc::fstat(descriptor, stat.as_mut_ptr()) } == 0 {
        // SAFETY: the call filled it in.
        let stat = unsafe { stat.assume_init() };
        return Ok(Some((stat.st_dev, stat.st_ino)));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EBADF) => Ok(None),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_descriptor_has_no_identity_and_open_ones_differ() {
        let (one, two) = (File::open("/dev/null").unwrap(), File::open("/dev/zero").unwrap());
        assert_ne!(identity(one.as_raw_fd()).unwrap(), identity(two.as_raw_fd()).unwrap());
        // No process has so many open.
        assert_eq!(identity(RawFd::MAX).unwrap(), None);
    }

    #[test]
    fn standard_input_is_restored() {
        let before = identity(0).unwrap();
        StandardInput::guard().unwrap().restore().unwrap();
        // One that was closed is /dev/null from then on.
        assert!(before.is_none() || identity(0).unwrap() == before);
    }
}
