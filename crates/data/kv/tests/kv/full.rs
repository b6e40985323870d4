//! A full drive: an error that names the file, and no chunk that was not stored.

use straightway_kv::{Outcome, Tier, TierOptions};

use crate::fixture::{CHUNK, bytes_for, executor, get, namespace, put};

#[test]
fn a_full_drive_is_an_error_that_names_the_file_and_stored_chunks_stay() {
    let folder = tempfile::tempdir().unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(folder.path())
        .output();
    if !mount.is_ok_and(|mount| mount.status.success()) {
        eprintln!("skipped: a file system in memory cannot be mounted here");
        return;
    }
    let unmount = || drop(std::process::Command::new("umount").arg(folder.path()).status());
    let outcome = std::panic::catch_unwind(|| {
        // A bound that is larger than the drive.
        Tier::create(folder.path(), CHUNK, bytes_for(1000)).unwrap();
        let tier = Tier::open(folder.path(), &executor(), TierOptions::default()).unwrap();
        let name = namespace("m");
        let mut stored = Vec::new();
        let mut failed = None;
        for number in 0..200 {
            let done = put(&tier, name, &[number]);
            match done.outcomes[0] {
                Outcome::Stored => stored.push(number),
                _ => failed = failed.or(done.error),
            }
        }
        assert!(stored.len() > 20, "{}", stored.len());
        let error = failed.expect("1 MiB is full").to_string();
        assert!(error.contains("segment-") && error.contains("space"), "{error}");
        assert_eq!(get(&tier, name, &stored).receipt.hits, stored.len() as u64);
        let others: Vec<_> = (0..200).filter(|number| !stored.contains(number)).collect();
        assert_eq!(
            get(&tier, name, &others).receipt.hits,
            0,
            "a failed store is not visible"
        );
    });
    unmount();
    outcome.unwrap();
}
