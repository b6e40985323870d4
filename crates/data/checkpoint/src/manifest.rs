//! The manifest of a checkpoint: its tensors, shards, chunks and checksums.
//!
//! A [`Manifest`] guarantees: its seal was valid, every rectangle lies inside its tensor and every part inside its
//! shard, the parts of a tensor cover it without overlaps, every chunk has a checksum, and no file name leads out of
//! the folder. `docs/checkpoint.md` describes the text.

mod check;
mod overlap;
mod wire;

use std::{path::Path, sync::Arc};

use hashbrown::HashMap;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use straightway_core::{Error, ErrorKind, Extent, Result};
use straightway_io::store::{Store, StoreExt};
use straightway_sys::Folder;
use straightway_weights::{Dtype, Rectangle, Shape};

use super::{
    codec::Codec,
    name::MANIFEST,
    seal,
    sum::{Digest, Sum},
};

pub(crate) use check::{check_chunk_bytes, check_tensor};
pub(crate) use overlap::covers;
pub(crate) use wire::TensorWire;

/// The maximum length of a manifest. That of 4 TiB in chunks of 4 MiB has some 60 MiB.
pub const MANIFEST_BYTES_MAX: u64 = 512 << 20;

/// The maximum number of ranks of a job.
pub const RANKS_MAX: u32 = 1 << 16;

/// The maximum number of parity files of a checkpoint.
pub const PARITY_MAX: usize = 64;

/// The default chunk size.
pub const CHUNK_BYTES: u64 = 4 << 20;

/// The version of the format that is written, which is also the highest that can be read.
pub const VERSION: u32 = 1;

/// A checked manifest.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The number of the step.
    pub step: u64,
    /// The number of ranks that saved it.
    pub world: u32,
    /// The run that saved it.
    pub run: String,
    /// The chunk size.
    pub chunk_bytes: u64,
    /// The step that an incremental save was compared with.
    pub parent: Option<u64>,
    /// The user's metadata, as JSON.
    pub metadata: String,
    /// Its tensors, sorted by name.
    pub tensors: Vec<Saved>,
    /// Its shards.
    pub shards: Vec<ShardRecord>,
    /// Its parity files.
    pub parity: Vec<ParityRecord>,
    /// The versions of its objects, if the store has versions.
    pub versions: Option<Versions>,
    /// The index of each tensor in `tensors`, set when the manifest is checked.
    pub(super) numbers: HashMap<Arc<str>, u32>,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Its name.
    pub name: Arc<str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape over all ranks.
    pub shape: Shape,
    /// Whether it is not a tensor but opaque bytes.
    pub opaque: bool,
    /// Its parts, and the shards that hold them.
    pub parts: Vec<SavedPart>,
}

/// A rectangle of a tensor, and its place in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPart {
    /// The number of the shard.
    pub shard: u32,
    /// The offset in the shard's image.
    pub offset: u64,
    /// The part of the tensor.
    pub rectangle: Rectangle,
}

/// A rank's shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// The name of its file.
    pub file: String,
    /// Its rank.
    pub rank: u32,
    /// The length of its image.
    pub bytes: u64,
    /// The checksum of each chunk.
    pub chunks: Vec<Sum>,
    /// The digest of each chunk, or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
    /// The location of each chunk; absent if the file is the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<Vec<ChunkLocation>>,
}

/// The location of a stored chunk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkLocation {
    /// The step that holds it.
    pub step: u64,
    /// The file in that step.
    pub file: String,
    /// The offset in the file.
    pub offset: u64,
    /// The stored length in bytes.
    pub bytes: u64,
    /// The compression of the chunk.
    pub codec: Codec,
}

/// A parity file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParityRecord {
    /// Its name.
    pub file: String,
    /// The checksum of each chunk.
    pub chunks: Vec<Sum>,
}

/// The versions of a step's objects, as the store reported them at the commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// The address of that store. A copy of the step in another store has other versions.
    pub store: String,
    /// The objects, sorted by step and file.
    pub objects: Vec<ObjectVersion>,
}

/// The version of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectVersion {
    /// The step that holds the object.
    pub step: u64,
    /// Its name in the step.
    pub file: String,
    /// The store's name for this version: an `ETag`.
    pub tag: String,
}

impl Versions {
    /// The version of an object, if `store` is the one that reported it.
    fn find(&self, store: &str, step: u64, file: &str) -> Option<&str> {
        let order = |known: &ObjectVersion| (known.step, known.file.as_str()).cmp(&(step, file));
        let found = self.objects.binary_search_by(order).ok()?;
        (self.store == store).then(|| self.objects[found].tag.as_str())
    }
}

impl Manifest {
    /// The version of one of its objects, if `store` is the one that it was committed to.
    pub(crate) fn version(&self, store: &str, step: u64, file: &str) -> Option<&str> {
        self.versions.as_ref()?.find(store, step, file)
    }

    /// Reads the manifest of a step.
    pub(crate) fn read(held: &dyn Store) -> Result<Self> {
        let name = MANIFEST.as_ref();
        Self::parse(&held.describe(name), &held.get(name, MANIFEST_BYTES_MAX)?)
    }

