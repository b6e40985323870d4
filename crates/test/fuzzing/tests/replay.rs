//! Replays the corpus of every fuzz target and every known attack on stable.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use straightway_fuzzing::{TARGETS, target};

/// The maximum size of the corpus. It is for replaying, not an archive.
const CORPUS_BYTES_MAX: u64 = 300_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .canonicalize()
        .unwrap()
}

/// The sorted files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    files
}

#[test]
fn every_target_survives_its_corpus() {
    let mut bytes = 0;
    for (name, target) in TARGETS {
        let files = files(&root().join("fuzz/corpus").join(name));
        assert!(!files.is_empty(), "{name} has no corpus");
        for file in files {
            let data = fs::read(&file).unwrap();
            bytes += data.len() as u64;
            // A panic names the check. This line names the input.
            println!("{}", file.display());
            target(&data);
        }
    }
    assert!(
        bytes <= CORPUS_BYTES_MAX,
        "the corpus has {bytes} bytes: minimise it with fuzz/run"
    );
}

#[test]
fn every_corpus_and_every_fuzz_program_has_a_target() {
    let corpora = fs::read_dir(root().join("fuzz/corpus")).unwrap();
    let corpora = corpora.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let programs = files(&root().join("fuzz/fuzz_targets")).into_iter();
    let programs: Vec<_> = programs
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    for name in corpora.chain(programs.iter().cloned()) {
        assert!(target(&name).is_some(), "there is no target {name}");
    }
    for (name, _) in TARGETS {
        assert!(
            programs.iter().any(|program| program == name),
            "fuzz/fuzz_targets has no {name}.rs"
        );
    }
}

#[test]
fn every_known_attack_is_survived() {
    for (folder, names) in [
        ("safetensors", &["safetensors", "index"][..]),
        ("manifest", &["manifest"]),
        ("scenarios", &["scenario", "pcie", "fabric"]),
        ("tags", &["tags"]),
        ("nvme", &["nvme_pdu", "nvme_page"]),
        ("kv", &["kv"]),
    ] {
        for file in files(&root().join("attacks").join(folder)) {
            let data = fs::read(&file).unwrap();
            println!("{}", file.display());
            for name in names {
                target(name).unwrap()(&data);
            }
        }
    }
}
