//! Block devices: overwritten only with `--to-device`, and then only as far as the file reaches. These tests need root
//! and loop devices, and print a reason if they are skipped.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::Path,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{
    machine::Loop,
    test_dir::{TestDir, noise},
};

const BYTES: usize = 1 << 20;

/// A device with random content, and its path as text.
fn device(dir: &TestDir) -> Option<(Loop, Vec<u8>)> {
    let content = noise(BYTES, 77);
    fs::write(dir.path("image"), &content).unwrap();
    Some((Loop::over(&dir.path("image"))?, content))
}

/// Makes another node of a device.
fn node(device: &Loop, path: &Path) {
    let number = fs::metadata(&device.0).unwrap().rdev();
    mknodat(CWD, path, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, number).unwrap();
}

/// A model of `files` files.
fn model(dir: &TestDir, files: usize) {
    dir.folder("model");
    for number in 0..files {
        let header = format!("{{\"t{number}\":{{\"dtype\":\"U8\",\"shape\":[5000],\"data_offsets\":[0,5000]}}}}");
        let head = (header.len() as u64).to_le_bytes();
        let bytes = [&head[..], header.as_bytes(), &noise(5000, number as u64)].concat();
        fs::write(dir.path(format!("model/{number}.safetensors")), bytes).unwrap();
    }
}

#[test]
fn nothing_but_to_device_overwrites_a_device() {
    let dir = TestDir::new();
    let Some((device, content)) = device(&dir) else { return };
    model(&dir, 2);
    dir.folder("tree");
    for name in ["file", "tree/file", "other"] {
        dir.file(name, 5000, 1);
    }
    for folder in ["into", "nodes/tree", "models", "linked"] {
        dir.folder(folder);
    }
    for path in ["into/file", "nodes/tree/file", "models/0.safetensors"] {
        node(&device, &dir.path(path));
    }
    symlink(&device.0, dir.path("linked/file")).unwrap();
    symlink(&device.0, dir.path("link")).unwrap();
    let before = dir.names();
    for line in [
        "copy file DEVICE",
        "copy file link",
        "copy file into",
        "copy file into/",
        "copy file into/file",
        "copy file other into",
        "copy file linked",
        "copy tree nodes",
        "rewrite model/0.safetensors DEVICE",
        "rewrite model/0.safetensors link",
        "rewrite model models",
        "rewrite model/0.safetensors models",
        "inspect model --html DEVICE",
        "inspect model --html link",
        "copy file copied --trace DEVICE",
        "copy file copied --trace into/file",
        "plan checkpoint --scenario llama3-405b --html DEVICE",
        "bench . --size 1MiB --runs 1 --no-profile --block 1MiB --depth 1 --work read --route buffered --html DEVICE",
    ] {
        let args = line.replace("DEVICE", &device.0);
        let ran = dir.run(args.split(' '));
        assert!(fs::read(&device.0).unwrap() == content, "{line}: {ran:?}");
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(
            ran.err.contains("it is a block device, and its contents would be lost"),
            "{line}: {}",
            ran.err
        );
        assert!(
            ran.err.contains("hint: ") && ran.err.contains("--to-device"),
            "{line}: {}",
            ran.err
        );
        // A copy of several files may have copied the others.
        let _ = fs::remove_file(dir.path("into/other"));
        assert_eq!(dir.names(), before, "{line}");
    }
}

#[test]
fn a_device_in_a_tree_is_refused_as_a_source() {
    let dir = TestDir::new();
    let Some((device, _)) = device(&dir) else { return };
    dir.folder("tree");
    dir.file("tree/file", 10, 1);
    node(&device, &dir.path("tree/disk"));
    let before = dir.names();
    let ran = dir.run(["copy", "tree", "copy"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.err.contains("tree/disk: it is neither a file nor a folder"),
        "{}",
        ran.err
    );
    assert_eq!(dir.names(), before);
    // The user can still name it.
    dir.receipt(&["tree/disk", "copy"]);
    assert!(fs::read(dir.path("copy")).unwrap() == noise(BYTES, 77));
}

#[test]
fn a_short_file_changes_only_its_blocks_of_a_device() {
    let dir = TestDir::new();
    for sector in ["512", "4096"] {
        let content = noise(BYTES, 77);
        fs::write(dir.path("image"), &content).unwrap();
        let Some(device) = Loop::with(&["--sector-size", sector], &dir.path("image")) else {
            return;
        };
        symlink(&device.0, dir.path("link")).unwrap();
        let block: usize = sector.parse().unwrap();
        let mut now = content;
        for (len, route) in [
            (1, "auto"),
            (700, "direct"),
            (4096, "direct"),
            (5000, "staged"),
            (100_001, "auto"),
            (3, "buffered"),
        ] {
            let bytes = noise(len, len as u64);
            fs::write(dir.path("file"), &bytes).unwrap();
            dir.receipt(&["file", "link", "--to-device", "--route", route]);
            now[..len].copy_from_slice(&bytes);
            let seen = fs::read(&device.0).unwrap();
            // The rest of the last block may be zero.
            let end = len.next_multiple_of(block);
            assert!(
                seen[..len] == bytes && seen[end..] == now[end..],
                "{sector}: {len} by {route}"
            );
            let rest = &seen[len..end];
            assert!(
                rest.iter().all(|b| *b == 0) || *rest == now[len..end],
                "{sector}: {len} by {route}"
            );
            now = seen;
        }
        fs::remove_file(dir.path("link")).unwrap();
    }
}

#[test]
fn holes_of_a_file_are_zeros_on_a_device() {
    let dir = TestDir::new();
    let Some((device, _)) = device(&dir) else { return };
    let sparse = fs::File::create(dir.path("sparse")).unwrap();
    sparse.set_len(300_000).unwrap();
    sparse.write_all_at(&noise(5000, 1), 100_000).unwrap();
    dir.receipt(&["sparse", &device.0, "--to-device"]);
    assert!(fs::read(&device.0).unwrap()[..300_000] == fs::read(dir.path("sparse")).unwrap());
}

#[test]
fn what_cannot_go_onto_a_device_is_refused() {
    let dir = TestDir::new();
    let Some((device, content)) = device(&dir) else { return };
    dir.file("file", 5000, 1);
    dir.file("long", BYTES + 1, 1);
    dir.folder("folder");
    node(&device, &dir.path("again"));
    for (line, why) in [
        (
            "file other --to-device",
            "cannot overwrite other: it is not a block device",
        ),
        (
            "file folder --to-device",
            "cannot overwrite folder: it is not a block device",
        ),
        (
            "file host: --to-device",
            "cannot overwrite host:: it is not a block device",
        ),
        ("folder DEVICE --to-device", "a folder cannot be copied onto a device"),
        (
            "file long DEVICE --to-device",
            "only one file can be copied onto a device",
        ),
        ("again DEVICE --to-device", "is the same device"),
        (
            "long DEVICE --to-device",
            "it has 1048576 bytes, but 1049088 (in whole blocks) are to be written",
        ),
        ("missing DEVICE --to-device", "No such file"),
    ] {
        let ran = dir.run(["copy"].into_iter().chain(line.replace("DEVICE", &device.0).split(' ')));
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.err.contains(why), "{line}: {}", ran.err);
        assert!(fs::read(&device.0).unwrap() == content, "{line}");
    }
}
