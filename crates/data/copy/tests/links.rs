//! Copies of folders with symbolic links: a snapshot of a model hub arrives as files, in a folder and in another store.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use straightway_copy::{Copier, CopyJob, CopyOptions, LinkChoice, verify::verify};
use straightway_core::{Choice, ErrorKind, Receipt, Result, random::Seed};
use straightway_io::{
    Executor, Progress, Settings, Store,
    store::{Location, Missing, StoreExt, list_all},
};
use straightway_memory::Memory;
use tempfile::TempDir;

/// A folder on a drive, where O_DIRECT works.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn write(path: &Path, bytes: usize, seed: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, Seed(seed).bytes(bytes)).unwrap();
}

fn run(source: &Path, target: &Location, links: LinkChoice) -> Result<Receipt> {
    let job = CopyJob::with(&[Location::from(source)], target, options(links))?;
    run_job(&job)
}

fn options(links: LinkChoice) -> CopyOptions {
    CopyOptions {
        links,
        ..CopyOptions::default()
    }
}

fn run_job(job: &CopyJob) -> Result<Receipt> {
    let executor = Executor::new(Settings::default()).unwrap();
    let progress = Arc::<Progress>::default();
    let copier = Copier {
        executor: &executor,
        choice: Choice::Auto,
        progress: Arc::clone(&progress),
    };
    let mut receipt = copier.run(job)?;
    verify(&executor, job, &progress)?.enter(&mut receipt);
    Ok(receipt)
}

/// A cache of a model hub, as `huggingface_hub` makes it. Returns the snapshot and its contents.
fn hub(top: &Path) -> (PathBuf, BTreeMap<String, Vec<u8>>) {
    let model = top.join("models--a--b");
    let snapshot = model.join("snapshots/abc");
    fs::create_dir_all(snapshot.join("sub")).unwrap();
    let mut contents = BTreeMap::new();
    for (seed, (name, bytes)) in [
        ("config.json", 700),
        ("model.safetensors", 3_000_001),
        ("sub/tokenizer.json", 0),
    ]
    .into_iter()
    .enumerate()
    {
        let blob = format!("blob-{seed}");
        write(&model.join("blobs").join(&blob), bytes, seed as u64);
        let up = if name.contains('/') {
            "../../../blobs"
        } else {
            "../../blobs"
        };
        symlink(format!("{up}/{blob}"), snapshot.join(name)).unwrap();
        contents.insert(name.to_owned(), Seed(seed as u64).bytes(bytes));
    }
    (snapshot, contents)
}

fn seen(store: &Arc<dyn Store>, before: &str, all: &mut BTreeMap<String, Vec<u8>>) {
    let names = list_all(&**store).unwrap();
    for object in names.objects {
        let bytes = store.get(&object.name, u64::MAX).unwrap();
        all.insert(format!("{before}{}", object.name.to_str().unwrap()), bytes);
    }
    for folder in names.folders {
        let inside = store.below(&folder, Missing::Refuse).unwrap();
        seen(&inside, &format!("{before}{}/", folder.to_str().unwrap()), all);
    }
}

#[test]
fn a_snapshot_of_a_model_hub_arrives_as_files_in_a_folder_and_in_another_store() {
    let home = folder();
    let (snapshot, contents) = hub(home.path());
    let target = home.path().join("away/model");
    let receipt = run(&snapshot, &Location::from(&*target), LinkChoice::Auto).unwrap();
    let bytes = contents.values().map(|bytes| bytes.len() as u64).sum::<u64>();
    assert_eq!((receipt.bytes, receipt.verified.unwrap().bytes), (bytes, bytes));
    for (name, bytes) in &contents {
        let path = target.join(name);
        assert!(!path.is_symlink() && fs::read(path).unwrap() == *bytes, "{name}");
    }
    let store: Arc<dyn Store> = Arc::new(Memory::new("hub"));
    let at = Location::from((Arc::clone(&store), "model".into()));
    run(&snapshot, &at, LinkChoice::Auto).unwrap();
    let mut there = BTreeMap::new();
    seen(&at.below(Missing::Refuse).unwrap(), "", &mut there);
    assert!(there == contents, "{:?}", there.keys());
    // LinkChoice can be kept, where the target has links.
    let kept = home.path().join("models--a--b/snapshots/kept");
    run(&snapshot, &Location::from(&*kept), LinkChoice::Keep).unwrap();
    assert_eq!(
        fs::read_link(kept.join("config.json")).unwrap(),
        Path::new("../../blobs/blob-0")
    );
    let error = run(&snapshot, &at, LinkChoice::Keep).unwrap_err();
    assert!(error.hint().unwrap().contains("follow"), "{error}");
}

