//! Loads into GPU memory and saves from it, on the stand-in driver.

use std::{collections::BTreeMap, fs, sync::Arc, thread, time::Duration};

use straightway_core::{Choice, Leg, Place, Route};
use straightway_io::{Executor, File, GdsUse, Region, Settings};
use straightway_standin::Standin;
use straightway_sys::cuda::{DeviceMemory, Driver};
use straightway_weights::{
    Dtype, FileSaver, Filters, Held, Holding, LARGE_ALIGN_BYTES, Layout, Loader, Model, Phase, Selection, Slice,
};
use tempfile::TempDir;

use crate::fixture::{Weights, assert_loads, assert_same, evict, folder, loader, seen, small, weights, write};

const GPU: Place = Place::Gpu(0);

#[test]
fn every_tensor_arrives_on_a_gpu_aligned_however_late_copies_are() {
    for seed in 0..4 {
        Standin::run(&format!("seed={seed} delay_us_max=300"), |standin| {
            let folder = folder();
            let path = folder.path().join("model.safetensors");
            let all = weights(&[
                ("a", &[700, 1001]),
                ("b", &[5]),
                ("c", &[1024, 600]),
                ("d", &[900, 999]),
            ]);
            write(&path, &all);
            let model = Model::open(&path).unwrap();
            for choice in [Choice::Auto, Choice::Only(Route::Buffered)] {
                evict(&model);
                let loader = Loader { choice, ..loader() };
                let mut there = loader.load(&model, &Selection::all(&model), GPU).unwrap();
                assert_same(&seen(&mut there), &all);
                for tensor in there.tensors.iter().filter(|t| t.bytes >= 1 << 20) {
                    assert_eq!(tensor.at % LARGE_ALIGN_BYTES, 0);
                }
                assert!(there.region.bytes() < model.bytes() + 1024);
            }
            standin.assert_clean();
        });
    }
}

#[test]
fn slices_of_inner_dimensions_arrive_on_a_gpu() {
    Standin::run("seed=1 delay_us_max=200", |standin| {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        let all = weights(&[("a", &[64, 96]), ("b", &[32, 4, 10])]);
        write(&path, &all);
        let model = Model::open(&path).unwrap();
        let slices: [Slice; 1] = ["1:1/2".parse().unwrap()];
        let selection = Selection::new(&model, &Filters::default(), &slices).unwrap();
        for is_cold in [true, false] {
            if is_cold {
                evict(&model);
            }
            let mut on_gpu = loader().load(&model, &selection, GPU).unwrap();
            let mut on_host = loader().load(&model, &selection, Place::Host).unwrap();
            assert_eq!(seen(&mut on_gpu), seen(&mut on_host));
        }
        standin.assert_clean();
    });
}

/// Thousands of tensors of odd sizes, some of them without bytes.
fn odd() -> Weights {
    let names: Vec<_> = (0..2000).map(|n| format!("t{n:04}")).collect();
    let shapes: Vec<_> = (0..2000).map(|n: usize| [n * 37 % 900]).collect();
    let all = names.iter().zip(&shapes);
    let mut all: Vec<(&str, &[usize])> = all.map(|(name, s)| (&**name, &s[..])).collect();
    all.extend([("large", &[300, 1001][..]), ("larger", &[70_001][..])]);
    weights(&all)
}

