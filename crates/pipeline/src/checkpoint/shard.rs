//! Writing a shard: a snapshot becomes a file, whole or only as far as it is new.
//!
//! A plain shard is written as it lies in memory, by one move, and what has no checksum yet is
//! summed meanwhile. Where chunks are compared with a parent or compressed, that is done first, and
//! what is left is packed to the front of the snapshot's own memory: no second copy of the state exists.

use std::{path::Path, sync::Arc};

use hashbrown::HashMap;
use straightway_core::{Choice, Error, Extent, Kind, Move, Receipt, Result};
use straightway_io::{Executor, File, Job, Progress, Region};
use straightway_sys::{Slot, Window};

use super::{
    codec::Codec,
    manifest::{Manifest, ShardRecord, Stored},
    name::shard_file,
    snapshot::{Snapshot, each_chunk, threads},
    sum::{Digest, Sum},
};

/// What a chunk that a GPU copied is summed by: it stays in the second-level cache.
const SUM_BYTES: usize = 256 << 10;

/// How much is compressed to see whether compression would help, and in how many places.
const SAMPLE_BYTES: usize = 64 << 10;
const SAMPLES: usize = 16;

/// What writes shards.
#[derive(Clone, Debug)]
pub(crate) struct ShardWriter {
    pub(crate) executor: Arc<Executor>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) chunk_bytes: u64,
    pub(crate) codec: Codec,
    /// Whether chunks get digests, which a later save can be compared with.
    pub(crate) digests: bool,
}

/// Whose shard it is, of how many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// This rank, from 0 on. Rank 0 is the coordinator.
    pub rank: u32,
    /// How many ranks there are.
    pub world: u32,
}

/// A shard that was written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) record: ShardRecord,
    pub(crate) receipt: Receipt,
    /// What part of its bytes compression would leave, by a sample.
    pub(crate) estimate: f64,
    /// The memory of the snapshot, for the next.
    pub(crate) region: Region,
}

impl ShardWriter {
    /// Writes a snapshot into `folder`, and makes it durable.
    pub(crate) fn write(
        &self,
        folder: &Path,
        rank: Rank,
        step: u64,
        snapshot: Snapshot,
        parent: Option<&Manifest>,
    ) -> Result<Written> {
        if parent.is_none() && self.codec == Codec::Raw && !self.digests {
            return self.write_plain(folder, rank, snapshot);
        }
        self.write_packed(folder, rank, step, snapshot, parent)
    }

    fn write_plain(&self, folder: &Path, rank: Rank, mut snapshot: Snapshot) -> Result<Written> {
        let estimate = estimate(image(&mut snapshot));
        let name = shard_file(rank.rank, rank.world, true);
        let bytes = snapshot.bytes;
        let region = Arc::new(snapshot.region);
        let (receipt, sums) = std::thread::scope(|scope| {
            let missing = scope.spawn(|| self.sum_missing(&region, bytes, snapshot.sums));
            let receipt = self.write_file(&folder.join(&name), bytes, &region);
            let sums = missing.join().expect("summing does not panic");
            (receipt, sums)
        });
        Ok(Written {
            record: ShardRecord {
                file: name,
                rank: rank.rank,
                bytes,
                chunks: sums?,
                digests: Vec::new(),
                stored: None,
            },
            receipt: receipt?,
            estimate,
            region: Arc::into_inner(region).expect("the transfer is over"),
        })
    }

