//! `cuFileDriverOpen`, with guards around it.
//!
//! It has been seen to never return (CUDA 13's library, no driver, no `/proc/modules`) and to close
//! or replace descriptor 0 (no nvidia-fs). A call that hangs cannot be stopped, so it runs on a
//! thread that is then left behind, and the process does not try again.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use straightway_core::{Error, Kind, Result};

use super::api::need;
use super::code::{OpCode, Status};
use super::library::Library;
use crate::cuda::Context;

/// Set once a call has missed its deadline: a second would hang behind the first.
static HUNG: AtomicBool = AtomicBool::new(false);

/// Opens the driver; `true` if it is ours to close, `false` if it was open already.
pub(super) fn open(library: Arc<Library>, context: Context, deadline: Duration) -> Result<bool> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if HUNG.load(Ordering::Relaxed) {
        return Err(failed("an earlier call has not returned yet".into()));
    }
    let call = need(library.api.driver_open, "cuFileDriverOpen")?;
    let guard = StandardInput::guard().map_err(|e| Error::os("keep", "descriptor 0", e))?;
    let (send, receive) = mpsc::channel();
    let spawned = thread::Builder::new()
        .name("cufile-open".into())
        .spawn(move || {
            let status = context.enter().map(|_entered| {
                // SAFETY: a CUDA driver and device are there and the context is current; the library
                // stays loaded because this thread holds it.
                unsafe { call() }
            });
            // Let go of both before the answer is out, so that nothing lingers in this thread.
            drop((library, context));
            // The receiver is gone only if the deadline has passed; there is nobody to tell then.
            let _ = send.send(status);
        });
    spawned.map_err(|e| Error::os("start", "a thread to open cuFile", e))?;
    let answer = receive.recv_timeout(deadline);
    guard
        .restore()
        .map_err(|e| Error::os("restore", "descriptor 0", e))?;
    match answer {
        Ok(Ok(Status {
            op: OpCode::DRIVER_ALREADY_OPEN,
            ..
        })) => Ok(false),
        Ok(Ok(status)) => status.ok("open", "cuFile's driver").map(|()| true),
        Ok(Err(error)) => Err(error),
        Err(_) => {
            HUNG.store(true, Ordering::Relaxed);
            Err(failed(format!(
                "it did not return within {} s",
                deadline.as_secs_f64()
            )))
        }
    }
}

fn failed(message: String) -> Error {
    Error::new(Kind::Unsupported, "open", "cuFile's driver", message)
        .with_hint("see cufile.log; loads go through the pinned ring meanwhile")
}

/// What descriptor 0 was before the call.
struct StandardInput {
    saved: OwnedFd,
}

impl StandardInput {
    /// Saves descriptor 0, and fills it with /dev/null if the process was started without.
    fn guard() -> io::Result<Self> {
        // SAFETY: only asked about; a closed descriptor is an error of the call.
        let zero = unsafe { BorrowedFd::borrow_raw(0) };
        if let Ok(saved) = zero.try_clone_to_owned() {
            return Ok(Self { saved });
        }
        // The lowest free number is 0, so that is where the open lands; it is left there.
        let null = File::open("/dev/null")?;
        let saved = null.try_clone()?.into();
        if null.as_raw_fd() == 0 {
            let _stays_open = null.into_raw_fd();
        }
        Ok(Self { saved })
    }

    /// Puts it back if the call closed or replaced it.
    fn restore(self) -> io::Result<()> {
        // SAFETY: only asked about, as above.
        let zero = unsafe { BorrowedFd::borrow_raw(0) };
        if same_file(zero, self.saved.as_fd()) {
            return Ok(());
        }
        // SAFETY: 0 is not a descriptor anybody holds as an `OwnedFd`: it is the process's standard
        // input, and what stands there now is not what the process put there.
        let mut zero = unsafe { OwnedFd::from_raw_fd(0) };
        let done = rustix::io::dup2(&self.saved, &mut zero);
        let _stays_open = zero.into_raw_fd();
        done.map_err(io::Error::from)
    }
}

fn same_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    match (rustix::fs::fstat(a), rustix::fs::fstat(b)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}
