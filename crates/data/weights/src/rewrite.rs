//! Rewrites the files of a model so that their data is page-aligned and can be read by direct I/O. The tensors stay in
//! the same files, or are divided among files of a given size.
//!
//! [`ModelDraft`] keeps all files hidden until the last byte of the last one is durable.

use std::{collections::BTreeMap, fs, sync::Arc};

use serde_json::{Map, Value};
use straightway_core::{Bytes, Error, ErrorKind, Extent, Move, Receipt, Result};
use straightway_io::{
    Ask, Books, Handle, Objects, Region,
    store::{Listing, Location, Missing, list_all},
    tally::WARNINGS_MAX,
};

use super::{
    FileSaver, Model, Tensor,
    model::find_index,
    save::{WINDOW_BYTES, windows},
    sharded::{DraftedFile, IndexPlan, ModelDraft, ModelFile},
};

impl FileSaver {
    /// Writes a model to `target`: a file if the model is one file, otherwise a folder.
    ///
    /// With `shard_bytes`, tensors are divided among files of at most that size (or one larger tensor), named as
    /// Hugging Face names them. Without it, each file keeps its name. If a file of another model has the same name, the
    /// new file gets another name, and the old file is removed once the new model is complete.
    pub fn rewrite(&self, model: &Model, target: impl Into<Location>, shard_bytes: Option<u64>) -> Result<Receipt> {
        self.rewrite_then(model, target, shard_bytes, || Ok(()))
    }

    /// As [`rewrite`](Self::rewrite), with a function that is called when all bytes are durable, and before the model
    /// appears. If it fails, the model does not appear.
    pub fn rewrite_then(
        &self,
        model: &Model,
        target: impl Into<Location>,
        shard_bytes: Option<u64>,
        before_commit: impl FnOnce() -> Result<()>,
    ) -> Result<Receipt> {
        let target = target.into();
        let draft = draft_model(model, &target, shard_bytes)?;
        let longer = shard_bytes.and_then(|bytes| longer_files(&draft.files, bytes));
        let mut receipt = self.fill_drafts(model, &draft.files)?;
        receipt.warnings.extend(longer);
        before_commit()?;
        let left = draft.commit()?;
        let warning = |error: &Error| format!("a file of the old model is left: {error}");
        let room = WARNINGS_MAX.saturating_sub(receipt.warnings.len());
        receipt.warnings.extend(left.iter().take(room).map(warning));
        Ok(receipt)
    }

    /// Copies all bytes window by window: each window is read and then written.
    fn fill_drafts(&self, model: &Model, files: &[DraftedFile<&Tensor>]) -> Result<Receipt> {
        let longest = files.iter().map(|file| file.outline.data().bytes).max();
        let region = Arc::new(Region::host(WINDOW_BYTES.min(longest.unwrap_or(0)))?);
        let mut sources = Sources::new(model);
        let ask = Ask::new(self.choice, &self.progress);
        let mut books = Books::default();
        for file in files {
            for window in windows(file.outline.data()) {
                // A model without tensors may have no file to read; its one file is still written.
                if window.bytes > 0 {
                    let (objects, moves) = sources.moves(file, window)?;
                    let read = self.executor.read(objects, moves, &region, ask.clone())?;
                    read.enter(&mut books)?;
                }
                let written = self.write(&region, &file.at, &*file.draft, vec![window.into()])?;
                written.enter(&mut books)?;
            }
        }
        Ok(books.close())
    }
}

/// What to say about files that are longer than the size that was asked for: a tensor is not divided.
fn longer_files(files: &[DraftedFile<&Tensor>], shard_bytes: u64) -> Option<String> {
    let lengths = files.iter().map(|file| file.outline.data().bytes);
    let longer: Vec<_> = lengths.filter(|bytes| *bytes > shard_bytes).collect();
    let longest = longer.iter().max()?;
    let (count, all) = (longer.len(), files.len());
    let (asked, longest) = (Bytes(shard_bytes), Bytes(*longest));
    Some(format!(
        "{count} of {all} files are larger than the shard size of {asked}, the largest {longest}: a tensor is not divided"
    ))
}

/// Begins all files of the new model under temporary names.
fn draft_model<'a>(model: &'a Model, target: &Location, shard_bytes: Option<u64>) -> Result<ModelDraft<&'a Tensor>> {
    let is_file = matches!(&model.shards[..], [one] if one.path == model.path) && shard_bytes.is_none();
    let is_like_folder = target.name.extension().is_none_or(|e| e != "safetensors");
    let into = !is_file || target.is_folder(is_like_folder);
    let there = if into {
        list_all(&*target.below(Missing::Create)?)?
    } else {
        Listing::default()
    };
    let files = match shard_bytes {
        Some(bytes) => new_shards(model, target, bytes)?,
        None => same_files(model, target, into)?,
    };
    let is_many = files.len() > 1 || model.index_metadata.is_some();
    // Readers of a folder with an index would otherwise still read the files that it names.
    let has_index = into && (is_many || (!is_file && find_index(target, &there)?.is_some()));
    let index = has_index.then(|| IndexPlan {
        there,
        // Without a shard size, each file of the model becomes one file, which may be the same.
        sources: match shard_bytes {
            None => model.shards.iter().map(|s| s.location()).collect(),
            Some(_) => Vec::new(),
        },
        metadata: index_metadata(model),
    });
    ModelDraft::create(target, files, index)
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
    fn moves(&mut self, file: &DraftedFile<&Tensor>, window: Extent) -> Result<(Objects, Vec<Move>)> {
        let mut numbers: Vec<u32> = Vec::new();
        let mut moves = Vec::new();
        for (number, place) in file.outline.within(window) {
            let tensor = file.tensors[number];
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

/// The same files as those of the model: in a folder under their names, or the only one as `target`.
fn same_files<'a>(model: &'a Model, target: &Location, into: bool) -> Result<Vec<ModelFile<&'a Tensor>>> {
    let mut files: Vec<ModelFile<&'a Tensor>> = Vec::new();
    for shard in &model.shards {
        let name = shard.path.file_name().expect("it was opened as a file");
        let at = if into { target.join(name) } else { target.clone() };
        if files.iter().any(|file| file.at.name == at.name) {
            let message = "two files of the model have that name, in different folders";
            return Err(at
                .error(ErrorKind::Invalid, "write", message)
                .with_hint("give a ⟦shard_size⟧, and the files get new names"));
        }
        files.push(ModelFile {
            at,
            tensors: Vec::new(),
            metadata: shard.metadata.clone(),
        });
    }
    for tensor in &model.tensors {
        files[tensor.file as usize].tensors.push(tensor);
    }
    Ok(files)
}

/// Files of at most `shard_bytes` each, in `folder`.
fn new_shards<'a>(model: &'a Model, folder: &Location, shard_bytes: u64) -> Result<Vec<ModelFile<&'a Tensor>>> {
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
    let metadata = shared_metadata(model);
    Ok(ModelFile::divided(folder, &model.tensors, &metadata, shard_bytes))
}

/// The metadata that all files of a model share.
fn shared_metadata(model: &Model) -> BTreeMap<String, String> {
    let mut shards = model.shards.iter();
    let mut shared = shards.next().map(|s| s.metadata.clone()).unwrap_or_default();
    for shard in shards {
        shared.retain(|key, value| shard.metadata.get(key) == Some(value));
    }
    shared
}

/// The metadata of the model's index, which the new index keeps.
fn index_metadata(model: &Model) -> Map<String, Value> {
    let text = model.index_metadata.as_deref();
    match text.map(serde_json::from_str::<Value>) {
        Some(Ok(Value::Object(map))) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
