//! Whether an open file is still the one that was opened, and was not written to.

use std::{
    cmp::Ordering::{Equal, Greater, Less},
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::Ordering,
};

use rustix::fs::fstat;
use straightway_core::{Error, ErrorKind, Result};

use super::{File, changed};
use crate::identity::Identity;

impl File {
    /// Returns an error if it was written to since it was opened, as far as its length and timestamps show
    /// (see [`identity`](crate::identity) for the limits).
    pub fn check_unchanged(&self) -> Result<()> {
        let now = self.check_descriptors()?;
        let Some(opened) = self.opened.filter(|opened| *opened != now) else {
            return Ok(());
        };
        let (was, is) = (opened.bytes, now.bytes);
        let message = match is.cmp(&was) {
            Less => format!("it shrank from {was} to {is} bytes while it was read"),
            Greater => format!("it grew from {was} to {is} bytes while it was read"),
            Equal => "it was written to, or its attributes changed, while it was read".to_owned(),
        };
        Err(changed(&self.path, message))
    }

    /// Its identity now. Returns an error if other code in this process closed a descriptor that was used: the number
    /// may belong to another file, to which or from which bytes were moved.
    pub(crate) fn check_descriptors(&self) -> Result<Identity> {
        let examine = |descriptor: BorrowedFd<'_>| {
            let stat = fstat(descriptor).map_err(|e| self.error("examine", e.into()))?;
            let now = Identity::of(&stat);
            let is_own = self.first.is_same_file(&now);
            is_own.then_some(now).ok_or_else(|| self.closed("examine"))
        };
        if let Some(direct) = self
            .direct
            .as_ref()
            .filter(|_| self.direct_used.load(Ordering::Relaxed))
        {
            examine(direct.as_fd())?;
        }
        examine(self.buffered.as_fd())
    }

    /// The error for a file whose descriptor was closed.
    pub(super) fn closed(&self, operation: &'static str) -> Error {
        let message = "other code in this process closed its descriptor";
        Error::new(ErrorKind::Transient, operation, self.path.display(), message)
            .with_hint("close only descriptors that you opened (not by `os.closerange` or `closefrom`), and try again")
    }
}
