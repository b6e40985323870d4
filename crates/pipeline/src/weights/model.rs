//! A model: one safetensors file, a folder of them, or what an index file names, as one list of
//! tensors.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use straightway_core::{Error, Kind, Result};
use straightway_io::File;
use straightway_sys::identity::Identity;

use super::{
    directory::Directory,
    header::{Count, Header},
    index::{FILES_MAX, Index},
    tensor::{Tensor, quoted},
};

/// Headers read side by side. They are small reads: latency counts, and more than this gains none.
const READERS_MAX: usize = 8;

/// What index files end in, and the one that counts where there are several.
const INDEX_SUFFIX: &str = ".safetensors.index.json";
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// A file of a model.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Where it is.
    pub path: PathBuf,
    /// How long it is.
    pub bytes: u64,
    /// Where the bytes of its tensors begin.
    pub data_offset: u64,
    /// What its writer wrote down.
    pub metadata: BTreeMap<String, String>,
    identity: Option<Identity>,
}

impl Shard {
    /// Opens the file again, which must be the one whose header was read.
    pub fn open(&self) -> Result<File> {
        let file = File::open(&self.path)?;
        if file.identity() == self.identity {
            return Ok(file);
        }
        let message = "it was replaced or written to since its header was read";
        let path = self.path.display();
        Err(Error::new(Kind::Corrupt, "read", path, message)
            .with_hint("wait until nobody writes to it, and open the model again"))
    }
}

/// Every tensor of a model and the files that they are in.
#[derive(Clone, Debug)]
pub struct Model {
    /// What it was opened by.
    pub path: PathBuf,
    /// Its files.
    pub shards: Vec<Arc<Shard>>,
    /// Its tensors, file by file, in the order in which they lie there.
    pub tensors: Vec<Tensor>,
    /// What the index says beside where tensors are, as text of JSON.
    pub index_metadata: Option<String>,
    directory: Directory,
}

impl Model {
    /// Opens a safetensors file, a folder, or an index, and reads and checks all headers.
    ///
    /// In a folder the index counts, if there is one, and every `*.safetensors` file if not.
    pub fn open(path: &Path) -> Result<Self> {
        let meta = fs::metadata(path).map_err(|e| Error::os("open", path.display(), e))?;
        let is_index = path
            .to_str()
            .is_some_and(|name| name.ends_with(".index.json"));
        if meta.is_dir() {
            match find_index(path)? {
                Some(index) => Self::of_index(path, &index),
                None => Self::of_files(path, find_files(path)?),
            }
        } else if is_index {
            Self::of_index(path, path)
        } else {
            Self::of_files(path, vec![path.to_owned()])
        }
    }

    /// Opens these files as one model, which errors call by the path of the first.
    pub fn open_files(paths: Vec<PathBuf>) -> Result<Self> {
        let Some(first) = paths.first().cloned() else {
            let message = "no file was named";
            return Err(Error::new(Kind::Invalid, "open", "a model", message));
        };
        Self::of_files(&first, paths)
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.number(name).map(|number| &self.tensors[number])
    }

