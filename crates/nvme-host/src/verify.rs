//! Whether a namespace is the same one through each controller.
//!
//! Paths lead to one subsystem, as far as anybody says. A target that was restarted with other files, or an address that
//! was mistyped, would mix the bytes of two namespaces. So each controller has to show the namespace that was opened,
//! by its identifiers and its size, before the first command goes there, and again after it reported a change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use straightway_core::Kind;
use straightway_nvme::{
    admin::{Admin, Identify},
    identify::{self, IDENTIFY_BYTES, NamespaceId, page},
};

use crate::{controller::Controller, link::LinkError};

/// The most namespaces that are remembered of a controller.
const VERDICTS_MAX: usize = 4096;

/// What a namespace is recognised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) nsid: u32,
    /// Its length.
    pub(crate) bytes: u64,
    pub(crate) block_shift: u8,
    pub(crate) id: NamespaceId,
}

impl Fingerprint {
    /// Whether both are of one namespace. Without any identifier, the size has to do.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same_id = self.id == other.id || self.id.is_same(&other.id);
        let size = |print: &Self| (print.nsid, print.bytes, print.block_shift);
        is_same_id && size(self) == size(other)
    }
}

/// What is known of a namespace at a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A thread is asking.
    Pending,
    /// It is the same.
    Same,
    /// It is another, or there is none.
    Other,
}

/// What is known of all namespaces at a controller.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// How often all of them were forgotten.
    changes: u64,
    all: Vec<(Fingerprint, Verdict)>,
}

impl Verdicts {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all: something changed. Answers to questions that were asked before do not count.
    pub(crate) fn clear(&self) {
        let mut known = self.lock();
        known.changes += 1;
        known.all.clear();
    }

    /// What is known of a namespace. Where nothing is, it is pending from now on, and the error is the count of changes
    /// for the one who asks.
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

    /// Enters the answer to a question that was asked after so many changes.
    fn set(&self, print: &Fingerprint, verdict: Verdict, changes: u64) {
        let mut known = self.lock();
        if known.changes == changes
            && let Some(entry) = known.all.iter_mut().find(|(known, _)| known == print)
        {
            entry.1 = verdict;
        }
    }
}

/// Whether a controller shows this namespace. Where it is not known, a thread asks.
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

/// A namespace as a controller shows it; `None` where it has none, or none that can be used.
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

/// What a namespace is recognised by, from its page and its list of identifiers, which old controllers lack.
pub(crate) fn fingerprint(
    nsid: u32,
    page: &[u8],
    list: Option<&[u8]>,
) -> Result<Fingerprint, (Kind, String)> {
    let corrupt = |error: straightway_nvme::Malformed| (Kind::Corrupt, error.to_string());
    let page = identify::Namespace::decode(page).map_err(corrupt)?;
    if page.blocks == 0 {
        let why = format!("the subsystem has no namespace {nsid}");
        return Err((Kind::NotFound, why));
    }
    let format = page.format();
    let format = format.map_err(|error| (Kind::Unsupported, error.to_string()))?;
    if format.metadata_bytes > 0 {
        let why = format!(
            "its blocks have {} bytes of metadata",
            format.metadata_bytes
        );
        return Err((Kind::Unsupported, why));
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
    fn an_answer_from_before_a_change_does_not_count() {
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
