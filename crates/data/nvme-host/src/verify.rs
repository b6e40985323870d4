//! Verification that a namespace is the same one on each controller.
//!
//! All paths should lead to one target. A target that was restarted with other files, or a mistyped address, would mix
//! the bytes of two namespaces. Therefore each controller must confirm the opened namespace before the first command is
//! sent to it, and again after it reported a change: its identifiers, its size and, if the target has a name index, its
//! entry there with the version of its content. Identifiers alone are not enough: a Straightway target derives them
//! from its NQN and the name of the file, and two nodes may have the same of both.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use straightway_core::{Error, ErrorKind};
use straightway_nvme::{
    Malformed,
    admin::{Admin, Identify},
    identify::{self, IDENTIFY_BYTES, NamespaceId, page},
    index::IndexEntry,
};

use crate::{
    controller::Controller,
    history::History,
    index::{self, EntryKey},
    link::LinkError,
    verdicts::Verdict,
};

/// The polling interval while a namespace is being verified.
pub(crate) const VERIFY_INTERVAL: Duration = Duration::from_millis(1);

/// The identity of an opened namespace.
#[derive(Clone, Debug)]
pub(crate) struct Fingerprint {
    pub(crate) nsid: u32,
    /// Its length.
    pub(crate) bytes: u64,
    pub(crate) block_shift: u8,
    pub(crate) id: NamespaceId,
    /// Its entry in the name index, if there is one.
    pub(crate) entry: Option<Arc<IndexEntry>>,
    /// The address at which it was opened.
    pub(crate) address: SocketAddr,
    /// The addresses that confirmed it since.
    pub(crate) history: Arc<History>,
}

impl Fingerprint {
    /// Whether both have the same identifiers and sizes. Without identifiers, only the sizes are compared.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same_id = self.id == other.id || self.id.is_same(&other.id);
        let size = |print: &Self| (print.nsid, print.bytes, print.block_shift);
        is_same_id && size(self) == size(other)
    }

    /// The reason why an address with another version of its content is refused.
    pub(crate) fn other_version(&self, here: SocketAddr) -> String {
        let Self { nsid, address, .. } = self;
        if here == *address {
            return format!("namespace {nsid} at {here} was replaced or changed");
        }
        format!("{here} serves another version of namespace {nsid} than {address}")
    }
}

/// The reason why a namespace cannot be used.
#[derive(Debug)]
pub(crate) struct Unusable {
    kind: ErrorKind,
    why: String,
    hint: Option<&'static str>,
}

impl Unusable {
    fn new(kind: ErrorKind, why: impl Into<String>) -> Self {
        Self {
            kind,
            why: why.into(),
            hint: None,
        }
    }

