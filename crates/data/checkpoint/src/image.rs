//! The image of a rank's shard: the exact bytes of a safetensors file, before it is written.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use hashbrown::HashMap;
use straightway_core::{Error, ErrorKind, Extent, Result};
use straightway_sys::cuda::DeviceMemory;
use straightway_weights::{Holding, Outline, TensorEntry, quoted};

use super::{
    manifest::{Saved, SavedPart, check_tensor},
    source::SaveSource,
};

/// The layout of a shard's image.
#[derive(Debug)]
pub(crate) struct Image {
    outline: Outline,
    /// Its tensors, by name. All their parts are in shard 0.
    pub(crate) tensors: Vec<Saved>,
    /// The identities of the tensors that have one, by name.
    pub(crate) identities: BTreeMap<String, String>,
}

impl Image {
    /// Computes the layout of an image of `sources`. Errors call the file `path`.
    pub(crate) fn new(path: &Path, sources: &[SaveSource<'_>]) -> Result<Self> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for source in sources {
            *counts.entry(source.name).or_default() += 1;
        }
        let key = |source: &SaveSource<'_>| {
            if counts[source.name] == 1 {
                return source.name.to_owned();
            }
            let start = source.rectangle.offsets().iter();
            let start: Vec<_> = start.map(u64::to_string).collect();
            format!("{}@{}", source.name, start.join(","))
        };
        let keys: Vec<_> = sources.iter().map(key).collect();
        let mut entries = Vec::with_capacity(sources.len());
        for (source, key) in sources.iter().zip(&keys) {
            let (shape, bytes) = (source.rectangle.lengths(), source.bytes()?);
            entries.push(TensorEntry::new(key, source.dtype, shape, bytes));
        }
        let outline = Outline::new(&path.display().to_string(), &entries, &BTreeMap::new())?;
        let tensors = gather(sources, &outline)?;
        let identity = |source: &SaveSource<'_>| Some((source.name.to_owned(), source.identity?.to_owned()));
        let identities = sources.iter().filter_map(identity).collect();
        Ok(Self {
            outline,
            tensors,
            identities,
        })
    }

    /// The length of the image.
    pub(crate) fn bytes(&self) -> u64 {
        self.outline.bytes
    }

    /// The memory and extent of each source that is on a GPU and overlaps `window`, in image order.
    pub(crate) fn on_devices<'a>(
        &'a self,
        sources: &'a [SaveSource<'_>],
        window: Extent,
    ) -> impl Iterator<Item = (&'a Arc<DeviceMemory>, Extent)> + 'a {
        let places = self.outline.within(window);
        places.filter_map(|(number, extent)| match &sources[number].memory {
            Holding::Device(memory) => Some((memory, extent)),
            Holding::Host(_) | Holding::Lent(_) => None,
        })
    }

    /// Fills `chunk`, which is the image from `offset` on, with the bytes from host memory. Returns whether that was
    /// all of it.
    pub(crate) fn fill(&self, sources: &[SaveSource<'_>], offset: u64, chunk: &mut [u8]) -> bool {
        let window = Extent::new(offset, chunk.len() as u64);
        let header = &self.outline.header;
        let place = Extent::new(0, header.len() as u64);
        copy_shared(window, chunk, place, |from, part| {
            part.copy_from_slice(&header[from..][..part.len()]);
        });
        let mut is_all = true;
        for (number, extent) in self.outline.within(window) {
            match &sources[number].memory {
                Holding::Host(bytes) => copy_shared(window, chunk, extent, |from, part| {
                    part.copy_from_slice(&bytes[from..][..part.len()]);
                }),
                Holding::Lent(memory) => copy_shared(window, chunk, extent, |from, part| {
                    memory.copy_to(from, part);
                }),
                Holding::Device(_) => is_all = false,
            }
        }
        is_all
    }
}

/// Copies the intersection of `window`, which `chunk` holds, and `extent`. `copy` gets an offset in the extent and the
/// part of the chunk to fill.
fn copy_shared(window: Extent, chunk: &mut [u8], extent: Extent, copy: impl FnOnce(usize, &mut [u8])) {
    let shared = window.intersection(extent);
    if shared.is_empty() {
        return;
    }
    let at = |start: u64| usize::try_from(shared.offset - start).expect("it lies inside memory");
    let len = usize::try_from(shared.bytes).expect("it lies inside memory");
    let to = at(window.offset);
    copy(at(extent.offset), &mut chunk[to..to + len]);
}

/// Collects the tensors, each with all its parts.
fn gather(sources: &[SaveSource<'_>], outline: &Outline) -> Result<Vec<Saved>> {
    let mut tensors: Vec<Saved> = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for &(number, extent) in &outline.places {
        let source = &sources[number];
        let fresh = tensors.len();
        let number = *numbers.entry(source.name).or_insert(fresh);
        if number == fresh {
            tensors.push(Saved {
                name: source.name.into(),
                dtype: source.dtype,
                shape: source.shape.clone(),
                opaque: source.opaque,
                parts: Vec::new(),
            });
        }
        let tensor = &mut tensors[number];
        if (tensor.dtype, &tensor.shape, tensor.opaque) != (source.dtype, &source.shape, source.opaque) {
            let (name, why) = (quoted(source.name), "two parts of it differ in dtype or shape");
            return Err(Error::new(ErrorKind::Invalid, "save", name, why));
        }
        tensor.parts.push(SavedPart {
            shard: 0,
            offset: extent.offset,
            rectangle: source.rectangle.clone(),
        });
    }
    for tensor in &tensors {
        check_tensor(tensor).map_err(|why| Error::new(ErrorKind::Invalid, "save", quoted(&tensor.name), why))?;
    }
    Ok(tensors)
}
