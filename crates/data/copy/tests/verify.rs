//! Copies on drives that lose or change what was written: `verify` reads them from the drive, also where O_DIRECT goes
//! through the page cache.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use straightway_copy::{Copier, CopyJob, verify::verify};
use straightway_core::{Choice, ErrorKind, random::Seed};
use straightway_io::{Executor, File, Settings, store::Location};
use straightway_sys::residency::resident_bytes;
use tempfile::TempDir;

const BYTES: usize = 3_000_001;

/// A file system on a loop device, unmounted when dropped.
struct Mounted {
    at: PathBuf,
    image: PathBuf,
}

impl Mounted {
    /// Makes an ext4 with these options. Prints the reason and returns `None` if that is not possible.
    fn ext4(folder: &Path, options: &str) -> Option<Self> {
        let (at, image) = (folder.join("mounted"), folder.join("image"));
        fs::create_dir(&at).unwrap();
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-F", image.to_str()?])?;
        run(
            "mount",
            &["-o", &format!("loop,{options}"), image.to_str()?, at.to_str()?],
        )?;
        Some(Self { at, image })
    }

    /// Changes the copies of a block of 4 KiB on the drive, behind the back of the file system.
    fn damage(&self, block: &[u8]) {
        run("sync", &["-f", self.at.to_str().unwrap()]).unwrap();
        let image = fs::OpenOptions::new().read(true).write(true).open(&self.image).unwrap();
        let all = fs::read(&self.image).unwrap();
        let found: Vec<_> = (0..all.len())
            .step_by(1024)
            .filter(|at| all[*at..].starts_with(block))
            .collect();
        assert!(!found.is_empty(), "the file system stores the block as it is");
        for at in found {
            image.write_all_at(&[!block[0]], at as u64).unwrap();
        }
        image.sync_all().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

fn run(program: &str, args: &[&str]) -> Option<()> {
    let why = match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => return Some(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("skipped: {program}: {why}");
    None
}

/// Copies a file of noise to `target`. Returns what `verify` needs.
fn copied(folder: &Path, target: &Path) -> (Executor, CopyJob) {
    let source = folder.join("source");
    fs::write(&source, Seed(1).bytes(BYTES)).unwrap();
    let executor = Executor::new(Settings::default()).unwrap();
    let job = CopyJob::new(&[Location::from(&*source)], &Location::from(target)).unwrap();
    let copier = Copier {
        executor: &executor,
        choice: Choice::Auto,
        progress: Arc::default(),
    };
    copier.run(&job).unwrap();
    (executor, job)
}

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_block_that_changed_on_the_drive_is_found_although_the_page_cache_has_the_right_bytes() {
    for options in ["data=ordered", "data=journal"] {
        let folder = folder();
        let Some(mounted) = Mounted::ext4(folder.path(), options) else {
            return;
        };
        let target = mounted.at.join("copy");
        let (executor, job) = copied(folder.path(), &target);
        let verified = verify(&executor, &job, &Arc::default()).unwrap();
        assert_eq!(verified.warning, None, "{options}: it is read from the drive");
        assert_eq!((verified.verified.objects, verified.verified.bytes), (1, BYTES as u64));
        // The journal writes nothing to the file any more.
        let file = File::open(&target).unwrap();
        file.evict().unwrap();
        if resident_bytes(&file) != Some(0) {
            eprintln!("skipped: files are not evicted here, or the kernel does not tell");
            return;
        }
        let bytes = fs::read(&target).unwrap();
        let at = 5 * 4096;
        mounted.damage(&bytes[at..at + 4096]);
        assert!(
            fs::read(&target).unwrap() == Seed(1).bytes(BYTES),
            "the page cache has the right bytes"
        );
        let error = verify(&executor, &job, &Arc::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.to_string().contains(&format!("byte {at} differs")),
            "{options}: {error}"
        );
    }
}

#[test]
fn bytes_that_were_not_compared_on_a_drive_are_a_warning() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm").inspect_err(|e| eprintln!("skipped: /dev/shm: {e}")) else {
        return;
    };
    let folder = folder();
    let target = memory.path().join("copy");
    let (executor, job) = copied(folder.path(), &target);
    let warning = verify(&executor, &job, &Arc::default()).unwrap().warning.unwrap();
    let path = target.display().to_string();
    for part in ["2.86 MiB of ", &path, "not on the drive", "in memory"] {
        assert!(warning.contains(part), "{warning}");
    }
}
