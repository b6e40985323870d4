//! The manifest of a checkpoint: what is where, and what it must be.
//!
//! Whoever holds a [`Manifest`] may rely on it: it was sealed whole, every rectangle lies inside its
//! tensor and every part inside its shard, the parts of a tensor are all of it and overlap nowhere, every chunk has its
//! checksum, and no file name leads out of the folder. `docs/checkpoint.md` describes the text.

mod check;
mod overlap;
mod wire;

use std::{path::Path, sync::Arc};

use hashbrown::HashMap;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use straightway_core::{Error, Extent, Kind, Result};
use straightway_io::store::Store;
use straightway_sys::Folder;

use super::{
    codec::Codec,
    name::MANIFEST,
    seal,
    sum::{Digest, Sum},
};
use crate::weights::{Dtype, Rectangle, Shape};

pub(crate) use check::{check_chunk_bytes, check_tensor};
pub(crate) use overlap::covers;
pub(crate) use wire::{PART_SCHEMA, PartWire};

/// The longest manifest. One of 4 TiB in chunks of 4 MiB has some 60 MiB.
pub const MANIFEST_BYTES_MAX: u64 = 512 << 20;

/// Ranks that a job may have.
pub const RANKS_MAX: u32 = 1 << 16;

/// Parity files that a checkpoint may have.
pub const PARITY_MAX: usize = 64;

/// How long the chunks are that shards are cut into.
pub const CHUNK_BYTES: u64 = 4 << 20;

/// The version of the format that is written, and the highest that is read.
pub const VERSION: u32 = 1;

/// What is known of one checkpoint.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Which step it is.
    pub step: u64,
    /// How many ranks saved it.
    pub world: u32,
    /// The run that saved it.
    pub run: String,
    /// How long chunks are.
    pub chunk_bytes: u64,
    /// The step that an incremental save refers to.
    pub parent: Option<u64>,
    /// The user's own, as JSON.
    pub metadata: String,
    /// Its tensors, by name.
    pub tensors: Vec<Saved>,
    /// Its shards.
    pub shards: Vec<ShardRecord>,
    /// Its parity files.
    pub parity: Vec<ParityRecord>,
    /// The versions of its objects, where the store has any.
    pub versions: Option<Versions>,
    /// The number of each tensor in the list, once the manifest was checked.
    pub(super) numbers: HashMap<Arc<str>, u32>,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// What it is called.
    pub name: Arc<str>,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its shape over all ranks.
    pub shape: Shape,
    /// Whether it is not a tensor but somebody's bytes.
    pub opaque: bool,
    /// What of it is in which shard.
    pub parts: Vec<SavedPart>,
}

/// A rectangle of a tensor, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPart {
    /// In which shard.
    pub shard: u32,
    /// Where in that shard's image.
    pub offset: u64,
    /// Which part of the tensor it is.
    pub rectangle: Rectangle,
}

/// A rank's shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// Its file.
    pub file: String,
    /// Whose it is.
    pub rank: u32,
    /// How long its image is.
    pub bytes: u64,
    /// The checksum of each chunk.
    pub chunks: Vec<Sum>,
    /// The digest of each chunk, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
    /// Where each chunk lies; absent where the file is the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<Vec<Stored>>,
}

/// Where a chunk really lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// In which step.
    pub step: u64,
    /// In which of its files.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// How many bytes there.
    pub bytes: u64,
    /// How they were made from the chunk.
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

/// The versions of the objects that a step lies in, as the store told them at the commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// The store that told them. A copy of the step elsewhere has other versions of the same bytes.
    pub store: String,
    /// The objects, in order.
    pub objects: Vec<ObjectVersion>,
}

/// The version of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectVersion {
    /// In which step it lies.
    pub step: u64,
    /// What it is called there.
    pub file: String,
    /// What the store calls this version: an `ETag`.
    pub tag: String,
}

impl Versions {
    /// The version of an object in the store that told it.
    fn find(&self, store: &str, step: u64, file: &str) -> Option<&str> {
        let order = |known: &ObjectVersion| (known.step, known.file.as_str()).cmp(&(step, file));
        let found = self.objects.binary_search_by(order).ok()?;
        (self.store == store).then(|| self.objects[found].tag.as_str())
    }
}

impl Manifest {
    /// The version of one of its objects, if this is the store that it was committed to.
    pub(crate) fn version(&self, store: &str, step: u64, file: &str) -> Option<&str> {
        self.versions.as_ref()?.find(store, step, file)
    }

    /// Reads the manifest of a step.
    pub(crate) fn read(held: &dyn Store) -> Result<Self> {
        let name = MANIFEST.as_ref();
        Self::parse(&held.describe(name), &held.get(name, MANIFEST_BYTES_MAX)?)
    }

