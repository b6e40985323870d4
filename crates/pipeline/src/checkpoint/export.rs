//! A checkpoint as plain safetensors files, in a folder as Hugging Face has them: whole tensors, an
//! index where there are several files, and nothing that only we can read.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use straightway_core::{Error, Kind, Place, Result};
use straightway_io::Region;
use straightway_sys::Folder;

use super::{
    manifest::Saved,
    opened::Checkpoint,
    restorer::{Fetched, Restorer},
    scatter::Wanted,
};
use crate::weights::{self, Placed};

/// The largest file, unless a tensor is larger: what model hubs take.
pub const EXPORT_BYTES: u64 = 5_000_000_000;

/// What was exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// The files.
    pub files: Vec<String>,
    /// Tensors in them.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// What is no tensor, and was left out.
    pub left_out: Vec<String>,
}

/// Some tensors in memory, each where its dtype likes it.
#[derive(Debug)]
pub struct Gathered {
    /// The memory.
    pub region: Arc<Region>,
    /// Where each is.
    pub tensors: Vec<Placed>,
    /// What was read for that.
    pub fetched: Fetched,
}

impl Restorer {
    /// Restores tensors whole, one after the other, into new memory of a place.
    pub fn gather(
        &self,
        checkpoint: &Checkpoint,
        tensors: &[&Saved],
        place: Place,
    ) -> Result<Gathered> {
        let mut at = 0_u64;
        let place_one = |tensor: &&Saved| {
            let placed = Placed {
                name: tensor.name.as_ref().into(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                at,
                bytes: tensor.bytes(),
            };
            at = (at + placed.bytes).next_multiple_of(weights::LARGE_ALIGN_BYTES);
            placed
        };
        let placed: Vec<_> = tensors.iter().map(place_one).collect();
        let region = Arc::new(Region::at(place, at.max(1))?);
        let want = |tensor: &Placed| Wanted::whole(&tensor.name, &tensor.shape, &region, tensor.at);
        let wanted: Vec<_> = placed.iter().map(want).collect();
        let fetched = self.restore(checkpoint, &wanted)?;
        drop(wanted);
        Ok(Gathered {
            region,
            tensors: placed,
            fetched,
        })
    }

    /// Writes the tensors of a checkpoint to `folder`, which must be new or empty, in files of at
    /// most `shard_bytes`.
    pub fn export(
        &self,
        checkpoint: &Checkpoint,
        saver: &weights::Saver,
        folder: &Path,
        shard_bytes: u64,
    ) -> Result<Exported> {
        fs::create_dir_all(folder).map_err(|e| Error::os("create", folder.display(), e))?;
        let mut there = fs::read_dir(folder).map_err(|e| Error::os("list", folder.display(), e))?;
        if there.next().is_some() {
            let (path, why) = (folder.display(), "it is not empty");
            return Err(Error::new(Kind::Invalid, "export to", path, why));
        }
        let manifest = checkpoint.manifest();
        let mut exported = Exported::default();
        let (opaque, tensors): (Vec<_>, Vec<_>) = manifest.tensors.iter().partition(|t| t.opaque);
        exported.left_out = opaque.iter().map(|t| t.name.to_string()).collect();
        let groups = divide(&tensors, shard_bytes);
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let name = |number: usize| match groups.len() {
            1 => "model.safetensors".to_owned(),
            of => format!("model-{:05}-of-{of:05}.safetensors", number + 1),
        };
        if groups.len() > 1 {
            // First: until the last file is there, readers say which one is missing.
            let index = index(&groups, &name);
            let text = format!("{index:#}\n");
            Folder::open(folder)?.replace(weights::INDEX_NAME, text.as_bytes())?;
        }
        for (number, group) in groups.iter().enumerate() {
            let file = name(number);
            let gathered = self.gather(checkpoint, group, Place::Host)?;
            let path = folder.join(&file);
            saver.save(&path, &gathered.region, &gathered.tensors, &metadata)?;
            exported.tensors += gathered.tensors.len();
            exported.bytes += gathered.tensors.iter().map(|t| t.bytes).sum::<u64>();
            exported.files.push(file);
        }
        Ok(exported)
    }
}

/// The index of files that are not there yet: `name` gives the name of each group's.
fn index(groups: &[Vec<&Saved>], name: &impl Fn(usize) -> String) -> serde_json::Value {
    let mut weight_map = serde_json::Map::new();
    for (number, group) in groups.iter().enumerate() {
        let place = |tensor: &&Saved| (tensor.name.to_string(), name(number).into());
        weight_map.extend(group.iter().map(place));
    }
    let bytes: u64 = groups.iter().flatten().map(|t| t.bytes()).sum();
    serde_json::json!({ "metadata": { "total_size": bytes }, "weight_map": weight_map })
}

/// Divides tensors among files of at most `most` bytes, or one tensor that is larger.
fn divide<'a>(tensors: &[&'a Saved], most: u64) -> Vec<Vec<&'a Saved>> {
    let mut groups: Vec<Vec<&Saved>> = vec![Vec::new()];
    let mut bytes = 0;
    for tensor in tensors {
        let open = groups.last_mut().expect("there is always one");
        if !open.is_empty() && bytes + tensor.bytes() > most {
            groups.push(vec![*tensor]);
            bytes = tensor.bytes();
        } else {
            open.push(*tensor);
            bytes += tensor.bytes();
        }
    }
    groups
}
