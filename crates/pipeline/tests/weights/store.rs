//! Models in a store that is no file system.

use std::{ffi::OsStr, sync::Arc};

use straightway_core::{Kind, Place, Reason, Result, Scheme, Uri};
use straightway_io::store::{Condition, Durability, Location, Registry, Store};
use straightway_memory::Memory;
use straightway_pipeline::weights::{Header, Model, Selection};

use crate::fixture::{loader, seen};

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
    assert!(
        store
            .put(OsStr::new(name), bytes, on, Durability::Synced)
            .unwrap()
    );
}

fn at(store: &Arc<dyn Store>, name: &str) -> Location {
    Location::from((Arc::clone(store), name.into()))
}

fn names(model: &Result<Model>) -> Vec<&str> {
    model
        .as_ref()
        .unwrap()
        .tensors
        .iter()
        .map(|t| &*t.name)
        .collect()
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
    assert_eq!(find("absent").unwrap_err().kind(), Kind::NotFound);
    assert_eq!(
        find("m/absent.safetensors").unwrap_err().kind(),
        Kind::NotFound
    );
    store
        .remove(OsStr::new("m/b.safetensors"), Durability::Synced)
        .unwrap();
    let error = find("m").unwrap_err();
    assert!(
        error.to_string().contains("names it, and it is not there"),
        "{error}"
    );
}

#[test]
fn a_shard_that_was_replaced_since_its_header_was_read_is_refused() {
    let store: Arc<dyn Store> = Arc::new(Memory::new("models"));
    put(&*store, "a.safetensors", &file("one", &[1; 10]));
    let model = Model::open(at(&store, "a.safetensors")).unwrap();
    let shard = model.shards[0].open().unwrap();
    assert_eq!(Header::read(&*shard).unwrap().tensors.len(), 1);
    put(&*store, "a.safetensors", &file("one", &[2; 10]));
    assert_eq!(model.shards[0].open().unwrap_err().kind(), Kind::Corrupt);
    // The version that is open stays what it was.
    let mut bytes = [0; 10];
    shard
        .read_exact_at(model.tensors[0].extent.offset, &mut bytes)
        .unwrap();
    assert_eq!(bytes, [1; 10]);
    assert!(shard.check_unchanged().is_err());
}

#[test]
fn a_model_is_loaded_from_a_store_without_files() {
    let store: Arc<dyn Store> = Arc::new(Memory::new("models"));
    let contents: Vec<Vec<u8>> = (1..=40_u8)
        .map(|n| vec![n; 1000 * usize::from(n)])
        .collect();
    for (number, bytes) in contents.iter().enumerate() {
        let name = format!("m/{number:02}.safetensors");
        put(&*store, &name, &file(&format!("t{number:02}"), bytes));
    }
    let model = Model::open(at(&store, "m")).unwrap();
    let mut loaded = loader()
        .load(&model, &Selection::all(&model), Place::Host)
        .unwrap();
    let seen = seen(&mut loaded);
    for (number, bytes) in contents.iter().enumerate() {
        assert!(&seen[&format!("t{number:02}")] == bytes, "tensor {number}");
    }
    let total: usize = contents.iter().map(Vec::len).sum();
    assert_eq!(loaded.receipt.bytes, total as u64);
    assert!(
        loaded
            .receipt
            .routes
            .iter()
            .all(|r| r.reason == Reason::StoreInMemory)
    );
}
