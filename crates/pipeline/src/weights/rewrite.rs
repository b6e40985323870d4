//! Rewrites the files of a model so that their data is page-aligned and can be read by direct I/O. The tensors stay in
//! the same files, or are divided among files of a given size.
//!
//! All files are drafts until the last byte of the last one is durable. Then they are renamed, in an order in which no
//! reader sees files of two models ([`Publication`]).

use std::{collections::BTreeMap, fs, sync::Arc};

use serde::Serialize;
use serde_json::{Map, Value, json};
use straightway_core::{Error, ErrorKind, Extent, Move, Receipt, Result};
use straightway_io::{
    Ask, Books, Handle, Objects, Region,
    store::{Draft, Like, Listing, Location, Missing, list_all},
    tally::WARNINGS_MAX,
};

use super::{
    FileSaver, INDEX_NAME, Model, Tensor,
    model::find_index,
    outline::{Entry, Outline},
    publish::Publication,
    save::{WINDOW_BYTES, begin, windows},
};

/// The maximum number of files of a rewritten model. All stay open until the end, with three descriptors each.
pub const REWRITTEN_FILES_MAX: usize = 1024;

/// A file to write.
#[derive(Debug)]
struct Target<'a> {
    at: Location,
    tensors: Vec<&'a Tensor>,
    metadata: BTreeMap<String, String>,
}

/// A model whose bytes are all durable, under temporary names.
#[derive(Debug)]
struct Drafted {
    receipt: Receipt,
    files: Vec<Box<dyn Draft>>,
    /// The publication and the draft of the index, if there is one.
    publication: Option<(Publication, Box<dyn Draft>)>,
}

impl FileSaver {
    /// Writes a model to `target`: a file if the model is one file, otherwise a folder.
    ///
    /// With `shard_bytes`, tensors are divided among files of at most that size (or one larger tensor), named as
    /// Hugging Face names them. Without it, each file keeps its name. If a file of another model has the same name, the
    /// new file gets another name, and the old file is removed once the new model is complete.
    pub fn rewrite(
        &self,
        model: &Model,
        target: impl Into<Location>,
        shard_bytes: Option<u64>,
    ) -> Result<Receipt> {
        let target = target.into();
        let drafted = self.draft_model(model, &target, shard_bytes)?;
        let mut receipt = drafted.receipt;
        match drafted.publication {
            // A single file appears by a single rename.
            None => target.store.commit(drafted.files)?,
            Some((publication, index)) => {
                let left = publication.run(drafted.files, index)?;
                let warning = |error: &Error| format!("a file of the old model is left: {error}");
                let room = WARNINGS_MAX.saturating_sub(receipt.warnings.len());
                receipt.warnings.extend(left.iter().take(room).map(warning));
            }
        }
        Ok(receipt)
    }

    /// Writes all files of the new model under temporary names.
    fn draft_model(
        &self,
        model: &Model,
        target: &Location,
        shard_bytes: Option<u64>,
    ) -> Result<Drafted> {
        let is_file =
            matches!(&model.shards[..], [one] if one.path == model.path) && shard_bytes.is_none();
        let is_like_folder = target.name.extension().is_none_or(|e| e != "safetensors");
        let into = !is_file || target.is_folder(is_like_folder);
        let there = if into {
            list_all(&*target.below(Missing::Create)?)?
        } else {
            Listing::default()
        };
        let mut targets = match shard_bytes {
            Some(bytes) => new_shards(model, target, bytes)?,
            None => same_files(model, target, into)?,
        };
        if targets.len() > REWRITTEN_FILES_MAX {
            let message = format!(
                "it would be {} files, and {REWRITTEN_FILES_MAX} is the most",
                targets.len()
            );
            return Err(target
                .error(ErrorKind::Invalid, "write", message)
                .with_hint("give a larger ⟦shard_size⟧"));
        }
        let is_many = targets.len() > 1 || model.index_metadata.is_some();
        // Readers of a folder with an index would otherwise still read the files that it names.
        let has_index = into && (is_many || (!is_file && find_index(target, &there)?.is_some()));
        let publication = if has_index {
            // Without a shard size, each file of the model has one target, which may be the file itself.
            let sources: Vec<_> = match shard_bytes {
                None => model.shards.iter().map(|s| s.location()).collect(),
                Some(_) => Vec::new(),
            };
            let mut places: Vec<_> = targets.iter_mut().map(|t| &mut t.at).collect();
            Some(Publication::new(target, &there, &mut places, &sources)?)
        } else {
            None
        };
        let outlines = targets.iter().map(Target::outline);
        let outlines: Vec<_> = outlines.collect::<Result<_>>()?;
        let files = targets.iter().zip(&outlines);
        let files: Vec<_> = files
            .map(|(t, outline)| {
                let replaced = publication
                    .as_ref()
                    .and_then(|p| p.displaced_by(&t.at.name));
                begin(&t.at, outline, replaced.and_then(|path| path.file_name()))
            })
            .collect::<Result<_>>()?;
        let receipt = self.fill_drafts(model, &targets, &outlines, &files)?;
        let publication = match publication {
            Some(publication) => Some((publication, index(model, target, &targets)?)),
            None => None,
        };
        Ok(Drafted {
            receipt,
            files,
            publication,
        })
    }

