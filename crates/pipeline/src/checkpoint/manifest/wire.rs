//! The JSON of manifests and parts, just as it is written, and its way into what is checked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use straightway_core::{Error, Kind, Result};

use super::{Manifest, ParityRecord, Saved, SavedPart, ShardRecord, VERSION};
use crate::{
    checkpoint::sum::{CHECKSUM, DIGEST},
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
    pub(crate) step: u64,
    pub(crate) run: String,
    pub(crate) sequence: u64,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) chunk_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<u64>,
    pub(crate) writer: String,
    tensors: Vec<TensorWire>,
    pub(crate) shard: ShardRecord,
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
    /// A part of these tensors, each with one rectangle or more in `shard`, which is number 0.
    pub(crate) fn new(
        attempt: &crate::checkpoint::Attempt,
        world: u32,
        chunk_bytes: u64,
        parent: Option<u64>,
        tensors: &[Saved],
        shard: ShardRecord,
    ) -> Self {
        Self {
            schema: PART_SCHEMA.to_owned(),
            version: VERSION,
            step: attempt.step,
            run: attempt.run.clone(),
            sequence: attempt.sequence,
            rank: shard.rank,
            world,
            chunk_bytes,
            parent,
            writer: String::new(),
            tensors: tensors.iter().map(TensorWire::of).collect(),
            shard,
        }
    }

    /// Its tensors, checked one by one.
    pub(crate) fn take_tensors(&mut self, name: &str) -> Result<Vec<Saved>> {
        let tensors = std::mem::take(&mut self.tensors);
        tensors.into_iter().map(|t| t.checked(name)).collect()
    }
}
