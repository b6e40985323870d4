//! Kills a rewrite over another model between any two changes of the folder. The folder then loads as one of the two
//! models, or is refused.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use straightway_core::{ErrorKind, Place};
use straightway_io::{
    Executor, Settings, Store,
    engine::Engine,
    request::Op,
    store::{CommitMode, Draft, Durability, Facts, Files, LaneSpec, Like, Named, Removal, Verbs},
};

use super::*;
use crate::{Dtype, Held, Holding, INDEX_NAME, Loader, SINGLE_NAME, Selection, Shape};

/// Writes the old model to a folder.
type Before<'a> = &'a dyn Fn(&Path);

const TENSORS: usize = 6;
const TENSOR_BYTES: usize = 3000;

/// The result of loading a folder.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    /// All tensors are filled with this byte.
    Version(u8),
    /// An error that names the missing file and says what to do.
    Refused,
    /// There is no model.
    Nothing,
}

fn saver() -> FileSaver {
    FileSaver::new(Arc::new(Executor::new(Settings::default()).unwrap()))
}

/// A model of one file, all of whose bytes are `version`.
fn write_version(path: &Path, version: u8) {
    let bytes = [version; TENSOR_BYTES];
    let names: Vec<_> = (0..TENSORS).map(|i| format!("t{i}")).collect();
    let held: Vec<_> = names
        .iter()
        .map(|name| Held {
            name,
            dtype: Dtype::U8,
            shape: Shape::from(&[TENSOR_BYTES as u64][..]),
            bytes: Holding::Host(&bytes),
        })
        .collect();
    saver().save_held(path, &held, &BTreeMap::new()).unwrap();
}

fn shown(folder: &Path) -> Shown {
    let model = match Model::open(folder) {
        Ok(model) => model,
        Err(error) if error.to_string().contains("no .safetensors file") => return Shown::Nothing,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.hint().unwrap().contains("run it again"), "{error}");
            return Shown::Refused;
        }
    };
    let mut weights = Loader::new(saver().executor)
        .load(&model, &Selection::all(&model), Place::Host)
        .unwrap();
    assert_eq!(weights.tensors.len(), TENSORS, "all tensors, and none twice");
    let region = Arc::get_mut(&mut weights.region).unwrap();
    let mut seen = Vec::new();
    for tensor in weights.tensors.iter() {
        let mut bytes = vec![0; TENSOR_BYTES];
        region.read_at(tensor.at, &mut bytes).unwrap();
        seen.extend(bytes);
    }
    assert!(seen.iter().all(|b| *b == seen[0]), "files of two models");
    Shown::Version(seen[0])
}

/// A store of a process that is killed after a number of changes. Later changes are not made.
#[derive(Debug)]
struct Dying {
    files: Files,
    left: AtomicUsize,
}

impl Dying {
    /// Makes a change if the process is still alive.
    fn change(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let one_less = |left: usize| left.checked_sub(1);
        let order = Ordering::Relaxed;
        if self.left.fetch_update(order, order, one_less).is_ok() {
            return change();
        }
        Err(Error::new(
            ErrorKind::Cancelled,
            "go on",
            "the process",
            "it was killed",
        ))
    }
}

impl Store for Dying {
    fn describe(&self, name: &OsStr) -> String {
        self.files.describe(name)
    }

    fn verbs(&self) -> Verbs {
        self.files.verbs()
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        self.files.open(objects)
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        self.files.engine(lane)
    }

