//! An opened namespace: the identity that every controller must confirm.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{
    Malformed,
    admin::{Admin, Identify},
    identify::{self, IDENTIFY_BYTES, NamespaceId, page},
    index::IndexEntry,
};

use super::{catalog::Catalog, history::History};
use crate::session::{
    controller::Controller,
    failure::{LinkError, kind_of, remedy},
    subsystem::Subsystem,
};

/// The remedy if a file changes while it is opened or read.
pub(crate) const CHANGING: &str = "try again when no program writes to the file on the target";

/// An opened namespace.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) catalog: Arc<Catalog>,
    /// Its name in messages.
    pub(crate) name: String,
    pub(crate) print: Fingerprint,
    pub(crate) is_protected: bool,
    /// Its entry in the name index, if there is one.
    pub(crate) entry: Option<IndexEntry>,
    /// The address at which it was opened.
    pub(crate) address: SocketAddr,
    /// The addresses that confirmed it since.
    pub(crate) history: History,
}

/// The identifiers and the size of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Fingerprint {
    pub(crate) nsid: u32,
    /// Its length.
    pub(crate) bytes: u64,
    /// The block size is 2 to this power.
    pub(crate) block_shift: u8,
    pub(crate) id: NamespaceId,
}

/// The pages that describe a namespace: Identify Namespace, and the list of its identifiers, which old controllers
/// lack.
#[derive(Debug)]
pub(crate) struct Pages {
    namespace: Vec<u8>,
    descriptors: Option<Vec<u8>>,
}

/// The reason why a namespace cannot be used.
#[derive(Debug)]
pub(crate) struct Unusable {
    kind: ErrorKind,
    pub(crate) why: String,
    hint: Option<&'static str>,
}

impl Opened {
    /// Opens a namespace, with its entry in the name index if it has one.
    pub(crate) fn open(catalog: &Arc<Catalog>, nsid: u32, entry: Option<IndexEntry>, name: String) -> Result<Self> {
        let asked = catalog.subsystem.attempt(|controller| {
            let pages = Pages::read(controller, nsid)?;
            let is_protected = identify::Namespace::decode(&pages.namespace).is_ok_and(|page| page.is_protected);
            Ok((is_protected, pages.fingerprint(controller, nsid), controller.address))
        });
        let asked = asked.map_err(|(error, failure)| match error {
            LinkError::Refused(status, _) => {
                Error::new(kind_of(status), "open", &name, status.to_string()).with_hint(remedy(status))
            }
            LinkError::Broken(_) => failure,
        });
        let (is_protected, print, address) = asked?;
        let print = print.map_err(|unusable| unusable.error(&name))?;
        if let Some(entry) = &entry
            && entry.bytes.checked_next_multiple_of(1 << print.block_shift) != Some(print.bytes)
        {
            let (indexed, found) = (entry.bytes, print.bytes);
            let why = format!("the index says {indexed} bytes, but its namespace has {found}");
            return Err(changed("open", &name, why));
        }
        Ok(Self {
            catalog: Arc::clone(catalog),
            name,
            print,
            is_protected,
            entry,
            address,
            history: History::new(),
        })
    }

    /// An empty file, which has no namespace.
    pub(crate) fn empty(catalog: &Arc<Catalog>, entry: IndexEntry, name: String) -> Self {
        Self {
            catalog: Arc::clone(catalog),
            name,
            print: Fingerprint {
                nsid: 0,
                bytes: 0,
                block_shift: 9,
                id: NamespaceId::default(),
            },
            is_protected: true,
            entry: Some(entry),
            // No controller transfers anything for it.
            address: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            history: History::new(),
        }
    }

    pub(crate) fn subsystem(&self) -> &Subsystem {
        &self.catalog.subsystem
    }

    /// Returns an error in a child of the process that opened it.
    pub(crate) fn check_own(&self) -> Result<()> {
        self.subsystem().check_own(&self.name)
    }
}

impl Pages {
    /// Reads the pages of a namespace on a controller.
    pub(crate) fn read(controller: &Controller, nsid: u32) -> Result<Self, LinkError> {
        let ask = |page: u8| {
            let sqe = Admin::Identify(Identify {
                page,
                nsid,
                controller: 0,
                command_set: 0,
            });
            controller.ask(sqe.sqe(), IDENTIFY_BYTES)
        };
        let namespace = ask(page::NAMESPACE)?;
        let descriptors = match ask(page::DESCRIPTORS) {
            Ok(list) => Some(list),
            Err(error) if error.is_final() => None,
            Err(error) => return Err(error),
        };
        Ok(Self { namespace, descriptors })
    }

    /// The identity of the namespace on this controller.
    pub(crate) fn fingerprint(&self, controller: &Controller, nsid: u32) -> Result<Fingerprint, Unusable> {
        let corrupt = |error: Malformed| Unusable::new(ErrorKind::Corrupt, error.to_string());
        let page = identify::Namespace::decode(&self.namespace).map_err(corrupt)?;
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
        let list = self.descriptors.as_ref();
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
    fn error(self, name: &str) -> Error {
        let error = Error::new(self.kind, "open", name, self.why);
        match self.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

/// The error of a namespace that is not the version that was listed or opened.
pub(crate) fn changed(operation: &'static str, name: impl fmt::Display, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Precondition, operation, name, why).with_hint(CHANGING)
}
