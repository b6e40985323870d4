//! Is this the namespace that was opened? All comparisons are here.
//!
//! All paths should lead to one target. A target that was restarted with other files, or a mistyped address, would mix
//! the bytes of two namespaces. Therefore each controller must confirm the opened namespace before the first command is
//! sent to it, and again after it reported a change: its identifiers, its size and, if the target has a name index, its
//! entry there with the version of its content. Identifiers alone are not enough: a Straightway target derives them
//! from its NQN and the name of the file, and two nodes may have the same of both.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use straightway_core::{Error, Result};
use straightway_nvme::index::IndexEntry;

use super::{
    catalog::EntryKey,
    opened::{Fingerprint, Opened, Pages, changed},
    verdicts::Verdict,
};
use crate::session::{controller::Controller, failure::LinkError, side::SideFailure};

/// The polling interval while a namespace is being verified.
pub(crate) const VERIFY_INTERVAL: Duration = Duration::from_millis(1);

/// What a controller shows of a namespace that it confirms.
#[derive(Clone, Copy, Debug)]
struct Shown {
    /// The version, if the namespace has one.
    version: Option<u64>,
    /// The boot of the target's machine; 0 if it is not known.
    boot: u64,
}

impl Fingerprint {
    /// Whether both have the same identifiers and sizes. Without identifiers, only the sizes are compared.
    fn is_same(&self, other: &Self) -> bool {
        let is_same_id = self.id == other.id || self.id.is_same(&other.id);
        let size = |print: &Self| (print.nsid, print.bytes, print.block_shift);
        is_same_id && size(self) == size(other)
    }
}

impl Opened {
    /// Whether a controller has this namespace, and may get commands for it. Starts a thread if that is unknown.
    pub(crate) fn verdict(self: &Arc<Self>, controller: &Arc<Controller>) -> Verdict {
        let history = &self.history;
        let mut verdicts = history.verdicts();
        let changes = match verdicts.get(&controller.association) {
            Ok(Verdict::Same) => {
                let boot = verdicts.boot(&controller.association);
                drop(verdicts);
                return if history.permits_boot(boot) {
                    Verdict::Same
                } else {
                    Verdict::Other(other_machine(controller.address).into())
                };
            }
            Ok(known) => return known,
            Err(changes) => changes,
        };
        drop(verdicts);
        if controller.is_further {
            history.note_further(controller);
        }
        let (own, opened) = (Arc::clone(controller), Arc::clone(self));
        let thread = std::thread::Builder::new().name("straightway-nvme".to_owned());
        if let Err(error) = thread.spawn(move || opened.verify(&own, changes)) {
            controller.end(format!("no thread: {error}"));
        }
        Verdict::Pending
    }

    /// Waits until an association confirms this namespace, and records a write that begins there.
    pub(crate) fn permit(self: &Arc<Self>, controller: &Arc<Controller>, is_write: bool) -> Result<(), SideFailure> {
        loop {
            match self.verdict(controller) {
                // A flush must reach the machine that has the writes, and all writes go to one machine.
                Verdict::Same if is_write && !self.history.begin_write_on(&controller.association) => {
                    return Err(SideFailure::Forbidden(other_machine(controller.address).into()));
                }
                Verdict::Same => return Ok(()),
                Verdict::Other(why) => return Err(SideFailure::Forbidden(why)),
                Verdict::Pending => {
                    if let Some(why) = controller.ended() {
                        return Err(SideFailure::Connect(why.to_owned()));
                    }
                    std::thread::sleep(VERIFY_INTERVAL);
                }
            }
        }
    }

    /// Verifies the namespace on a controller and stores the result.
    fn verify(&self, controller: &Arc<Controller>, changes: u64) {
        let (history, here) = (&self.history, controller.address);
        let store = |verdict: Verdict, boot: u64| {
            let mut verdicts = history.verdicts();
            verdicts.set(&controller.association, changes, verdict, boot);
        };
        let why = match controller.retry(|controller| self.compare(controller)) {
            Ok(Ok(shown)) => {
                // Before the first command can be sent, because a used path is checked again after the transfer.
                history.confirm(here, shown.version.filter(|_| !controller.is_further));
                return store(Verdict::Same, shown.boot);
            }
            Ok(Err(why)) => {
                history.note_change(here);
                why
            }
            // The connection works, and may serve other namespaces.
            Err(LinkError::Refused(status, _)) => {
                format!("{here} does not confirm namespace {}: {status}", self.print.nsid)
            }
            Err(LinkError::Broken(why)) => return controller.end(why),
        };
        tracing::warn!("the path is not used: {why}");
        store(Verdict::Other(why.into()), 0);
    }

