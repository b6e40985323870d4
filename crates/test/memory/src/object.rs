//! The objects of a memory store: their versions and their bytes.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard},
    time::SystemTime,
};

use straightway_core::{Direction, Error, ErrorKind, Extent, Lock, Object, Reason, Result, SharedLock, Survey};
use straightway_io::{Handle, store::Tag};

/// Objects by name.
pub(super) type Objects = BTreeMap<String, Arc<MemoryObject>>;

/// The state that clones of a store share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) objects: Lock<Objects>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock()
    }
}

/// One version of an object.
#[derive(Debug)]
pub(super) struct MemoryObject {
    pub(super) shared: Arc<Shared>,
    pub(super) key: String,
    pub(super) bytes: u64,
    pub(super) version: u64,
    pub(super) modified: SystemTime,
    pub(super) content: Content,
}

impl MemoryObject {
    pub(super) fn own_tag(&self) -> Tag {
        Tag::Text(self.version.to_string())
    }
}

impl Handle for MemoryObject {
    fn object(&self) -> Object {
        let name = format!("memory:{}/{}", self.shared.name, self.key);
        Object::new(name, self.bytes)
    }

    fn tag(&self) -> Option<Tag> {
        Some(self.own_tag())
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let read = self.content.read_at(offset, |there| {
            let read = there.len().min(bytes.len());
            bytes[..read].copy_from_slice(&there[..read]);
            read
        });
        if read == bytes.len() {
            return Ok(());
        }
        let message = format!("it ends at byte {}", offset + read as u64);
        Err(Error::new(ErrorKind::Corrupt, "read", self.object().name, message))
    }

    fn survey(&self, _: Option<Extent>, _: Direction) -> Result<Survey> {
        Ok(Survey {
            doubt: Some(Reason::StoreInMemory),
            ..Survey::default()
        })
    }

    fn check_unchanged(&self) -> Result<()> {
        let version = self.shared.lock().get(&self.key).map(|now| now.version);
        if version == Some(self.version) {
            return Ok(());
        }
        let message = "it was replaced or removed while it was read";
        Err(Error::new(ErrorKind::Precondition, "read", self.object().name, message))
    }
}

/// Bytes that are read and written in place. A write beyond the end extends them.
#[derive(Debug, Default)]
pub(super) struct Content(SharedLock<Vec<u8>>);

impl Content {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(SharedLock::new(bytes))
    }

    /// Calls `take` with the bytes from `offset` to the end.
    pub(super) fn read_at<T>(&self, offset: u64, take: impl FnOnce(&[u8]) -> T) -> T {
        let all = self.0.read();
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        take(all.get(offset..).unwrap_or_default())
    }

    /// Calls `fill` with `bytes` bytes at `offset`.
    pub(super) fn write_at(&self, offset: u64, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        let mut all = self.0.write();
        let offset = usize::try_from(offset).expect("a test's object fits into memory");
        let end = offset + bytes;
        if all.len() < end {
            all.resize(end, 0);
        }
        fill(&mut all[offset..end]);
    }
}
