//! States on a GPU, on the stand-in driver.

use std::{path::Path, sync::Arc, time::Duration};

use straightway_checkpoint::{Restorer, SaveSource, Steps, Wanted};
use straightway_core::Result;
use straightway_io::{GdsUse, Region, Settings};
use straightway_standin::Standin;
use straightway_sys::cuda::{Context, DeviceMemory, Driver};
use straightway_weights::{Dtype, Holding, Rectangle, Shape};

use crate::fixture::{State, Tensor, options, saver, settings};

fn context() -> Result<Context> {
    Driver::load()?.device(0)?.context()
}

/// GPU memory with these bytes.
fn upload(bytes: &[u8]) -> Result<Arc<DeviceMemory>> {
    let memory = DeviceMemory::allocate(&context()?, bytes.len())?;
    memory.write(0, bytes)?;
    Ok(Arc::new(memory))
}

/// Saves a state whose tensors are on the GPU, each in its own memory, except one on the host.
fn save(folder: &Path, state: &State) -> Result<()> {
    let mut saver = saver(folder, options())?;
    let mut sources = Vec::new();
    for (number, tensor) in state.tensors.iter().enumerate() {
        let shape = tensor.shape.clone();
        let mut source = SaveSource::whole(&tensor.name, tensor.dtype, shape, &tensor.bytes);
        if number != 1 && !tensor.bytes.is_empty() {
            source.memory = Holding::Device(upload(&tensor.bytes)?);
        }
        sources.push(source);
    }
    saver.save(1, &sources, "null")?;
    saver.wait().map(drop)
}

/// Restores a state to GPU memory, each tensor to its own region at an offset, and compares.
fn restore(folder: &Path, state: &State, restorer: &Restorer) -> Result<()> {
    let context = context()?;
    let room = |t: &Tensor| Region::device(&context, t.bytes.len() as u64 + 3).map(Arc::new);
    let mut regions = state.tensors.iter().map(room).collect::<Result<Vec<_>>>()?;
    let want = |(tensor, region): (&Tensor, &Arc<Region>)| Wanted {
        name: tensor.name.clone(),
        rectangle: Rectangle::whole(&tensor.shape),
        region: Arc::clone(region),
        at: 3,
    };
    let wanted: Vec<_> = state.tensors.iter().zip(&regions).map(want).collect();
    restorer.restore(&Steps::open(folder)?.open_latest()?, &wanted)?;
    drop(wanted);
    for (tensor, region) in state.tensors.iter().zip(&mut regions) {
        let mut seen = vec![0; tensor.bytes.len()];
        Arc::get_mut(region).unwrap().read_at(3, &mut seen)?;
        assert!(seen == tensor.bytes, "wrong bytes without an error: {}", tensor.name);
    }
    Ok(())
}

fn gpu_settings() -> Settings {
    Settings {
        gpu_lanes: 3,
        gds: GdsUse::Off,
        ..settings()
    }
}

#[test]
fn tensors_of_a_gpu_are_saved_and_restored_elsewhere_in_its_memory_however_late_copies_are() {
    for seed in 0..4 {
        Standin::run(&format!("seed={seed} delay_us_max=200"), |standin| {
            let folder = tempfile::tempdir().unwrap();
            let state = State::small(seed);
            save(folder.path(), &state).unwrap();
            let restorer = Restorer::new(gpu_settings()).unwrap();
            for _ in 0..2 {
                restore(folder.path(), &state, &restorer).unwrap();
            }
            drop(restorer);
            standin.assert_clean();
        });
    }
}

#[test]
fn a_driver_call_that_fails_is_an_error_or_changes_nothing_and_leaks_nothing() {
    let use_all = |state: &State| {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.unwrap();
        save(folder.path(), state)?;
        restore(folder.path(), state, &Restorer::new(gpu_settings())?)
    };
    Standin::run("delay_us_max=20", |standin| {
        let state = State::small(1);
        use_all(&state).unwrap();
        let mut errors = 0;
        for (name, count) in standin.calls() {
            for nth in [1, 2, count / 2, count].into_iter().filter(|n| *n > 0) {
                // A copy that fails while it runs makes the context unusable (launch failure).
                let code = if name == "copy" { 719 } else { 999 };
                standin.plan(&format!("delay_us_max=20 fail={name}:{nth}:{code}"));
                errors += u32::from(use_all(&state).is_err());
                standin.assert_clean();
            }
        }
        assert!(errors >= 20, "only {errors} failures were noticed");
        standin.plan("");
        use_all(&state).unwrap();
        standin.assert_clean();
    });
}

#[test]
fn a_saver_that_was_prepared_pins_nothing_while_it_saves() {
    Standin::run("seed=5 delay_us_max=100", |standin| {
        let folder = tempfile::tempdir().unwrap();
        let bytes = vec![7_u8; 300_000];
        let shape = Shape::from(&[bytes.len() as u64][..]);
        let mut source = SaveSource::whole("t", Dtype::U8, shape, &bytes);
        source.memory = Holding::Device(upload(&bytes).unwrap());
        let sources = [source];
        let mut saver = saver(folder.path(), options()).unwrap();
        saver.prepare(&sources).unwrap();
        let pinned = || standin.calls().get("cuMemHostRegister_v2").copied().unwrap_or(0);
        while pinned() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = pinned();
        for step in 1..3 {
            saver.save(step, &sources, "null").unwrap();
            assert_eq!(pinned(), before, "the memory was there");
            saver.wait().unwrap();
        }
        // The pool has memory, so nothing is left to prepare.
        saver.prepare(&sources).unwrap();
        drop((saver, sources));
        standin.assert_clean();
    });
}