    /// Compares the namespace on a controller with the opened one. The inner error is the difference.
    fn compare(&self, controller: &Arc<Controller>) -> Result<Result<Shown, String>, LinkError> {
        let (here, nsid) = (controller.address, self.print.nsid);
        let pages = match Pages::read(controller, nsid) {
            Err(error) if error.is_final() => {
                return Ok(Err(format!("{here} has no namespace {nsid}: {error}")));
            }
            pages => pages?,
        };
        let now = match pages.fingerprint(controller, nsid) {
            Ok(now) => now,
            Err(unusable) => {
                let why = unusable.why;
                return Ok(Err(format!("{here} has no usable namespace {nsid}: {why}")));
            }
        };
        if !now.is_same(&self.print) {
            let opened = self.address;
            return Ok(Err(format!(
                "{here} serves another namespace {nsid} than the one that was opened at {opened}"
            )));
        }
        let Some(was) = &self.entry else {
            let boot = self.catalog.boot(controller);
            return Ok(Ok(Shown { version: None, boot }));
        };
        let found = match self.catalog.lookup_on(controller, EntryKey::Name(&was.name))? {
            Ok(found) => found,
            Err(why) => return Ok(Err(format!("{here}: {why}"))),
        };
        let boot = self.catalog.boot(controller);
        let same = found.entry().filter(|is| {
            let is_rewritten = (is.is_writable && was.is_writable)
                && (is.nsid, is.bytes) == (was.nsid, was.bytes)
                && self.history.permits(here, is.version, controller.is_further);
            *is == was || is_rewritten
        });
        Ok(match same {
            None => Err(self.other_version(here)),
            Some(_) if !self.history.permits_boot(boot) => Err(other_machine(here)),
            Some(is) => Ok(Shown {
                version: Some(is.version),
                boot,
            }),
        })
    }

    /// Whether an entry of the name index is the one that was opened. Always for a namespace without one.
    pub(crate) fn is_entry(&self, found: Option<&IndexEntry>) -> bool {
        self.entry.as_ref().is_none_or(|entry| found == Some(entry))
    }

    /// Returns an error if a later opening has another identity or length.
    pub(crate) fn check_same(&self, now: &Self) -> Result<()> {
        if now.print.is_same(&self.print) {
            return Ok(());
        }
        let (was, is) = (self.print.bytes, now.print.bytes);
        Err(self.changed(if is == was {
            "it is another namespace now".to_owned()
        } else {
            format!("its length changed from {was} to {is} bytes")
        }))
    }

    /// The error of a namespace that changed while it was read.
    pub(crate) fn changed(&self, why: String) -> Error {
        changed("read", &self.name, why)
    }

    /// The reason why an address with another version of its content is refused.
    pub(crate) fn other_version(&self, here: SocketAddr) -> String {
        other_version(self.print.nsid, self.address, here)
    }
}

/// The reason why an address is refused that has another version than the one where a namespace was opened.
fn other_version(nsid: u32, opened: SocketAddr, here: SocketAddr) -> String {
    if here == opened {
        return format!("namespace {nsid} at {here} was replaced or changed");
    }
    format!("{here} serves another version of namespace {nsid} than {opened}")
}

/// The reason why an address is refused while another machine has writes that are not flushed.
fn other_machine(here: SocketAddr) -> String {
    format!(
        "the machine of {here} was restarted, or it is another one than the machine with the last writes; writes that \
         were not flushed may be lost: copy again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_path_is_named_with_the_one_that_was_opened() {
        let first = SocketAddr::from(([192, 0, 2, 1], 4420));
        let second = SocketAddr::from(([198, 51, 100, 1], 4420));
        let why = other_version(1, first, second);
        assert!(why.contains("198.51.100.1:4420") && why.contains("192.0.2.1:4420"));
        let why = other_version(1, first, first);
        assert_eq!(why.matches("192.0.2.1:4420").count(), 1, "{why}");
    }
}
