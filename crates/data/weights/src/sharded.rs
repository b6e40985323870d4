//! Writes a model as safetensors files, and an index if it needs one. A rewrite and the export of a checkpoint both
//! use it; they differ in the source of the bytes.
//!
//! [`ModelFile::divided`] assigns tensors to files of a given size and names the files as Hugging Face names them.
//! [`ModelDraft::create`] begins all files with their headers. The caller writes the tensors, and
//! [`ModelDraft::commit`] makes the model visible.
//!
//! No file has its final name until the last byte of the last one is durable. A transfer that fails therefore leaves
//! nothing behind. The commit then follows an order in which no reader sees a part of a model, or files of two models
//! ([`Publication`]). If the commit fails, the new files and the new index are removed again.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde_json::{Map, Value, json};
use straightway_core::{Error, ErrorKind, Receipt, Result};
use straightway_io::{
    Region,
    store::{CommitMode, Draft, Like, Listing, Location},
};

use super::{
    FileSaver, INDEX_NAME, Placed,
    outline::{Outline, TensorEntry},
    publish::Publication,
    save::{begin, moves},
};

/// The maximum number of files of a rewritten or exported model. All stay open until the end, with three descriptors
/// each.
pub const REWRITTEN_FILES_MAX: usize = 1024;

/// A file of a model to write. `T` is a reference to a tensor of the source.
#[derive(Debug)]
pub struct ModelFile<T> {
    /// Its location.
    pub at: Location,
    /// Its tensors.
    pub tensors: Vec<T>,
    /// The metadata of its header.
    pub metadata: BTreeMap<String, String>,
}

/// The index to write with the files of a model. The default is that of a model in an empty folder.
#[derive(Debug, Default)]
pub struct IndexPlan {
    /// The listing of the folder.
    pub there: Listing,
    /// The source of each file, which may be the file itself; empty if no file replaces its source.
    pub sources: Vec<Location>,
    /// Its metadata. `total_size` is added.
    pub metadata: Map<String, Value>,
}

/// A model that is being written: all of its files are drafts. Dropped before its commit, it leaves nothing behind.
#[derive(Debug)]
pub struct ModelDraft<T> {
    /// The folder; without an index, it may be the single file.
    target: Location,
    /// The drafts of its files.
    pub files: Vec<DraftedFile<T>>,
    /// The publication and the text of the index, if there is one.
    index: Option<(Publication, String)>,
}

/// A file of a model that is being written. Its header is written.
#[derive(Debug)]
pub struct DraftedFile<T> {
    /// Its location once it is committed.
    pub at: Location,
    /// Its tensors.
    pub tensors: Vec<T>,
    /// Its layout. The numbers of its entries are those of `tensors`.
    pub outline: Outline,
    /// The draft.
    pub draft: Box<dyn Draft>,
}

impl<T> ModelDraft<T> {
    /// Begins all files of a model: creates the drafts and writes their headers. Without an `index`, there is one file.
    /// With one, files whose names are taken get other names.
    pub fn create<'a>(target: &Location, mut files: Vec<ModelFile<T>>, index: Option<IndexPlan>) -> Result<Self>
    where
        T: Copy + Into<TensorEntry<'a>>,
    {
        check_count(target, files.len())?;
        let planned = match index {
            Some(plan) => {
                let mut places: Vec<_> = files.iter_mut().map(|file| &mut file.at).collect();
                let publication = Publication::new(target, &plan.there, &mut places, &plan.sources)?;
                Some((publication, plan.metadata))
            }
            None => None,
        };
        let outlines = files.iter().map(ModelFile::outline);
        let outlines: Vec<_> = outlines.collect::<Result<_>>()?;
        let publication = planned.as_ref().map(|(publication, _)| publication);
        let files = files.into_iter().zip(outlines);
        let files: Vec<_> = files
            .map(|(file, outline)| DraftedFile::begin(file, outline, publication))
            .collect::<Result<_>>()?;
        let index = planned.map(|(publication, metadata)| (publication, index_text(&files, metadata)));
        Ok(Self {
            target: target.clone(),
            files,
            index,
        })
    }

