//! Writes a shard: the whole snapshot, or only its new chunks.
//!
//! A plain shard is written as it is in memory, one segment while the next is taken; missing checksums are computed
//! during the write. If chunks are compared with a parent or compressed, that comes first, and the remaining bytes are
//! packed to the front of the snapshot's own memory, so there is no second copy of the state.

use std::sync::Arc;

use hashbrown::HashMap;
use straightway_core::{Choice, Error, ErrorKind, Extent, Receipt, Result};
use straightway_io::{Ask, Books, Executor, Objects, Progress, Region, Ticket};
use straightway_sys::{Slot, Window};

use super::{
    codec::Codec,
    coordination::{Coordination, Home},
    manifest::{ChunkLocation, Manifest, ShardRecord},
    name::shard_file,
    snapshot::{Segment, Segments, each_chunk, threads},
    sum::{Digest, Sum},
};

/// The piece size for checksums of chunks that a GPU copied. It fits into the L2 cache.
const SUM_BYTES: usize = 256 << 10;

/// The size and the number of samples that are compressed to estimate the compression ratio.
const SAMPLE_BYTES: usize = 64 << 10;
const SAMPLES: usize = 16;

/// Writes the shard of one rank in one save.
#[derive(Debug)]
pub(crate) struct ShardWriter {
    pub(crate) executor: Arc<Executor>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) rank: Rank,
    /// The checkpoint whose chunks it may reference.
    pub(crate) parent: Option<Manifest>,
    pub(crate) chunk_bytes: u64,
    pub(crate) codec: Codec,
    /// Whether chunks get digests, so that a later save can be compared with this one.
    pub(crate) digests: bool,
}

/// Where a shard is written, and by which rules.
type ShardPlace<'a> = (&'a dyn Coordination, &'a Home);

/// A rank, and the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// This rank, from 0 on. Rank 0 is the coordinator.
    pub rank: u32,
    /// The number of ranks.
    pub world: u32,
}

impl Home {
    /// The name of a shard in its step.
    fn shard_name(&self, rank: Rank, is_plain: bool) -> String {
        shard_file(rank.rank, rank.world, is_plain, self.mark.as_deref())
    }
}

/// A shard that was written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) record: ShardRecord,
    pub(crate) receipt: Receipt,
    /// The estimated ratio of compressed to original size, from a sample.
    pub(crate) estimate: f64,
}

impl ShardWriter {
    /// Whether the shard's file is exactly its image, which can be written in segments.
    pub(crate) fn is_plain(&self) -> bool {
        self.parent.is_none() && self.codec == Codec::Raw && !self.digests
    }

    /// Writes the segments of an image of `bytes` bytes as they arrive, and makes them durable.
    pub(crate) fn write(&self, to: ShardPlace<'_>, bytes: u64, segments: &mut Segments) -> Result<Written> {
        if self.is_plain() {
            return self.write_plain(to, bytes, segments);
        }
        let whole = segments.next().filter(|s| s.extent.bytes == bytes);
        let whole = whole.ok_or_else(not_taken)?;
        self.write_packed(to, whole, segments)
    }

