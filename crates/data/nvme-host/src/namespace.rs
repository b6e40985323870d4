//! An open namespace.

use std::{
    any::Any,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use straightway_core::{Error, ErrorDetail, ErrorKind, Object, Result, extent::down};
use straightway_io::{
    Handle,
    store::{Draft, Tag},
};
use straightway_nvme::{
    Sgl,
    identify::{self, NamespaceId},
    index::IndexEntry,
    nvm::{LbaRange, Nvm},
};

use crate::{
    history::History,
    link::LinkError,
    quarantine::QUARANTINE,
    subsystem::{Subsystem, kind_of, remedy},
    unchanged,
    verify::{Fingerprint, fingerprint, look},
};

/// The maximum size of a side queue command.
const SIDE_BYTES_MAX: u64 = 128 << 10;

/// The remedy if a file changes while it is opened or read.
pub(crate) const CHANGING: &str = "try again when no program writes to the file on the target";

/// An open namespace, or the first bytes of a namespace that is being written.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) nsid: u32,
    /// Its name in messages.
    pub(crate) name: String,
    /// Its length.
    pub(crate) bytes: u64,
    /// The block size is 2 to this power.
    pub(crate) block_shift: u8,
    /// The length of the object: the whole namespace, or the part that is written.
    length: u64,
    is_protected: bool,
    /// The identity that every controller must confirm.
    pub(crate) print: Fingerprint,
}

impl Namespace {
    /// Opens a namespace, with its entry in the name index if it has one.
    pub(crate) fn open(subsystem: &Arc<Subsystem>, nsid: u32, entry: Option<IndexEntry>, name: String) -> Result<Self> {
        let asked = subsystem.attempt(|controller| {
            let (page, list) = look(controller, nsid)?;
            let decoded = identify::Namespace::decode(&page);
            let is_protected = decoded.is_ok_and(|page| page.is_protected);
            let print = fingerprint(controller, nsid, &page, list.as_deref());
            Ok((is_protected, print))
        });
        let asked = asked.map_err(|(error, failure)| match error {
            LinkError::Refused(status, _) => {
                Error::new(kind_of(status), "open", &name, status.to_string()).with_hint(remedy(status))
            }
            LinkError::Broken(_) => failure,
        });
        let (is_protected, print) = asked?;
        let print = print.map_err(|unusable| unusable.error(&name))?;
        if let Some(entry) = &entry
            && entry.bytes.checked_next_multiple_of(1 << print.block_shift) != Some(print.bytes)
        {
            let (indexed, found) = (entry.bytes, print.bytes);
            let why = format!("the index says {indexed} bytes, but its namespace has {found}");
            return Err(changed("open", &name, why));
        }
        Ok(Self {
            subsystem: Arc::clone(subsystem),
            nsid,
            bytes: print.bytes,
            length: print.bytes,
            block_shift: print.block_shift,
            is_protected,
            print: Fingerprint {
                entry: entry.map(Arc::new),
                ..print
            },
            name,
        })
    }

    /// Opens the namespace of an index entry.
    pub(crate) fn open_entry(subsystem: &Arc<Subsystem>, entry: IndexEntry, name: String) -> Result<Self> {
        if entry.bytes == 0 {
            return Ok(Self {
                subsystem: Arc::clone(subsystem),
                nsid: 0,
                name,
                bytes: 0,
                length: 0,
                block_shift: 9,
                is_protected: true,
                print: Fingerprint {
                    nsid: 0,
                    bytes: 0,
                    block_shift: 9,
                    id: NamespaceId::default(),
                    entry: Some(Arc::new(entry)),
                    // No controller transfers anything for it.
                    address: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                    history: History::new(),
                },
            });
        }
        let length = entry.bytes;
        let namespace = Self::open(subsystem, entry.nsid, Some(entry), name)?;
        Ok(Self { length, ..namespace })
    }