    /// Whether a folder has a manifest, and so is a step.
    pub fn is_in(folder: &Path) -> bool {
        let found = Folder::open(folder).and_then(|folder| folder.has_file(MANIFEST));
        found.unwrap_or(false)
    }

    /// Parses and checks a manifest. Errors call it `name`.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self> {
        open::<wire::ManifestWire>(name, text, wire::MANIFEST_SCHEMA)?.checked(name)
    }

    /// The sealed text of the manifest.
    pub fn text(&self) -> String {
        seal::seal(&wire::ManifestWire::of(self))
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Saved> {
        let number = self.numbers.get(name)?;
        Some(&self.tensors[*number as usize])
    }

    /// The total size of its tensors in bytes.
    pub fn bytes(&self) -> u64 {
        let bytes = self.tensors.iter().map(Saved::bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// The names of its own files: shards and parity.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        let shards = self.shards.iter().map(|shard| shard.file.as_str());
        shards.chain(self.parity.iter().map(|parity| parity.file.as_str()))
    }

    /// The other steps that hold some of its chunks, in order.
    pub fn referenced(&self) -> Vec<u64> {
        let stored = self.shards.iter().filter_map(|s| s.stored.as_ref());
        let steps = stored.flatten().map(|s| s.step);
        let mut steps: Vec<_> = steps.filter(|step| *step != self.step).collect();
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    /// The number of shard bytes that were written for this step: fewer than its images if it is incremental or
    /// compressed.
    pub fn written_bytes(&self) -> u64 {
        let bytes = self.shards.iter().map(|s| s.written_bytes(self.step));
        bytes.fold(0, u64::saturating_add)
    }

    /// The total length of its shards' images.
    pub fn image_bytes(&self) -> u64 {
        let bytes = self.shards.iter().map(|shard| shard.bytes);
        bytes.fold(0, u64::saturating_add)
    }
}

impl Saved {
    /// The size of the whole tensor in bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.elements().map_or(0, |n| n * self.dtype.bits() / 8)
    }
}

impl ShardRecord {
    /// The length of its file in step `step`.
    pub(crate) fn file_bytes(&self, step: u64) -> u64 {
        let Some(stored) = &self.stored else {
            return self.bytes;
        };
        let own = stored.iter().filter(|s| s.step == step && s.file == self.file);
        own.map(|s| s.offset + s.bytes).max().unwrap_or(0)
    }

    /// The number of its bytes that were written for step `step`.
    pub(crate) fn written_bytes(&self, step: u64) -> u64 {
        let Some(stored) = &self.stored else {
            return self.bytes;
        };
        let own = stored.iter().filter(|s| s.step == step);
        own.map(|s| s.bytes).fold(0, u64::saturating_add)
    }

    /// The extent of chunk `number` in the image.
    pub fn extent(&self, number: usize, chunk_bytes: u64) -> Extent {
        let start = number as u64 * chunk_bytes;
        Extent::between(start, self.bytes.min(start + chunk_bytes))
    }

    /// The location of chunk `number`, for a shard of step `step`.
    pub fn place(&self, step: u64, number: usize, chunk_bytes: u64) -> ChunkLocation {
        if let Some(stored) = &self.stored {
            return stored[number].clone();
        }
        let extent = self.extent(number, chunk_bytes);
        ChunkLocation {
            step,
            file: self.file.clone(),
            offset: extent.offset,
            bytes: extent.bytes,
            codec: Codec::Raw,
        }
    }
}

/// Unseals and parses an object of this schema and a known version.
pub(crate) fn open<T: DeserializeOwned>(name: &str, text: &[u8], schema: &str) -> Result<T> {
    let sealed = seal::unseal(name, text);
    let body = sealed.as_deref().map_or(text, str::as_bytes);
    match serde_json::from_slice::<wire::Head>(body) {
        Ok(head) if head.schema == schema && head.version > VERSION => {
            let version = head.version;
            let newest = format!("version {version}, and {VERSION} is the newest known");
            let hint = "read it with the straightway that wrote it, or a newer one";
            // A newer version may have another kind of seal. A text with an invalid seal of this kind is more likely
            // damaged, perhaps in its version.
            let (kind, message) = if sealed.is_err() && seal::is_sealed(text) {
                let message =
                    format!("its checksum does not match: it is damaged, or sealed in another way and of {newest}");
                (ErrorKind::Corrupt, message)
            } else {
                (ErrorKind::Unsupported, format!("it is of {newest}"))
            };
            Err(Error::new(kind, "read", name, message).with_hint(hint))
        }
        Ok(head) if sealed.is_ok() && (head.schema.as_str(), head.version) != (schema, VERSION) => {
            let message = format!("it is not a {schema} of version {VERSION}");
            Err(Error::new(ErrorKind::Corrupt, "read", name, message))
        }
        _ => serde_json::from_str(&sealed?).map_err(|e| Error::new(ErrorKind::Corrupt, "read", name, e.to_string())),
    }
}
