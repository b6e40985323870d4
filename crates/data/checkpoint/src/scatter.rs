//! Maps the wanted parts of a restore to the chunks to read and the places of their bytes.

use std::sync::Arc;

use hashbrown::HashMap;
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::Region;
use straightway_weights::{RUNS_MAX, Rectangle, Shape, quoted, whole_bytes};

use super::manifest::{Manifest, Saved, SavedPart};

/// A wanted part of a tensor, and its target memory.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The name of the tensor.
    pub name: String,
    /// The wanted part.
    pub rectangle: Rectangle,
    /// The target memory, of the host or of a GPU.
    pub region: Arc<Region>,
    /// The offset in the region. The part is stored in row-major order.
    pub at: u64,
}

impl Wanted {
    /// A whole tensor.
    pub fn whole(name: &str, shape: &Shape, region: &Arc<Region>, at: u64) -> Self {
        Self {
            name: name.to_owned(),
            rectangle: Rectangle::whole(shape),
            region: Arc::clone(region),
            at,
        }
    }
}

/// A copy of some bytes of a chunk to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyTo {
    /// The offset in the chunk.
    pub(crate) from: usize,
    pub(crate) bytes: usize,
    /// The number of the region.
    pub(crate) region: usize,
    pub(crate) at: u64,
}

/// A chunk to read.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) shard: usize,
    pub(crate) chunk: usize,
    pub(crate) copies: Vec<CopyTo>,
}

impl Task {
    fn new(shard: usize, chunk: usize) -> Self {
        let copies = Vec::new();
        Self { shard, chunk, copies }
    }

    /// The number of wanted bytes of a chunk of `all` bytes. A chunk without copies is read whole, to check it.
    pub(crate) fn wanted_bytes(&self, all: u64) -> u64 {
        match self.copies.as_slice() {
            [] => all,
            copies => copies.iter().map(|copy| copy.bytes as u64).sum(),
        }
    }
}

/// All chunks that hold wanted bytes.
#[derive(Debug, Default)]
pub(crate) struct Scatter {
    pub(crate) tasks: Vec<Task>,
    pub(crate) regions: Vec<Arc<Region>>,
    /// The number of wanted bytes.
    pub(crate) bytes: u64,
    numbers: HashMap<(usize, usize), usize>,
    runs: u64,
}

impl Scatter {
    /// Finds the chunks that hold the wanted parts. A part that no shard has is an error.
    pub(crate) fn new(manifest: &Manifest, wanted: &[Wanted]) -> Result<Self> {
        let mut scatter = Self::default();
        let mut known: HashMap<*const Region, usize> = HashMap::new();
        check_apart(wanted, manifest)?;
        for want in wanted {
            let region = *known.entry(Arc::as_ptr(&want.region)).or_insert_with(|| {
                scatter.regions.push(Arc::clone(&want.region));
                scatter.regions.len() - 1
            });
            scatter.add(manifest, want, region)?;
        }
        scatter.tasks.sort_unstable_by_key(|task| (task.shard, task.chunk));
        Ok(scatter)
    }

    /// Every chunk of a checkpoint, without copies.
    pub(crate) fn everything(manifest: &Manifest) -> Self {
        let mut scatter = Self::default();
        for (shard, record) in manifest.shards.iter().enumerate() {
            let chunks = 0..record.chunks.len();
            scatter.tasks.extend(chunks.map(|chunk| Task::new(shard, chunk)));
        }
        scatter.bytes = manifest.image_bytes();
        scatter
    }

    fn add(&mut self, manifest: &Manifest, want: &Wanted, region: usize) -> Result<()> {
        let tensor = find(manifest, want)?;
        let mut found = 0;
        for part in &tensor.parts {
            let Some(shared) = want.rectangle.intersection(&part.rectangle) else {
                continue;
            };
            found += shared.elements();
            self.add_shared(manifest, tensor, part, &shared, want, region)?;
        }
        let elements = want.rectangle.elements();
        if found != elements {
            let missing = elements - found;
            let message = format!("{missing} of its {elements} wanted elements are in no shard");
            return Err(refuse(&want.name, ErrorKind::NotFound, message));
        }
        Ok(())
    }