    /// The namespace of a handle, for engines.
    pub(crate) fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(handle) as _;
        any.downcast().ok()
    }

    /// Begins to write `bytes` to it, in place.
    pub(crate) fn draft(self, bytes: u64) -> Result<InPlace> {
        let failed = |why: String| Error::new(ErrorKind::Invalid, "write to", &self.name, why);
        if bytes > self.bytes {
            let why = format!("it has {} bytes, and {bytes} are to be written", self.bytes);
            return Err(failed(why).with_hint("use a larger namespace"));
        }
        if self.is_protected {
            let why = "it is write protected".to_owned();
            return Err(failed(why).with_hint("serve it writable: `straightway target --writable`"));
        }
        let length = bytes;
        let namespace = Arc::new(Self { length, ..self });
        Ok(InPlace { namespace })
    }

    /// Makes all completed writes durable.
    pub(crate) fn flush(&self) -> Result<()> {
        let sqe = Nvm::Flush.sqe(self.nsid);
        let history = &self.print.history;
        let mark = history.write_mark();
        self.subsystem.run(&self.name, &self.print, sqe, &[], &mut [])?;
        history.note_flush(mark);
        Ok(())
    }

    fn block(&self) -> u64 {
        1 << self.block_shift
    }

    /// The range of `bytes` at `offset`, both multiples of the block size.
    pub(crate) fn range(&self, offset: u64, bytes: u64) -> LbaRange {
        let blocks = u32::try_from(bytes >> self.block_shift).expect("commands are short");
        LbaRange::new(offset >> self.block_shift, blocks)
    }

    fn read_blocks(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let bytes = into.len() as u64;
        let sqe = Nvm::Read(self.range(offset, bytes)).sqe(self.nsid);
        let bytes = u32::try_from(bytes).expect("commands are short");
        let sqe = sqe.with_sgl(Sgl::transport(bytes));
        self.subsystem.run(&self.name, &self.print, sqe, &[], into)?;
        Ok(())
    }

    /// The maximum size of a side queue command: at least a block, and within the limits of all connected controllers.
    fn side_bytes_max(&self) -> Result<u64> {
        let connected = self.subsystem.connected();
        let limits = connected.iter().map(|c| c.limits.transfer_bytes);
        let most = match limits.min() {
            Some(most) => most,
            None => self.subsystem.controller()?.limits.transfer_bytes,
        };
        // A controller with shorter transfers than a block is not used for this namespace.
        Ok(SIDE_BYTES_MAX.min(most.into()).max(self.block()))
    }
}

impl Handle for Namespace {
    fn object(&self) -> Object {
        Object::new(self.name.clone(), self.length)
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.subsystem.check_own(&self.name)?;
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            let why = format!("it ends at byte {}", self.length);
            return Err(Error::new(ErrorKind::Corrupt, "read", &self.name, why));
        }
        let most = self.side_bytes_max()?;
        let mut filled = 0;
        let mut blocks = Vec::new();
        while filled < bytes.len() {
            let at = offset + filled as u64;
            let start = down(at, self.block());
            let end = (offset + bytes.len() as u64).next_multiple_of(self.block());
            let length = (end - start).min(most).min(self.bytes - start);
            blocks.resize(usize::try_from(length).expect("commands are short"), 0);
            self.read_blocks(start, &mut blocks)?;
            let skip = usize::try_from(at - start).expect("blocks are short");
            let count = (blocks.len() - skip).min(bytes.len() - filled);
            bytes[filled..filled + count].copy_from_slice(&blocks[skip..skip + count]);
            filled += count;
        }
        Ok(())
    }

    fn tag(&self) -> Option<Tag> {
        let entry = self.print.entry.as_ref()?;
        Some(Tag::Text(entry.version.to_string()))
    }

    fn check_unchanged(&self) -> Result<()> {
        unchanged::check(self)
    }

    fn block_bytes(&self) -> u64 {
        self.block()
    }

    fn room_bytes(&self) -> u64 {
        self.bytes
    }
}

/// The error of a namespace that is not the version that was listed or opened.
pub(crate) fn changed(operation: &'static str, name: impl fmt::Display, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, operation, name, why)
        .with_detail(ErrorDetail::Changed)
        .with_hint(CHANGING)
}

/// A namespace that is written in place, like a block device. The first write destroys its old content.
#[derive(Debug)]
pub(crate) struct InPlace {
    pub(crate) namespace: Arc<Namespace>,
}

impl Draft for InPlace {
    fn handle(&self) -> Arc<dyn Handle> {
        Arc::clone(&self.namespace) as _
    }

    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let namespace = &self.namespace;
        namespace.subsystem.check_own(&namespace.name)?;
        let block = namespace.block();
        let length = bytes.len() as u64;
        let is_whole = offset.is_multiple_of(block) && length.is_multiple_of(block);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= namespace.bytes);
        if !is_whole || !is_inside {
            let why = format!("a namespace is written in whole blocks of {block} bytes");
            return Err(Error::new(ErrorKind::Unsupported, "write to", &namespace.name, why)
                .with_hint("copy a file to it instead"));
        }
        let subsystem = &namespace.subsystem;
        let step = usize::try_from(namespace.side_bytes_max()?).expect("it is small");
        let all = offset..offset + length;
        let held = || QUARANTINE.until(&subsystem.nqn, namespace.nsid, &all, Instant::now());
        while let Some(until) = held() {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        for (index, part) in bytes.chunks(step).enumerate() {
            let at = offset + (index * step) as u64;
            let write = Nvm::Write {
                range: namespace.range(at, part.len() as u64),
                is_durable: false,
            };
            let sqe = write.sqe(namespace.nsid);
            subsystem.run(&namespace.name, &namespace.print, sqe, part, &mut [])?;
            namespace.print.history.end_write();
        }
        Ok(())
    }
}
