//! Models in a store that is not a file system.

use std::{collections::BTreeMap, ffi::OsStr, path::Path, sync::Arc};

use straightway_core::{ErrorKind, Place, Reason, Result, Scheme, Uri};
use straightway_io::{
    Executor, Settings,
    store::{Condition, Durability, ListPage, Location, Registry, Store, StoreExt},
    wrapper::faulty::Faults,
};
use straightway_memory::Memory;
use straightway_weights::{Dtype, FileSaver, Header, Held, Holding, Model, Selection, Shape};

use crate::fixture::{folder, loader, seen, weights, write};

/// A safetensors file with one tensor of bytes.
fn file(tensor: &str, bytes: &[u8]) -> Vec<u8> {
    let json = format!(
        "{{\"{tensor}\":{{\"dtype\":\"U8\",\"shape\":[{0}],\"data_offsets\":[0,{0}]}}}}",
        bytes.len()
    );
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend(json.as_bytes());
    file.extend(bytes);
    file
}

fn put(store: &dyn Store, name: &str, bytes: &[u8]) {
    let on = &Condition::Always;
    assert!(store.put(OsStr::new(name), bytes, on, Durability::Synced).unwrap());
}

fn at(store: &Arc<dyn Store>, name: &str) -> Location {
    Location::from((Arc::clone(store), name.into()))
}

fn names(model: &Result<Model>) -> Vec<&str> {
    model.as_ref().unwrap().tensors.iter().map(|t| &*t.name).collect()
}

#[test]
fn a_model_is_found_by_file_folder_and_index_in_a_store_without_folders() {
    let stores = Registry::default().with(Scheme::Memory, |name| Ok(Arc::new(Memory::new(name))));
    let uri = |name: &str| Uri::parse(format!("memory:models/{name}")).unwrap();
    let (store, _) = stores.find(&uri("x")).unwrap();
    for (name, tensor) in [("m/a.safetensors", "one"), ("m/b.safetensors", "two")] {
        put(&*store, name, &file(tensor, &[7; 100]));
    }
    let find = |name: &str| Model::find(&stores, &uri(name));
    assert_eq!(names(&find("m/b.safetensors")), ["two"]);
    assert_eq!(names(&find("m")), ["one", "two"]);
    put(
        &*store,
        "m/model.safetensors.index.json",
        b"{\"weight_map\":{\"two\":\"b.safetensors\"}}",
    );
    assert_eq!(names(&find("m")), ["two"]);
    assert_eq!(names(&find("m/model.safetensors.index.json")), ["two"]);
    assert_eq!(find("absent").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(find("m/absent.safetensors").unwrap_err().kind(), ErrorKind::NotFound);
    store.remove(OsStr::new("m/b.safetensors"), Durability::Synced).unwrap();
    let error = find("m").unwrap_err();
    assert!(error.to_string().contains("names it, but it does not exist"), "{error}");
}

#[test]
fn a_shard_that_was_replaced_since_its_header_was_read_is_refused() {
    let store: Arc<dyn Store> = Arc::new(Memory::new("models"));
    put(&*store, "a.safetensors", &file("one", &[1; 10]));
    let model = Model::open(at(&store, "a.safetensors")).unwrap();
    let shard = model.shards[0].open().unwrap();
    assert_eq!(Header::read(&*shard).unwrap().tensors.len(), 1);
    put(&*store, "a.safetensors", &file("one", &[2; 10]));
    assert_eq!(model.shards[0].open().unwrap_err().kind(), ErrorKind::Precondition);
    // The open version does not change.
    let mut bytes = [0; 10];
    shard.read_exact_at(model.tensors[0].extent.offset, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 10]);
    assert!(shard.check_unchanged().is_err());
}

