//! Loads into host memory: every route, filters and slices, and files that change during the load.

use std::{fs, os::unix::fs::FileExt, path::PathBuf, process::Command, sync::Arc};

use proptest::prelude::*;
use straightway_core::{Choice, ErrorKind, Leg, Place, Rate, Route};
use straightway_io::{Executor, Settings};
use straightway_weights::verify_loaded;
use straightway_weights::{Filters, Loader, Model, Pick, Rectangle, Selection, Shape, Slice, SlicePart};

use crate::fixture::{Weights, assert_loads, assert_same, evict, folder, loader, seen, small, weights, write};

/// Some tensors, large and small, and one without elements.
fn some() -> Weights {
    weights(&[
        ("lm_head.weight", &[300, 512]),
        ("layers.0.q.weight", &[64, 96]),
        ("layers.0.q.bias", &[64]),
        ("layers.1.q.weight", &[1024, 1024]),
        ("layers.1.q.bias", &[7]),
        ("nothing", &[0, 5]),
        ("scalar", &[]),
    ])
}

fn filtered(model: &Model, filters: &[&str], slices: &[&str]) -> straightway_core::Result<Selection> {
    let filters: Filters = filters.iter().map(|f| f.parse().unwrap()).collect();
    let slices: Vec<Slice> = slices.iter().map(|s| s.parse().unwrap()).collect();
    Selection::new(model, &filters, &slices)
}

fn choices(model: &Model) -> Vec<Choice> {
    let mut choices = vec![Choice::Auto, Choice::Only(Route::Buffered)];
    if model.shards[0].file().unwrap().alignment().is_some() {
        choices.extend([Route::Direct, Route::Staged].map(Choice::Only));
    } else {
        eprintln!("left out: the direct and the staged route: no O_DIRECT here");
    }
    choices
}

#[test]
fn every_tensor_arrives_by_every_route_from_the_drive_and_from_the_page_cache() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    let model = Model::open(&path).unwrap();
    let all = Selection::all(&model);
    for choice in choices(&model) {
        for is_cold in [true, false] {
            if is_cold {
                evict(&model);
            } else {
                fs::read(&path).unwrap();
            }
            let loader = Loader { choice, ..loader() };
            let mut there = loader.load(&model, &all, Place::Host).unwrap();
            assert_same(&seen(&mut there), &some());
            assert_eq!(there.receipt.bytes, model.bytes());
            if let Choice::Only(Route::Buffered) = choice {
                let bytes = there.receipt.bytes_by(Leg::Read, Route::Buffered);
                assert_eq!(bytes, model.bytes());
            }
        }
    }
}

#[test]
fn a_model_in_memory_without_o_direct_arrives() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm");
        return;
    };
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    assert_loads(&path, &some());
}

/// A mount that is removed at the end of the test.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn a_model_under_an_overlay_arrives_as_in_a_container() {
    let folder = folder();
    let part = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(part);
    write(&lower.join("model.safetensors"), &some());
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(&merged)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: cannot mount an overlay");
        return;
    }
    let _mount = Mount(merged.clone());
    let path = merged.join("model.safetensors");
    let model = Model::open(&path).unwrap();
    evict(&model);
    assert_loads(&path, &some());
    assert_loads(&path, &some());
}

#[test]
fn large_tensors_are_read_directly_from_aligned_and_unaligned_files() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    let model = Model::open(&path).unwrap();
    if model.shards[0].file().unwrap().alignment().is_none() {
        eprintln!("skipped: no O_DIRECT here");
        return;
    }
    assert_ne!(model.shards[0].data_offset % 4096, 0, "as other writers have it");
    evict(&model);
    let there = loader().load(&model, &Selection::all(&model), Place::Host).unwrap();
    let direct = there.receipt.bytes_by(Leg::Read, Route::Direct);
    assert!(direct > model.bytes() * 9 / 10, "{}", there.receipt);
}

#[test]
fn filters_skip_the_io_and_not_only_the_result() {
    let folder = folder();
    let path = folder.path();
    let mut all = some();
    let second = all.split_off("lm_head.weight");
    write(&path.join("1.safetensors"), &all);
    write(&path.join("2.safetensors"), &second);
    let model = Model::open(path).unwrap();
    evict(&model);
    // A file without selected tensors is not opened.
    fs::remove_file(path.join("2.safetensors")).unwrap();
    let selection = filtered(&model, &["regex:^layers\\.0", "layers.1.q.bias"], &[]).unwrap();
    let mut there = loader().load(&model, &selection, Place::Host).unwrap();
    all.remove("layers.1.q.weight");
    assert_same(&seen(&mut there), &all);
    assert!(there.receipt.storage_bytes < 64 << 10, "{}", there.receipt);
    let error = filtered(&model, &["layers.2.q.bias"], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(filtered(&model, &["nothing.*"], &[]).is_err());
}

#[test]
fn a_rank_reads_little_more_than_its_share_from_the_drive() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let all = weights(&[("a", &[4096, 512]), ("b", &[1024, 1000]), ("c", &[8192, 128])]);
    write(&path, &all);
    let model = Model::open(&path).unwrap();
    let selection = filtered(&model, &[], &["0:3/8"]).unwrap();
    assert_eq!(selection.bytes(), model.bytes() / 8);
    evict(&model);
    let mut there = loader().load(&model, &selection, Place::Host).unwrap();
    let read = there.receipt.storage_bytes as f64;
    assert!(read <= 1.05 * selection.bytes() as f64, "{}", there.receipt);
    let seen = seen(&mut there);
    for (name, (_, _, bytes)) in &all {
        let share = bytes.len() / 8;
        assert!(seen[name] == bytes[3 * share..4 * share], "{name}");
    }
}

