//! Exports a checkpoint as plain safetensors files in the layout of Hugging Face: whole tensors, and an index if there
//! are several files. Any safetensors reader can read them.

use std::{collections::BTreeMap, sync::Arc};

use straightway_core::{ErrorKind, Place, Result};
use straightway_io::{
    Region,
    store::{Condition, Durability, Listing, Location, Missing, list_all},
};

use super::{
    manifest::Saved,
    opened::Checkpoint,
    restorer::{Fetched, Restorer},
    scatter::Wanted,
};
use crate::weights::{self, Placed};

/// The default maximum file size, unless a tensor is larger. Model hubs accept it.
pub const EXPORT_BYTES: u64 = 5_000_000_000;

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// The files.
    pub files: Vec<String>,
    /// The number of tensors.
    pub tensors: usize,
    /// The size of the tensors in bytes.
    pub bytes: u64,
    /// Values that are not tensors, which were left out.
    pub left_out: Vec<String>,
}

/// Restored tensors in one region, each aligned.
#[derive(Debug)]
pub struct Gathered {
    /// Their memory.
    pub region: Arc<Region>,
    /// The place of each tensor.
    pub tensors: Vec<Placed>,
    /// The result of the restore.
    pub fetched: Fetched,
}

impl Restorer {
    /// Restores whole tensors, one after the other, into a new region at `place`.
    pub fn gather(
        &self,
        checkpoint: &Checkpoint,
        tensors: &[&Saved],
        place: Place,
    ) -> Result<Gathered> {
        let mut at = 0_u64;
        let place_one = |tensor: &&Saved| {
            let placed = Placed {
                name: tensor.name.as_ref().into(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                at,
                bytes: tensor.bytes(),
            };
            at = (at + placed.bytes).next_multiple_of(weights::LARGE_ALIGN_BYTES);
            placed
        };
        let placed: Vec<_> = tensors.iter().map(place_one).collect();
        let region = Arc::new(Region::at(place, at.max(1))?);
        let want = |tensor: &Placed| Wanted::whole(&tensor.name, &tensor.shape, &region, tensor.at);
        let wanted: Vec<_> = placed.iter().map(want).collect();
        let fetched = self.restore(checkpoint, &wanted)?;
        drop(wanted);
        Ok(Gathered {
            region,
            tensors: placed,
            fetched,
        })
    }

    /// Writes the tensors of a checkpoint to `folder`, which must be new or empty, in files of at most `shard_bytes`
    /// each.
    pub fn export(
        &self,
        checkpoint: &Checkpoint,
        saver: &weights::FileSaver,
        folder: impl Into<Location>,
        shard_bytes: u64,
    ) -> Result<Exported> {
        let folder = folder.into();
        let inside = folder.below(Missing::Create)?;
        if list_all(&*inside)? != Listing::default() {
            let message = "it is not empty";
            return Err(folder.error(ErrorKind::Invalid, "export to", message));
        }
        let manifest = checkpoint.manifest();
        let mut exported = Exported::default();
        let (opaque, tensors): (Vec<_>, Vec<_>) = manifest.tensors.iter().partition(|t| t.opaque);
        exported.left_out = opaque.iter().map(|t| t.name.to_string()).collect();
        let groups = weights::divide(tensors, |tensor| tensor.bytes(), shard_bytes);
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let name = |number: usize| weights::shard_name(number, groups.len());
        if groups.len() > 1 {
            // The index is written first: until the last file exists, readers report which one is missing.
            let index = index(&groups, &name);
            let (name, always) = (weights::INDEX_NAME.as_ref(), &Condition::Always);
            inside.put(name, index.as_bytes(), always, Durability::Synced)?;
        }
        for (number, group) in groups.iter().enumerate() {
            let file = name(number);
            let gathered = self.gather(checkpoint, group, Place::Host)?;
            let target = folder.join(&file);
            saver.save(target, &gathered.region, &gathered.tensors, &metadata)?;
            exported.tensors += gathered.tensors.len();
            exported.bytes += gathered.tensors.iter().map(|t| t.bytes).sum::<u64>();
            exported.files.push(file);
        }
        Ok(exported)
    }
}

/// The index of the files to write. `name` returns the file name of each group.
fn index(groups: &[Vec<&Saved>], name: &impl Fn(usize) -> String) -> String {
    let mut weight_map = serde_json::Map::new();
    for (number, group) in groups.iter().enumerate() {
        let place = |tensor: &&Saved| (tensor.name.to_string(), name(number).into());
        weight_map.extend(group.iter().map(place));
    }
    let bytes: u64 = groups.iter().flatten().map(|t| t.bytes()).sum();
    let mut metadata = serde_json::Map::new();
    metadata.insert("total_size".to_owned(), bytes.into());
    weights::index_text(&metadata, &weight_map)
}
