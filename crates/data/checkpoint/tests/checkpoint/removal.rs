//! Removals on a real file system: refused ones and interrupted ones, and what version 0.1.0 left, which is refused.
//! `src/checkpoint/removal/tests.rs` tests all orders and crashes.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use straightway_checkpoint::{Retention, SaverOptions, Steps};
use straightway_core::ErrorKind;
use straightway_weights::Dtype;

use crate::fixture::{State, assert_holds, keep_last, options, save, saver};

const NONCE: &str = "0123456789abcdef";

fn incremental() -> SaverOptions {
    SaverOptions {
        incremental: true,
        ..options()
    }
}

fn state(step: u64) -> State {
    let mut state = State::of(1, &[("w", Dtype::U8, &[10, 4096])]);
    state.tensors[0].bytes[step as usize * 4096] ^= 1;
    state
}

/// Steps 1 and 2. The second references the first.
fn two(folder: &Path) -> Steps {
    let mut saver = saver(folder, incremental()).unwrap();
    save(&mut saver, 1, &state(1)).unwrap();
    save(&mut saver, 2, &state(2)).unwrap();
    Steps::open(folder).unwrap()
}

fn hidden(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|n| n.starts_with('.') && n != ".lock").collect();
    names.sort();
    names
}

#[test]
fn a_removal_that_is_refused_touches_nothing_of_its_step_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    store.tag(2, "best").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                let error = store.remove(1).unwrap_err();
                assert!(error.to_string().contains("step 2 refers to it"), "{error}");
                let error = store.remove(2).unwrap_err();
                assert!(error.to_string().contains("it is tagged \"best\""), "{error}");
            }
            done.store(true, Ordering::Relaxed);
        });
        // This is the state that a kill of the remover at this moment would leave.
        while !done.load(Ordering::Relaxed) {
            for step in [1, 2] {
                let path = folder.path().join(format!("step-{step}/manifest.json"));
                assert!(path.exists(), "step {step} is in place");
            }
            assert_eq!(store.steps().unwrap(), [1, 2]);
        }
    });
    assert_eq!(hidden(folder.path()), [""; 0]);
    store.untag(2, "best").unwrap();
    store.remove(2).unwrap();
    store.remove(1).unwrap();
    assert_eq!(store.remove(1).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(hidden(folder.path()), [""; 0]);
}

#[test]
fn a_removal_killed_before_its_decision_leaves_the_step_and_one_killed_after_is_finished() {
    for (decision, is_gone) in [(None, false), (Some("keep"), false), (Some("remove"), true)] {
        let folder = tempfile::tempdir().unwrap();
        let store = two(folder.path());
        store.remove(2).unwrap();
        let step = folder.path().join("step-1");
        fs::write(folder.path().join(format!(".removal-1-{NONCE}")), "").unwrap();
        if let Some(decision) = decision {
            let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&step).unwrap());
            let manifest = fs::read(step.join("manifest.json")).unwrap();
            let sum = straightway_checkpoint::Sum::of(&manifest);
            let text = format!("{decision} {inode} {sum}");
            fs::write(folder.path().join(format!(".decision-1-{NONCE}")), text).unwrap();
        }
        let wanted: &[u64] = if is_gone { &[] } else { &[1] };
        assert_eq!(store.steps().unwrap(), wanted, "{decision:?}");
        assert_eq!(store.tag(1, "late").is_ok(), !is_gone, "{decision:?}");
        assert_eq!(store.checkpoint(1).is_ok(), !is_gone, "{decision:?}");
        // The number can be saved again only if the step is gone.
        let mut saver = saver(folder.path(), options()).unwrap();
        assert_eq!(save(&mut saver, 1, &state(5)).is_ok(), is_gone, "{decision:?}");
        assert_holds(folder.path(), 1, &state(if is_gone { 5 } else { 1 }));
        assert_eq!(hidden(folder.path()), [""; 0], "{decision:?}");
    }
}

#[test]
fn a_decision_about_an_earlier_step_does_not_remove_a_later_one_of_the_same_number() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    fs::write(folder.path().join(format!(".removal-1-{NONCE}")), "").unwrap();
    let text = "remove 1 0123456789abcdef";
    fs::write(folder.path().join(format!(".decision-1-{NONCE}")), text).unwrap();
    assert_eq!(store.steps().unwrap(), [1, 2]);
    store.tag(1, "best").unwrap();
    drop(saver(folder.path(), options()).unwrap());
    assert_eq!(hidden(folder.path()), [""; 0]);
    assert_holds(folder.path(), 2, &state(2));
}

