//! A checkpoint that is open to be read: its manifest, and the files that its chunks lie in.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use hashbrown::HashMap;
use straightway_core::{Error, Kind, Result};
use straightway_io::{
    Handle, Store,
    store::{Missing, Named, Tag, open_one},
};

use super::{
    manifest::{Manifest, Stored},
    name::step_folder,
    steps::Steps,
    sum::Sum,
};
use crate::weights::quoted;

/// Files that were opened, by the step whose folder they lie in and their name there.
type Opened = HashMap<(u64, String), Arc<dyn Handle>>;

/// A checkpoint to read. Files that were opened stay open, so it can be read to its end even when it
/// is removed meanwhile.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    manifest: Arc<Manifest>,
    store: Steps,
    /// The folder that its own files are in: the step's, or before the commit the attempt's.
    own: String,
    files: Arc<Mutex<Opened>>,
}

impl Steps {
    /// Opens a step.
    pub fn checkpoint(&self, step: u64) -> Result<Checkpoint> {
        let manifest = self.manifest(step)?;
        Ok(Checkpoint::new(self, step_folder(step), manifest))
    }

    /// Opens the latest step.
    ///
    /// A step that is removed between the listing and the opening is no longer the latest.
    pub fn open_latest(&self) -> Result<Checkpoint> {
        loop {
            let step = self.latest()?;
            match self.checkpoint(step) {
                Err(error) if error.kind() == Kind::NotFound => {}
                opened => return opened,
            }
        }
    }
}

impl Checkpoint {
    pub(crate) fn new(store: &Steps, own: String, manifest: Manifest) -> Self {
        Self {
            manifest: Arc::new(manifest),
            store: store.clone(),
            own,
            files: Arc::default(),
        }
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Where a file is that its chunks lie in.
    pub(crate) fn path(&self, step: u64, file: &str) -> PathBuf {
        self.store.folder().join(self.folder_of(step)).join(file)
    }

    /// The name of the folder that its chunks in a step lie in.
    fn folder_of(&self, step: u64) -> String {
        if step == self.manifest.step {
            self.own.clone()
        } else {
            step_folder(step)
        }
    }

    /// The store that it is in.
    pub(crate) fn root(&self) -> &Arc<dyn Store> {
        self.store.shared()
    }

    /// An object that its chunks lie in, opened once.
    pub(crate) fn handle(&self, step: u64, name: &str) -> Result<Arc<dyn Handle>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (step, name.to_owned());
        if let Some(file) = files.get(&key) {
            return Ok(Arc::clone(file));
        }
        let folder = self.folder_of(step);
        let folder = self.store.root().below(folder.as_ref(), Missing::Refuse)?;
        let file = self.open_version(&*folder, step, name)?;
        files.insert(key, Arc::clone(&file));
        Ok(file)
    }

    /// Opens an object of a step: the version that the manifest names, where it names one. So one that was replaced is
    /// refused before a byte of it is read.
    fn open_version(&self, folder: &dyn Store, step: u64, name: &str) -> Result<Arc<dyn Handle>> {
        let address = self.store.root().address();
        let Some(version) = self.manifest.version(&address, step, name) else {
            return open_one(folder, name.as_ref());
        };
        let named = Named {
            tag: Some(Tag::Text(version.to_owned())),
            ..Named::new(name)
        };
        let opened = folder.open(std::slice::from_ref(&named));
        let mut opened = opened.map_err(|error| match error.kind() {
            Kind::Corrupt => {
                let message = format!(
                    "it was replaced since it was saved: it is not version {version} any more, which the manifest names"
                );
                Error::new(Kind::Corrupt, "open", folder.describe(name.as_ref()), message)
                    .with_hint("restore an earlier step")
            }
            _ => error,
        })?;
        Ok(opened.pop().expect("one handle for each name"))
    }

    /// Where a chunk lies.
    pub(crate) fn place(&self, shard: usize, chunk: usize) -> Stored {
        let manifest = &self.manifest;
        manifest.shards[shard].place(manifest.step, chunk, manifest.chunk_bytes)
    }

    /// How long a chunk is.
    pub(crate) fn chunk_len(&self, shard: usize, chunk: usize) -> usize {
        let extent = self.manifest.shards[shard].extent(chunk, self.manifest.chunk_bytes);
        usize::try_from(extent.bytes).expect("a chunk fits into memory")
    }

    /// Reads a chunk, here and now, and checks it. For what is done rarely.
    pub(crate) fn read_chunk(&self, shard: usize, chunk: usize) -> Result<Vec<u8>> {
        let place = self.place(shard, chunk);
        let file = self.handle(place.step, &place.file)?;
        let length = usize::try_from(place.bytes).expect("a chunk fits into memory");
        let mut stored = vec![0; length];
        file.read_exact_at(place.offset, &mut stored)?;
        let mut bytes = vec![0; self.chunk_len(shard, chunk)];
        let unpacked = place.codec.restore(&stored, &mut bytes);
        unpacked.map_err(|why| self.damaged(shard, chunk, &why))?;
        self.check(shard, chunk, &bytes)?;
        Ok(bytes)
    }

    /// Checks the bytes of a chunk. An error names the file, the chunk and what is in it.
    pub(crate) fn check(&self, shard: usize, chunk: usize, bytes: &[u8]) -> Result<()> {
        let (found, wanted) = (Sum::of(bytes), self.manifest.shards[shard].chunks[chunk]);
        if found == wanted {
            return Ok(());
        }
        let message = format!("its checksum is {found}, and {wanted} is meant");
        Err(self.damaged(shard, chunk, &message))
    }

    /// An error about a chunk.
    pub(crate) fn damaged(&self, shard: usize, chunk: usize, why: &str) -> Error {
        let place = self.place(shard, chunk);
        let path = self.path(place.step, &place.file);
        let target = format!("chunk {chunk} of {}", path.display());
        let message = format!("{why}; in it {}", self.contents(shard, chunk));
        Error::new(Kind::Corrupt, "read", target, message)
            .with_hint("restore an earlier step; parity (`Options::parity`) lets damage be mended")
    }

    /// What is in a chunk, in words.
    fn contents(&self, shard: usize, chunk: usize) -> String {
        let extent = self.manifest.shards[shard].extent(chunk, self.manifest.chunk_bytes);
        let is_inside = |tensor: &&super::manifest::Saved| {
            tensor.parts.iter().any(|part| {
                let bytes = part.rectangle.elements() * tensor.dtype.bits() / 8;
                let own = straightway_core::Extent::new(part.offset, bytes);
                part.shard as usize == shard && !own.intersection(extent).is_empty()
            })
        };
        let mut names = self.manifest.tensors.iter().filter(is_inside);
        let Some(first) = names.next() else {
            return "is the header only".to_owned();
        };
        match names.count() {
            0 => format!("is tensor {}", quoted(&first.name)),
            more => format!("are tensor {} and {more} more", quoted(&first.name)),
        }
    }
}
