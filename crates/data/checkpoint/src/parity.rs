//! Parity across ranks. Chunk *c* of every shard forms a row, and each row gets recovery chunks by Reed–Solomon. As
//! many chunks of a row as there are parity files may be lost.
//!
//! Rows are computed from the unpacked chunks, not from their stored bytes. So shards that are compressed or reference
//! earlier steps are protected like any other, and so are the referenced chunks.

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::store::{CommitMode, Like};

use super::{
    coordination::Home,
    manifest::{Manifest, PARITY_MAX, ParityRecord},
    name::parity_file,
    opened::Checkpoint,
    steps::Steps,
    sum::Sum,
};

/// The maximum number of ranks with parity. A row of 256 chunks of 4 MiB takes 1 GiB of memory.
const PARITY_RANKS_MAX: usize = 256;

/// Makes parity files for the shards of an attempt in `home`.
pub(crate) fn protect(store: &Steps, home: &Home, manifest: &Manifest, count: usize) -> Result<Vec<ParityRecord>> {
    let world = manifest.shards.len();
    if count > PARITY_MAX || world > PARITY_RANKS_MAX {
        let target = format!("{count} parity files of {world} shards");
        let message = format!("{PARITY_MAX} files and {PARITY_RANKS_MAX} shards are the most");
        return Err(Error::new(ErrorKind::Invalid, "make", target, message));
    }
    let rows = rows(manifest);
    let checkpoint = Checkpoint::new(store, home.name.clone(), manifest.clone());
    let bytes = rows as u64 * manifest.chunk_bytes;
    let mut records = Vec::new();
    let mut drafts = Vec::new();
    for number in 0..count {
        let file = parity_file(number, home.mark.as_deref());
        drafts.push(home.store.create(file.as_ref(), bytes, &Like::Replaced)?);
        records.push(ParityRecord {
            file,
            chunks: Vec::with_capacity(rows),
        });
    }
    for row in 0..rows {
        let originals = (0..world).map(|shard| padded(&checkpoint, shard, row));
        let originals = originals.collect::<Result<Vec<_>>>()?;
        let made = reed_solomon_simd::encode(world, count, &originals).map_err(failed)?;
        for ((draft, record), chunk) in drafts.iter().zip(&mut records).zip(made) {
            draft.write_all_at(row as u64 * manifest.chunk_bytes, &chunk)?;
            record.chunks.push(Sum::of(&chunk));
        }
    }
    home.store.commit(drafts, CommitMode::InOrder)?;
    Ok(records)
}

/// Rebuilds an unreadable chunk from the others of its row and from parity.
pub(crate) fn rebuild(checkpoint: &Checkpoint, shard: usize, row: usize) -> Result<Vec<u8>> {
    let manifest = checkpoint.manifest();
    let (world, count) = (manifest.shards.len(), manifest.parity.len());
    // Other lost chunks of the row are simply missing too.
    let read = |other| Some((other, padded(checkpoint, other, row).ok()?));
    let others = (0..world).filter(|other| *other != shard);
    let originals: Vec<_> = others.filter_map(read).collect();
    let recover = |number| Some((number, recovery_chunk(checkpoint, number, row).ok()?));
    let recovery: Vec<_> = (0..count).filter_map(recover).collect();
    let (missing, left) = (world - originals.len(), recovery.len());
    if missing > left {
        let why = format!("{missing} shards have lost this chunk, and {left} of {count} parity files have theirs");
        return Err(checkpoint.damaged(shard, row, &why));
    }
    let mut made = reed_solomon_simd::decode(world, count, originals, recovery).map_err(failed)?;
    let mut chunk = made.remove(&shard).unwrap_or_default();
    chunk.truncate(checkpoint.chunk_len(shard, row));
    checkpoint.check(shard, row, &chunk)?;
    Ok(chunk)
}

/// The number of rows.
fn rows(manifest: &Manifest) -> usize {
    let rows = manifest.shards.iter().map(|s| s.chunks.len());
    rows.max().unwrap_or(0)
}

/// A chunk of a row, padded with zeros to the chunk size. A chunk that a short shard does not have is all zeros.
fn padded(checkpoint: &Checkpoint, shard: usize, row: usize) -> Result<Vec<u8>> {
    let manifest = checkpoint.manifest();
    let mut chunk = Vec::new();
    if row < manifest.shards[shard].chunks.len() {
        chunk = checkpoint.read_chunk(shard, row)?;
    }
    chunk.resize(chunk_len(manifest), 0);
    Ok(chunk)
}

/// A recovery chunk. An error if its checksum does not match.
pub(crate) fn recovery_chunk(checkpoint: &Checkpoint, number: usize, row: usize) -> Result<Vec<u8>> {
    let manifest = checkpoint.manifest();
    let record = &manifest.parity[number];
    let file = checkpoint.handle(manifest.step, &record.file)?;
    let mut chunk = vec![0; chunk_len(manifest)];
    file.read_exact_at(row as u64 * manifest.chunk_bytes, &mut chunk)?;
    if Sum::of(&chunk) != record.chunks[row] {
        let target = format!("chunk {row} of {}", file.object().name);
        let message = "its checksum does not match";
        return Err(Error::new(ErrorKind::Corrupt, "read", target, message));
    }
    Ok(chunk)
}

fn chunk_len(manifest: &Manifest) -> usize {
    usize::try_from(manifest.chunk_bytes).expect("a chunk fits into memory")
}

fn failed(error: reed_solomon_simd::Error) -> Error {
    Error::new(ErrorKind::Invalid, "make", "parity", error.to_string())
}