    /// Makes the model visible. The bytes of all files are durable. After an error nothing of it is visible, and the
    /// old model is unchanged. Returns the errors of old files that could not be removed.
    pub fn commit(self) -> Result<Vec<Error>> {
        let files: Vec<_> = self.files.into_iter().map(|file| file.draft).collect();
        let Some((publication, text)) = self.index else {
            // A single file appears by a single rename.
            self.target.store.commit(files, CommitMode::InOrder)?;
            return Ok(Vec::new());
        };
        let index = self.target.join(INDEX_NAME);
        let index = index.create(text.len() as u64, &Like::Replaced)?;
        index.write_all_at(0, text.as_bytes())?;
        publication.run(files, index)
    }
}

impl<T> ModelFile<T> {
    /// Files in `folder` of at most `shard_bytes` each, or one larger tensor. All have the same metadata.
    pub fn divided<'a>(
        folder: &Location,
        tensors: impl IntoIterator<Item = T>,
        metadata: &BTreeMap<String, String>,
        shard_bytes: u64,
    ) -> Vec<Self>
    where
        T: Copy + Into<TensorEntry<'a>>,
    {
        let groups = divide(tensors, |tensor| entry_of(tensor).bytes, shard_bytes);
        let count = groups.len();
        let file = |(number, tensors): (usize, Vec<T>)| Self {
            at: folder.join(shard_name(number, count)),
            tensors,
            metadata: metadata.clone(),
        };
        groups.into_iter().enumerate().map(file).collect()
    }

    fn outline<'a>(&self) -> Result<Outline>
    where
        T: Copy + Into<TensorEntry<'a>>,
    {
        let entries: Vec<TensorEntry<'a>> = self.tensors.iter().map(entry_of).collect();
        Outline::new(&self.at.describe(), &entries, &self.metadata)
    }
}

impl<T> DraftedFile<T> {
    /// Creates the draft of a file and writes its header. A file that displaces an old one gets its permissions.
    fn begin(file: ModelFile<T>, outline: Outline, publication: Option<&Publication>) -> Result<Self> {
        let displaced = publication.and_then(|p| p.displaced_by(&file.at.name));
        let draft = begin(&file.at, &outline, displaced.and_then(Path::file_name))?;
        Ok(Self {
            at: file.at,
            tensors: file.tensors,
            outline,
            draft,
        })
    }

    /// Its file name.
    pub fn name(&self) -> String {
        let name = self.at.name.file_name().expect("it was made from a name");
        name.to_string_lossy().into_owned()
    }
}

impl FileSaver {
    /// Writes all tensors of a file from a region. `tensors` has the place of each, in the order of the file's own.
    pub fn write_tensors<T>(&self, file: &DraftedFile<T>, region: &Arc<Region>, tensors: &[Placed]) -> Result<Receipt> {
        let moves = moves(&file.outline, |number| tensors[number].at);
        self.write(region, &file.at, &*file.draft, moves)?.wait()
    }
}

/// A tensor as the entry of a header.
fn entry_of<'a, T: Copy + Into<TensorEntry<'a>>>(tensor: &T) -> TensorEntry<'a> {
    (*tensor).into()
}

/// Returns an error if a model would have too many files.
fn check_count(target: &Location, files: usize) -> Result<()> {
    if files <= REWRITTEN_FILES_MAX {
        return Ok(());
    }
    let message = format!("it would be {files} files, and {REWRITTEN_FILES_MAX} is the most");
    Err(target
        .error(ErrorKind::Invalid, "write", message)
        .with_hint("give a larger ⟦shard_size⟧"))
}

/// Divides tensors among files of at most `most` bytes, or one larger tensor. There is always at least one file.
pub(crate) fn divide<T>(tensors: impl IntoIterator<Item = T>, bytes_of: impl Fn(&T) -> u64, most: u64) -> Vec<Vec<T>> {
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
fn shard_name(number: usize, count: usize) -> String {
    match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
    }
}

/// The text of an index: the file of each tensor, and the metadata with the total size of the tensors.
fn index_text<'a, T>(files: &[DraftedFile<T>], mut metadata: Map<String, Value>) -> String
where
    T: Copy + Into<TensorEntry<'a>>,
{
    let mut weight_map: BTreeMap<&'a str, String> = BTreeMap::new();
    let mut total_size: u64 = 0;
    for file in files {
        for entry in file.tensors.iter().map(entry_of) {
            weight_map.insert(entry.name, file.name());
            total_size += entry.bytes;
        }
    }
    metadata.insert("total_size".to_owned(), json!(total_size));
    let index = json!({ "metadata": metadata, "weight_map": weight_map });
    format!("{index:#}\n")
}
