//! Saves on a full disk.

use std::{path::Path, process::Command};

use straightway_checkpoint::Steps;
use straightway_weights::Dtype;

use crate::fixture::{State, assert_holds, options, save, saver};

/// A mounted file system of a few megabytes.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(folder.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(folder)),
            _ => None,
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_disk_fails_the_save_keeps_earlier_steps_and_the_next_save_works() {
    let Some(mount) = Mount::new(3 << 20) else {
        eprintln!("skipped: a file system of a few megabytes cannot be mounted here");
        return;
    };
    let small = State::small(1);
    let large = State::of(1, &[("w", Dtype::U8, &[4 << 20])]);
    let mut saver = saver(mount.path(), options()).unwrap();
    save(&mut saver, 1, &small).unwrap();
    let error = save(&mut saver, 2, &large).unwrap_err();
    assert_eq!(error.os_code(), Some(28), "{error}");
    let store = Steps::open(mount.path()).unwrap();
    assert_eq!(store.steps().unwrap(), [1]);
    assert_holds(mount.path(), 1, &small);
    // The files of the failed save are gone, so there is space.
    save(&mut saver, 3, &State::of(2, &[("w", Dtype::U8, &[2 << 20])])).unwrap();
    assert_eq!(store.steps().unwrap(), [1, 3]);
}
