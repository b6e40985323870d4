//! The report of a rank about its shard, and the merge of all reports into a manifest.

mod wire;

use std::collections::BTreeMap;

use hashbrown::{HashMap, hash_map::Entry};
use straightway_core::{Error, ErrorKind, Result};
use straightway_weights::quoted;

use super::{
    manifest::{Manifest, RANKS_MAX, Saved, SavedPart, ShardRecord, check_tensor, covers, open},
    name::Attempt,
    seal,
};

/// The description of a rank's shard, made when the shard is durable. Its file is `part-RANK-….json`.
#[derive(Clone, Debug)]
pub struct ShardReport {
    /// The save that the shard belongs to.
    pub attempt: Attempt,
    /// The number of ranks of the save.
    pub world: u32,
    /// The chunk size.
    pub chunk_bytes: u64,
    /// The step that its chunks may reference.
    pub parent: Option<u64>,
    /// The nonce of the saver, which the shard's file name contains until the commit.
    pub writer: String,
    /// Its tensors. Shard 0 in their parts is the rank's own shard.
    pub tensors: Vec<Saved>,
    /// The identities of its tensors that have one, by name. They are compared and not stored.
    pub identities: BTreeMap<String, String>,
    /// The shard.
    pub shard: ShardRecord,
}

impl ShardReport {
    /// The report as text, to send to the coordinator.
    pub fn text(&self) -> String {
        seal::seal(&wire::ShardReportWire::of(self))
    }

    /// Parses a report. Errors call it `name`.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self> {
        open::<wire::ShardReportWire>(name, text, wire::SCHEMA)?.checked(name)
    }
}

/// Merges the reports of all ranks into a manifest.
///
/// A part that several ranks have is stored once. Errors here are mistakes of the job: ranks that disagree about a
/// tensor, overlap, or leave some of it out.
pub(crate) fn merge(mut reports: Vec<ShardReport>, metadata: &str) -> Result<Manifest> {
    let Some(first) = reports.first().cloned() else {
        return Err(refuse("it", "it has no parts"));
    };
    let target = format!("step {}", first.attempt.step);
    check_metadata(first.attempt.step, metadata)?;
    reports.sort_by_key(|report| report.shard.rank);
    let is_whole = first.world <= RANKS_MAX
        && reports.len() == first.world as usize
        && reports.iter().zip(0..).all(|(r, rank)| r.shard.rank == rank);
    if !is_whole {
        let (found, world) = (reports.len(), first.world);
        let message = format!("{found} parts are not one for each of {world} ranks");
        return Err(refuse(&target, message));
    }
    let figures = |r: &ShardReport| (r.attempt.clone(), r.world, r.chunk_bytes);
    if let Some(other) = reports.iter().find(|r| figures(r) != figures(&first)) {
        let rank = other.shard.rank;
        let message = format!("the part of rank {rank} is of another save, or cut another way");
        return Err(refuse(&target, message));
    }
    check_identities(&reports)?;
    let mut tensors: Vec<Saved> = Vec::new();
    let mut numbers: HashMap<_, usize> = HashMap::new();
    for (rank, report) in (0..).zip(&mut reports) {
        for mut tensor in report.tensors.drain(..) {
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
        parent: reports.iter().find_map(|r| r.parent),
        metadata: metadata.to_owned(),
        tensors,
        shards: reports.into_iter().map(|r| r.shard).collect(),
        parity: Vec::new(),
        versions: None,
        numbers: HashMap::new(),
    };
    manifest.checked(&target).map_err(|e| refuse(&target, e.to_string()))
}

/// Returns an error if two ranks have different tensors under one name. A tensor without identity is known by its name.
fn check_identities(reports: &[ShardReport]) -> Result<()> {
    if reports.iter().all(|report| report.identities.is_empty()) {
        return Ok(());
    }
    let mut known: HashMap<&str, (u32, &str)> = HashMap::new();
    for report in reports {
        for tensor in &report.tensors {
            let name = &*tensor.name;
            let identity = report.identities.get(name).map_or(name, |identity| identity);
            let rank = report.shard.rank;
            let (first, other) = *known.entry(name).or_insert((rank, identity));
            if other != identity {
                let (one, two) = (quoted(other), quoted(identity));
                let message = format!("rank {first} has {one} under that name, and rank {rank} has {two}");
                return Err(refuse(&format!("tensor {}", quoted(name)), message)
                    .with_hint("keys whose paths read the same, such as 1 and \"1\", must not differ between ranks"));
            }
        }
    }
    Ok(())
}

/// Adds the parts that rank `rank` has of a tensor that another rank has too.
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
        // The first part comes from the first rank that has the tensor.
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

/// Returns an error if the metadata could not be read back unchanged: it must be JSON, with numbers in the range of a
/// double, no lone surrogates, and at most 127 levels of nesting.
pub(crate) fn check_metadata(step: u64, metadata: &str) -> Result<()> {
    match serde_json::from_str::<serde_json::Value>(metadata) {
        Ok(_) => Ok(()),
        Err(error) => {
            let message = format!("its metadata cannot be stored as JSON: {error}");
            let target = format!("step {step}");
            Err(Error::new(ErrorKind::Invalid, "save", target, message))
        }
    }
}

fn refuse(target: &str, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, "commit", target, why)
}
