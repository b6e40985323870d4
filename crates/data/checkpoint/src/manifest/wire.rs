//! The JSON of manifests, and its conversion into checked types.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use straightway_core::{Error, ErrorKind, Result};
use straightway_weights::{Dtype, Rectangle, Shape};

use super::{Manifest, ParityRecord, Saved, SavedPart, ShardRecord, VERSION, Versions};
use crate::sum::{CHECKSUM, DIGEST};

pub(super) const MANIFEST_SCHEMA: &str = "straightway.checkpoint";

/// The members that every version has.
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

/// The JSON of a tensor, also in shard reports.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorWire {
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
            metadata: RawValue::from_string(manifest.metadata.clone()).expect("it was checked to be JSON"),
            tensors: manifest.tensors.iter().map(TensorWire::of).collect(),
            shards: manifest.shards.clone(),
            parity: manifest.parity.clone(),
            versions: manifest.versions.clone(),
        }
    }

    /// Converts it into a checked manifest.
    pub(super) fn checked(self, name: &str) -> Result<Manifest> {
        let algorithms = (self.checksum.as_str(), self.digest.as_deref());
        if !matches!(algorithms, (CHECKSUM, None | Some(DIGEST))) {
            let message = format!(
                "its checksums are {:?} and {:?}, and {CHECKSUM:?} and {DIGEST:?} are known",
                self.checksum, self.digest
            );
            return Err(Error::new(ErrorKind::Unsupported, "read", name, message));
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
    pub(crate) fn of(tensor: &Saved) -> Self {
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

    /// Converts it into a tensor, which is checked by itself.
    pub(crate) fn checked(self, name: &str) -> Result<Saved> {
        let corrupt = |e: Error| Error::new(ErrorKind::Corrupt, "read", name, e.to_string());
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
        super::check_tensor(&tensor).map_err(|why| Error::new(ErrorKind::Corrupt, "read", name, why))?;
        Ok(tensor)
    }
}
