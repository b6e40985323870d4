//! The outline of a safetensors file before it is written: its header, and the extent of each tensor.

use std::collections::BTreeMap;

use hashbrown::HashSet;
use straightway_core::{Error, ErrorKind, Extent, Result};

use super::{
    Dtype, Shape, Tensor,
    header::{NAME_BYTES_MAX, TENSORS_MAX, compose},
    shape::RANK_MAX,
    tensor::{quoted, whole_bytes},
};

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct TensorEntry<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: &'a Shape,
    /// Its length in bytes.
    pub bytes: u64,
}

impl<'a> TensorEntry<'a> {
    /// An entry of these properties.
    pub fn new(name: &'a str, dtype: Dtype, shape: &'a Shape, bytes: u64) -> Self {
        Self {
            name,
            dtype,
            shape,
            bytes,
        }
    }
}

impl<'a> From<&'a Tensor> for TensorEntry<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        let (shape, bytes) = (&tensor.shape, tensor.extent.bytes);
        Self::new(&tensor.name, tensor.dtype, shape, bytes)
    }
}

/// The layout of a file to write.
#[derive(Debug)]
pub struct Outline {
    /// Its header, up to the start of the data, which is page-aligned.
    pub header: Vec<u8>,
    /// The tensors in file order: the number of each entry, and its extent.
    pub places: Vec<(usize, Extent)>,
    /// The length of the file in bytes.
    pub bytes: u64,
}

impl Outline {
    /// Sorts tensors in the order that writers agree on: by element width, widest first, and then by name. Each tensor
    /// is then aligned without gaps. Errors call the file `name`.
    pub fn new(name: &str, entries: &[TensorEntry<'_>], metadata: &BTreeMap<String, String>) -> Result<Self> {
        check(name, entries)?;
        let mut order: Vec<_> = (0..entries.len()).collect();
        order.sort_unstable_by_key(|number| {
            let entry = &entries[*number];
            (std::cmp::Reverse(entry.dtype), entry.name)
        });
        let described = order.iter().map(|number| entries[*number]);
        let header = compose(name, described.map(|e| (e.name, e.dtype, e.shape, e.bytes)), metadata)?;
        let mut bytes = header.len() as u64;
        let place = |number: usize| {
            let extent = Extent::new(bytes, entries[number].bytes);
            bytes = extent.end();
            (number, extent)
        };
        let places = order.into_iter().map(place).collect();
        Ok(Self { header, places, bytes })
    }

    /// The extent of the tensor data.
    pub fn data(&self) -> Extent {
        Extent::between(self.header.len() as u64, self.bytes)
    }

    /// The tensors that overlap `window`: the number of each entry, and its extent in the file.
    pub fn within(&self, window: Extent) -> impl Iterator<Item = (usize, Extent)> {
        let first = self.places.partition_point(|(_, extent)| extent.end() <= window.offset);
        let touches = move |(_, extent): &&(usize, Extent)| extent.offset < window.end();
        let rest = self.places[first..].iter().take_while(touches).copied();
        rest.filter(|(_, extent)| !extent.is_empty())
    }
}

/// Returns an error if a reader would reject the file.
fn check(file: &str, entries: &[TensorEntry<'_>]) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::Invalid, "write", file, why));
    if entries.len() > TENSORS_MAX {
        return refuse(format!("it would have more than {TENSORS_MAX} tensors"));
    }
    let mut names = HashSet::with_capacity(entries.len());
    for entry in entries {
        let name = quoted(entry.name);
        if entry.name == "__metadata__" {
            return refuse(format!("no tensor may be called {name}"));
        }
        if entry.name.len() > NAME_BYTES_MAX {
            return refuse(format!("the name {name} is longer than {NAME_BYTES_MAX} bytes"));
        }
        if !names.insert(entry.name) {
            return refuse(format!("two tensors are called {name}"));
        }
        let (shape, dtype) = (entry.shape, entry.dtype);
        if shape.len() > RANK_MAX {
            return refuse(format!("tensor {name} has more than {RANK_MAX} dimensions"));
        }
        let taken = shape.elements().and_then(|n| whole_bytes(n, dtype));
        if taken != Some(entry.bytes) {
            return refuse(format!(
                "tensor {name} has {} bytes, which is not what shape {shape} of dtype {dtype} takes",
                entry.bytes
            ));
        }
    }
    Ok(())
}
