//! The header of a safetensors file: its length in 8 bytes, and JSON with the extent of each tensor.
//!
//! Every rule of the format is checked here, so a [`Header`] guarantees: the tensors are adjacent without holes or
//! overlaps, fill the file to its last byte, have the size of their shape and dtype, and have unique names. Lengths are
//! checked before memory is allocated for them. Names are not copied: they refer to the header's text.

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

use straightway_core::{Bytes, Error, ErrorKind, Object, Result};
use straightway_io::Handle;

use super::{
    name_table::NameTable,
    tensor::{Tensor, quoted, whole_bytes},
};

pub(crate) use text::compose;

/// The longest header that the format allows.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The maximum number of tensors of a model, over all its files. The largest models have some 100,000.
pub const TENSORS_MAX: usize = 4_000_000;

/// The maximum length of a tensor's name.
pub const NAME_BYTES_MAX: usize = 1 << 16;

/// The size of the length field before the JSON.
pub(crate) const PREFIX_BYTES: u64 = 8;

/// A checked header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Its tensors, in file order.
    pub tensors: Vec<Tensor>,
    /// The writer's metadata.
    pub metadata: BTreeMap<String, String>,
    /// The offset of the tensor data in the file.
    pub data_offset: u64,
}

/// The number of tensors so far, over all files of a model that are being read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    /// Adds to the count. Returns whether it is within the limit.
    fn admit(&self, tensors: usize) -> bool {
        self.0.fetch_add(tensors, Ordering::Relaxed) + tensors <= TENSORS_MAX
    }
}

impl Header {
    /// Reads the header of an open file.
    pub fn read(file: &dyn Handle) -> Result<Self> {
        Self::read_counted(file, &Count::default()).map(|(header, _)| header)
    }

    /// As `read`, but counts tensors together with the model's other files, and returns a table of the names.
    pub(crate) fn read_counted(file: &dyn Handle, count: &Count) -> Result<(Self, NameTable)> {
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

    fn from_json(name: &str, text: Vec<u8>, file_bytes: u64, count: &Count) -> Result<(Self, NameTable)> {
        let corrupt = |message: String| Error::new(ErrorKind::Corrupt, "read", name, message);
        if text.first() != Some(&b'{') {
            return Err(corrupt(
                "it is not a safetensors file: its header does not begin with `{`".to_owned(),
            ));
        }
        let text =
            String::from_utf8(text).map_err(|e| corrupt(format!("its header is not UTF-8: {}", e.utf8_error())))?;
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
        let names = names(&header.tensors).map_err(corrupt)?;
        check_extents(&header.tensors, file_bytes - data_offset).map_err(corrupt)?;
        for tensor in &mut header.tensors {
            tensor.extent.offset += data_offset;
        }
        Ok((header, names))
    }
}

/// A table of the tensors' names. A duplicate is an error.
fn names(tensors: &[Tensor]) -> Result<NameTable, String> {
    let mut names = NameTable::with_capacity(tensors.len());
    for (number, tensor) in tensors.iter().enumerate() {
        if names.enter(tensors, number).is_err() {
            return Err(format!("tensor {} is there twice", quoted(&tensor.name)));
        }
    }
    Ok(names)
}

/// The length of the JSON, from the first bytes of a file of `file_bytes`.
fn json_bytes(name: &str, prefix: [u8; 8], file_bytes: u64) -> Result<usize> {
    let corrupt = |message: String| Err(Error::new(ErrorKind::Corrupt, "read", name, message));
    if file_bytes < PREFIX_BYTES {
        return corrupt(format!(
            "it has {file_bytes} bytes, and a safetensors file begins with 8 that say how long its \
             header is"
        ));
    }
    let bytes = u64::from_le_bytes(prefix);
    if bytes > HEADER_BYTES_MAX {
        if let Some((kind, remedy)) = other_kind(prefix) {
            let message = format!("it is not a safetensors file: it looks like {kind}");
            return Err(Error::new(ErrorKind::Corrupt, "read", name, message).with_hint(remedy));
        }
        return corrupt(format!(
            "it is not a safetensors file: its header would be {bytes} bytes long, and {HEADER_BYTES_MAX} is the most \
             that the format allows"
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

/// The kind of a file of another format, from its first bytes, and what to do with it.
fn other_kind(start: [u8; 8]) -> Option<(&'static str, &'static str)> {
    const CONVERT: &str =
        "convert it, for example with `save_pretrained` of transformers, and load the .safetensors file";
    let kinds: [(&[u8], &str, &str); 11] = [
        (b"GGUF", "GGUF, the format of llama.cpp", CONVERT),
        (
            b"PK\x03\x04",
            "a zip file, as torch.save writes it (pickles) or NumPy (npz)",
            CONVERT,
        ),
        (b"\x80\x02", "a pickle of Python, as torch.save writes it", CONVERT),
        (b"\x80\x03", "a pickle of Python", CONVERT),
        (b"\x80\x04", "a pickle of Python", CONVERT),
        (b"\x80\x05", "a pickle of Python", CONVERT),
        (b"\x93NUMPY", "an array of NumPy", CONVERT),
        (b"\x89HDF", "HDF5, as Keras writes it", CONVERT),
        (
            b"version ",
            "a pointer of Git LFS: the file itself was not downloaded",
            "run `git lfs pull` in its folder",
        ),
        (b"<!DOCTYP", "a web page", "download the file itself"),
        (
            b"{",
            "JSON",
            "name the model's folder, its .safetensors file or its .safetensors.index.json",
        ),
    ];
    let found = kinds.into_iter().find(|(magic, ..)| start.starts_with(magic));
    found.map(|(_, kind, remedy)| (kind, remedy))
}

/// Checks that tensors, in order, fill `data_bytes` exactly, and that each has the size of its shape and dtype.
fn check_extents(tensors: &[Tensor], data_bytes: u64) -> Result<(), String> {
    let mut end = 0;
    for (number, tensor) in tensors.iter().enumerate() {
        let start = tensor.extent.offset;
        if start != end {
            let word = if start > end { "there is a hole" } else { "they overlap" };
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

/// Checks that a tensor has the size of its shape and dtype.
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
        Some(taken) => format!("tensor {name} has {bytes} bytes, and shape {shape} of dtype {dtype} takes {taken}"),
        None if is_counted => {
            format!("tensor {name} of shape {shape} and dtype {dtype} does not end on a whole byte")
        }
        None => {
            format!("tensor {name} of shape {shape} and dtype {dtype} has more than 2^64 bits")
        }
    })
}
