//! What one rank says of the shard that it wrote, and how all ranks' parts become a manifest.

use hashbrown::{HashMap, hash_map::Entry};
use straightway_core::{Error, Kind, Result};

use super::{
    manifest::{
        Manifest, PART_SCHEMA, PartWire, RANKS_MAX, Saved, SavedPart, ShardRecord, check_tensor,
        covers, open,
    },
    name::Attempt,
    seal,
};
use crate::weights::quoted;

/// A rank's shard, durable, and what is in it.
#[derive(Clone, Debug)]
pub struct Part {
    /// The save that it belongs to.
    pub attempt: Attempt,
    /// How many ranks save together.
    pub world: u32,
    /// How long chunks are.
    pub chunk_bytes: u64,
    /// The step that its chunks may refer to.
    pub parent: Option<u64>,
    /// What no other saver has: the file of the shard is called by it until the commit.
    pub writer: String,
    /// Its tensors, whose parts are all in shard 0: the rank's own.
    pub tensors: Vec<Saved>,
    /// The shard.
    pub shard: ShardRecord,
}

impl Part {
    /// It as text, to be sent to the coordinator.
    pub fn text(&self) -> String {
        seal::seal(&PartWire::of(self))
    }

    /// The part that is this text. Errors call it `name`.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self> {
        open::<PartWire>(name, text, PART_SCHEMA)?.checked(name)
    }
}

/// Makes one manifest of the parts of all ranks.
///
/// What two ranks hold alike is counted once. What is wrong here is a mistake of the job: ranks that
/// disagree about a tensor, overlap, or leave some of it out.
pub(crate) fn merge(mut parts: Vec<Part>, metadata: &str) -> Result<Manifest> {
    let Some(first) = parts.first().cloned() else {
        return Err(refuse("it", "it has no parts"));
    };
    let target = format!("step {}", first.attempt.step);
    check_metadata(first.attempt.step, metadata)?;
    parts.sort_by_key(|part| part.shard.rank);
    let is_whole = first.world <= RANKS_MAX
        && parts.len() == first.world as usize
        && parts.iter().zip(0..).all(|(p, rank)| p.shard.rank == rank);
    if !is_whole {
        let (found, world) = (parts.len(), first.world);
        let message = format!("{found} parts are not one for each of {world} ranks");
        return Err(refuse(&target, message));
    }
    let figures = |p: &Part| (p.attempt.clone(), p.world, p.chunk_bytes);
    if let Some(other) = parts.iter().find(|p| figures(p) != figures(&first)) {
        let rank = other.shard.rank;
        let message = format!("the part of rank {rank} is of another save, or cut another way");
        return Err(refuse(&target, message));
    }
    let mut tensors: Vec<Saved> = Vec::new();
    let mut numbers: HashMap<_, usize> = HashMap::new();
    for (rank, part) in (0..).zip(&mut parts) {
        for mut tensor in part.tensors.drain(..) {
            tensor.parts.iter_mut().for_each(|p| p.shard = rank);
            match numbers.entry(tensor.name.clone()) {
                Entry::Vacant(place) => {
                    place.insert(tensors.len());
                    tensors.push(tensor);
                }
                Entry::Occupied(place) => join(&mut tensors[*place.get()], tensor, rank)?,
            }
        }
    }
    for tensor in &tensors {
        check_tensor(tensor).map_err(|why| refuse(&target, why))?;
        if !covers(&tensor.parts, tensor.shape.elements().unwrap_or(0)) {
            let name = quoted(&tensor.name);
            let message = format!("tensor {name} is not whole: some of it is in no rank's state");
            return Err(refuse(&target, message));
        }
    }
    let manifest = Manifest {
        step: first.attempt.step,
        world: first.world,
        run: first.attempt.run,
        chunk_bytes: first.chunk_bytes,
        parent: parts.iter().find_map(|p| p.parent),
        metadata: metadata.to_owned(),
        tensors,
        shards: parts.into_iter().map(|p| p.shard).collect(),
        parity: Vec::new(),
        versions: None,
        numbers: HashMap::new(),
    };
    manifest
        .checked(&target)
        .map_err(|e| refuse(&target, e.to_string()))
}

/// Adds what rank `rank` holds of a tensor that another rank holds too.
fn join(tensor: &mut Saved, more: Saved, rank: u32) -> Result<()> {
    let figures = |t: &Saved| (t.dtype, t.shape.clone(), t.opaque);
    if figures(tensor) != figures(&more) {
        let name = quoted(&tensor.name);
        let words = |t: &Saved| {
            let kind = if t.opaque {
                "bytes that are no tensor"
            } else {
                "a tensor"
            };
            format!("{kind}, {} of shape {}", t.dtype, t.shape)
        };
        // The first part is that of the first rank which has it.
        let first = tensor.parts.first().map_or(0, |part| part.shard);
        let (one, other) = (words(tensor), words(&more));
        let message = format!("rank {first} has {one} under that name, and rank {rank} {other}");
        return Err(refuse(&format!("tensor {name}"), message)
            .with_hint("give what differs from rank to rank a name of its own on each"));
    }
    for part in more.parts {
        let is_same = |known: &SavedPart| known.rectangle == part.rectangle;
        if !tensor.parts.iter().any(is_same) {
            tensor.parts.push(part);
        }
    }
    Ok(())
}

/// Refuses metadata that would not be read back as they were written: they must be JSON, with numbers in the range of a
/// double, no half of a surrogate pair, and not nested deeper than 127 levels.
pub(crate) fn check_metadata(step: u64, metadata: &str) -> Result<()> {
    match serde_json::from_str::<serde_json::Value>(metadata) {
        Ok(_) => Ok(()),
        Err(error) => {
            let message = format!("its metadata cannot be stored as JSON: {error}");
            let target = format!("step {step}");
            Err(Error::new(Kind::Invalid, "save", target, message))
        }
    }
}

fn refuse(target: &str, why: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, "commit", target, why)
}
