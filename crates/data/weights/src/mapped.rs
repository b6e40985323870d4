//! Memory-mapped tensors: pages are read on first use, and nothing is copied.
//!
//! safetensors does the same in host memory. Tensors that are not aligned for their dtype, parts of tensors, and files
//! that cannot be mapped are read instead. Headers were read and checked before, from a separate copy.

use std::{collections::BTreeMap, sync::Arc};

use straightway_core::{Place, Result};
use straightway_sys::FilePages;

use super::{Loader, Model, Pick, Placed, Prepared, Selection};

/// A tensor in the mapped pages of a file.
#[derive(Clone, Debug)]
pub struct MappedTensor {
    /// The pages of its file.
    pub pages: Arc<FilePages>,
    /// Its name, dtype, shape and place in the file.
    pub placed: Placed,
}

/// The selected tensors of a model, mapped where possible.
#[derive(Debug)]
pub struct Mapped {
    /// The mapped tensors.
    pub tensors: Vec<MappedTensor>,
    /// The load of all other tensors. Its receipt also counts the mapped ones.
    pub rest: Prepared,
}

impl MappedTensor {
    /// Maps a whole, aligned tensor of `model` to the pages of its file. `None` if it is a part, is not aligned, or
    /// ends beyond the pages.
    pub fn new(model: &Model, pick: &Pick, pages: &Arc<FilePages>) -> Option<Self> {
        let tensor = pick.of(model);
        // The mapping is page-aligned, so only the offset matters.
        let is_aligned = tensor.extent.offset.is_multiple_of(tensor.dtype.align_bytes());
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
    /// Maps the selected tensors of a model whose files are local, and prepares to read the rest.
    ///
    /// A file that cannot be mapped is read instead, and a warning in the receipt says why.
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
        rest.jobs.warnings.extend(warnings);
        Ok(Mapped { tensors, rest })
    }
}