#[test]
fn tensors_in_memory_of_their_own_on_a_gpu_are_saved_byte_for_byte() {
    let all = odd();
    let tmpfs = tempfile::tempdir_in("/dev/shm").ok();
    for seed in 0..3 {
        Standin::run(&format!("seed={seed} delay_us_max=100"), |standin| {
            let context = Driver::load().unwrap().device(0).unwrap().context().unwrap();
            let upload = |bytes: &[u8]| {
                let memory = DeviceMemory::allocate(&context, bytes.len().max(1)).unwrap();
                memory.write(0, bytes).unwrap();
                Arc::new(memory)
            };
            let held = |is_mixed: bool| -> Vec<Held<'_>> {
                let all = all.iter().enumerate();
                all.map(|(number, (name, (_, shape, bytes)))| Held {
                    name,
                    dtype: Dtype::Bf16,
                    shape: shape.iter().map(|n| *n as u64).collect(),
                    bytes: if bytes.is_empty() || (is_mixed && number % 7 == 0) {
                        Holding::Host(bytes)
                    } else {
                        Holding::Device(upload(bytes))
                    },
                })
                .collect()
            };
            let disk = folder();
            let executor = Arc::new(Executor::new(small()).unwrap());
            let saver = FileSaver::new(executor);
            for (home, is_mixed) in [
                (Some(disk.path()), false),
                (Some(disk.path()), true),
                (tmpfs.as_ref().map(TempDir::path), false),
            ] {
                let Some(home) = home else {
                    eprintln!("left out: a file system in memory: no /dev/shm");
                    continue;
                };
                let path = home.join("model.safetensors");
                let receipt = saver.save_held(&path, &held(is_mixed), &BTreeMap::new()).unwrap();
                assert!(is_mixed || receipt.pinned_bytes_peak > 0, "{receipt}");
                assert_loads(&path, &all);
                fs::remove_file(&path).unwrap();
            }
            drop((saver, context));
            standin.assert_clean();
        });
    }
}

#[test]
fn a_region_on_a_gpu_is_saved_byte_for_byte() {
    Standin::run("seed=2 delay_us_max=200", |standin| {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        let all = weights(&[("a", &[700, 301]), ("b", &[5]), ("c", &[300, 600])]);
        write(&path, &all);
        let model = Model::open(&path).unwrap();
        let executor = Arc::new(Executor::new(small()).unwrap());
        let loader = Loader::new(Arc::clone(&executor));
        let there = loader.load(&model, &Selection::all(&model), GPU).unwrap();
        let copy = folder.path().join("copy.safetensors");
        let saver = FileSaver::new(executor);
        saver
            .save(&copy, &there.region, &there.tensors, &BTreeMap::new())
            .unwrap();
        assert_loads(&copy, &all);
        drop((there, loader, saver));
        standin.assert_clean();
    });
}

#[test]
fn a_direct_save_from_a_gpu_keeps_the_header() {
    Standin::run("cufile=p2p", |standin| {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        let all = weights(&[("a", &[700, 301])]);
        write(&path, &all);
        if File::open(&path).unwrap().alignment().is_none() {
            eprintln!("skipped: no O_DIRECT here");
            return;
        }
        let model = Model::open(&path).unwrap();
        let settings = Settings {
            gds: GdsUse::Auto,
            ..small()
        };
        let executor = Arc::new(Executor::new(settings).unwrap());
        let loader = Loader::new(Arc::clone(&executor));
        let there = loader.load(&model, &Selection::all(&model), GPU).unwrap();
        let copy = folder.path().join("copy.safetensors");
        let saver = FileSaver {
            choice: Choice::Only(Route::Direct),
            ..FileSaver::new(executor)
        };
        // The header is written before cuFile is tested with the file.
        let receipt = saver
            .save(&copy, &there.region, &there.tensors, &BTreeMap::new())
            .unwrap();
        assert!(receipt.bytes_by(Leg::Write, Route::Direct) > 0, "{receipt}");
        assert_loads(&copy, &all);
        drop((there, loader, saver));
        standin.assert_clean_but_for_cufile();
    });
}

#[test]
fn a_copy_that_fails_gives_an_error_and_no_weights() {
    Standin::run("seed=3 fail=cuMemcpyHtoDAsync_v2:3:700", |_| {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        write(&path, &weights(&[("a", &[700, 301])]));
        let model = Model::open(&path).unwrap();
        loader().load(&model, &Selection::all(&model), GPU).unwrap_err();
    });
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_before_anything_is_read() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &weights(&[("a", &[7])]));
    let model = Model::open(&path).unwrap();
    let loader = loader();
    let far = Place::Gpu(4_000_000);
    loader.load(&model, &Selection::all(&model), far).unwrap_err();
    assert_eq!(loader.progress.moved_bytes(), 0);
}