#[test]
fn a_model_is_loaded_from_a_store_without_files() {
    let store: Arc<dyn Store> = Arc::new(Memory::new("models"));
    let contents: Vec<Vec<u8>> = (1..=40_u8).map(|n| vec![n; 1000 * usize::from(n)]).collect();
    for (number, bytes) in contents.iter().enumerate() {
        let name = format!("m/{number:02}.safetensors");
        put(&*store, &name, &file(&format!("t{number:02}"), bytes));
    }
    let model = Model::open(at(&store, "m")).unwrap();
    let mut loaded = loader().load(&model, &Selection::all(&model), Place::Host).unwrap();
    let seen = seen(&mut loaded);
    for (number, bytes) in contents.iter().enumerate() {
        assert!(&seen[&format!("t{number:02}")] == bytes, "tensor {number}");
    }
    let total: usize = contents.iter().map(Vec::len).sum();
    assert_eq!(loaded.receipt.bytes, total as u64);
    assert!(loaded.receipt.routes.iter().all(|r| r.reason == Reason::StoreInMemory));
}

/// A model of three tensors in a file.
fn write_model(path: &Path) {
    write(path, &weights(&[("a", &[500, 512]), ("b", &[3]), ("c", &[1000, 300])]));
}

/// All tensors of a model, by name.
fn loaded(model: &Model) -> BTreeMap<String, Vec<u8>> {
    let mut loaded = loader().load(model, &Selection::all(model), Place::Host).unwrap();
    seen(&mut loaded)
}

#[test]
fn a_model_is_rewritten_from_files_into_a_store_within_it_and_back() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write_model(&path);
    let (model, saver) = (Model::open(&path).unwrap(), FileSaver::new(loader().executor));
    let store: Arc<dyn Store> = Arc::new(Memory::new("models"));
    let all = loaded(&model);
    // Divided into shards, and then written again over the existing model.
    for shard_bytes in [600_000, 400_000, 600_000] {
        saver.rewrite(&model, at(&store, "m"), Some(shard_bytes)).unwrap();
        let there = Model::open(at(&store, "m")).unwrap();
        assert!(there.index_metadata.is_some() && there.shards.len() > 1);
        assert!(loaded(&there) == all);
        assert!(there.shards.iter().all(|s| s.data_offset % 4096 == 0));
    }
    let there = Model::open(at(&store, "m")).unwrap();
    let error = saver.rewrite(&there, at(&store, "m"), Some(100)).unwrap_err();
    assert!(error.hint().unwrap().contains("another folder"), "{error}");
    // Over itself, and back into files.
    saver.rewrite(&there, at(&store, "m"), None).unwrap();
    let there = Model::open(at(&store, "m")).unwrap();
    assert!(loaded(&there) == all);
    let back = folder.path().join("back");
    saver.rewrite(&there, &back, None).unwrap();
    assert!(loaded(&Model::open(&back).unwrap()) == all);
    // A single file stays a single file.
    saver.rewrite(&model, at(&store, "one.safetensors"), None).unwrap();
    assert!(loaded(&Model::open(at(&store, "one.safetensors")).unwrap()) == all);
}

#[test]
fn tensors_in_memory_are_saved_into_a_store_or_leave_nothing() {
    let store: Arc<dyn Store> = Arc::new(Memory::new("models"));
    let bytes = vec![7; 3_000_001];
    let held = [Held {
        name: "t",
        dtype: Dtype::U8,
        shape: Shape::from(&[3_000_001][..]),
        bytes: Holding::Host(&bytes),
    }];
    let target = at(&store, "deep/t.safetensors");
    let faults = Faults {
        seed: 1,
        error_per_mille: 1000,
        error_code: 5,
        ..Faults::default()
    };
    let broken = Executor::with_parts(Settings::default(), faults.into()).unwrap();
    let saver = FileSaver::new(Arc::new(broken));
    saver.save_held(target.clone(), &held, &BTreeMap::new()).unwrap_err();
    assert!(store.list(&page()).unwrap().folders.is_empty());
    let saver = FileSaver::new(loader().executor);
    saver.save_held(target.clone(), &held, &BTreeMap::new()).unwrap();
    assert!(loaded(&Model::open(target).unwrap())["t"] == bytes);
}

fn page() -> ListPage {
    ListPage {
        after: None,
        names_max: 10,
    }
}
