//! The header of a safetensors file: its length as 8 bytes, and JSON that says where each tensor is.
//!
//! Every rule of the format is checked here, so that whatever holds a [`Header`] may rely on it: the
//! tensors follow each other without hole or overlap, fill the file to its last byte, have as many
//! bytes as their shape and dtype take, and no two have the same name. Lengths are checked before
//! anything is allocated by them, and names are read straight from the text into their final place.

mod json;
mod scan;
mod text;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use straightway_core::{Bytes, Error, Kind, Object, Result};
use straightway_io::Handle;

use super::{
    directory::Directory,
    tensor::{Tensor, quoted, whole_bytes},
};

pub(crate) use text::compose;

/// The longest header that the format allows.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Tensors that a model may have, over all its files. The largest models have some hundred thousand.
pub const TENSORS_MAX: usize = 4_000_000;

/// The longest name that a tensor may have.
pub const NAME_BYTES_MAX: usize = 1 << 16;

/// The length that stands before the JSON.
pub(crate) const PREFIX_BYTES: u64 = 8;

/// What a file says of itself, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Its tensors, in the order in which they lie in the file.
    pub tensors: Vec<Tensor>,
    /// What its writer wrote down beside them.
    pub metadata: BTreeMap<String, String>,
    /// Where the bytes of the tensors begin.
    pub data_offset: u64,
}

/// Tensors counted so far over all files of a model that are being read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    /// Counts some more; whether there is room for them.
    fn admit(&self, tensors: usize) -> bool {
        self.0.fetch_add(tensors, Ordering::Relaxed) + tensors <= TENSORS_MAX
    }
}

impl Header {
    /// Reads the header of an open file.
    pub fn read(file: &dyn Handle) -> Result<Self> {
        Self::read_counted(file, &Count::default()).map(|(header, _)| header)
    }

    /// As `read`, counted together with the other files of a model, and with its names in a table.
    pub(crate) fn read_counted(file: &dyn Handle, count: &Count) -> Result<(Self, Directory)> {
        let Object { name, bytes } = file.object();
        let mut prefix = [0; 8];
        if bytes >= PREFIX_BYTES {
            file.read_exact_at(0, &mut prefix)?;
        }
        let json_bytes = json_bytes(&name, prefix, bytes)?;
        let mut json = vec![0; json_bytes];
        file.read_exact_at(PREFIX_BYTES, &mut json)?;
        Self::from_json(&name, json, bytes, count)
    }

    /// The header of a file that begins with `start` and is `file_bytes` long. Errors call it `name`.
    pub fn parse(name: &str, start: &[u8], file_bytes: u64) -> Result<Self> {
        let prefix = start.first_chunk().copied().unwrap_or_default();
        let json_bytes = json_bytes(name, prefix, file_bytes.min(start.len() as u64))?;
        let json = start[8..8 + json_bytes].to_vec();
        Self::from_json(name, json, file_bytes, &Count::default()).map(|(header, _)| header)
    }

    fn from_json(
        name: &str,
        text: Vec<u8>,
        file_bytes: u64,
        count: &Count,
    ) -> Result<(Self, Directory)> {
        let corrupt = |message: String| Error::new(Kind::Corrupt, "read", name, message);
        if text.first() != Some(&b'{') {
            return Err(corrupt("its header does not begin with `{`".to_owned())
                .with_hint("is it a safetensors file?"));
        }
        let text = String::from_utf8(text)
            .map_err(|e| corrupt(format!("its header is not UTF-8: {}", e.utf8_error())))?;
        let text = Arc::new(text);
        let mut header = match scan::parse(&text, count) {
            Some(header) => header,
            None => json::parse(&text, count).map_err(|e| corrupt(format!("its header: {e}")))?,
        };
        let data_offset = PREFIX_BYTES + text.len() as u64;
        header.data_offset = data_offset;
        let key = |t: &Tensor| (t.extent.offset, t.extent.bytes);
        if !header.tensors.is_sorted_by_key(key) {
            header.tensors.sort_unstable_by_key(key);
        }
        let directory = directory(&header.tensors).map_err(corrupt)?;
        check_extents(&header.tensors, file_bytes - data_offset).map_err(corrupt)?;
        for tensor in &mut header.tensors {
            tensor.extent.offset += data_offset;
        }
        Ok((header, directory))
    }
}

