//! The checks of a manifest.

use std::sync::Arc;

use straightway_core::{Alignment, Error, ErrorKind, Result};
use straightway_weights::{Dtype, NAME_BYTES_MAX, RANK_MAX, TENSORS_MAX, quoted, whole_bytes};

use super::{
    ChunkLocation, Manifest, ObjectVersion, PARITY_MAX, RANKS_MAX, Saved, SavedPart, ShardRecord, Versions,
    overlap::{covers, overlapping},
};
use crate::{
    codec::Codec,
    name::{STEP_MAX, check_run, is_file_name},
};

/// The maximum chunk size. A restore holds several chunks in memory.
const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// The maximum length of a store's address, and of an object's version. An `ETag` has some 40 characters.
const STORE_CHARS_MAX: usize = 4096;
const TAG_CHARS_MAX: usize = 256;

/// The maximum size of a file. Sums of a few such sizes do not overflow 64 bits.
const BYTES_MAX: u64 = 1 << 60;

impl Manifest {
    /// Returns the manifest if all checks pass.
    pub(crate) fn checked(mut self, name: &str) -> Result<Self> {
        let corrupt = |why: String| Error::new(ErrorKind::Corrupt, "read", name, why);
        self.check_figures().map_err(corrupt)?;
        for shard in &self.shards {
            check_shard(shard, self.world, self.chunk_bytes)
                .map_err(|why| corrupt(format!("shard {}: {why}", quoted(&shard.file))))?;
        }
        if self.tensors.len() > TENSORS_MAX {
            return Err(corrupt(format!("it has more than {TENSORS_MAX} tensors")));
        }
        self.tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let is_twice = |pair: &&[Saved]| pair[0].name == pair[1].name;
        if let Some(pair) = self.tensors.windows(2).find(is_twice) {
            let tensor = quoted(&pair[0].name);
            return Err(corrupt(format!("tensor {tensor} is there twice")));
        }
        for tensor in &self.tensors {
            check_tensor(tensor)
                .and_then(|()| check_parts(tensor, &self.shards))
                .map_err(corrupt)?;
        }
        self.check_parity().map_err(corrupt)?;
        if let Some(versions) = &self.versions {
            check_versions(versions).map_err(corrupt)?;
        }
        let numbers = (0..).zip(&self.tensors);
        self.numbers = numbers.map(|(n, t)| (Arc::clone(&t.name), n)).collect();
        Ok(self)
    }

    fn check_figures(&self) -> Result<(), String> {
        check_chunk_bytes(self.chunk_bytes)?;
        if self.step >= STEP_MAX || self.parent.is_some_and(|parent| parent >= STEP_MAX) {
            return Err("a step is 10^18 or more".to_owned());
        }
        check_run(&self.run).map_err(|e| e.to_string())?;
        let world = self.world as usize;
        if !(1..=RANKS_MAX).contains(&self.world) || self.shards.len() != world {
            let shards = self.shards.len();
            return Err(format!("{shards} shards of {world} ranks are not one each"));
        }
        let in_order = self.shards.iter().zip(0..).all(|(s, rank)| s.rank == rank);
        let refuse = || "its shards are not in the order of the ranks".to_owned();
        in_order.then_some(()).ok_or_else(refuse)
    }

    fn check_parity(&self) -> Result<(), String> {
        if self.parity.len() > PARITY_MAX {
            return Err(format!("it has more than {PARITY_MAX} parity files"));
        }
        let rows = self.shards.iter().map(|s| s.chunks.len()).max();
        for parity in &self.parity {
            let file = quoted(&parity.file);
            if !is_file_name(&parity.file) || Some(parity.chunks.len()) != rows {
                return Err(format!("parity file {file} does not fit the shards"));
            }
        }
        Ok(())
    }
}

/// Checks the versions of objects. Tags are sent in request headers, so they must be printable ASCII.
fn check_versions(versions: &Versions) -> Result<(), String> {
    let is_text = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    };
    if versions.store.len() > STORE_CHARS_MAX {
        return Err("the name of the store of its versions is too long".to_owned());
    }
    for object in &versions.objects {
        let file = quoted(&object.file);
        if object.step >= STEP_MAX || !is_file_name(&object.file) {
            return Err(format!("it has a version of {file}, which is not a file of a step"));
        }
        if !is_text(&object.tag, TAG_CHARS_MAX) {
            return Err(format!(
                "the version of {file} is not 1 to {TAG_CHARS_MAX} printable characters"
            ));
        }
    }
    let is_before = |a: &ObjectVersion, b: &ObjectVersion| (a.step, &a.file) < (b.step, &b.file);
    if !versions.objects.is_sorted_by(is_before) {
        return Err("the versions of its objects are not in order".to_owned());
    }
    Ok(())
}