#[test]
fn ranks_divide_tensors_and_replicate_those_without_the_dimension() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    let model = Model::open(&path).unwrap();
    let error = filtered(&model, &[], &["0:0/8"]).unwrap_err().to_string();
    assert!(error.contains("which does not divide by 8 ranks"), "{error}");
    let uneven = |rank| Slice {
        filter: None,
        dim: 0,
        part: SlicePart::RankUneven { rank, of: 8 },
    };
    let mut bytes = 0;
    for rank in 0..8 {
        let slices = [uneven(rank)];
        let selection = Selection::new(&model, &Filters::default(), &slices).unwrap();
        // Every rank has the scalar.
        bytes += selection.bytes() - 2;
    }
    assert_eq!(bytes, model.bytes() - 2);
    // A range beyond the dimension is an error.
    let error = filtered(&model, &["scalar"], &["0:0..1"]).unwrap_err().to_string();
    assert!(error.contains("it has 0 dimensions, and none is 0"), "{error}");
    let error = filtered(&model, &[], &["*.bias@1:0/2"]).unwrap_err().to_string();
    assert!(error.contains("it has 1 dimensions, and none is 1"), "{error}");
}

/// The bytes of a part of a tensor, element by element.
fn naive(shape: &Shape, part: &Rectangle, width: usize, bytes: &[u8]) -> Vec<u8> {
    let mut taken = Vec::new();
    for (element, bytes) in bytes.chunks(width).enumerate() {
        let mut rest = element as u64;
        let is_inside = (0..shape.len()).rev().all(|dim| {
            let index = rest % shape[dim];
            rest /= shape[dim];
            let start = part.offsets()[dim];
            (start..start + part.lengths()[dim]).contains(&index)
        });
        if is_inside {
            taken.extend_from_slice(bytes);
        }
    }
    taken
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_slice_along_any_dimensions_is_what_a_naive_walk_takes(
        dims in prop::collection::vec((1_u64..24, any::<[prop::sample::Index; 2]>()), 1..5),
        route in prop::sample::select(&[Choice::Auto, Choice::Only(Route::Buffered)][..]),
    ) {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        let shape: Vec<_> = dims.iter().map(|(len, _)| *len as usize).collect();
        let all = weights(&[("before", &[3, 3]), ("t", &shape), ("zzz", &[5])]);
        write(&path, &all);
        let model = Model::open(&path).unwrap();
        let tensor = model.tensor("t").unwrap();
        let bounds = |(len, ends): &(u64, [prop::sample::Index; 2])| {
            let mut ends = ends.map(|end| end.index(*len as usize + 1) as u64);
            ends.sort_unstable();
            ends
        };
        let ends: Vec<_> = dims.iter().map(bounds).collect();
        let offsets = ends.iter().map(|e| e[0]).collect();
        let lengths = ends.iter().map(|e| e[1] - e[0]).collect();
        let part = Rectangle::new("t", &tensor.shape, offsets, lengths).unwrap();
        let pick = Pick {
            tensor: model.number("t").unwrap() as u32,
            part: Some(Box::new(part.clone())),
        };
        let selection = Selection::of(&model, vec![pick]).unwrap();
        if route == Choice::Auto {
            evict(&model);
        }
        let loader = Loader { choice: route, ..loader() };
        let mut there = loader.load(&model, &selection, Place::Host).unwrap();
        prop_assert_eq!(&there.tensors[0].shape, part.lengths());
        prop_assert!(seen(&mut there)["t"] == naive(&tensor.shape, &part, 2, &all["t"].2));
    }
}

