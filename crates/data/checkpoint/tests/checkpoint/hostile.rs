//! Folders that an attacker prepared: links, pipes and folders under the names that are opened.

use std::{fs, os::unix::fs::symlink, path::Path};

use straightway_checkpoint::Steps;

use crate::fixture::{State, assert_holds, keep_last, options, save, saver};

/// A folder with a step, and next to it a file and a folder of the user.
fn prepared() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let mut saver = saver(&home.path().join("run"), options()).unwrap();
    save(&mut saver, 1, &State::small(1)).unwrap();
    fs::write(home.path().join("victim"), "precious").unwrap();
    fs::create_dir(home.path().join("outside")).unwrap();
    fs::write(home.path().join("outside/kept"), "precious").unwrap();
    home
}

fn assert_untouched(home: &Path) {
    assert_eq!(fs::read(home.join("victim")).unwrap(), b"precious");
    assert_eq!(fs::read(home.join("outside/kept")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(home.join("outside")).unwrap().count(), 1);
}

#[test]
fn a_lock_that_is_a_link_or_a_pipe_is_refused_and_what_it_points_to_stays() {
    let home = prepared();
    let run = home.path().join("run");
    let lock = run.join(".lock");
    let store = Steps::open(&run).unwrap();
    for target in ["../victim", "../absent"] {
        fs::remove_file(&lock).unwrap();
        symlink(target, &lock).unwrap();
        let error = saver(&run, options()).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        store.prune(&keep_last(1)).unwrap();
        assert_untouched(home.path());
        assert!(!home.path().join("absent").exists());
    }
    fs::remove_file(&lock).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &lock, pipe, mode, 0).unwrap();
    let error = saver(&run, options()).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    // A hard link to the user's file is locked but not written to.
    fs::remove_file(&lock).unwrap();
    fs::hard_link(home.path().join("victim"), &lock).unwrap();
    save(&mut saver(&run, options()).unwrap(), 2, &State::small(2)).unwrap();
    assert_untouched(home.path());
}

#[test]
fn links_under_the_names_of_steps_and_attempts_are_never_followed() {
    let home = prepared();
    let run = home.path().join("run");
    let (outside, store) = (home.path().join("outside"), Steps::open(&run).unwrap());
    fs::rename(run.join("step-1"), home.path().join("elsewhere")).unwrap();
    symlink("../elsewhere", run.join("step-1")).unwrap();
    assert_eq!(store.steps().unwrap(), [0_u64; 0]);
    assert!(store.checkpoint(1).is_err() && store.tag(1, "best").is_err());
    assert!(store.remove(1).is_err());
    assert!(home.path().join("elsewhere/manifest.json").exists());
    for name in [".step-5.gone-1", ".hold-1.step-5.gone-1"] {
        symlink(&outside, run.join(name)).unwrap();
    }
    let draft = outside.join(".x.0.straightway-part");
    fs::write(&draft, "of another program").unwrap();
    symlink(&outside, run.join("step-9")).unwrap();
    fs::write(run.join("step-7.0.straightway-part"), "no draft").unwrap();
    fs::create_dir(run.join(".step-6.gone-1")).unwrap();
    symlink(&outside, run.join(".step-6.gone-1/rank")).unwrap();
    let mut saver = saver(&run, options()).unwrap();
    assert!(draft.exists() && run.join("step-7.0.straightway-part").exists());
    fs::remove_file(&draft).unwrap();
    assert_untouched(home.path());
    assert!(!run.join(".step-5.gone-1").is_symlink());
    save(&mut saver, 2, &State::small(2)).unwrap();
    assert_holds(&run, 2, &State::small(2));
    assert_untouched(home.path());
}

#[test]
fn a_manifest_a_shard_or_a_tag_that_is_a_link_or_a_pipe_is_refused() {
    let home = prepared();
    let run = home.path().join("run");
    let (step, store) = (run.join("step-1"), Steps::open(&run).unwrap());
    let shard = step.join("rank-00000-of-00001.safetensors");
    fs::rename(&shard, home.path().join("shard")).unwrap();
    symlink("../../shard", &shard).unwrap();
    let pieces = State::small(1).cut(0, 0, 1);
    let checkpoint = store.checkpoint(1).unwrap();
    let error = crate::fixture::restore(&checkpoint, &pieces).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    symlink("../../victim", step.join("tags.json")).unwrap();
    assert!(store.tags(1).is_err());
    symlink("../../victim", step.join("tag-best")).unwrap();
    fs::remove_file(step.join("tags.json")).unwrap();
    store.tag(1, "best").unwrap();
    store.untag(1, "best").unwrap();
    assert_untouched(home.path());
    fs::rename(step.join("manifest.json"), home.path().join("manifest")).unwrap();
    symlink("../../manifest", step.join("manifest.json")).unwrap();
    assert_eq!(store.steps().unwrap(), [0_u64; 0]);
    assert!(store.manifest(1).is_err());
}
