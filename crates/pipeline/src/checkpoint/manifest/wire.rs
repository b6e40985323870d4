//! The JSON of manifests and parts, just as it is written, and its way into what is checked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use straightway_core::{Error, Kind, Result};

use super::{Manifest, ParityRecord, Saved, SavedPart, ShardRecord, VERSION, Versions};
use crate::{
    checkpoint::{
        name::{Attempt, is_nonce},
        part::Part,
        sum::{CHECKSUM, DIGEST},
    },
    weights::{Dtype, Rectangle, Shape},
};

pub(crate) const MANIFEST_SCHEMA: &str = "straightway.checkpoint";
pub(crate) const PART_SCHEMA: &str = "straightway.checkpoint.part";

/// What any version begins with.
#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) schema: String,
    pub(super) version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ManifestWire {
    schema: String,
    version: u32,
    step: u64,
    world: u32,
    run: String,
    chunk_bytes: u64,
    checksum: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<u64>,
    metadata: Box<RawValue>,
    tensors: Vec<TensorWire>,
    shards: Vec<ShardRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parity: Vec<ParityRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    versions: Option<Versions>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorWire {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    opaque: bool,
    parts: Vec<RectangleWire>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RectangleWire {
    shard: u32,
    offset: u64,
    start: Vec<u64>,
    lengths: Vec<u64>,
}

/// What one rank says of its shard, as a part file has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartWire {
    schema: String,
    version: u32,
    step: u64,
    run: String,
    sequence: u64,
    rank: u32,
    world: u32,
    chunk_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<u64>,
    writer: String,
    tensors: Vec<TensorWire>,
    shard: ShardRecord,
}

impl ManifestWire {
    pub(super) fn of(manifest: &Manifest) -> Self {
        let has_digests = manifest.shards.iter().any(|s| !s.digests.is_empty());
        Self {
            schema: MANIFEST_SCHEMA.to_owned(),
            version: VERSION,
            step: manifest.step,
            world: manifest.world,
            run: manifest.run.clone(),
            chunk_bytes: manifest.chunk_bytes,
            checksum: CHECKSUM.to_owned(),
            digest: has_digests.then(|| DIGEST.to_owned()),
            parent: manifest.parent,
            metadata: RawValue::from_string(manifest.metadata.clone())
                .expect("it was checked to be JSON"),
            tensors: manifest.tensors.iter().map(TensorWire::of).collect(),
            shards: manifest.shards.clone(),
            parity: manifest.parity.clone(),
            versions: manifest.versions.clone(),
        }
    }

    /// The manifest, if all of it holds together.
    pub(super) fn checked(self, name: &str) -> Result<Manifest> {
        let algorithms = (self.checksum.as_str(), self.digest.as_deref());
        if !matches!(algorithms, (CHECKSUM, None | Some(DIGEST))) {
            let message = format!(
                "its checksums are {:?} and {:?}, and {CHECKSUM:?} and {DIGEST:?} are known",
                self.checksum, self.digest
            );
            return Err(Error::new(Kind::Unsupported, "read", name, message));
        }
        let tensors = self.tensors.into_iter().map(|t| t.checked(name));
        let manifest = Manifest {
            step: self.step,
            world: self.world,
            run: self.run,
            chunk_bytes: self.chunk_bytes,
            parent: self.parent,
            metadata: self.metadata.get().to_owned(),
            tensors: tensors.collect::<Result<_>>()?,
            shards: self.shards,
            parity: self.parity,
            versions: self.versions,
            numbers: hashbrown::HashMap::new(),
        };
        manifest.checked(name)
    }
}

impl TensorWire {
    fn of(tensor: &Saved) -> Self {
        let part = |part: &SavedPart| RectangleWire {
            shard: part.shard,
            offset: part.offset,
            start: part.rectangle.offsets().to_vec(),
            lengths: part.rectangle.lengths().to_vec(),
        };
        Self {
            name: tensor.name.to_string(),
            dtype: tensor.dtype.to_string(),
            shape: tensor.shape.to_vec(),
            opaque: tensor.opaque,
            parts: tensor.parts.iter().map(part).collect(),
        }
    }

    fn checked(self, name: &str) -> Result<Saved> {
        let corrupt = |e: Error| Error::new(Kind::Corrupt, "read", name, e.to_string());
        let shape = Shape::from(&*self.shape);
        let part = |wire: RectangleWire| {
            let (start, lengths) = (Shape::from(&*wire.start), Shape::from(&*wire.lengths));
            let rectangle = Rectangle::new(&self.name, &shape, start, lengths)?;
            Ok(SavedPart {
                shard: wire.shard,
                offset: wire.offset,
                rectangle,
            })
        };
        let parts = self.parts.into_iter().map(part);
        let parts = parts.collect::<Result<_>>().map_err(corrupt)?;
        let tensor = Saved {
            name: Arc::from(self.name),
            dtype: self.dtype.parse::<Dtype>().map_err(corrupt)?,
            shape,
            opaque: self.opaque,
            parts,
        };
        super::check_tensor(&tensor).map_err(|why| Error::new(Kind::Corrupt, "read", name, why))?;
        Ok(tensor)
    }
}

impl PartWire {
    pub(crate) fn of(part: &Part) -> Self {
        Self {
            schema: PART_SCHEMA.to_owned(),
            version: VERSION,
            step: part.attempt.step,
            run: part.attempt.run.clone(),
            sequence: part.attempt.sequence,
            rank: part.shard.rank,
            world: part.world,
            chunk_bytes: part.chunk_bytes,
            parent: part.parent,
            writer: part.writer.clone(),
            tensors: part.tensors.iter().map(TensorWire::of).collect(),
            shard: part.shard.clone(),
        }
    }

    /// The part, if its tensors hold together one by one.
    pub(crate) fn checked(self, name: &str) -> Result<Part> {
        let corrupt = |why: &str| Err(Error::new(Kind::Corrupt, "read", name, why));
        let tensors = self.tensors.into_iter().map(|t| t.checked(name));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let mut parts = tensors.iter().flat_map(|tensor| &tensor.parts);
        if parts.any(|part| part.shard != 0) {
            return corrupt("it speaks of shards of other ranks");
        }
        if !is_nonce(&self.writer) {
            return corrupt("its writer has no name that a saver has");
        }
        Ok(Part {
            attempt: Attempt {
                step: self.step,
                run: self.run,
                sequence: self.sequence,
            },
            world: self.world,
            chunk_bytes: self.chunk_bytes,
            parent: self.parent,
            writer: self.writer,
            tensors,
            shard: self.shard,
        })
    }
}