    /// Whether a folder has one, and so is a step.
    pub fn is_in(folder: &Path) -> bool {
        let found = Folder::open(folder).and_then(|folder| folder.has_file(MANIFEST));
        found.unwrap_or(false)
    }

    /// The manifest that is this text. Errors call it `name`.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self> {
        open::<wire::ManifestWire>(name, text, wire::MANIFEST_SCHEMA)?.checked(name)
    }

    /// Its text.
    pub fn text(&self) -> String {
        seal::seal(&wire::ManifestWire::of(self))
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Saved> {
        let number = self.numbers.get(name)?;
        Some(&self.tensors[*number as usize])
    }

    /// How many bytes its tensors have.
    pub fn bytes(&self) -> u64 {
        let bytes = self.tensors.iter().map(Saved::bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Other steps that its chunks lie in, in order.
    pub fn referenced(&self) -> Vec<u64> {
        let stored = self.shards.iter().filter_map(|s| s.stored.as_ref());
        let steps = stored.flatten().map(|s| s.step);
        let mut steps: Vec<_> = steps.filter(|step| *step != self.step).collect();
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    /// How many bytes of shards were written for this step: less than its image where it refers to
    /// others or is compressed.
    pub fn written_bytes(&self) -> u64 {
        let bytes = self.shards.iter().map(|s| s.written_bytes(self.step));
        bytes.fold(0, u64::saturating_add)
    }

    /// How long its shards would be if each were whole in its own file.
    pub fn image_bytes(&self) -> u64 {
        let bytes = self.shards.iter().map(|shard| shard.bytes);
        bytes.fold(0, u64::saturating_add)
    }
}

impl Saved {
    /// How many bytes all of it has.
    pub fn bytes(&self) -> u64 {
        self.shape
            .elements()
            .map_or(0, |n| n * self.dtype.bits() / 8)
    }
}

impl ShardRecord {
    /// How long its file is, if it is one of step `step`.
    pub(crate) fn file_bytes(&self, step: u64) -> u64 {
        let Some(stored) = &self.stored else {
            return self.bytes;
        };
        let own = stored
            .iter()
            .filter(|s| s.step == step && s.file == self.file);
        own.map(|s| s.offset + s.bytes).max().unwrap_or(0)
    }

    /// How many bytes of it were written for step `step`.
    pub(crate) fn written_bytes(&self, step: u64) -> u64 {
        let Some(stored) = &self.stored else {
            return self.bytes;
        };
        let own = stored.iter().filter(|s| s.step == step);
        own.map(|s| s.bytes).fold(0, u64::saturating_add)
    }

    /// Which bytes of the image chunk `number` has.
    pub fn extent(&self, number: usize, chunk_bytes: u64) -> Extent {
        let start = number as u64 * chunk_bytes;
        Extent::between(start, self.bytes.min(start + chunk_bytes))
    }

    /// Where chunk `number` lies, if the shard is one of step `step`.
    pub fn place(&self, step: u64, number: usize, chunk_bytes: u64) -> Stored {
        if let Some(stored) = &self.stored {
            return stored[number].clone();
        }
        let extent = self.extent(number, chunk_bytes);
        Stored {
            step,
            file: self.file.clone(),
            offset: extent.offset,
            bytes: extent.bytes,
            codec: Codec::Raw,
        }
    }
}

/// The sealed object, if it is of this schema and of a version that is known.
pub(crate) fn open<T: DeserializeOwned>(name: &str, text: &[u8], schema: &str) -> Result<T> {
    let sealed = seal::unseal(name, text);
    let body = sealed.as_deref().map_or(text, str::as_bytes);
    match serde_json::from_slice::<wire::Head>(body) {
        Ok(head) if head.schema == schema && head.version > VERSION => {
            let version = head.version;
            let newest = format!("version {version}, and {VERSION} is the newest known");
            let hint = "read it with the straightway that wrote it, or a newer one";
            // A newer version may be sealed in another way. What is sealed in this one, and wrongly, is
            // more likely damaged, and its version may be what is.
            let (kind, message) = if sealed.is_err() && seal::is_sealed(text) {
                let message = format!(
                    "its checksum does not match: it is damaged, or sealed in another way and of {newest}"
                );
                (Kind::Corrupt, message)
            } else {
                (Kind::Unsupported, format!("it is of {newest}"))
            };
            Err(Error::new(kind, "read", name, message).with_hint(hint))
        }
        Ok(head) if sealed.is_ok() && (head.schema.as_str(), head.version) != (schema, VERSION) => {
            let message = format!("it is not a {schema} of version {VERSION}");
            Err(Error::new(Kind::Corrupt, "read", name, message))
        }
        _ => serde_json::from_str(&sealed?)
            .map_err(|e| Error::new(Kind::Corrupt, "read", name, e.to_string())),
    }
}