#[test]
fn links_that_stay_inside_are_kept_or_followed_and_those_that_leave_are_followed() {
    let home = folder();
    let tree = home.path().join("tree");
    write(&tree.join("sub/file"), 5000, 1);
    write(&home.path().join("outside/deep/file"), 6000, 2);
    symlink("sub/file", tree.join("inside")).unwrap();
    symlink("../sub/file", tree.join("sub/up")).unwrap();
    symlink(".", tree.join("self")).unwrap();
    symlink("nowhere", tree.join("dangling")).unwrap();
    symlink("../outside", tree.join("folder")).unwrap();
    symlink("deep/file", home.path().join("outside/near")).unwrap();
    symlink(tree.join("sub/file"), tree.join("absolute")).unwrap();
    let target = home.path().join("copy");
    run(&tree, &Location::from(&*target), LinkChoice::Auto).unwrap();
    for (name, text) in [
        ("inside", "sub/file"),
        ("self", "."),
        ("dangling", "nowhere"),
        ("folder/near", "deep/file"),
    ] {
        assert_eq!(fs::read_link(target.join(name)).unwrap(), Path::new(text), "{name}");
    }
    assert!(!target.join("folder").is_symlink() && !target.join("absolute").is_symlink());
    for (name, seed, bytes) in [("inside", 1, 5000), ("absolute", 1, 5000), ("folder/near", 2, 6000)] {
        assert!(
            fs::read(target.join(name)).unwrap() == Seed(seed).bytes(bytes),
            "{name}"
        );
    }
    fs::remove_file(tree.join("self")).unwrap();
    fs::remove_file(tree.join("dangling")).unwrap();
    let target = home.path().join("followed");
    run(&tree, &Location::from(&*target), LinkChoice::Follow).unwrap();
    for (name, seed, bytes) in [("inside", 1, 5000), ("sub/up", 1, 5000), ("folder/near", 2, 6000)] {
        let path = target.join(name);
        assert!(
            !path.is_symlink() && fs::read(path).unwrap() == Seed(seed).bytes(bytes),
            "{name}"
        );
    }
}

#[test]
fn circles_broken_links_and_links_to_other_things_are_refused_before_anything_is_written() {
    let home = folder();
    let tree = home.path().join("tree");
    let link = tree.join("sub/link");
    write(&tree.join("sub/file"), 10, 1);
    let pipe = home.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    symlink("two", home.path().join("one")).unwrap();
    symlink("one", home.path().join("two")).unwrap();
    for (text, links, words) in [
        (tree.clone(), LinkChoice::Auto, "circle"),
        (home.path().to_owned(), LinkChoice::Auto, "is inside it"),
        (PathBuf::from(".."), LinkChoice::Follow, "circle"),
        (PathBuf::from("../../one"), LinkChoice::Auto, "circle"),
        (PathBuf::from("link"), LinkChoice::Auto, "circle"),
        (PathBuf::from("../../nowhere"), LinkChoice::Auto, "does not exist"),
        (PathBuf::from("nowhere"), LinkChoice::Follow, "does not exist"),
        (pipe, LinkChoice::Auto, "neither a file nor a folder"),
        (
            PathBuf::from("/dev/null"),
            LinkChoice::Auto,
            "neither a file nor a folder",
        ),
    ] {
        symlink(&text, &link).unwrap();
        let target = home.path().join("copy");
        let error = run(&tree, &Location::from(&*target), links).unwrap_err().to_string();
        assert!(error.contains(words), "{}: {error}", text.display());
        assert!(!target.exists());
        fs::remove_file(&link).unwrap();
    }
}

#[test]
fn a_link_that_leads_elsewhere_after_it_was_found_is_refused() {
    let home = folder();
    let (snapshot, _) = hub(home.path());
    let target = home.path().join("copy");
    let job = CopyJob::new(&[Location::from(&*snapshot)], &Location::from(&*target)).unwrap();
    write(&home.path().join("secret"), 700, 9);
    fs::remove_file(snapshot.join("config.json")).unwrap();
    symlink(home.path().join("secret"), snapshot.join("config.json")).unwrap();
    let error = run_job(&job).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    assert!(!target.exists(), "a copy that fails removes the folders that it made");
}

#[test]
fn a_copy_without_a_file_says_so() {
    let home = folder();
    fs::create_dir(home.path().join("empty")).unwrap();
    symlink("nowhere", home.path().join("empty/link")).unwrap();
    let target = home.path().join("copy");
    let receipt = run(&home.path().join("empty"), &Location::from(&*target), LinkChoice::Auto).unwrap();
    let said = receipt.warnings.join("\n");
    assert!(
        said.contains("no file was copied") && said.contains("1 folder and 1 link"),
        "{said}"
    );
    write(&home.path().join("empty/file"), 0, 1);
    let receipt = run(&home.path().join("empty"), &Location::from(&*target), LinkChoice::Auto).unwrap();
    assert_eq!(receipt.warnings, [""; 0], "an empty file is a file");
}

#[test]
fn a_copy_that_fails_removes_what_it_made_and_nothing_else() {
    let home = folder();
    let tree = home.path().join("tree");
    for number in 0..300 {
        write(&tree.join(format!("sub/{number:03}")), 1000, number);
    }
    symlink("sub", tree.join("link")).unwrap();
    write(&tree.join("zz/last"), 10, 1);
    let (new, old) = (home.path().join("new/deep"), home.path().join("old"));
    write(&old.join("tree/sub/mine"), 7, 7);
    for (target, is_new) in [(&new, true), (&old, false)] {
        let job = CopyJob::new(&[Location::from(&*tree)], &Location::from(&**target)).unwrap();
        // The last file fails, after batches of others are committed.
        fs::rename(tree.join("zz/last"), home.path().join("aside")).unwrap();
        run_job(&job).unwrap_err();
        fs::rename(home.path().join("aside"), tree.join("zz/last")).unwrap();
        if is_new {
            assert!(!home.path().join("new").exists());
        } else {
            // Files in a folder that existed stay, and each is complete.
            let left = fs::read_dir(old.join("tree/sub")).unwrap().count();
            assert!(left > 1, "{left}");
            assert!(fs::read(old.join("tree/sub/mine")).unwrap() == Seed(7).bytes(7));
            assert!(!old.join("tree/zz").exists() && !old.join("tree/link").exists());
        }
    }
}