    fn write_plain(
        &self,
        (coordination, home): ShardPlace<'_>,
        bytes: u64,
        segments: &mut Segments,
    ) -> Result<Written> {
        let name = home.shard_name(self.rank, true);
        let shard = coordination.create_shard(home, self.rank.rank, &name, bytes)?;
        let mut ratio = None;
        let (receipt, chunks) = std::thread::scope(|scope| {
            let (mut sums, mut books) = (Vec::new(), Books::default());
            while let Some(mut segment) = segments.next() {
                ratio.get_or_insert_with(|| estimate(image(&mut segment)));
                let (extent, known) = (segment.extent, segment.sums);
                let region = segments.share(segment.region);
                // The file is synced once, with its last segment.
                let is_last = extent.end() >= bytes;
                let ticket = self.start(&shard.object, extent, &region, is_last)?;
                sums.push(scope.spawn(move || self.sum_missing(&region, extent.bytes, known)));
                ticket.enter(&mut books)?;
            }
            let sums = sums.into_iter();
            let sums = sums.map(|sums| sums.join().expect("summing does not panic"));
            Ok((books.close(), sums.collect::<Vec<_>>()))
        })?;
        if receipt.bytes != bytes {
            return Err(not_taken());
        }
        shard.finish(home)?;
        let chunks = chunks.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Written {
            record: ShardRecord {
                file: name,
                rank: self.rank.rank,
                bytes,
                chunks: chunks.concat(),
                digests: Vec::new(),
                stored: None,
            },
            receipt,
            estimate: ratio.unwrap_or(1.0),
        })
    }

    /// Computes the missing checksums. The region is being written at the same time, so its bytes are copied to a slot
    /// first.
    fn sum_missing(&self, region: &Arc<Region>, bytes: u64, sums: Vec<Option<Sum>>) -> Result<Vec<Sum>> {
        let mut slots = Vec::new();
        let mut sum = |number: usize| -> Result<Sum> {
            if slots.is_empty() {
                slots = Slot::ring(1, SUM_BYTES)?;
            }
            let start = number as u64 * self.chunk_bytes;
            let end = bytes.min(start + self.chunk_bytes);
            let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
            let mut at = start;
            while at < end {
                let piece = usize::try_from(end - at).map_or(SUM_BYTES, |n| n.min(SUM_BYTES));
                Window::new(region, at, piece).spill_into(&mut slots[0], 0);
                digest.update(&slots[0].as_slice()[..piece]);
                at += piece as u64;
            }
            Ok(Sum(digest.finalize()))
        };
        let known = sums.into_iter().enumerate();
        known
            .map(|(number, known)| known.map_or_else(|| sum(number), Ok))
            .collect()
    }

    fn write_packed(
        &self,
        (coordination, home): ShardPlace<'_>,
        mut segment: Segment,
        segments: &mut Segments,
    ) -> Result<Written> {
        let (bytes, step) = (segment.extent.bytes, home.attempt.step);
        let known = std::mem::take(&mut segment.sums);
        let image = image(&mut segment);
        let estimate = estimate(image);
        let marks = each_chunk(image, self.chunk_bytes, |number, chunk| {
            let sum = known[number].unwrap_or_else(|| Sum::of(chunk));
            let digest = self.digests.then(|| Digest::of(chunk));
            (sum, digest.unwrap_or_default())
        });
        let (chunks, digests): (Vec<_>, Vec<_>) = marks.into_iter().unzip();
        let known_chunks = self.parent.as_ref().map(places).unwrap_or_default();
        let is_plain = self.codec == Codec::Raw && self.parent.is_none();
        let name = home.shard_name(self.rank, is_plain);
        let mut record = ShardRecord {
            file: name.clone(),
            rank: self.rank.rank,
            bytes,
            chunks,
            digests,
            stored: None,
        };
        if !is_plain {
            let old = |number: usize| {
                let bytes = record.extent(number, self.chunk_bytes).bytes;
                known_chunks.get(&(record.digests[number].0, bytes)).cloned()
            };
            let old: Vec<_> = (0..record.chunks.len()).map(old).collect();
            record.stored = Some(self.pack(image, step, &name, &old));
        }
        if !self.digests {
            record.digests.clear();
        }
        let region = segments.share(segment.region);
        let whole = Extent::new(0, record.file_bytes(step));
        let shard = coordination.create_shard(home, self.rank.rank, &name, whole.bytes)?;
        let receipt = self.start(&shard.object, whole, &region, true)?.wait()?;
        shard.finish(home)?;
        Ok(Written {
            record,
            receipt,
            estimate,
        })
    }

    /// Compresses the new chunks and moves them to the front of the image, one after the other. Returns the location of
    /// each chunk.
    ///
    /// A chunk only moves towards the front, so none is overwritten before it is moved.
    fn pack(&self, image: &mut [u8], step: u64, file: &str, old: &[Option<ChunkLocation>]) -> Vec<ChunkLocation> {
        let chunk_bytes = usize::try_from(self.chunk_bytes).expect("a chunk fits into memory");
        let batch = threads();
        let mut stored = Vec::with_capacity(old.len());
        let mut end = 0;
        for (round, old) in old.chunks(batch).enumerate() {
            let start = round * batch * chunk_bytes;
            let until = image.len().min(start + old.len() * chunk_bytes);
            let compress = |number: usize, chunk: &mut [u8]| match old[number] {
                None => self.codec.shrink(chunk),
                Some(_) => None,
            };
            let shrunk = each_chunk(&mut image[start..until], self.chunk_bytes, compress);
            for (number, (old, shrunk)) in old.iter().zip(shrunk).enumerate() {
                if let Some(old) = old {
                    stored.push(old.clone());
                    continue;
                }
                let from = start + number * chunk_bytes;
                let until = image.len().min(from + chunk_bytes);
                let (codec, bytes) = if let Some(small) = shrunk {
                    image[end..end + small.len()].copy_from_slice(&small);
                    (self.codec, small.len())
                } else {
                    image.copy_within(from..until, end);
                    (Codec::Raw, until - from)
                };
                stored.push(ChunkLocation {
                    step,
                    file: file.to_owned(),
                    offset: end as u64,
                    bytes: bytes as u64,
                    codec,
                });
                end += bytes;
            }
        }
        stored
    }

    /// Writes the front of a region to part of an object.
    fn start(&self, object: &Objects, extent: Extent, region: &Arc<Region>, syncs: bool) -> Result<Ticket> {
        let ask = Ask {
            syncs,
            ..Ask::new(Choice::Auto, &self.progress)
        };
        self.executor.write(region, object.clone(), vec![extent.into()], ask)
    }
}