    fn facts(&self) -> Facts<'_> {
        self.files.facts()
    }

    fn settle(&self, after: Op, objects: &[Arc<dyn Handle>]) -> Result<()> {
        self.files.settle(after, objects)
    }

    fn below(&self, folder: &OsStr, missing: Missing) -> Result<Arc<dyn Store>> {
        self.files.below(folder, missing)
    }

    fn create(&self, name: &OsStr, bytes: u64, like: &Like<'_>) -> Result<Box<dyn Draft>> {
        self.files.create(name, bytes, like)
    }

    /// Commits drafts one after the other, and does not undo any.
    fn commit(&self, drafts: Vec<Box<dyn Draft>>, mode: CommitMode) -> Result<()> {
        let mut drafts = drafts.into_iter();
        let committed = drafts.try_for_each(|draft| {
            let mut draft = Some(draft);
            let done = self.change(|| self.files.commit(draft.take().into_iter().collect(), mode));
            // A killed process does not remove its drafts.
            std::mem::forget(draft);
            done
        });
        drafts.for_each(std::mem::forget);
        committed
    }

    fn remove_all(&self, removals: &[Removal<'_>], how: Durability) -> Result<Vec<bool>> {
        for one in removals {
            self.change(|| self.files.remove_all(&[*one], how).map(drop))?;
        }
        Ok(vec![true; removals.len()])
    }
}

/// Writes version 1 to the folder, then starts to rewrite version 2 into it and is killed after `done` changes. Returns
/// whether there were more.
fn interrupted(root: &Path, before: Before<'_>, shard_bytes: Option<u64>, done: usize) -> bool {
    let (source, folder) = (root.join("source"), root.join("folder"));
    for path in [&source, &folder] {
        let _ = fs::remove_dir_all(path);
        fs::create_dir(path).unwrap();
    }
    before(&folder);
    let one = source.join("one.safetensors");
    write_version(&one, 2);
    let parts = source.join("parts");
    saver()
        .rewrite(&Model::open(&one).unwrap(), &parts, Some(7000))
        .unwrap();
    let model = Model::open(&parts).unwrap();
    let store = Arc::new(Dying {
        files: Files::default(),
        left: AtomicUsize::new(done),
    });
    let target = Location {
        store: Arc::clone(&store) as _,
        name: folder,
    };
    match saver().rewrite(&model, target, shard_bytes) {
        // A file that could not be removed is a warning.
        Ok(receipt) => !receipt.warnings.is_empty(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
            true
        }
    }
}

#[test]
fn a_rewrite_over_another_model_that_is_killed_shows_one_of_them_or_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let divided = |bytes: u64| {
        move |folder: &Path| {
            let one = folder.with_file_name("one.safetensors");
            write_version(&one, 1);
            saver()
                .rewrite(&Model::open(&one).unwrap(), folder, Some(bytes))
                .unwrap();
        }
    };
    let without_index = |folder: &Path| {
        divided(7000)(folder);
        fs::remove_file(folder.join(INDEX_NAME)).unwrap();
    };
    let with_index = |folder: &Path| {
        divided(7000)(folder);
        let parts = folder.with_file_name("old-parts");
        let _ = fs::remove_dir_all(&parts);
        fs::rename(folder, &parts).unwrap();
        let model = Model::open(&parts).unwrap();
        saver().rewrite(&model, folder, Some(u64::MAX)).unwrap();
    };
    let stale_index = |folder: &Path| {
        let one = folder.with_file_name("one.safetensors");
        write_version(&one, 3);
        saver()
            .rewrite(&Model::open(&one).unwrap(), folder, Some(7000))
            .unwrap();
        write_version(&folder.join(SINGLE_NAME), 1);
    };
    let befores: [(&str, Before<'_>); 7] = [
        ("the same names", &divided(7000)),
        ("other names", &divided(4000)),
        ("one file", &divided(u64::MAX)),
        ("one file and an index", &with_index),
        ("one file and an index of other files", &stale_index),
        ("the same names without an index", &without_index),
        ("nothing", &|_| {}),
    ];
    let mut switched = Vec::new();
    for (name, before) in befores {
        for shard_bytes in [None, Some(7000), Some(u64::MAX)] {
            let mut seen = Vec::new();
            for done in 0.. {
                let is_more = interrupted(root.path(), before, shard_bytes, done);
                seen.push(shown(&root.path().join("folder")));
                if !is_more {
                    break;
                }
            }
            assert_eq!(seen.last(), Some(&Shown::Version(2)), "{name} {shard_bytes:?}");
            let first = if name == "nothing" {
                Shown::Nothing
            } else {
                Shown::Version(1)
            };
            assert_eq!(seen[0], first, "{name} {shard_bytes:?}");
            let had_index = matches!(name, "the same names" | "other names");
            assert!(
                !had_index || !seen.contains(&Shown::Refused),
                "an index that is replaced leaves no gap: {name} {seen:?}"
            );
            switched.push(seen.len());
        }
    }
    assert!(switched.iter().all(|steps| *steps > 2), "{switched:?}");
}