#[test]
fn elements_of_less_than_a_byte_are_cut_on_whole_bytes_only() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let mut all = Weights::new();
    let bytes: Vec<u8> = (0..16).collect();
    all.insert("t".to_owned(), (safetensors::Dtype::F4, vec![4, 8], bytes));
    write(&path, &all);
    let model = Model::open(&path).unwrap();
    let selection = filtered(&model, &[], &["1:2..6"]).unwrap();
    let mut there = loader().load(&model, &selection, Place::Host).unwrap();
    assert_eq!(seen(&mut there)["t"], [1, 2, 5, 6, 9, 10, 13, 14]);
    let error = filtered(&model, &[], &["1:1..6"]).unwrap_err().to_string();
    assert!(error.contains("a part of F4 begins or ends inside a byte"), "{error}");
}

#[test]
fn a_model_of_more_files_than_may_be_open_at_once_is_one_transfer() {
    let folder = folder();
    let mut all = Weights::new();
    for file in 0..300 {
        let name = format!("t{file:03}");
        let one = weights(&[(&name, &[17, 10])]);
        write(&folder.path().join(format!("{file:03}.safetensors")), &one);
        all.extend(one);
    }
    let model = Model::open(folder.path()).unwrap();
    let mut there = loader().load(&model, &Selection::all(&model), Place::Host).unwrap();
    assert_eq!(there.receipt.bytes, 300 * 340);
    assert_same(&seen(&mut there), &all);
}

#[test]
fn a_file_that_is_replaced_after_its_header_was_read_is_refused() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    let model = Model::open(&path).unwrap();
    write(&path, &some());
    let error = loader().load(&model, &Selection::all(&model), Place::Host).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition);
    assert!(
        error.to_string().contains("model.safetensors: it was replaced"),
        "{error}"
    );
}

#[test]
fn a_file_that_is_truncated_while_it_is_loaded_gives_no_receipt() {
    assert_refused_when(|file| file.set_len(4 << 20).unwrap());
}

#[test]
fn a_file_that_is_written_to_while_it_is_loaded_gives_no_receipt() {
    assert_refused_when(|file| file.write_all_at(b"new", 7 << 20).unwrap());
}

#[test]
fn a_file_that_is_written_to_and_given_its_old_time_gives_no_receipt() {
    assert_refused_when(|file| {
        let modified = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(b"new", 7 << 20).unwrap();
        file.set_modified(modified).unwrap();
    });
}

/// Loads a file of 8 MiB slowly, changes it during the load, and expects an error that names it.
fn assert_refused_when(change: impl Fn(&fs::File)) {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    for choice in [Choice::Auto, Choice::Only(Route::Buffered)] {
        write(&path, &weights(&[("a", &[4 << 20])]));
        let slow = Settings {
            rate_max: Some(Rate(16e6)),
            ..small()
        };
        let loader = Loader {
            choice,
            ..Loader::new(Arc::new(Executor::new(slow).unwrap()))
        };
        let model = Model::open(&path).unwrap();
        evict(&model);
        let prepared = loader.prepare(&model, &Selection::all(&model), Place::Host).unwrap();
        let running = std::thread::spawn(move || prepared.run());
        while loader.progress.moved_bytes() < 64 << 10 {
            std::thread::yield_now();
        }
        change(&fs::File::options().write(true).open(&path).unwrap());
        let error = running.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        assert!(error.hint().unwrap().contains("nobody writes to it"), "{error}");
    }
}

#[test]
fn a_cancelled_load_returns_a_cancelled_error() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    let model = Model::open(&path).unwrap();
    let loader = loader();
    loader.progress.cancel();
    let error = loader.load(&model, &Selection::all(&model), Place::Host).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[test]
fn a_byte_that_changed_in_memory_is_found_by_reading_again() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    let model = Model::open(&path).unwrap();
    for slices in [&[][..], &["1:0..5"][..]] {
        let selection = filtered(&model, &["*.weight"], slices).unwrap();
        let loader = loader();
        let layout = loader.layout(&model, &selection, Place::Host);
        let mut there = loader.load(&model, &selection, Place::Host).unwrap();
        verify_loaded(&loader, &model, &layout, &mut there).unwrap();
        let last = there.tensors.last().unwrap().clone();
        let region = Arc::get_mut(&mut there.region).unwrap();
        region.as_mut_slice()[(last.at + last.bytes) as usize - 1] ^= 1;
        let error = verify_loaded(&loader, &model, &layout, &mut there).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.to_string().contains("differs when it is read by another"),
            "{error}"
        );
    }
}

#[test]
fn an_inspection_predicts_the_receipt_of_the_load() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    let model = Model::open(&path).unwrap();
    let all = Selection::all(&model);
    for is_cold in [true, false] {
        if is_cold {
            evict(&model);
        } else {
            fs::read(&path).unwrap();
        }
        let loader = loader();
        let foreseen = loader.inspect(&model, &all, Place::Host).unwrap();
        let there = loader.load(&model, &all, Place::Host).unwrap();
        assert_eq!(foreseen.routes, there.receipt.routes);
        assert_eq!(foreseen.region_bytes, there.region.bytes());
        assert_eq!(foreseen.tensors.len(), model.tensors.len());
    }
}
