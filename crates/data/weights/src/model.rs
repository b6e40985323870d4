//! A model: one safetensors file, a folder of them, or the files of an index, as one list of tensors.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use straightway_core::{Bytes, Error, ErrorKind, Result, Uri, text::counted};
use straightway_io::parallel;
use straightway_io::{
    File, Handle, Objects, Store,
    store::{self, Listing, Location, Named, Registry, Tag, list_all, open_one, with_meant},
};
use straightway_sys::{FilePages, limit};

use super::{
    header::{Count, Header},
    index::{FILES_MAX, WeightIndex},
    name_table::NameTable,
    tensor::{Tensor, quoted},
};

/// Headers read concurrently. They are small reads bound by latency; more threads gain nothing.
const READERS_MAX: usize = 8;

/// The maximum number of files open at once while headers are read. Each such batch starts threads: with 64 files in a
/// batch, a load of 2,000 small files took 1.4 times as long.
const OPEN_MAX: usize = 256;

/// File descriptors per open file: one buffered, and one for direct I/O.
const DESCRIPTORS_EACH: u64 = 2;

/// The suffix of index files, and the name that is preferred if there are several.
pub(crate) const INDEX_SUFFIX: &str = ".safetensors.index.json";
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// The file of a model that is a single file.
pub(crate) const SINGLE_NAME: &str = "model.safetensors";

/// A file of a model.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Its name in the store; for a file, its path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// The offset of its tensor data.
    pub data_offset: u64,
    /// The metadata of its header.
    pub metadata: BTreeMap<String, String>,
    store: Arc<dyn Store>,
    tag: Option<Tag>,
}

impl Shard {
    /// Opens it again. It must be the version whose header was read.
    pub fn open(&self) -> Result<Arc<dyn Handle>> {
        let named = Named {
            bytes: Some(self.bytes),
            tag: self.tag.clone(),
            ..Named::new(&self.path)
        };
        let mut opened = self.store.open(&[named])?;
        Ok(opened.pop().expect("one handle for each name"))
    }

    /// Opens several shards of one store.
    pub(crate) fn open_all(shards: &[Arc<Self>]) -> Result<Objects> {
        let handles = shards.iter().map(|shard| shard.open());
        let handles = handles.collect::<Result<Vec<_>>>()?;
        Ok(match shards.first() {
            Some(shard) => Objects::new(Arc::clone(&shard.store), handles),
            None => Objects::from(Vec::new()),
        })
    }

    /// Its location.
    pub(crate) fn location(&self) -> Location {
        Location {
            store: Arc::clone(&self.store),
            name: self.path.clone(),
        }
    }

    /// Opens it again, as a file.
    pub fn file(&self) -> Result<Arc<File>> {
        store::file(&self.open()?)
    }

    /// Maps it. It must be the version whose header was read; later changes show in the pages.
    pub fn map(&self) -> Result<Arc<FilePages>> {
        let file = self.file()?;
        if file.bytes() < self.bytes {
            let message = "it has become shorter since its header was read";
            return Err(Error::new(ErrorKind::Precondition, "map", self.path.display(), message));
        }
        FilePages::map(&file).map(Arc::new)
    }
}

/// The tensors of a model and their files.
#[derive(Clone, Debug)]
pub struct Model {
    /// The path or name that it was opened with.
    pub path: PathBuf,
    /// Its files.
    pub shards: Vec<Arc<Shard>>,
    /// Its tensors, file by file, in file order.
    pub tensors: Vec<Tensor>,
    /// The metadata of the index, as JSON text.
    pub index_metadata: Option<String>,
    /// What was decided when it was opened. Receipts of its loads have these as warnings.
    pub notes: Vec<String>,
    store: Arc<dyn Store>,
    names: NameTable,
}

impl Model {
    /// Opens a safetensors file, a folder, or an index, and reads and checks all headers.
    ///
    /// In a folder, the index names the files; without an index, every `*.safetensors` file is one. As in transformers,
    /// `model.safetensors` counts instead of an index that does not name it: such an index is left over from a sharded
    /// model that was saved there before.
    pub fn open(at: impl Into<Location>) -> Result<Self> {
        let at = at.into();
        let model = Self::open_at(&at).map_err(|error| with_meant(error, &at))?;
        tracing::info!(
            "{}: {} in {}, {}",
            at.describe(),
            counted(model.tensors.len() as u64, "tensor"),
            counted(model.shards.len() as u64, "file"),
            Bytes(model.bytes())
        );
        Ok(model)
    }

