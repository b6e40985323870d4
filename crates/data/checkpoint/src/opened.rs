//! An open checkpoint: its manifest, and the files that hold its chunks.

use std::{path::PathBuf, sync::Arc};

use hashbrown::HashMap;
use straightway_core::{Error, ErrorKind, Lock, Result};
use straightway_io::{
    Handle, Store,
    store::{Location, Missing, Named, StoreExt, Tag, open_one},
};
use straightway_weights::quoted;

use super::{
    manifest::{ChunkLocation, Manifest},
    name::step_folder,
    steps::Steps,
    sum::Sum,
};

/// Open files, by step and name.
type Opened = HashMap<(u64, String), Arc<dyn Handle>>;

/// A checkpoint to read. Files stay open once opened, so it can be read to its end even if it is removed meanwhile.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    manifest: Arc<Manifest>,
    store: Steps,
    /// The folder of its own files: that of the step, or before the commit that of the attempt.
    own: String,
    files: Arc<Lock<Opened>>,
}

impl Steps {
    /// Opens a step.
    pub fn checkpoint(&self, step: u64) -> Result<Checkpoint> {
        let manifest = self.manifest(step)?;
        Ok(Checkpoint::new(self, step_folder(step), manifest))
    }

    /// Opens the latest step.
    ///
    /// If a step is removed between listing and opening, the next latest is opened.
    pub fn open_latest(&self) -> Result<Checkpoint> {
        loop {
            let step = self.latest()?;
            match self.checkpoint(step) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
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

    /// The location of the checkpoints that it is one of.
    pub fn location(&self) -> Location {
        self.store.location()
    }

    /// The path of a file that holds some of its chunks.
    pub(crate) fn path(&self, step: u64, file: &str) -> PathBuf {
        self.store.folder().join(self.folder_of(step)).join(file)
    }

    /// The name of the folder that holds its chunks of a step.
    fn folder_of(&self, step: u64) -> String {
        if step == self.manifest.step {
            self.own.clone()
        } else {
            step_folder(step)
        }
    }

    /// Its store.
    pub(crate) fn root(&self) -> &Arc<dyn Store> {
        self.store.shared()
    }

    /// An object that holds some of its chunks. Each is opened once.
    pub(crate) fn handle(&self, step: u64, name: &str) -> Result<Arc<dyn Handle>> {
        let mut files = self.files.lock();
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

    /// Opens an object of a step in the version that the manifest names, if it names one. A replaced object is thus
    /// refused before it is read.
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
            ErrorKind::Precondition => {
                let message = format!(
                    "it was replaced since it was saved: its version is not {version}, which the manifest names"
                );
                Error::new(ErrorKind::Corrupt, "open", folder.describe(name.as_ref()), message)
                    .with_hint("restore an earlier step")
            }
            _ => error,
        })?;
        Ok(opened.pop().expect("one handle for each name"))
    }

    /// The location of a chunk.
    pub(crate) fn place(&self, shard: usize, chunk: usize) -> ChunkLocation {
        let manifest = &self.manifest;
        manifest.shards[shard].place(manifest.step, chunk, manifest.chunk_bytes)
    }

    /// The length of a chunk.
    pub(crate) fn chunk_len(&self, shard: usize, chunk: usize) -> usize {
        let extent = self.manifest.shards[shard].extent(chunk, self.manifest.chunk_bytes);
        usize::try_from(extent.bytes).expect("a chunk fits into memory")
    }

    /// Reads a chunk on this thread, without lanes, and checks it. For rare operations.
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

    /// Checks the bytes of a chunk. The error names the file, the chunk and its tensors.
    pub(crate) fn check(&self, shard: usize, chunk: usize, bytes: &[u8]) -> Result<()> {
        let (found, wanted) = (Sum::of(bytes), self.manifest.shards[shard].chunks[chunk]);
        if found == wanted {
            return Ok(());
        }
        let message = format!("its checksum is {found}, expected {wanted}");
        Err(self.damaged(shard, chunk, &message))
    }

    /// The error of a damaged chunk.
    pub(crate) fn damaged(&self, shard: usize, chunk: usize, why: &str) -> Error {
        let place = self.place(shard, chunk);
        let path = self.path(place.step, &place.file);
        let target = format!("chunk {chunk} of {}", path.display());
        let message = format!("{why}; it holds {}", self.contents(shard, chunk));
        Error::new(ErrorKind::Corrupt, "read", target, message)
            .with_hint("restore an earlier step; a step that was saved with parity can be repaired")
    }

    /// The tensors in a chunk, as text.
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
            return "only the header".to_owned();
        };
        match names.count() {
            0 => format!("tensor {}", quoted(&first.name)),
            more => format!("tensor {} and {more} more", quoted(&first.name)),
        }
    }
}