#[test]
fn blocks_that_are_allocated_while_the_load_runs_hold_every_tensor() {
    for seed in 0..3 {
        Standin::run(&format!("seed={seed} delay_us_max=200"), |standin| {
            let folder = folder();
            let path = folder.path().join("model.safetensors");
            let all = weights(&[
                ("a", &[700, 1001]),
                ("b", &[5]),
                ("c", &[3]),
                ("d", &[1024, 600]),
                ("e", &[0, 7]),
                ("f", &[900, 999]),
            ]);
            write(&path, &all);
            let model = Model::open(&path).unwrap();
            let context = Driver::load().unwrap().device(0).unwrap().context().unwrap();
            for is_cold in [true, false] {
                if is_cold {
                    evict(&model);
                }
                let loader = loader();
                let layout = loader.layout(&model, &Selection::all(&model), GPU);
                let prepared = loader.prepare_blocks(&model, layout, &context).unwrap();
                let (tensors, blocks) = (Arc::clone(&prepared.tensors), prepared.blocks.clone());
                let target = Arc::clone(prepared.target.as_ref().unwrap());
                let running = thread::spawn(move || prepared.run());
                for (number, region) in target.regions().iter().enumerate() {
                    // The time that the library takes to allocate a block.
                    thread::sleep(Duration::from_millis(2));
                    let bytes = usize::try_from(region.bytes()).unwrap();
                    region
                        .provide(DeviceMemory::allocate(&context, bytes).unwrap())
                        .unwrap();
                    target.open(number + 1);
                }
                let receipt = running.join().unwrap().unwrap();
                assert_eq!(receipt.bytes, model.bytes());
                let mut seen = BTreeMap::new();
                let mut regions = target.regions().iter();
                for block in &blocks {
                    let memory = match block.bytes {
                        0 => None,
                        _ => regions.next().unwrap().device_memory(),
                    };
                    for tensor in &tensors[block.tensors.clone()] {
                        let mut bytes = vec![0; tensor.bytes as usize];
                        if let Some(memory) = memory {
                            let at = block.offset_of(tensor) as usize;
                            memory.read(at, &mut bytes).unwrap();
                        }
                        seen.insert(tensor.name.to_string(), bytes);
                    }
                }
                assert_same(&seen, &all);
            }
            drop(context);
            standin.assert_clean();
        });
    }
}

#[test]
fn tensors_are_loaded_into_regions_that_exist_already() {
    for seed in 0..2 {
        Standin::run(&format!("seed={seed} delay_us_max=200"), |standin| {
            let folder = folder();
            let path = folder.path().join("model.safetensors");
            let all = odd();
            write(&path, &all);
            let model = Model::open(&path).unwrap();
            let loader = loader();
            let layout = || Layout::new(&model, &Selection::all(&model), Phase::Free);
            let region = |bytes: u64| Arc::new(Region::at(GPU, bytes.max(1)).unwrap());
            let mut own: Vec<_> = layout().tensors.iter().map(|t| region(t.bytes)).collect();
            let receipt = loader
                .prepare_into(&model, layout(), own.clone())
                .unwrap()
                .run()
                .unwrap();
            assert_eq!(receipt.bytes, model.bytes());
            for (placed, region) in layout().tensors.iter().zip(&mut own) {
                let mut bytes = vec![0; usize::try_from(placed.bytes).unwrap()];
                let region = Arc::get_mut(region).expect("the load has ended");
                region.read_at(0, &mut bytes).unwrap();
                assert!(bytes == all[&*placed.name].2, "{}", placed.name);
            }
            let error = loader.prepare_into(&model, layout(), own[1..].to_vec()).unwrap_err();
            assert!(
                error.to_string().contains("2001 regions were given for 2002 tensors"),
                "{error}"
            );
            let mut short = own;
            let largest = layout().tensors.iter().position(|t| &*t.name == "large").unwrap();
            short[largest] = region(10);
            let error = loader.prepare_into(&model, layout(), short).unwrap_err();
            assert!(error.to_string().contains("tensor large has 10 bytes"), "{error}");
            drop(loader);
            standin.assert_clean();
        });
    }
}
