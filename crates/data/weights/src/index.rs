//! An index file (`model.safetensors.index.json`): maps each tensor to a file of the folder.

use std::{
    fmt,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};
use serde::{
    Deserializer as _,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{Store, StoreExt, draft};

use super::{
    header::{HEADER_BYTES_MAX, NAME_BYTES_MAX, TENSORS_MAX},
    tensor::quoted,
};

/// The maximum number of files of a model. The largest published models have a few hundred.
pub const FILES_MAX: usize = 1 << 16;

/// A parsed index. Its files have not been opened.
#[derive(Clone, Debug, Default)]
pub struct WeightIndex {
    /// The files that it names, sorted, as paths that can be opened.
    pub files: Vec<PathBuf>,
    /// Each tensor name and the number of its file in `files`.
    pub places: Vec<(Arc<str>, u32)>,
    /// The writer's metadata, as JSON text.
    pub metadata: Option<String>,
}

impl WeightIndex {
    /// Reads an index. A file name that leads out of the index's folder is refused.
    pub(crate) fn read(store: &dyn Store, path: &Path) -> Result<Self> {
        Self::parse(path, &store.get(path.as_os_str(), HEADER_BYTES_MAX)?)
    }

    /// Parses `text` as the index at `path`.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self> {
        let corrupt = |message: String| Error::new(ErrorKind::Corrupt, "read", path.display(), message);
        let mut reader = serde_json::Deserializer::from_slice(text);
        let index = reader
            .deserialize_map(IndexVisitor)
            .and_then(|index| reader.end().map(|()| index));
        let mut index = index.map_err(|e| corrupt(e.to_string()))?;
        index.sort_files(draft::folder_of(path));
        Ok(index)
    }

    /// Adds a file and returns its number.
    fn add_file(&mut self, files: &mut HashMap<String, u32>, name: String) -> Result<u32, String> {
        check_inside(&name)?;
        if files.len() == FILES_MAX {
            return Err(format!("the index names more than {FILES_MAX} files"));
        }
        let number = u32::try_from(files.len()).expect("the limit fits");
        self.files.push(PathBuf::from(&name));
        files.insert(name, number);
        Ok(number)
    }

    /// Sorts the files by name, and joins the names to their folder.
    fn sort_files(&mut self, folder: &Path) {
        let mut order: Vec<_> = (0_u32..).zip(std::mem::take(&mut self.files)).collect();
        order.sort_by(|a, b| a.1.cmp(&b.1));
        let mut new_numbers = vec![0; order.len()];
        for (new, (old, name)) in (0_u32..).zip(order) {
            new_numbers[old as usize] = new;
            self.files.push(folder.join(name));
        }
        for (_, file) in &mut self.places {
            *file = new_numbers[*file as usize];
        }
    }
}

struct IndexVisitor;

impl<'de> Visitor<'de> for IndexVisitor {
    type Value = WeightIndex;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map with `weight_map`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightIndex, A::Error> {
        let mut index = WeightIndex::default();
        let mut has_places = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "weight_map" if has_places => {
                    return Err(A::Error::custom("`weight_map` is there twice"));
                }
                "weight_map" => {
                    has_places = true;
                    map.next_value_seed(WeightMap(&mut index))?;
                }
                "metadata" => {
                    let text: Box<RawValue> = map.next_value()?;
                    index.metadata = Some(text.get().to_owned());
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if !has_places {
            return Err(A::Error::missing_field("weight_map"));
        }
        Ok(index)
    }
}

/// A visitor that fills an index from its `weight_map`.
struct WeightMap<'a>(&'a mut WeightIndex);

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`weight_map` as a map from tensors to files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        let mut files = HashMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let name: Arc<str> = name.into();
            let refuse = |why: String| A::Error::custom(format!("tensor {}: {why}", quoted(&name)));
            if names.len() == TENSORS_MAX {
                return Err(refuse(format!("it has more than {TENSORS_MAX} tensors")));
            }
            if name.len() > NAME_BYTES_MAX {
                return Err(refuse(format!("the name is longer than {NAME_BYTES_MAX} bytes")));
            }
            if !names.insert(Arc::clone(&name)) {
                let message = format!("tensor {} is there twice", quoted(&name));
                return Err(A::Error::custom(message));
            }
            let file = map.next_value::<String>().map_err(|e| refuse(e.to_string()))?;
            let number = match files.get(&file) {
                Some(number) => *number,
                None => self.0.add_file(&mut files, file).map_err(refuse)?,
            };
            self.0.places.push((name, number));
        }
        Ok(())
    }
}

/// Returns an error if a file name leads out of the index's folder.
fn check_inside(file: &str) -> Result<(), String> {
    let refuse = |why: &str| Err(format!("its file {} {why}", quoted(file)));
    if file.is_empty() || file.contains('\0') {
        return refuse("is not a file name");
    }
    let stays = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !Path::new(file).components().all(stays) {
        return refuse("is not in the folder of the index");
    }
    Ok(())
}
