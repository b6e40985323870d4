//! Exports a checkpoint as plain safetensors files in the layout of Hugging Face: whole tensors, and an index if there
//! are several files. Any safetensors reader can read them.
//!
//! All files are hidden until the last tensor was read, checked and written ([`ModelDraft`]).

use std::{collections::BTreeMap, sync::Arc};

use straightway_core::{ErrorKind, Place, Result};
use straightway_io::{
    Region,
    store::{Listing, Location, Missing, list_all},
};
use straightway_weights::{self as weights, IndexPlan, ModelDraft, ModelFile, Placed, TensorEntry};

use super::{
    manifest::Saved,
    opened::Checkpoint,
    restorer::{Fetched, Restorer},
    scatter::Wanted,
};

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
    pub fn gather(&self, checkpoint: &Checkpoint, tensors: &[&Saved], place: Place) -> Result<Gathered> {
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
    /// each. A failed export leaves no file.
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
        let (opaque, tensors): (Vec<_>, Vec<_>) = manifest.tensors.iter().partition(|t| t.opaque);
        let mut exported = Exported {
            left_out: opaque.iter().map(|t| t.name.to_string()).collect(),
            ..Exported::default()
        };
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let files = ModelFile::divided(&folder, tensors, &metadata, shard_bytes);
        let index = (files.len() > 1).then(IndexPlan::default);
        let draft = ModelDraft::create(&folder, files, index)?;
        for file in &draft.files {
            let gathered = self.gather(checkpoint, &file.tensors, Place::Host)?;
            saver.write_tensors(file, &gathered.region, &gathered.tensors)?;
            exported.tensors += gathered.tensors.len();
            exported.bytes += gathered.tensors.iter().map(|t| t.bytes).sum::<u64>();
            exported.files.push(file.name());
        }
        // The folder was empty: there are no old files that could be left.
        draft.commit()?;
        Ok(exported)
    }
}

impl<'a> From<&'a Saved> for TensorEntry<'a> {
    fn from(tensor: &'a Saved) -> Self {
        Self::new(&tensor.name, tensor.dtype, &tensor.shape, tensor.bytes())
    }
}