    /// Takes the checksums that are missing. The region is being written meanwhile, so its bytes are
    /// looked at by way of a slot.
    fn sum_missing(
        &self,
        region: &Arc<Region>,
        bytes: u64,
        sums: Vec<Option<Sum>>,
    ) -> Result<Vec<Sum>> {
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
        folder: &Path,
        rank: Rank,
        step: u64,
        mut snapshot: Snapshot,
        parent: Option<&Manifest>,
    ) -> Result<Written> {
        let bytes = snapshot.bytes;
        let known = std::mem::take(&mut snapshot.sums);
        let image = image(&mut snapshot);
        let estimate = estimate(image);
        let digests = self.digests || parent.is_some();
        let marks = each_chunk(image, self.chunk_bytes, |number, chunk| {
            let sum = known[number].unwrap_or_else(|| Sum::of(chunk));
            let digest = if digests {
                Digest::of(chunk)
            } else {
                Digest::default()
            };
            (sum, digest)
        });
        let (chunks, digests): (Vec<_>, Vec<_>) = marks.into_iter().unzip();
        let there = parent.map(places).unwrap_or_default();
        let is_plain = self.codec == Codec::Raw && parent.is_none();
        let name = shard_file(rank.rank, rank.world, is_plain);
        let mut record = ShardRecord {
            file: name.clone(),
            rank: rank.rank,
            bytes,
            chunks,
            digests,
            stored: None,
        };
        let mut file_bytes = bytes;
        if !is_plain {
            let old = |number: usize| {
                let bytes = record.extent(number, self.chunk_bytes).bytes;
                there.get(&(record.digests[number].0, bytes)).cloned()
            };
            let old: Vec<_> = (0..record.chunks.len()).map(old).collect();
            let stored = self.pack(image, step, &name, &old);
            let own = stored.iter().filter(|s| s.step == step && s.file == name);
            file_bytes = own.map(|s| s.offset + s.bytes).max().unwrap_or(0);
            record.stored = Some(stored);
        }
        if !self.digests {
            record.digests.clear();
        }
        let region = Arc::new(snapshot.region);
        let receipt = self.write_file(&folder.join(&name), file_bytes, &region)?;
        Ok(Written {
            record,
            receipt,
            estimate,
            region: Arc::into_inner(region).expect("the transfer is over"),
        })
    }

    /// Compresses the chunks that are nowhere yet, and moves them to the front of the image, one after
    /// the other. Answers where each chunk is then.
    ///
    /// A chunk never moves towards the end, so none is overwritten before it was moved itself.
    fn pack(&self, image: &mut [u8], step: u64, file: &str, old: &[Option<Stored>]) -> Vec<Stored> {
        let chunk_bytes = usize::try_from(self.chunk_bytes).expect("a chunk fits into memory");
        let batch = threads();
        let mut stored = Vec::with_capacity(old.len());
        let mut end = 0;
        for (round, old) in old.chunks(batch).enumerate() {
            let start = round * batch * chunk_bytes;
            let until = image.len().min(start + old.len() * chunk_bytes);
            let shrunk = each_chunk(
                &mut image[start..until],
                self.chunk_bytes,
                |number, chunk| {
                    old[number]
                        .is_none()
                        .then(|| self.codec.shrink(chunk))
                        .flatten()
                },
            );
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
                stored.push(Stored {
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

    /// Writes the front of a region to a new file.
    fn write_file(&self, path: &Path, bytes: u64, region: &Arc<Region>) -> Result<Receipt> {
        let file = Arc::new(File::create(path, bytes)?);
        let all = Move {
            object: 0,
            extent: Extent::new(0, bytes),
            at: 0,
        };
        let settings = self.executor.settings();
        let job = Job::write(region, vec![file], vec![all], Choice::Auto, settings)?;
        self.executor.run(job.with_progress(&self.progress))
    }
}

/// The image that a snapshot holds.
fn image(snapshot: &mut Snapshot) -> &mut [u8] {
    let bytes = usize::try_from(snapshot.bytes).expect("it is in memory");
    &mut snapshot.region.as_mut_slice()[..bytes]
}

/// Where the chunks of a checkpoint lie, by digest and length.
fn places(manifest: &Manifest) -> HashMap<(u128, u64), Stored> {
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

/// What part of its bytes compression would leave, by a sample of them.
fn estimate(image: &[u8]) -> f64 {
    let step = (image.len() / SAMPLES).max(SAMPLE_BYTES);
    let samples = image.chunks(step).map(|c| &c[..c.len().min(SAMPLE_BYTES)]);
    let (mut whole, mut left) = (0, 0);
    for sample in samples {
        whole += sample.len();
        left += Codec::Zstd
            .shrink(sample)
            .map_or(sample.len(), |small| small.len());
    }
    if whole == 0 {
        1.0
    } else {
        left as f64 / whole as f64
    }
}

/// Refuses a rank that is not one of its world.
pub(crate) fn check_rank(rank: Rank) -> Result<()> {
    let most = super::manifest::RANKS_MAX;
    if rank.rank < rank.world && rank.world <= most {
        return Ok(());
    }
    let target = format!("rank {} of {}", rank.rank, rank.world);
    let message = format!("ranks count from 0, and there are at most {most}");
    Err(Error::new(Kind::Invalid, "save as", target, message))
}
