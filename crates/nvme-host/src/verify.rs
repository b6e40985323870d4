//! Verification that a namespace is the same one on each controller.
//!
//! All paths should lead to one subsystem. A target that was restarted with other files, or a mistyped address, would
//! mix the bytes of two namespaces. Therefore each controller must confirm the identifiers and the size of the opened
//! namespace before the first command is sent to it, and again after it reported a change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use straightway_core::ErrorKind;
use straightway_nvme::{
    admin::{Admin, Identify},
    identify::{self, IDENTIFY_BYTES, NamespaceId, page},
};

use crate::{controller::Controller, link::LinkError};

/// The maximum number of namespaces that are remembered per controller.
const VERDICTS_MAX: usize = 4096;

/// The identity of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) nsid: u32,
    /// Its length.
    pub(crate) bytes: u64,
    pub(crate) block_shift: u8,
    pub(crate) id: NamespaceId,
}

impl Fingerprint {
    /// Whether both belong to the same namespace. Without identifiers, only the sizes are compared.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same_id = self.id == other.id || self.id.is_same(&other.id);
        let size = |print: &Self| (print.nsid, print.bytes, print.block_shift);
        is_same_id && size(self) == size(other)
    }
}

/// The result of verifying a namespace on a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A thread is verifying it.
    Pending,
    /// It is the same namespace.
    Same,
    /// It is another namespace, or it does not exist.
    Other,
}

/// The verification results of a controller.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The number of times that the results were cleared.
    changes: u64,
    all: Vec<(Fingerprint, Verdict)>,
}

impl Verdicts {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears all results after a change. Results of verifications that began before are ignored.
    pub(crate) fn clear(&self) {
        let mut known = self.lock();
        known.changes += 1;
        known.all.clear();
    }

    /// The result for a namespace. An unknown namespace becomes pending, and the error is the change count to pass to
    /// `set`.
    fn get(&self, print: &Fingerprint) -> Result<Verdict, u64> {
        let mut known = self.lock();
        let found = known.all.iter().find(|(known, _)| known == print);
        if let Some((_, verdict)) = found {
            return Ok(*verdict);
        }
        if known.all.len() >= VERDICTS_MAX {
            known.changes += 1;
            known.all.clear();
        }
        known.all.push((*print, Verdict::Pending));
        Err(known.changes)
    }

    /// Stores a result. It is ignored if `changes` is not the current change count.
    fn set(&self, print: &Fingerprint, verdict: Verdict, changes: u64) {
        let mut known = self.lock();
        if known.changes == changes
            && let Some(entry) = known.all.iter_mut().find(|(known, _)| known == print)
        {
            entry.1 = verdict;
        }
    }
}

/// The result for a namespace on a controller. Starts a thread if it is unknown.
pub(crate) fn verdict(controller: &Arc<Controller>, print: &Fingerprint) -> Verdict {
    let changes = match controller.verdicts.get(print) {
        Ok(known) => return known,
        Err(changes) => changes,
    };
    let (own, print) = (Arc::clone(controller), *print);
    let ask = move || match look(&own, print.nsid) {
        Ok(Some(now)) if now.is_same(&print) => own.verdicts.set(&print, Verdict::Same, changes),
        Ok(_) => own.verdicts.set(&print, Verdict::Other, changes),
        Err(why) => {
            own.verdicts.clear();
            own.end(why);
        }
    };
    let thread = std::thread::Builder::new().name("straightway-nvme".to_owned());
    if let Err(error) = thread.spawn(ask) {
        controller.verdicts.clear();
        controller.end(format!("no thread: {error}"));
    }
    Verdict::Pending
}

/// Reads the identity of a namespace on a controller; `None` if it does not exist or is unusable.
fn look(controller: &Controller, nsid: u32) -> Result<Option<Fingerprint>, String> {
    let ask = |page: u8| {
        let sqe = Admin::Identify(Identify {
            page,
            nsid,
            controller: 0,
            command_set: 0,
        });
        match controller.ask(sqe.sqe(), IDENTIFY_BYTES) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(LinkError::Refused(status, _)) if !status.is_retryable() => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    };
    let Some(bytes) = ask(page::NAMESPACE)? else {
        return Ok(None);
    };
    let list = ask(page::DESCRIPTORS)?;
    Ok(fingerprint(nsid, &bytes, list.as_deref()).ok())
}

/// The identity of a namespace from Identify Namespace and its descriptor list, which old controllers lack.
pub(crate) fn fingerprint(
    nsid: u32,
    page: &[u8],
    list: Option<&[u8]>,
) -> Result<Fingerprint, (ErrorKind, String)> {
    let corrupt = |error: straightway_nvme::Malformed| (ErrorKind::Corrupt, error.to_string());
    let page = identify::Namespace::decode(page).map_err(corrupt)?;
    if page.blocks == 0 {
        let why = format!("the subsystem has no namespace {nsid}");
        return Err((ErrorKind::NotFound, why));
    }
    let format = page.format();
    let format = format.map_err(|error| (ErrorKind::Unsupported, error.to_string()))?;
    if format.metadata_bytes > 0 {
        let why = format!(
            "its blocks have {} bytes of metadata",
            format.metadata_bytes
        );
        return Err((ErrorKind::Unsupported, why));
    }
    let list = list.map(|list| NamespaceId::decode(list).unwrap_or_default());
    let mut id = list.unwrap_or_default();
    let is_set = |id: &[u8]| id.iter().any(|byte| *byte != 0);
    id.nguid = id.nguid.or(Some(page.nguid).filter(|id| is_set(id)));
    id.eui64 = id.eui64.or(Some(page.eui64).filter(|id| is_set(id)));
    Ok(Fingerprint {
        nsid,
        bytes: page.bytes().map_err(corrupt)?,
        block_shift: format.block_shift,
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_from_before_a_change_is_ignored() {
        let print = Fingerprint {
            nsid: 1,
            bytes: 4096,
            block_shift: 9,
            id: NamespaceId::default(),
        };
        let verdicts = Verdicts::default();
        let asked = verdicts.get(&print).unwrap_err();
        assert_eq!(verdicts.get(&print), Ok(Verdict::Pending));
        verdicts.clear();
        let again = verdicts.get(&print).unwrap_err();
        verdicts.set(&print, Verdict::Same, asked);
        assert_eq!(verdicts.get(&print), Ok(Verdict::Pending));
        verdicts.set(&print, Verdict::Other, again);
        assert_eq!(verdicts.get(&print), Ok(Verdict::Other));
    }
}
