//! Tensors that are the pages of their files: nothing is read before it is used, and no byte is copied.
//!
//! This is what safetensors gives in host memory. Tensors whose bytes are not aligned for their elements, parts of
//! tensors, and files that cannot be mapped are read instead. Headers were read and checked beforehand, from a copy of
//! their own.

use std::{collections::BTreeMap, sync::Arc};

use straightway_core::{Place, Result};
use straightway_sys::FilePages;

use super::{Loader, Model, Pick, Placed, Prepared, Selection};

/// A tensor that is pages of a file.
#[derive(Clone, Debug)]
pub struct MappedTensor {
    /// The pages of its file.
    pub pages: Arc<FilePages>,
    /// What it is, and where in the file.
    pub placed: Placed,
}

/// What is selected of a model: mapped, where that is possible.
#[derive(Debug)]
pub struct Mapped {
    /// Those that are pages of files.
    pub tensors: Vec<MappedTensor>,
    /// The load of all others. Its receipt is that of both.
    pub rest: Prepared,
}

impl MappedTensor {
    /// A tensor of `model` that is whole and aligned, in the pages of its file. `None` where it is neither.
    pub fn new(model: &Model, pick: &Pick, pages: &Arc<FilePages>) -> Option<Self> {
        let tensor = pick.of(model);
        // The pages begin on a page, so that the offset decides.
        let is_aligned = tensor
            .extent
            .offset
            .is_multiple_of(tensor.dtype.align_bytes());
        if pick.part.is_some() || !is_aligned || tensor.extent.end() > pages.bytes() {
            return None;
        }
        Some(Self {
            pages: Arc::clone(pages),
            placed: Placed {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                at: tensor.extent.offset,
                bytes: tensor.extent.bytes,
            },
        })
    }
}

impl Loader {
    /// Maps what is selected of a model whose files are on this machine, and prepares to read the rest.
    ///
    /// A file that cannot be mapped is read, and a warning of the receipt says why.
    pub fn map(&self, model: &Model, selection: &Selection) -> Result<Mapped> {
        let mut files: BTreeMap<u32, Option<Arc<FilePages>>> = BTreeMap::new();
        let mut warnings = Vec::new();
        let mut tensors = Vec::with_capacity(selection.picks().len());
        let mut rest = Vec::new();
        for pick in selection.picks() {
            let file = pick.of(model).file;
            let pages = files.entry(file).or_insert_with(|| {
                let mapped = model.shards[file as usize].map();
                mapped
                    .map_err(|error| warnings.push(format!("a file was read, not mapped: {error}")))
                    .ok()
            });
            let pages = pages.as_ref();
            match pages.and_then(|pages| MappedTensor::new(model, pick, pages)) {
                Some(tensor) => tensors.push(tensor),
                None => rest.push(pick.clone()),
            }
        }
        let mut rest = self.prepare(model, &Selection::of(model, rest)?, Place::Host)?;
        let bytes = |tensor: &MappedTensor| tensor.placed.bytes;
        rest.jobs.mapped_bytes = tensors.iter().map(bytes).sum();
        rest.jobs.warnings = warnings;
        Ok(Mapped { tensors, rest })
    }
}