    /// The error of opening it.
    pub(crate) fn error(self, name: &str) -> Error {
        let error = Error::new(self.kind, "open", name, self.why);
        match self.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

/// The result for a namespace on a controller. Starts a thread if it is unknown.
pub(crate) fn verdict(controller: &Arc<Controller>, print: &Fingerprint) -> Verdict {
    let changes = match controller.verdicts.get(print.history.opening) {
        Ok(known) => return known,
        Err(changes) => changes,
    };
    print.history.note_table(&controller.verdicts);
    if controller.is_further {
        print.history.note_further(controller);
    }
    let (own, print) = (Arc::clone(controller), print.clone());
    let thread = std::thread::Builder::new().name("straightway-nvme".to_owned());
    if let Err(error) = thread.spawn(move || verify(&own, &print, changes)) {
        controller.verdicts.clear();
        controller.end(format!("no thread: {error}"));
    }
    Verdict::Pending
}

/// Verifies a namespace on a controller and stores the result.
fn verify(controller: &Controller, print: &Fingerprint, changes: u64) {
    let (history, here) = (&print.history, controller.address);
    let why = match controller.retry(|controller| compare(controller, print)) {
        Ok(Ok(version)) => {
            // Before the first command can be sent, because a used path is checked again after the transfer.
            history.confirm(here, version.filter(|_| !controller.is_further));
            let opening = history.opening;
            return controller.verdicts.set(opening, Verdict::Same, changes);
        }
        Ok(Err(why)) => {
            history.note_change(here);
            why
        }
        // The connection works, and may serve other namespaces.
        Err(LinkError::Refused(status, _)) => {
            format!("{here} does not confirm namespace {}: {status}", print.nsid)
        }
        Err(LinkError::Broken(why)) => {
            controller.verdicts.clear();
            return controller.end(why);
        }
    };
    tracing::warn!("the path is not used: {why}");
    let other = Verdict::Other(why.into());
    controller.verdicts.set(history.opening, other, changes);
}

/// Compares a namespace on a controller with the opened one. Returns the version that the controller shows, if it has
/// one. The inner error is the difference.
fn compare(controller: &Controller, print: &Fingerprint) -> Result<Result<Option<u64>, String>, LinkError> {
    let (here, nsid) = (controller.address, print.nsid);
    let (page, list) = match look(controller, nsid) {
        Ok(pages) => pages,
        Err(LinkError::Refused(status, _)) if !status.is_retryable() => {
            return Ok(Err(format!("{here} has no namespace {nsid}: {status}")));
        }
        Err(error) => return Err(error),
    };
    let now = match fingerprint(controller, nsid, &page, list.as_deref()) {
        Ok(now) => now,
        Err(unusable) => {
            let why = unusable.why;
            return Ok(Err(format!("{here} has no usable namespace {nsid}: {why}")));
        }
    };
    if !now.is_same(print) {
        let opened = print.address;
        return Ok(Err(format!(
            "{here} serves another namespace {nsid} than the one that was opened at {opened}"
        )));
    }
    let Some(was) = &print.entry else {
        return Ok(Ok(None));
    };
    let found = match index::lookup_on(controller, EntryKey::Name(&was.name))? {
        Ok(found) => found,
        Err(why) => return Ok(Err(format!("{here}: {why}"))),
    };
    let (history, boot) = (&print.history, controller.index.boot());
    let same = found.entry().filter(|is| {
        let is_rewritten = (is.is_writable && was.is_writable)
            && (is.nsid, is.bytes) == (was.nsid, was.bytes)
            && history.permits(here, is.version, controller.is_further);
        **is == **was || is_rewritten
    });
    Ok(match same {
        None => Err(print.other_version(here)),
        Some(_) if !history.permits_boot(boot) => Err(other_machine(here)),
        Some(is) => {
            controller.set_boot(boot);
            Ok(Some(is.version))
        }
    })
}

/// The reason why an address is refused while another machine has writes that are not flushed.
pub(crate) fn other_machine(here: SocketAddr) -> String {
    format!(
        "the machine of {here} was restarted, or it is another one than the machine with the last writes; writes that \
         were not flushed may be lost: copy again"
    )
}

/// Reads Identify Namespace on a controller, and the list of its identifiers, which old controllers lack.
pub(crate) fn look(controller: &Controller, nsid: u32) -> Result<(Vec<u8>, Option<Vec<u8>>), LinkError> {
    let ask = |page: u8| {
        let sqe = Admin::Identify(Identify {
            page,
            nsid,
            controller: 0,
            command_set: 0,
        });
        controller.ask(sqe.sqe(), IDENTIFY_BYTES)
    };
    let bytes = ask(page::NAMESPACE)?;
    let list = match ask(page::DESCRIPTORS) {
        Ok(list) => Some(list),
        Err(LinkError::Refused(status, _)) if !status.is_retryable() => None,
        Err(error) => return Err(error),
    };
    Ok((bytes, list))
}

/// The identity of a namespace on a controller, without its index entry, from the pages of [`look`].
pub(crate) fn fingerprint(
    controller: &Controller,
    nsid: u32,
    page: &[u8],
    list: Option<&[u8]>,
) -> Result<Fingerprint, Unusable> {
    let corrupt = |error: Malformed| Unusable::new(ErrorKind::Corrupt, error.to_string());
    let page = identify::Namespace::decode(page).map_err(corrupt)?;
    if page.blocks == 0 {
        let why = format!("the subsystem has no namespace {nsid}");
        return Err(Unusable::new(ErrorKind::NotFound, why));
    }
    let unsupported = |why: String| Unusable::new(ErrorKind::Unsupported, why);
    let format = page.format();
    let format = format.map_err(|error| unsupported(error.to_string()))?;
    if format.metadata_bytes > 0 {
        let metadata = format.metadata_bytes;
        return Err(unsupported(format!("its blocks have {metadata} bytes of metadata")));
    }
    let (block, most) = (1_u32 << format.block_shift, controller.limits.transfer_bytes);
    if block > most {
        let why = format!("a block has {block} bytes, and a command transfers at most {most}");
        return Err(Unusable {
            hint: Some("format the namespace with smaller blocks, or raise the target's MDTS"),
            ..unsupported(why)
        });
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
        entry: None,
        address: controller.address,
        history: History::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print() -> Fingerprint {
        Fingerprint {
            nsid: 1,
            bytes: 4096,
            block_shift: 9,
            id: NamespaceId::default(),
            entry: None,
            address: SocketAddr::from(([192, 0, 2, 1], 4420)),
            history: History::new(),
        }
    }

    #[test]
    fn a_refused_path_is_named_with_the_one_that_was_opened() {
        let second = SocketAddr::from(([198, 51, 100, 1], 4420));
        let why = print().other_version(second);
        assert!(why.contains("198.51.100.1:4420") && why.contains("192.0.2.1:4420"));
        let why = print().other_version(print().address);
        assert_eq!(why.matches("192.0.2.1:4420").count(), 1, "{why}");
    }
}
