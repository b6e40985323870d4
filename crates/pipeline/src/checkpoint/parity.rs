//! Parity across ranks: chunk *c* of every shard is a row, and each row gets some recovery chunks, by
//! Reed–Solomon. As many chunks of a row as there are parity files may be lost.
//!
//! Rows are made of what chunks hold, not of how they are stored: a shard that refers to earlier
//! steps or is compressed is protected like any other, and so is what it refers to.

use straightway_core::{Error, Kind, Result};
use straightway_io::store::Like;

use super::{
    home::Home,
    manifest::{Manifest, PARITY_MAX, ParityRecord},
    name::parity_file,
    opened::Checkpoint,
    steps::Steps,
    sum::Sum,
};

/// Ranks that parity is made for: a row of so many chunks of 4 MiB is 1 GiB, and is in memory.
const PARITY_RANKS_MAX: usize = 256;

/// Makes parity files for the shards of an attempt, which lie in `home`.
pub(crate) fn protect(
    store: &Steps,
    home: &Home,
    manifest: &Manifest,
    count: usize,
) -> Result<Vec<ParityRecord>> {
    let world = manifest.shards.len();
    if count > PARITY_MAX || world > PARITY_RANKS_MAX {
        let target = format!("{count} parity files of {world} shards");
        let message = format!("{PARITY_MAX} files and {PARITY_RANKS_MAX} shards are the most");
        return Err(Error::new(Kind::Invalid, "make", target, message));
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
    home.store.commit(drafts)?;
    Ok(records)
}

/// Makes a chunk that cannot be read of the others of its row, if there is parity.
pub(crate) fn rebuild(checkpoint: &Checkpoint, shard: usize, row: usize) -> Result<Vec<u8>> {
    let manifest = checkpoint.manifest();
    let (world, count) = (manifest.shards.len(), manifest.parity.len());
    // One that is lost too is only one more to be made.
    let read = |other| Some((other, padded(checkpoint, other, row).ok()?));
    let others = (0..world).filter(|other| *other != shard);
    let originals: Vec<_> = others.filter_map(read).collect();
    let recover = |number| Some((number, recovery_chunk(checkpoint, number, row).ok()?));
    let recovery: Vec<_> = (0..count).filter_map(recover).collect();
    let (missing, left) = (world - originals.len(), recovery.len());
    if missing > left {
        let why = format!(
            "{missing} shards have lost this chunk, and {left} of {count} parity files have theirs"
        );
        return Err(checkpoint.damaged(shard, row, &why));
    }
    let mut made = reed_solomon_simd::decode(world, count, originals, recovery).map_err(failed)?;
    let mut chunk = made.remove(&shard).unwrap_or_default();
    chunk.truncate(checkpoint.chunk_len(shard, row));
    checkpoint.check(shard, row, &chunk)?;
    Ok(chunk)
}

/// How many rows there are.
fn rows(manifest: &Manifest) -> usize {
    let rows = manifest.shards.iter().map(|s| s.chunks.len());
    rows.max().unwrap_or(0)
}

/// A chunk of a row, as long as all of them; one that a short shard does not have is of zeros.
fn padded(checkpoint: &Checkpoint, shard: usize, row: usize) -> Result<Vec<u8>> {
    let manifest = checkpoint.manifest();
    let mut chunk = Vec::new();
    if row < manifest.shards[shard].chunks.len() {
        chunk = checkpoint.read_chunk(shard, row)?;
    }
    chunk.resize(chunk_len(manifest), 0);
    Ok(chunk)
}

/// A recovery chunk, if it is what it was.
pub(crate) fn recovery_chunk(
    checkpoint: &Checkpoint,
    number: usize,
    row: usize,
) -> Result<Vec<u8>> {
    let manifest = checkpoint.manifest();
    let record = &manifest.parity[number];
    let file = checkpoint.handle(manifest.step, &record.file)?;
    let mut chunk = vec![0; chunk_len(manifest)];
    file.read_exact_at(row as u64 * manifest.chunk_bytes, &mut chunk)?;
    if Sum::of(&chunk) != record.chunks[row] {
        let target = format!("chunk {row} of {}", file.object().name);
        let message = "its checksum does not match";
        return Err(Error::new(Kind::Corrupt, "read", target, message));
    }
    Ok(chunk)
}

fn chunk_len(manifest: &Manifest) -> usize {
    usize::try_from(manifest.chunk_bytes).expect("a chunk fits into memory")
}

fn failed(error: reed_solomon_simd::Error) -> Error {
    Error::new(Kind::Invalid, "make", "parity", error.to_string())
}