    /// Copies all bytes window by window: each window is read and then written.
    fn fill_drafts(
        &self,
        model: &Model,
        targets: &[Target<'_>],
        outlines: &[Outline],
        drafts: &[Box<dyn Draft>],
    ) -> Result<Receipt> {
        let longest = outlines.iter().map(|o| o.data().bytes).max();
        let region = Arc::new(Region::host(WINDOW_BYTES.min(longest.unwrap_or(0)))?);
        let mut sources = Sources::new(model);
        let ask = Ask::new(self.choice, &self.progress);
        let mut books = Books::default();
        for ((target, outline), draft) in targets.iter().zip(outlines).zip(drafts) {
            for window in windows(outline.data()) {
                // A model without tensors may have no file to read; its one target is still written.
                if window.bytes > 0 {
                    let (objects, moves) = sources.moves(target, outline, window)?;
                    let read = self.executor.read(objects, moves, &region, ask.clone())?;
                    read.enter(&mut books)?;
                }
                let written = self.write(&region, &target.at, &**draft, vec![window.into()])?;
                written.enter(&mut books)?;
            }
        }
        Ok(books.close())
    }
}

impl<'a> Target<'a> {
    fn outline(&self) -> Result<Outline> {
        let entry = |t: &&'a Tensor| Entry::new(&t.name, t.dtype, &t.shape, t.extent.bytes);
        let entries: Vec<_> = self.tensors.iter().map(entry).collect();
        Outline::new(&self.at.describe(), &entries, &self.metadata)
    }
}

/// The files of a model. Those that the last window needed stay open.
#[derive(Debug)]
struct Sources<'a> {
    model: &'a Model,
    open: BTreeMap<u32, Arc<dyn Handle>>,
}

impl<'a> Sources<'a> {
    fn new(model: &'a Model) -> Self {
        Self {
            model,
            open: BTreeMap::new(),
        }
    }

    /// The objects and moves that read the data of a window of a new file.
    fn moves(
        &mut self,
        target: &Target<'_>,
        outline: &Outline,
        window: Extent,
    ) -> Result<(Objects, Vec<Move>)> {
        let mut numbers: Vec<u32> = Vec::new();
        let mut moves = Vec::new();
        for (number, place) in outline.within(window) {
            let tensor = target.tensors[number];
            let part = place.intersection(window);
            let known = numbers.iter().position(|n| *n == tensor.file);
            let object = known.unwrap_or_else(|| {
                numbers.push(tensor.file);
                numbers.len() - 1
            });
            let offset = tensor.extent.offset + (part.offset - place.offset);
            moves.push(Move {
                object: u32::try_from(object).expect("a window has few files"),
                extent: Extent::new(offset, part.bytes),
                at: part.offset - window.offset,
            });
        }
        // Files that this window does not need are closed, to stay below the descriptor limit.
        self.open.retain(|number, _| numbers.contains(number));
        let mut handles = Vec::new();
        for number in numbers {
            let handle = match self.open.get(&number) {
                Some(handle) => Arc::clone(handle),
                None => self.model.shards[number as usize].open()?,
            };
            self.open.insert(number, Arc::clone(&handle));
            handles.push(handle);
        }
        let store = Arc::clone(&self.model.shards[0].location().store);
        Ok((Objects::new(store, handles), moves))
    }
}