    fn open_at(at: &Location) -> Result<Self> {
        let ends = |suffix: &str| at.name.to_str().is_some_and(|name| name.ends_with(suffix));
        let is_index = ends(".index.json");
        match at.folder(!is_index && !ends(".safetensors"))? {
            Some(inside) => {
                let names = list_all(&*inside)?;
                match find_index(at, &names)? {
                    Some(index) => match single_file(at, &names, &index) {
                        Some(file) => Self::of_single_file(at, file, &index),
                        None => Self::of_index(at, &index),
                    },
                    None => Self::of_files(at, find_files(at, &names)?),
                }
            }
            None if is_index => Self::of_index(at, &at.name),
            None => Self::of_files(at, vec![at.name.clone()]),
        }
    }

    /// Opens the model at a URI.
    pub fn find(stores: &Registry, uri: &Uri) -> Result<Self> {
        Self::open(stores.find(uri)?)
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.number(name).map(|number| &self.tensors[number])
    }

    /// The number in `tensors` of the tensor with this name.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.names.find(&self.tensors, name)
    }

    /// The location that it was opened with.
    pub fn location(&self) -> Location {
        Location {
            store: Arc::clone(&self.store),
            name: self.path.clone(),
        }
    }

    /// Whether all its files are on a local file system.
    pub fn is_local(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.all(|shard| shard.location().path().is_some())
    }

    /// The total size of its tensors in bytes.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.extent.bytes).sum()
    }

    fn of_single_file(at: &Location, file: PathBuf, index: &Path) -> Result<Self> {
        let (one, other) = (file.display(), index.display());
        let note = format!("{one} was taken, and not the files of {other}, which does not name it");
        let mut model = Self::of_files(at, vec![file])?;
        model.notes.push(note);
        Ok(model)
    }

    fn of_index(at: &Location, index_path: &Path) -> Result<Self> {
        let store = &*at.store;
        let index = WeightIndex::read(store, index_path)?;
        let opened = Self::of_files(at, index.files.clone());
        let mut model = opened.map_err(|error| {
            let is_missing = |file: &&PathBuf| {
                let opened = open_one(store, file.as_os_str());
                opened.is_err_and(|error| error.kind() == ErrorKind::NotFound)
            };
            let Some(missing) = index.files.iter().find(is_missing) else {
                return error;
            };
            let message = format!("{} names it, but it does not exist", index_path.display());
            Error::new(ErrorKind::NotFound, "open", missing.display(), message).with_hint(
                "download the missing files of the model; where a rewrite or an export into \
                 this folder was interrupted, run it again",
            )
        })?;
        for (name, file) in &index.places {
            let found = model.tensor(name).is_some_and(|tensor| tensor.file == *file);
            if !found {
                let file = model.shards[*file as usize].path.display();
                let name = quoted(name);
                let message = format!("it says that tensor {name} is in {file}, which does not have it");
                let target = index_path.display();
                return Err(Error::new(ErrorKind::Corrupt, "read", target, message)
                    .with_hint("the index is of another version than its files: write or download the model again"));
            }
        }
        model.index_metadata = index.metadata;
        Ok(model)
    }

    fn of_files(at: &Location, paths: Vec<PathBuf>) -> Result<Self> {
        let headers = read_headers(&*at.store, &paths)?;
        let count = headers.iter().map(|h| h.header.tensors.len()).sum();
        let is_alone = headers.len() == 1;
        let mut model = Self {
            path: at.name.clone(),
            shards: Vec::with_capacity(paths.len()),
            tensors: Vec::new(),
            index_metadata: None,
            notes: Vec::new(),
            store: Arc::clone(&at.store),
            names: NameTable::with_capacity(if is_alone { 0 } else { count }),
        };
        for (file, (path, read)) in (0..).zip(paths.into_iter().zip(headers)) {
            let header = read.header;
            let data_bytes: u64 = header.tensors.iter().map(|t| t.extent.bytes).sum();
            model.shards.push(Arc::new(Shard {
                path,
                bytes: header.data_offset + data_bytes,
                data_offset: header.data_offset,
                metadata: header.metadata,
                store: Arc::clone(&at.store),
                tag: read.tag,
            }));
            // The names of a single file are in its table already.
            if is_alone {
                (model.tensors, model.names) = (header.tensors, read.names);
            } else {
                model.add(file, header.tensors)?;
            }
        }
        Ok(model)
    }

    /// Adds the tensors of a file. A name that an earlier file has is an error.
    fn add(&mut self, file: u32, tensors: Vec<Tensor>) -> Result<()> {
        let first = self.tensors.len();
        self.tensors.extend(tensors);
        for number in first..self.tensors.len() {
            self.tensors[number].file = file;
            if let Err(there) = self.names.enter(&self.tensors, number) {
                let first = self.tensors[there].file;
                let first = self.shards[first as usize].path.display();
                let name = quoted(&self.tensors[number].name);
                let message = format!("tensor {name} is in {first} as well");
                let path = self.shards[file as usize].path.display();
                return Err(Error::new(ErrorKind::Corrupt, "read", path, message)
                    .with_hint("name one file of the folder, or the index, to say which counts"));
            }
        }
        Ok(())
    }
}

