//! An open namespace.

use std::{sync::Arc, time::Instant};

use straightway_core::{Direction, Error, ErrorKind, Extent, Object, Reason, Result, Survey, extent::down};
use straightway_io::{
    Handle,
    store::{Draft, Tag, own_handle},
};
use straightway_nvme::{
    Sgl,
    index::IndexEntry,
    nvm::{LbaRange, Nvm},
};

use crate::{
    identity::{catalog::Catalog, opened::Opened, unchanged},
    quarantine::QUARANTINE,
};

/// The maximum size of a side queue command.
const SIDE_BYTES_MAX: u64 = 128 << 10;

/// An open namespace, or the first bytes of a namespace that is being written.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    pub(crate) opened: Arc<Opened>,
    /// The length of the object: the whole namespace, or the part that is written.
    length: u64,
}

impl Namespace {
    /// Opens a namespace, with its entry in the name index if it has one.
    pub(crate) fn open(catalog: &Arc<Catalog>, nsid: u32, entry: Option<IndexEntry>, name: String) -> Result<Self> {
        let opened = Arc::new(Opened::open(catalog, nsid, entry, name)?);
        let length = opened.print.bytes;
        Ok(Self { opened, length })
    }

    /// Opens the namespace of an index entry.
    pub(crate) fn open_entry(catalog: &Arc<Catalog>, entry: IndexEntry, name: String) -> Result<Self> {
        let length = entry.bytes;
        let opened = match length {
            0 => Opened::empty(catalog, entry, name),
            _ => Opened::open(catalog, entry.nsid, Some(entry), name)?,
        };
        let opened = Arc::new(opened);
        Ok(Self { opened, length })
    }

    /// The namespace of a handle, for engines.
    pub(crate) fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        own_handle(handle)
    }

    /// Begins to write `bytes` to it, in place.
    pub(crate) fn draft(self, bytes: u64) -> Result<InPlace> {
        let failed = |why: String| Error::new(ErrorKind::Invalid, "write to", self.name(), why);
        if bytes > self.bytes() {
            let why = format!("it has {} bytes, and {bytes} are to be written", self.bytes());
            return Err(failed(why).with_hint("use a larger namespace"));
        }
        if self.opened.is_protected {
            let why = "it is write protected".to_owned();
            return Err(failed(why).with_hint("serve it writable: `straightway target --writable`"));
        }
        let length = bytes;
        let namespace = Arc::new(Self { length, ..self });
        Ok(InPlace { namespace })
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> &str {
        &self.opened.name
    }

    pub(crate) fn nsid(&self) -> u32 {
        self.opened.print.nsid
    }

    /// The length of the whole namespace.
    pub(crate) fn bytes(&self) -> u64 {
        self.opened.print.bytes
    }

    fn block(&self) -> u64 {
        1 << self.opened.print.block_shift
    }

    /// The range of `bytes` at `offset`, both multiples of the block size.
    pub(crate) fn range(&self, offset: u64, bytes: u64) -> LbaRange {
        let shift = self.opened.print.block_shift;
        let blocks = u32::try_from(bytes >> shift).expect("commands are short");
        LbaRange::new(offset >> shift, blocks)
    }

    fn read_blocks(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let bytes = into.len() as u64;
        let sqe = Nvm::Read(self.range(offset, bytes)).sqe(self.nsid());
        let bytes = u32::try_from(bytes).expect("commands are short");
        let sqe = sqe.with_sgl(Sgl::transport(bytes));
        self.opened.run(sqe, &[], into)?;
        Ok(())
    }

    /// The maximum size of a side queue command: at least a block, and within the limits of all connected controllers.
    fn side_bytes_max(&self) -> Result<u64> {
        let subsystem = self.opened.subsystem();
        let connected = subsystem.connected();
        let limits = connected.iter().map(|c| c.limits.transfer_bytes);
        let most = match limits.min() {
            Some(most) => most,
            None => subsystem.controller()?.limits.transfer_bytes,
        };
        // A controller with shorter transfers than a block is not used for this namespace.
        Ok(SIDE_BYTES_MAX.min(most.into()).max(self.block()))
    }
}

impl Handle for Namespace {
    fn survey(&self, _: Option<Extent>, _: Direction) -> Result<Survey> {
        Ok(Survey::block_socket(Reason::Tcp, self.block_bytes()))
    }

    fn object(&self) -> Object {
        Object::new(self.opened.name.clone(), self.length)
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.opened.check_own()?;
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            let why = format!("it ends at byte {}", self.length);
            return Err(Error::new(ErrorKind::Corrupt, "read", self.name(), why));
        }
        let most = self.side_bytes_max()?;
        let mut filled = 0;
        let mut blocks = Vec::new();
        while filled < bytes.len() {
            let at = offset + filled as u64;
            let start = down(at, self.block());
            let end = (offset + bytes.len() as u64).next_multiple_of(self.block());
            let length = (end - start).min(most).min(self.bytes() - start);
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
        let entry = self.opened.entry.as_ref()?;
        Some(Tag::Text(entry.version.to_string()))
    }

    fn check_unchanged(&self) -> Result<()> {
        unchanged::check(&self.opened)
    }

    fn block_bytes(&self) -> u64 {
        self.block()
    }

    fn room_bytes(&self) -> u64 {
        self.bytes()
    }
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
        let opened = &namespace.opened;
        opened.check_own()?;
        let block = namespace.block();
        let length = bytes.len() as u64;
        let is_whole = offset.is_multiple_of(block) && length.is_multiple_of(block);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= namespace.bytes());
        if !is_whole || !is_inside {
            let why = format!("a namespace is written in whole blocks of {block} bytes");
            return Err(Error::new(ErrorKind::Unsupported, "write to", &opened.name, why)
                .with_hint("copy a file to it instead"));
        }
        let step = usize::try_from(namespace.side_bytes_max()?).expect("it is small");
        let all = offset..offset + length;
        let held = || QUARANTINE.until(&opened.subsystem().nqn, namespace.nsid(), &all, Instant::now());
        while let Some(until) = held() {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        for (index, part) in bytes.chunks(step).enumerate() {
            let at = offset + (index * step) as u64;
            let write = Nvm::Write {
                range: namespace.range(at, part.len() as u64),
                is_durable: false,
            };
            opened.run(write.sqe(namespace.nsid()), part, &mut [])?;
            opened.history.end_write();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use straightway_nvme::Nqn;

    use super::*;
    use crate::portal::Portal;

    #[test]
    fn a_forked_child_does_not_use_the_connections_of_its_parent() {
        let portal = Portal::new("127.0.0.1", 9);
        let mut catalog = Catalog::new(&portal, Nqn::new("nqn.forked").unwrap(), &Arc::default());
        Arc::get_mut(&mut catalog).unwrap().subsystem.disown();
        let entry = IndexEntry {
            nsid: 0,
            is_writable: false,
            bytes: 0,
            version: 0,
            name: b"empty".to_vec(),
        };
        let namespace = Namespace::open_entry(&catalog, entry, "the object".to_owned()).unwrap();
        let flushed = namespace.opened.flush();
        let (_, asked) = catalog.subsystem.attempt(|_| Ok(())).unwrap_err();
        let read = namespace.read_exact_at(0, &mut []);
        let checked = namespace.check_unchanged();
        let namespace = Arc::new(namespace);
        let written = InPlace { namespace }.write_all_at(0, &[]);
        let errors = [flushed, read, checked, written].map(Result::unwrap_err);
        for error in errors.into_iter().chain([asked]) {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("forked"), "{error}");
        }
    }
}
