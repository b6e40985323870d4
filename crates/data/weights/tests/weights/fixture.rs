//! Models for tests, written by the reference implementation.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use safetensors::{Dtype as TheirDtype, tensor::TensorView};
use straightway_core::Place;
use straightway_io::{Executor, File, GdsUse, Settings};
use straightway_weights::{Loaded, Loader, Model, Selection};

/// A tensor's dtype, shape and bytes.
pub(crate) type Contents = (TheirDtype, Vec<usize>, Vec<u8>);

/// Tensors by name.
pub(crate) type Weights = BTreeMap<String, Contents>;

/// A folder on the file system of the checkout, because that of temporary files may lack O_DIRECT.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Bytes that depend on their index and on the seed.
pub(crate) fn bytes_of(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 4096 + seed * 7) as u8).collect()
}

/// Tensors with these names and shapes, of 16-bit elements.
pub(crate) fn weights(shapes: &[(&str, &[usize])]) -> Weights {
    let one = |(seed, (name, shape)): (usize, &(&str, &[usize]))| {
        let len = shape.iter().product::<usize>() * 2;
        let contents = (TheirDtype::BF16, shape.to_vec(), bytes_of(len, seed));
        ((*name).to_owned(), contents)
    };
    shapes.iter().enumerate().map(one).collect()
}

/// Writes tensors to a file as the reference implementation does, durably.
pub(crate) fn write(path: &Path, weights: &Weights) {
    let views = weights
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, path).unwrap();
    File::open(path).unwrap().sync().unwrap();
}

/// Small chunks and rings, so that small files wrap around every ring many times.
pub(crate) fn small() -> Settings {
    Settings {
        chunk_bytes: 16 << 10,
        cached_chunk_bytes: 32 << 10,
        depth: 4,
        write_depth: 4,
        staging_bytes: 256 << 10,
        gpu_lanes: 3,
        gpu_chunk_bytes: 32 << 10,
        pinned_bytes: 256 << 10,
        gds: GdsUse::Off,
        ..Settings::default()
    }
}

pub(crate) fn loader() -> Loader {
    Loader::new(Arc::new(Executor::new(small()).unwrap()))
}

/// Evicts a model from the page cache.
pub(crate) fn evict(model: &Model) {
    for shard in &model.shards {
        shard.file().unwrap().evict().unwrap();
    }
}

/// The bytes of each tensor that was loaded, by name.
pub(crate) fn seen(loaded: &mut Loaded) -> BTreeMap<String, Vec<u8>> {
    let region = Arc::get_mut(&mut loaded.region).expect("the transfer is over");
    let mut seen = BTreeMap::new();
    for tensor in loaded.tensors.iter() {
        let mut bytes = vec![0; tensor.bytes as usize];
        region.read_at(tensor.at, &mut bytes).unwrap();
        assert!(seen.insert(tensor.name.to_string(), bytes).is_none());
    }
    seen
}

/// Loads a whole model into host memory and compares it with the written weights.
pub(crate) fn assert_loads(path: &Path, weights: &Weights) {
    let model = Model::open(path).unwrap();
    let mut loaded = loader().load(&model, &Selection::all(&model), Place::Host).unwrap();
    assert_same(&seen(&mut loaded), weights);
}

/// Asserts that the loaded bytes are the written ones, tensor by tensor.
pub(crate) fn assert_same(seen: &BTreeMap<String, Vec<u8>>, weights: &Weights) {
    assert!(seen.keys().eq(weights.keys()));
    for (name, (_, _, bytes)) in weights {
        assert!(&seen[name] == bytes, "{name}");
    }
}