/// The error of a flush whose snapshot ended early. The snapshot's own error has the reason.
fn not_taken() -> Error {
    let message = "not all of it was taken";
    Error::new(ErrorKind::Cancelled, "write", "a snapshot", message)
}

/// The part of the image that a segment holds.
fn image(segment: &mut Segment) -> &mut [u8] {
    let bytes = usize::try_from(segment.extent.bytes).expect("it is in memory");
    &mut segment.region.as_mut_slice()[..bytes]
}

/// The locations of a checkpoint's chunks, by digest and length.
fn places(manifest: &Manifest) -> HashMap<(u128, u64), ChunkLocation> {
    let mut places = HashMap::new();
    for shard in &manifest.shards {
        for (number, digest) in shard.digests.iter().enumerate() {
            let bytes = shard.extent(number, manifest.chunk_bytes).bytes;
            let place = shard.place(manifest.step, number, manifest.chunk_bytes);
            places.entry((digest.0, bytes)).or_insert(place);
        }
    }
    places
}

/// The estimated ratio of compressed to original size, from samples.
fn estimate(image: &[u8]) -> f64 {
    let step = (image.len() / SAMPLES).max(SAMPLE_BYTES);
    let samples = image.chunks(step).map(|c| &c[..c.len().min(SAMPLE_BYTES)]);
    let (mut whole, mut left) = (0, 0);
    for sample in samples {
        whole += sample.len();
        let small = Codec::Zstd.shrink(sample);
        left += small.map_or(sample.len(), |small| small.len());
    }
    if whole == 0 { 1.0 } else { left as f64 / whole as f64 }
}

/// Returns an error if the rank is not below the number of ranks.
pub(crate) fn check_rank(rank: Rank) -> Result<()> {
    let most = super::manifest::RANKS_MAX;
    if rank.rank < rank.world && rank.world <= most {
        return Ok(());
    }
    let target = format!("rank {} of {}", rank.rank, rank.world);
    let message = format!("ranks count from 0, and there are at most {most}");
    Err(Error::new(ErrorKind::Invalid, "save as", target, message))
}