    /// Adds the intersection of a stored part and a wanted part. Both have it as runs of elements in the same order,
    /// but split at different places.
    fn add_shared(
        &mut self,
        manifest: &Manifest,
        tensor: &Saved,
        part: &SavedPart,
        shared: &Rectangle,
        want: &Wanted,
        region: usize,
    ) -> Result<()> {
        let runs = |outer: &Rectangle| shared.within(outer).runs(outer.lengths());
        let (mut stored, mut placed) = (runs(&part.rectangle), runs(&want.rectangle));
        self.runs += stored.left().max(placed.left());
        if self.runs > RUNS_MAX {
            let message = format!("what is wanted is more than {RUNS_MAX} runs of bytes");
            return Err(refuse(&want.name, ErrorKind::Invalid, message));
        }
        let bits = tensor.dtype.bits();
        let (mut from, mut to) = (stored.next(), placed.next());
        while let (Some((from_at, from_left)), Some((to_at, to_left))) = (from, to) {
            let elements = from_left.min(to_left);
            let is_ragged = |n| whole_bytes(n, tensor.dtype).is_none();
            if [from_at, to_at, elements].into_iter().any(is_ragged) {
                let message = format!("a part of {} begins or ends inside a byte", tensor.dtype);
                return Err(refuse(&want.name, ErrorKind::Invalid, message));
            }
            let offset = part.offset + from_at * bits / 8;
            let (at, bytes) = (want.at + to_at * bits / 8, elements * bits / 8);
            let (chunk_bytes, of) = (manifest.chunk_bytes, part.shard as usize);
            self.add_run(chunk_bytes, of, offset, bytes, (region, at));
            let rest = |run: (u64, u64)| (run.1 > elements).then_some((run.0 + elements, run.1 - elements));
            from = rest((from_at, from_left)).or_else(|| stored.next());
            to = rest((to_at, to_left)).or_else(|| placed.next());
        }
        Ok(())
    }

    /// Adds bytes of an image, split at chunk boundaries.
    fn add_run(
        &mut self,
        chunk_bytes: u64,
        shard: usize,
        mut offset: u64,
        mut bytes: u64,
        (region, mut at): (usize, u64),
    ) {
        let length = |bytes: u64| usize::try_from(bytes).expect("a chunk fits into memory");
        self.bytes += bytes;
        while bytes > 0 {
            let (chunk, from) = (offset / chunk_bytes, offset % chunk_bytes);
            let now = bytes.min(chunk_bytes - from);
            let chunk = usize::try_from(chunk).expect("a manifest in memory has a line for it");
            let copies = self.copies(shard, chunk);
            let copy = CopyTo {
                from: length(from),
                bytes: length(now),
                region,
                at,
            };
            match copies.last_mut() {
                // Bytes that are adjacent in both are one copy.
                Some(last)
                    if last.region == region
                        && last.from + last.bytes == copy.from
                        && last.at + last.bytes as u64 == at =>
                {
                    last.bytes += copy.bytes;
                }
                _ => copies.push(copy),
            }
            offset += now;
            at += now;
            bytes -= now;
        }
    }

    fn copies(&mut self, shard: usize, chunk: usize) -> &mut Vec<CopyTo> {
        let fresh = self.tasks.len();
        let number = *self.numbers.entry((shard, chunk)).or_insert(fresh);
        if number == fresh {
            self.tasks.push(Task::new(shard, chunk));
        }
        &mut self.tasks[number].copies
    }
}

/// The wanted tensor. An error if it does not exist, does not contain the part, or the part does not fit into its
/// region.
fn find<'a>(manifest: &'a Manifest, want: &Wanted) -> Result<&'a Saved> {
    let tensor = manifest.tensor(&want.name).ok_or_else(|| {
        let message = format!("step {} has no tensor of that name", manifest.step);
        refuse(&want.name, ErrorKind::NotFound, message)
    })?;
    let (start, lengths) = (want.rectangle.offsets(), want.rectangle.lengths());
    Rectangle::new(&want.name, &tensor.shape, start.clone(), lengths.clone())?;
    let bytes = whole_bytes(want.rectangle.elements(), tensor.dtype);
    let end = bytes.and_then(|bytes| want.at.checked_add(bytes));
    if end.is_none_or(|end| end > want.region.bytes()) {
        let message = "it does not fit into its target memory".to_owned();
        return Err(refuse(&want.name, ErrorKind::Invalid, message));
    }
    Ok(tensor)
}

/// Returns an error if targets overlap, because threads write to them in parallel.
fn check_apart(wanted: &[Wanted], manifest: &Manifest) -> Result<()> {
    let mut places = Vec::with_capacity(wanted.len());
    for want in wanted {
        let tensor = find(manifest, want)?;
        let bytes = want.rectangle.elements() * tensor.dtype.bits() / 8;
        if bytes > 0 {
            places.push((Arc::as_ptr(&want.region), want.at, bytes, &want.name));
        }
    }
    places.sort_unstable();
    let overlap =
        |pair: &&[(*const Region, u64, u64, &String)]| pair[0].0 == pair[1].0 && pair[0].1 + pair[0].2 > pair[1].1;
    match places.windows(2).find(overlap) {
        None => Ok(()),
        Some(pair) => {
            let message = format!("its target memory overlaps that of {}", quoted(pair[0].3));
            Err(refuse(pair[1].3, ErrorKind::Invalid, message))
        }
    }
}

fn refuse(name: &str, kind: ErrorKind, message: String) -> Error {
    Error::new(kind, "restore", format!("tensor {}", quoted(name)), message)
}