#[test]
fn leftovers_of_a_killed_rewrite_do_not_stop_the_next_one() {
    let root = tempfile::tempdir().unwrap();
    let before = |folder: &Path| {
        let one = folder.with_file_name("one.safetensors");
        write_version(&one, 1);
        saver()
            .rewrite(&Model::open(&one).unwrap(), folder, Some(7000))
            .unwrap();
    };
    let folder = root.path().join("folder");
    let mut done = 0;
    while interrupted(root.path(), &before, Some(7000), done) {
        let model = Model::open(&root.path().join("source/parts")).unwrap();
        saver().rewrite(&model, &folder, Some(7000)).unwrap();
        assert_eq!(shown(&folder), Shown::Version(2));
        done += 1;
    }
}

/// The names of all files in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn rewrites_over_one_folder_leave_no_file_of_an_older_model() {
    let root = tempfile::tempdir().unwrap();
    let (one, folder) = (root.path().join("one.safetensors"), root.path().join("folder"));
    fs::create_dir(&folder).unwrap();
    for kept in ["config.json", "adapter.safetensors.old", "notes.txt"] {
        fs::write(folder.join(kept), "kept").unwrap();
    }
    // The same count of files twice, fewer, more, a single one, and other names.
    for (version, shard_bytes) in (1..).zip([7000, 7000, 4000, 7000, u64::MAX, 4000, u64::MAX, u64::MAX, 13_000, 4000])
    {
        write_version(&one, version);
        let model = Model::open(&one).unwrap();
        let receipt = saver().rewrite(&model, &folder, Some(shard_bytes)).unwrap();
        assert_eq!(receipt.warnings, [""; 0]);
        assert_eq!(shown(&folder), Shown::Version(version));
        let now = Model::open(&folder).unwrap();
        let mut expected: Vec<_> = now
            .shards
            .iter()
            .map(|s| s.path.file_name().unwrap().to_str().unwrap())
            .collect();
        expected.extend(["config.json", "adapter.safetensors.old", "notes.txt"]);
        if folder.join(INDEX_NAME).exists() {
            expected.push(INDEX_NAME);
        }
        expected.sort_unstable();
        assert_eq!(names(&folder), expected, "version {version}");
    }
}

#[test]
fn files_that_another_index_names_or_no_index_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let (one, folder) = (root.path().join("one.safetensors"), root.path().join("folder"));
    write_version(&one, 1);
    let model = Model::open(&one).unwrap();
    saver().rewrite(&model, &folder, Some(7000)).unwrap();
    let other = "variant.safetensors.index.json";
    let index = fs::read_to_string(folder.join(INDEX_NAME)).unwrap();
    // The other index names one of the files, and a file that no index names is there too.
    let first = "model-00001-of-00003.safetensors";
    let map: serde_json::Value = serde_json::from_str(&index).unwrap();
    let places = map["weight_map"].as_object().unwrap().iter();
    let of_first: serde_json::Map<_, _> = places
        .filter(|(_, file)| *file == first)
        .map(|(name, file)| (name.clone(), file.clone()))
        .collect();
    assert!(!of_first.is_empty());
    let text = serde_json::json!({ "weight_map": of_first }).to_string();
    fs::write(folder.join(other), text).unwrap();
    write_version(&folder.join("adapter.safetensors"), 9);
    write_version(&one, 2);
    saver()
        .rewrite(&Model::open(&one).unwrap(), &folder, Some(4000))
        .unwrap();
    assert_eq!(shown(&folder), Shown::Version(2));
    let names = names(&folder);
    for kept in [first, other, "adapter.safetensors"] {
        assert!(names.iter().any(|name| name == kept), "{kept}: {names:?}");
    }
    assert!(
        !names.iter().any(|name| name == "model-00002-of-00003.safetensors"),
        "{names:?}"
    );
}
