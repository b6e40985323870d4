//! Syncs of many files on a drive that fails: the error is heard, on the file system itself and through an overlay.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use straightway_sys::File;

const FILES: usize = 10;
const FILE_BYTES: usize = 1 << 20;

/// Mounts, the last of which is unmounted first.
struct Mounts(Vec<PathBuf>);

impl Mounts {
    /// Mounts with `args` at a new folder. Prints the reason and returns `None` if that is not possible.
    fn add(&mut self, args: &[&str], at: &Path) -> Option<()> {
        fs::create_dir_all(at).unwrap();
        run("mount", args, at)?;
        self.0.push(at.to_owned());
        Some(())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for at in self.0.iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(at).output();
        }
    }
}

fn run(program: &str, args: &[&str], path: &Path) -> Option<()> {
    let why = match Command::new(program).args(args).arg(path).output() {
        Ok(output) if output.status.success() => return Some(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("skipped: {program}: {why}");
    None
}

/// Files with reserved space, so that writing to them changes no metadata.
fn reserved(folder: &Path) -> Vec<Arc<File>> {
    let create = |number| File::create(&folder.join(format!("{number}")), FILE_BYTES as u64);
    (0..FILES).map(|number| Arc::new(create(number).unwrap())).collect()
}

#[test]
fn a_sync_of_many_files_reports_that_the_drive_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut mounts = Mounts(Vec::new());
    let mut prepare = || {
        // The drive is a file that cannot grow once the memory is full.
        mounts.add(&["-t", "tmpfs", "-o", "size=32m", "tmpfs"], &at("memory"))?;
        let image = at("memory/image");
        fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal"], &image)?;
        let image = image.display().to_string();
        mounts.add(&["-o", "loop", &image], &at("drive"))?;
        for name in ["lower", "upper", "work"] {
            fs::create_dir(at("drive").join(name)).unwrap();
        }
        let drive = at("drive").display().to_string();
        let layers = format!("lowerdir={drive}/lower,upperdir={drive}/upper,workdir={drive}/work");
        mounts.add(&["-t", "overlay", "overlay", "-o", &layers], &at("overlay"))
    };
    if prepare().is_none() {
        return;
    }
    let (plain, overlaid) = (reserved(&at("drive")), reserved(&at("overlay")));
    for files in [&plain, &overlaid] {
        File::sync_all(files).unwrap();
    }
    let mut filler = fs::File::create(at("memory/filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    // The overlay first: an error that was reported once is not reported again.
    for (name, files) in [("overlay", &overlaid), ("drive", &plain)] {
        for file in files {
            file.write_all_at(0, &vec![7; FILE_BYTES]).unwrap();
        }
        let error = File::sync_all(files).expect_err(name);
        assert!(error.to_string().starts_with("cannot sync "), "{name}: {error}");
    }
}