/// Checks the chunk size.
pub(crate) fn check_chunk_bytes(chunk_bytes: u64) -> Result<(), String> {
    let page = Alignment::PAGE_BYTES;
    if (page..=CHUNK_BYTES_MAX).contains(&chunk_bytes) && chunk_bytes.is_multiple_of(page) {
        return Ok(());
    }
    Err(format!(
        "{chunk_bytes} bytes is not a multiple of {page} up to {CHUNK_BYTES_MAX}"
    ))
}

fn check_shard(shard: &ShardRecord, world: u32, chunk_bytes: u64) -> Result<(), String> {
    if !is_file_name(&shard.file) {
        return Err("its file's name is not one that a step may have".to_owned());
    }
    if shard.rank >= world || shard.bytes > BYTES_MAX {
        return Err("its rank or its length is out of range".to_owned());
    }
    let chunks = shard.bytes.div_ceil(chunk_bytes);
    let fits = |count: usize| count as u64 == chunks;
    if !fits(shard.chunks.len()) || !(shard.digests.is_empty() || fits(shard.digests.len())) {
        let (bytes, sums, digests) = (shard.bytes, shard.chunks.len(), shard.digests.len());
        return Err(format!(
            "{bytes} bytes are {chunks} chunks, and {sums} have a checksum and {digests} a digest"
        ));
    }
    let Some(stored) = &shard.stored else {
        return Ok(());
    };
    if !fits(stored.len()) {
        return Err(format!("of {chunks} chunks {} are stored", stored.len()));
    }
    for (number, place) in stored.iter().enumerate() {
        check_stored(place, shard.extent(number, chunk_bytes).bytes).map_err(|why| format!("chunk {number}: {why}"))?;
    }
    Ok(())
}

fn check_stored(place: &ChunkLocation, chunk_bytes: u64) -> Result<(), String> {
    if place.step >= STEP_MAX || !is_file_name(&place.file) {
        return Err("its step or its file name is not valid".to_owned());
    }
    if place.offset > BYTES_MAX {
        return Err("its offset is out of range".to_owned());
    }
    let fits = match place.codec {
        Codec::Raw => place.bytes == chunk_bytes,
        Codec::Zstd | Codec::Lz4 => (1..chunk_bytes).contains(&place.bytes),
    };
    let (bytes, codec) = (place.bytes, place.codec);
    let refuse = || format!("{bytes} bytes as {codec:?} cannot be its {chunk_bytes}");
    fits.then_some(()).ok_or_else(refuse)
}

/// Checks a tensor by itself.
pub(crate) fn check_tensor(tensor: &Saved) -> Result<(), String> {
    let name = quoted(&tensor.name);
    if tensor.name.len() > NAME_BYTES_MAX || tensor.shape.len() > RANK_MAX {
        let why = "has too long a name or too many dimensions";
        return Err(format!("tensor {name} {why}"));
    }
    let (shape, dtype) = (&tensor.shape, tensor.dtype);
    let Some(bytes) = shape.elements().and_then(|n| whole_bytes(n, dtype)) else {
        return Err(format!(
            "tensor {name} of shape {shape} and dtype {dtype} is not a whole number of bytes"
        ));
    };
    // A tensor without elements still has dimensions, and readers multiply them.
    let sides = shape.iter().filter(|side| **side > 0);
    let extent = sides.fold(u128::from(dtype.bits()), |all, side| {
        all.saturating_mul(u128::from(*side))
    });
    if bytes > BYTES_MAX || extent / 8 > u128::from(BYTES_MAX) {
        return Err(format!("tensor {name} is longer than any file"));
    }
    if tensor.opaque && (dtype != Dtype::U8 || shape.len() != 1) {
        return Err(format!("{name} is opaque but not a list of bytes"));
    }
    for part in &tensor.parts {
        if whole_bytes(part.rectangle.elements(), dtype).is_none() {
            return Err(format!("a part of tensor {name} ends inside a byte"));
        }
    }
    if let Some((a, b)) = overlapping(&tensor.parts) {
        let words = |part: &SavedPart| {
            let (shard, start) = (part.shard, part.rectangle.offsets());
            format!("that of shard {shard} from {start} on")
        };
        let (a, b) = (words(a), words(b));
        return Err(format!("parts of tensor {name} overlap: {a} and {b}"));
    }
    Ok(())
}

/// Checks that the parts of a tensor, which do not overlap, lie inside their shards and cover the tensor.
fn check_parts(tensor: &Saved, shards: &[ShardRecord]) -> Result<(), String> {
    let name = quoted(&tensor.name);
    for part in &tensor.parts {
        let bytes = whole_bytes(part.rectangle.elements(), tensor.dtype);
        let end = bytes.and_then(|bytes| part.offset.checked_add(bytes));
        let (number, shard) = (part.shard, shards.get(part.shard as usize));
        if shard.zip(end).is_none_or(|(shard, end)| end > shard.bytes) {
            return Err(format!("a part of tensor {name} lies outside shard {number}"));
        }
    }
    if !covers(&tensor.parts, tensor.shape.elements().unwrap_or(0)) {
        return Err(format!("tensor {name} is not whole: some of it is in no shard"));
    }
    Ok(())
}
