//! States on a GPU, over the stand-in.

use std::sync::Arc;

use straightway_core::Result;
use straightway_io::{GdsUse, Region, Settings};
use straightway_pipeline::{
    checkpoint::{Restorer, Source, Store, Wanted},
    weights::{Holding, Rectangle},
};
use straightway_standin::Standin;
use straightway_sys::cuda::{Context, DeviceMemory, Driver};

use crate::fixture::{State, options, saver, settings};

fn context() -> Context {
    Driver::load()
        .unwrap()
        .device(0)
        .unwrap()
        .context()
        .unwrap()
}

/// Memory of the GPU that holds these bytes.
fn upload(bytes: &[u8]) -> Arc<DeviceMemory> {
    let memory = DeviceMemory::allocate(&context(), bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    Arc::new(memory)
}

/// Saves a state whose tensors are on the GPU, each in memory of its own, but one on the host.
fn save(folder: &std::path::Path, state: &State) -> Result<()> {
    let mut saver = saver(folder, options())?;
    let mut sources = Vec::new();
    for (number, tensor) in state.tensors.iter().enumerate() {
        let shape = tensor.shape.clone();
        let mut source = Source::whole(&tensor.name, tensor.dtype, shape, &tensor.bytes);
        if number != 1 && !tensor.bytes.is_empty() {
            source.memory = Holding::Device(upload(&tensor.bytes));
        }
        sources.push(source);
    }
    saver.save(1, &sources, "null")?;
    saver.wait().map(drop)
}

fn gpu_settings() -> Settings {
    Settings {
        gpu_lanes: 3,
        gds: GdsUse::Off.into(),
        ..settings()
    }
}

#[test]
fn tensors_of_a_gpu_are_saved_and_restored_to_another_place_in_its_memory_however_late_copies_are()
{
    for seed in 0..4 {
        Standin::run(&format!("seed={seed} delay_us_max=200"), |standin| {
            let folder = tempfile::tempdir().unwrap();
            let state = State::small(seed);
            save(folder.path(), &state).unwrap();
            let checkpoint = Store::open(folder.path()).unwrap().open_latest().unwrap();
            let restorer = Restorer::new(gpu_settings()).unwrap();
            for _ in 0..2 {
                let room = |t: &crate::fixture::Tensor| {
                    Arc::new(Region::device(&context(), t.bytes.len() as u64 + 3).unwrap())
                };
                let mut regions: Vec<_> = state.tensors.iter().map(room).collect();
                let want = |(tensor, region): (&crate::fixture::Tensor, &Arc<Region>)| Wanted {
                    name: tensor.name.clone(),
                    rectangle: Rectangle::whole(&tensor.shape),
                    region: Arc::clone(region),
                    at: 3,
                };
                let wanted: Vec<_> = state.tensors.iter().zip(&regions).map(want).collect();
                restorer.restore(&checkpoint, &wanted).unwrap();
                drop(wanted);
                for (tensor, region) in state.tensors.iter().zip(&mut regions) {
                    let mut seen = vec![0; tensor.bytes.len()];
                    Arc::get_mut(region).unwrap().read_at(3, &mut seen).unwrap();
                    assert!(seen == tensor.bytes, "{}", tensor.name);
                }
            }
            drop(restorer);
            standin.assert_clean();
        });
    }
}