/// The header of a file and its version.
struct Read {
    tag: Option<Tag>,
    header: Header,
    names: NameTable,
}

/// Reads the headers of all files, several at a time. Of several errors, the first file's is returned.
fn read_headers(store: &dyn Store, paths: &[PathBuf]) -> Result<Vec<Read>> {
    let count = Count::default();
    let mut read = Vec::with_capacity(paths.len());
    for some in paths.chunks(limit::files_at_once(DESCRIPTORS_EACH, OPEN_MAX)) {
        let names: Vec<_> = some.iter().map(Named::new).collect();
        // Opened together, so that a network store sends all requests at once.
        read.extend(read_opened(&store.open(&names)?, &count)?);
    }
    Ok(read)
}

/// Reads the headers of open files.
fn read_opened(objects: &[Arc<dyn Handle>], count: &Count) -> Result<Vec<Read>> {
    let one = |object: &Arc<dyn Handle>| {
        let (header, names) = Header::read_counted(&**object, count)?;
        Ok(Read {
            tag: object.tag(),
            header,
            names,
        })
    };
    let read = parallel::each(objects.iter(), READERS_MAX, |_, object| one(object));
    read.into_iter().collect()
}

/// The index of the folder with this listing, if it has one.
pub(crate) fn find_index(folder: &Location, names: &Listing) -> Result<Option<PathBuf>> {
    let mut found = ending(folder, names, INDEX_SUFFIX);
    let usual = folder.name.join(INDEX_NAME);
    if found.contains(&usual) {
        return Ok(Some(usual));
    }
    if let [first, second, ..] = found.as_slice() {
        let (first, second) = (first.display(), second.display());
        let message = format!("both {first} and {second} are in it");
        return Err(folder
            .error(ErrorKind::Invalid, "open", message)
            .with_hint("name the index to use"));
    }
    Ok(found.pop())
}

/// The file that counts instead of the index of a folder: `model.safetensors`, if that is not a file of the index.
pub(crate) fn single_file(folder: &Location, names: &Listing, index: &Path) -> Option<PathBuf> {
    let file = folder.name.join(SINGLE_NAME);
    let is_usual = *index == folder.name.join(INDEX_NAME);
    if !is_usual || !ending(folder, names, SINGLE_NAME).contains(&file) {
        return None;
    }
    let read = WeightIndex::read(&*folder.store, index);
    let is_of_index = read.is_ok_and(|index| index.files.contains(&file));
    (!is_of_index).then_some(file)
}

/// The files of a folder without an index.
fn find_files(folder: &Location, names: &Listing) -> Result<Vec<PathBuf>> {
    let found = ending(folder, names, ".safetensors");
    if found.is_empty() {
        return Err(no_files(folder, names));
    }
    if found.len() > FILES_MAX {
        let message = format!("it has more than {FILES_MAX} files");
        return Err(folder.error(ErrorKind::Invalid, "open", message));
    }
    Ok(found)
}

/// The error for a folder without a safetensors file, with what it has instead.
fn no_files(folder: &Location, names: &Listing) -> Error {
    /// Endings of weights that cannot be loaded.
    const OTHERS: [&str; 7] = [".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack"];
    let error = |message: &str| folder.error(ErrorKind::NotFound, "open", message);
    let is_step = |name: &str| {
        let digits = name.strip_prefix("step-").unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    if names.objects.is_empty() && names.folders.is_empty() {
        let is_path = folder.path().is_some();
        return if is_path {
            error("no .safetensors file is in it: the folder is empty")
        } else {
            error("there is nothing below this name").with_hint("list the folder above it with `straightway ls`")
        };
    }
    let mut folders = names.folders.iter().filter_map(|name| name.to_str());
    if folders.any(is_step) {
        return error("it has checkpoints, and no .safetensors file").with_hint(
            "restore a step (`straightway checkpoint restore`), or write one as a model (`straightway checkpoint \
             export`)",
        );
    }
    let mut objects = names.objects.iter().filter_map(|object| object.name.to_str());
    match objects.find(|name| OTHERS.iter().any(|end| name.ends_with(end))) {
        Some(other) => error(&format!(
            "no .safetensors file is in it, and {other} has another format"
        ))
        .with_hint(
            "only safetensors files can be loaded: convert it, for example with `save_pretrained` of transformers",
        ),
        None => error("no .safetensors file is in it"),
    }
}

/// The objects of a folder whose names end with `suffix`, in order. Hidden ones are left out.
pub(crate) fn ending(folder: &Location, names: &Listing, suffix: &str) -> Vec<PathBuf> {
    let names = names.objects.iter().filter_map(|object| object.name.to_str());
    let fits = |name: &&str| name.ends_with(suffix) && !name.starts_with('.');
    names.filter(fits).map(|name| folder.name.join(name)).collect()
}