    /// Which of `tensors` has this name.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.directory.find(&self.tensors, name)
    }

    /// How many bytes its tensors have.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.extent.bytes).sum()
    }

    fn of_index(path: &Path, index_path: &Path) -> Result<Self> {
        let index = Index::read(index_path)?;
        if let Some(missing) = index.files.iter().find(|file| !file.exists()) {
            let message = format!("{} names it, and it is not there", index_path.display());
            return Err(
                Error::new(Kind::NotFound, "open", missing.display(), message).with_hint(
                    "download the missing files of the model; where a rewrite or an export into \
                         this folder was interrupted, run it again",
                ),
            );
        }
        let mut model = Self::of_files(path, index.files)?;
        for (name, file) in &index.places {
            let found = model
                .tensor(name)
                .is_some_and(|tensor| tensor.file == *file);
            if !found {
                let file = model.shards[*file as usize].path.display();
                let name = quoted(name);
                let message =
                    format!("it says that tensor {name} is in {file}, and it is not there");
                let target = index_path.display();
                return Err(Error::new(Kind::Corrupt, "read", target, message).with_hint(
                    "the index is of another version than its files: write or download the model again",
                ));
            }
        }
        model.index_metadata = index.metadata;
        Ok(model)
    }

    fn of_files(path: &Path, paths: Vec<PathBuf>) -> Result<Self> {
        let headers = read_headers(&paths)?;
        let count = headers.iter().map(|h| h.header.tensors.len()).sum();
        let is_alone = headers.len() == 1;
        let mut model = Self {
            path: path.to_owned(),
            shards: Vec::with_capacity(paths.len()),
            tensors: Vec::new(),
            index_metadata: None,
            directory: Directory::with_capacity(if is_alone { 0 } else { count }),
        };
        for (file, (path, read)) in (0..).zip(paths.into_iter().zip(headers)) {
            let header = read.header;
            let data_bytes: u64 = header.tensors.iter().map(|t| t.extent.bytes).sum();
            model.shards.push(Arc::new(Shard {
                path,
                bytes: header.data_offset + data_bytes,
                data_offset: header.data_offset,
                metadata: header.metadata,
                identity: read.identity,
            }));
            // What is alone has been counted through already.
            if is_alone {
                (model.tensors, model.directory) = (header.tensors, read.directory);
            } else {
                model.add(file, header.tensors)?;
            }
        }
        Ok(model)
    }

    /// Adds the tensors of a file. No file before it may have one of the same name.
    fn add(&mut self, file: u32, tensors: Vec<Tensor>) -> Result<()> {
        let first = self.tensors.len();
        self.tensors.extend(tensors);
        for number in first..self.tensors.len() {
            self.tensors[number].file = file;
            if let Err(there) = self.directory.enter(&self.tensors, number) {
                let first = self.tensors[there].file;
                let first = self.shards[first as usize].path.display();
                let name = quoted(&self.tensors[number].name);
                let message = format!("tensor {name} is in {first} as well");
                let path = self.shards[file as usize].path.display();
                return Err(Error::new(Kind::Corrupt, "read", path, message)
                    .with_hint("name one file of the folder, or the index, to say which counts"));
            }
        }
        Ok(())
    }
}

/// What was read of a file.
struct Read {
    identity: Option<Identity>,
    header: Header,
    directory: Directory,
}

/// Reads the headers of all files, several at a time. Of several errors the first file's counts.
fn read_headers(paths: &[PathBuf]) -> Result<Vec<Read>> {
    let count = Count::default();
    let one = |path: &PathBuf| {
        let file = File::open(path)?;
        let identity = file.identity();
        let (header, directory) = Header::read_counted(&file, &count)?;
        Ok(Read {
            identity,
            header,
            directory,
        })
    };
    if let [path] = paths {
        return Ok(vec![one(path)?]);
    }
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut read = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = paths.get(number) else {
                return read;
            };
            read.push((number, one(path)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let readers = paths.len().min(READERS_MAX);
        let readers: Vec<_> = (0..readers).map(|_| scope.spawn(worker)).collect();
        let join = |reader: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
            reader
                .join()
                .expect("a header that is wrong is an error, not a panic")
        };
        readers.into_iter().flat_map(join).collect::<Vec<_>>()
    });
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, header)| header).collect()
}

/// The index of a folder, if it has one.
pub(crate) fn find_index(folder: &Path) -> Result<Option<PathBuf>> {
    let mut found = names_ending(folder, INDEX_SUFFIX)?;
    let usual = folder.join(INDEX_NAME);
    if found.contains(&usual) {
        return Ok(Some(usual));
    }
    if let [first, second, ..] = found.as_slice() {
        let message = format!(
            "both {} and {} are in it",
            first.display(),
            second.display()
        );
        return Err(Error::new(Kind::Invalid, "open", folder.display(), message)
            .with_hint("name the index that is meant"));
    }
    Ok(found.pop())
}

/// The files of a folder without an index.
fn find_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let found = names_ending(folder, ".safetensors")?;
    let refuse = |kind, why: String| Err(Error::new(kind, "open", folder.display(), why));
    if found.is_empty() {
        return refuse(Kind::NotFound, "no .safetensors file is in it".to_owned());
    }
    if found.len() > FILES_MAX {
        return refuse(Kind::Invalid, format!("it has more than {FILES_MAX} files"));
    }
    Ok(found)
}

/// What in a folder has a name that ends like this, in order. Hidden ones do not count.
pub(crate) fn names_ending(folder: &Path, suffix: &str) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::os("list", folder.display(), e);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let fits = name
            .to_str()
            .is_some_and(|name| name.ends_with(suffix) && !name.starts_with('.'));
        if fits {
            found.push(folder.join(name));
        }
    }
    found.sort_unstable();
    Ok(found)
}