/// Targets with the same files: in a folder under their names, or the only one as `target`.
fn same_files<'a>(model: &'a Model, target: &Location, into: bool) -> Result<Vec<Target<'a>>> {
    let mut targets = Vec::new();
    for shard in &model.shards {
        let name = shard.path.file_name().expect("it was opened as a file");
        let at = if into {
            target.join(name)
        } else {
            target.clone()
        };
        if targets.iter().any(|t: &Target<'_>| t.at.name == at.name) {
            let message = "two files of the model have that name, in different folders";
            return Err(at
                .error(ErrorKind::Invalid, "write", message)
                .with_hint("give a ⟦shard_size⟧, and the files get new names"));
        }
        targets.push(Target {
            at,
            tensors: Vec::new(),
            metadata: shard.metadata.clone(),
        });
    }
    for tensor in &model.tensors {
        targets[tensor.file as usize].tensors.push(tensor);
    }
    Ok(targets)
}

/// Targets of at most `shard_bytes` each, in `folder`.
fn new_shards<'a>(
    model: &'a Model,
    folder: &Location,
    shard_bytes: u64,
) -> Result<Vec<Target<'a>>> {
    let home = |at: &Location| match at.path() {
        Some(path) => fs::canonicalize(path).ok(),
        None => Some(at.describe().trim_end_matches('/').into()),
    };
    let mut sources = model.shards.iter().map(|s| home(&s.location().parent()));
    let own = home(folder);
    if own.is_some() && sources.any(|source| source == own) {
        let message = "the files of the model are in it, and would stay beside the new ones";
        return Err(folder
            .error(ErrorKind::Invalid, "write to", message)
            .with_hint("write to another folder"));
    }
    let groups = divide(&model.tensors, |tensor| tensor.extent.bytes, shard_bytes);
    let count = groups.len();
    let metadata = shared_metadata(model);
    let target = |(number, tensors): (usize, Vec<&'a Tensor>)| Target {
        at: folder.join(shard_name(number, count)),
        tensors,
        metadata: metadata.clone(),
    };
    Ok(groups.into_iter().enumerate().map(target).collect())
}

/// Divides tensors among files of at most `most` bytes, or one larger tensor. There is always at least one file.
pub(crate) fn divide<T>(
    tensors: impl IntoIterator<Item = T>,
    bytes_of: impl Fn(&T) -> u64,
    most: u64,
) -> Vec<Vec<T>> {
    let mut groups = vec![Vec::new()];
    let mut filled: u64 = 0;
    for tensor in tensors {
        let bytes = bytes_of(&tensor);
        let open = groups.last_mut().expect("there is always one");
        if !open.is_empty() && filled.saturating_add(bytes) > most {
            groups.push(vec![tensor]);
            filled = bytes;
        } else {
            open.push(tensor);
            filled = filled.saturating_add(bytes);
        }
    }
    groups
}

/// The Hugging Face name of file `number` of `count`.
pub(crate) fn shard_name(number: usize, count: usize) -> String {
    match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
    }
}

/// The metadata that all files of a model share.
fn shared_metadata(model: &Model) -> BTreeMap<String, String> {
    let mut shards = model.shards.iter();
    let mut shared = shards
        .next()
        .map(|s| s.metadata.clone())
        .unwrap_or_default();
    for shard in shards {
        shared.retain(|key, value| shard.metadata.get(key) == Some(value));
    }
    shared
}

/// The draft of the new index. Other metadata of the old index is kept.
fn index(model: &Model, folder: &Location, targets: &[Target<'_>]) -> Result<Box<dyn Draft>> {
    let kept = model
        .index_metadata
        .as_deref()
        .map(serde_json::from_str::<Value>);
    let mut metadata = match kept {
        Some(Ok(Value::Object(map))) => map,
        _ => Map::new(),
    };
    metadata.insert("total_size".to_owned(), json!(model.bytes()));
    let mut places: BTreeMap<&str, String> = BTreeMap::new();
    for target in targets {
        let name = target.at.name.file_name().expect("it was made from a name");
        for tensor in &target.tensors {
            places.insert(&tensor.name, name.to_string_lossy().into_owned());
        }
    }
    let text = index_text(&metadata, &places);
    let draft = folder
        .join(INDEX_NAME)
        .create(text.len() as u64, &Like::Replaced)?;
    draft.write_all_at(0, text.as_bytes())?;
    Ok(draft)
}

/// The text of an index.
pub(crate) fn index_text(metadata: &Map<String, Value>, places: &impl Serialize) -> String {
    let value = json!({ "metadata": metadata, "weight_map": places });
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests;