#[test]
fn a_tag_that_was_given_keeps_its_step_from_a_prune_that_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let store = Steps::create(folder.path()).unwrap();
    let (mut given, mut refused) = (0, 0);
    for round in 0..60_u64 {
        let base = round * 10;
        let mut saver = saver(folder.path(), options()).unwrap();
        for step in base..base + 4 {
            save(&mut saver, step, &state(step % 10)).unwrap();
        }
        let keep_one = keep_last(1);
        std::thread::scope(|scope| {
            scope.spawn(|| store.prune(&keep_one).unwrap());
            let delay = std::time::Duration::from_micros(37 * round);
            std::thread::sleep(delay);
            match store.tag(base + round % 3, "best") {
                Ok(()) => given += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                    refused += 1;
                }
            }
        });
        let steps = store.steps().unwrap();
        let tagged = |step: &u64| !store.tags(*step).unwrap().is_empty();
        let kept: Vec<_> = steps.iter().copied().filter(tagged).collect();
        assert_eq!(kept.len(), given, "of {given} tags, {kept:?} of {steps:?} are there");
        for step in kept {
            assert_holds(folder.path(), step, &state(step % 10));
        }
    }
    eprintln!("{given} tags given and {refused} refused");
    assert_eq!(hidden(folder.path()), [""; 0]);
}

#[test]
fn concurrent_tags_all_survive() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    std::thread::scope(|scope| {
        for tag in ["a", "b", "c", "d"] {
            let store = store.clone();
            scope.spawn(move || store.tag(2, tag).unwrap());
        }
    });
    assert_eq!(store.tags(2).unwrap(), ["a", "b", "c", "d"]);
    for tag in ["a", "b", "c"] {
        store.untag(2, tag).unwrap();
    }
    assert!(store.remove(2).is_err());
    store.untag(2, "d").unwrap();
    store.remove(2).unwrap();
}

#[test]
fn tag_files_and_trash_of_version_0_1_0_are_refused_by_name_and_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    let tags = folder.path().join("step-2/tags.json");
    fs::write(&tags, "[\"old\"]").unwrap();
    for error in [store.tags(2).unwrap_err(), store.remove(2).unwrap_err()] {
        let hint = error.hint().unwrap();
        assert!(error.to_string().contains("step-2/tags.json"), "{error}");
        assert!(hint.contains("straightway checkpoint tag"), "{hint}");
    }
    store.tag(2, "old").unwrap();
    fs::remove_file(&tags).unwrap();
    assert_eq!(store.tags(2).unwrap(), ["old"]);

    let (step, trash) = (folder.path().join("step-1"), folder.path().join(".trash-1-00ff"));
    fs::rename(&step, &trash).unwrap();
    let refused = [
        saver(folder.path(), options()).map(drop).unwrap_err(),
        store.prune(&Retention::default()).map(drop).unwrap_err(),
        store.sweep_left(Duration::ZERO).map(drop).unwrap_err(),
    ];
    for error in refused {
        assert!(error.to_string().contains(".trash-1-00ff"), "{error}");
        assert!(error.hint().unwrap().contains("rename it to `step-N`"), "{error:?}");
    }
    fs::rename(&trash, &step).unwrap();
    assert_holds(folder.path(), 2, &state(2));
}

#[test]
fn a_save_whose_parent_was_removed_or_saved_anew_meanwhile_is_refused() {
    for anew in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let store = Steps::create(folder.path()).unwrap();
        let mut first = saver(folder.path(), incremental()).unwrap();
        save(&mut first, 1, &state(1)).unwrap();
        let pieces = state(2).cut(0, 0, 1);
        first.write_shard(2, &crate::fixture::sources(&pieces)).unwrap();
        let part = first.wait_part().unwrap();
        store.remove(1).unwrap();
        if anew {
            save(&mut first, 1, &state(7)).unwrap();
        }
        let error = store.commit(vec![part], "null", 0).unwrap_err().to_string();
        let what = if anew {
            "was saved anew meanwhile"
        } else {
            "was removed meanwhile"
        };
        assert!(error.contains(what), "{error}");
        let wanted: &[u64] = if anew { &[1] } else { &[] };
        assert_eq!(store.steps().unwrap(), wanted);
    }
}