/// The names of tensors. No two may be the same.
fn directory(tensors: &[Tensor]) -> Result<Directory, String> {
    let mut directory = Directory::with_capacity(tensors.len());
    for (number, tensor) in tensors.iter().enumerate() {
        if directory.enter(tensors, number).is_err() {
            return Err(format!("tensor {} is there twice", quoted(&tensor.name)));
        }
    }
    Ok(directory)
}

/// How long the JSON is, by the first bytes of a file that has `file_bytes`.
fn json_bytes(name: &str, prefix: [u8; 8], file_bytes: u64) -> Result<usize> {
    let corrupt = |message: String| Err(Error::new(Kind::Corrupt, "read", name, message));
    if file_bytes < PREFIX_BYTES {
        return corrupt(format!(
            "it has {file_bytes} bytes, and a safetensors file begins with 8 that say how long its \
             header is"
        ));
    }
    let bytes = u64::from_le_bytes(prefix);
    if bytes > HEADER_BYTES_MAX {
        return corrupt(format!(
            "its header would be {bytes} bytes long, and {HEADER_BYTES_MAX} is the most that the \
             format allows"
        ));
    }
    if bytes > file_bytes - PREFIX_BYTES {
        return corrupt(format!(
            "its header would end at byte {}, and the file has {file_bytes}",
            bytes + PREFIX_BYTES
        ));
    }
    Ok(usize::try_from(bytes).expect("the limit fits every address space"))
}

/// Checks that tensors, in order, fill `data_bytes` exactly and each has the bytes that it needs.
fn check_extents(tensors: &[Tensor], data_bytes: u64) -> Result<(), String> {
    let mut end = 0;
    for (number, tensor) in tensors.iter().enumerate() {
        let start = tensor.extent.offset;
        if start != end {
            let word = if start > end {
                "there is a hole"
            } else {
                "they overlap"
            };
            let before = match number {
                0 => "the data begins at 0".to_owned(),
                n => format!("{} before it ends at {end}", quoted(&tensors[n - 1].name)),
            };
            let name = quoted(&tensor.name);
            return Err(format!(
                "tensor {name} begins at byte {start} of the data, and {before}: {word}"
            ));
        }
        check_bytes(tensor)?;
        end = start + tensor.extent.bytes;
        if end > data_bytes {
            let name = quoted(&tensor.name);
            return Err(format!(
                "tensor {name} ends at byte {end} of the data, and the file has {data_bytes}: it \
                 is truncated"
            ));
        }
    }
    if end < data_bytes {
        let rest = Bytes(data_bytes - end);
        return Err(format!("its last {rest} belong to no tensor"));
    }
    Ok(())
}

/// Checks that a tensor has as many bytes as its shape and dtype take.
fn check_bytes(tensor: &Tensor) -> Result<(), String> {
    let (shape, dtype, bytes) = (&tensor.shape, tensor.dtype, tensor.extent.bytes);
    let elements = shape.elements();
    let taken = elements.and_then(|n| whole_bytes(n, dtype));
    if taken == Some(bytes) {
        return Ok(());
    }
    let name = quoted(&tensor.name);
    let is_counted = elements.is_some_and(|n| n.checked_mul(dtype.bits()).is_some());
    Err(match taken {
        Some(taken) => format!(
            "tensor {name} has {bytes} bytes, and shape {shape} of dtype {dtype} takes {taken}"
        ),
        None if is_counted => {
            format!("tensor {name} of shape {shape} and dtype {dtype} does not end on a whole byte")
        }
        None => {
            format!("tensor {name} of shape {shape} and dtype {dtype} has more than 2^64 bits")
        }
    })
}
