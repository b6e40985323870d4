//! Copies of files and folders with access control lists: nobody gets more than the original gives.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    io::Errno,
};
use straightway_lab::FuseServer;

use crate::test_dir::TestDir;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A list with one named user, in the format of the kernel: owner, named user, group, mask, others.
fn list(owner: u16, user: u16, group: u16, mask: u16, others: u16) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let nobody = u32::MAX;
    let entries = [
        (1, owner, nobody),
        (2, user, 4711),
        (4, group, nobody),
        (0x10, mask, nobody),
        (0x20, others, nobody),
    ];
    for (tag, permissions, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Gives a file or folder a list. Prints the reason and returns `false` if that is not possible.
fn give(path: &Path, attribute: &str, list: &[u8]) -> bool {
    let given = setxattr(path, attribute, list, XattrFlags::empty());
    given
        .inspect_err(|e| eprintln!("skipped: access control lists: {e}"))
        .is_ok()
}

fn list_of(path: &Path, attribute: &str) -> Result<Vec<u8>, Errno> {
    let mut bytes = [0; 512];
    let length = getxattr(path, attribute, &mut bytes[..])?;
    Ok(bytes[..length].to_vec())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_copy_has_the_list_of_its_original() {
    let dir = TestDir::new();
    dir.folder("tree/folder");
    let (file, folder) = (dir.file("tree/file", 100, 1), dir.path("tree/folder"));
    let secret = list(6, 6, 0, 6, 0);
    let of_folder = list(7, 7, 0, 7, 0);
    if !give(&file, ACCESS, &secret) || !give(&folder, ACCESS, &of_folder) || !give(&folder, DEFAULT, &of_folder) {
        return;
    }
    dir.receipt(&["tree", "copy"]);
    dir.receipt(&["tree/file", "alone"]);
    for copy in ["copy/file", "alone"] {
        assert_eq!(list_of(&dir.path(copy), ACCESS), Ok(secret.clone()), "{copy}");
        assert_eq!(mode(&dir.path(copy)), 0o660);
    }
    for attribute in [ACCESS, DEFAULT] {
        assert_eq!(list_of(&dir.path("copy/folder"), attribute), Ok(of_folder.clone()));
    }
    // A copy without a list replaces one with a list, and the other way round.
    dir.file("plain", 100, 1);
    fs::set_permissions(dir.path("plain"), fs::Permissions::from_mode(0o640)).unwrap();
    dir.receipt(&["plain", "alone"]);
    assert_eq!(
        (list_of(&dir.path("alone"), ACCESS), mode(&dir.path("alone"))),
        (Err(Errno::NODATA), 0o640)
    );
    dir.receipt(&["tree/file", "alone"]);
    assert_eq!(list_of(&dir.path("alone"), ACCESS), Ok(secret));
}

#[test]
fn a_rewritten_file_keeps_its_list() {
    let dir = TestDir::new();
    let header = br#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#;
    let model = [&(header.len() as u64).to_le_bytes()[..], header, &[7; 8]].concat();
    fs::write(dir.path("m.safetensors"), model).unwrap();
    let secret = list(6, 4, 0, 4, 0);
    if !give(&dir.path("m.safetensors"), ACCESS, &secret) {
        return;
    }
    let ran = dir.run(["rewrite", "m.safetensors", "m.safetensors"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(list_of(&dir.path("m.safetensors"), ACCESS), Ok(secret));
}

#[test]
fn the_list_of_a_folder_gives_nobody_access_to_a_private_copy() {
    let dir = TestDir::new();
    dir.file("source", 100, 1);
    fs::set_permissions(dir.path("source"), fs::Permissions::from_mode(0o640)).unwrap();
    dir.folder("into");
    // New files in the folder are readable for a user.
    if !give(&dir.path("into"), DEFAULT, &list(7, 7, 7, 7, 0)) {
        return;
    }
    dir.receipt(&["source", "into"]);
    let copy = dir.path("into/source");
    assert_eq!((list_of(&copy, ACCESS), mode(&copy)), (Err(Errno::NODATA), 0o640));
}

#[test]
fn where_there_are_no_lists_the_group_gets_no_more_than_its_entry() {
    let dir = TestDir::new();
    let file = dir.file("source", 100, 1);
    let into = dir.folder("fuse");
    let _server = match FuseServer::mount(&into) {
        Ok(server) => server,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    for (entries, expected) in [
        (list(6, 6, 0, 6, 0), 0o600),
        (list(6, 6, 4, 6, 0), 0o640),
        (list(6, 0, 4, 4, 4), 0o600),
    ] {
        if !give(&file, ACCESS, &entries) {
            return;
        }
        dir.receipt(&["source", "fuse/copy"]);
        assert_eq!(mode(&into.join("copy")), expected, "{entries:?}");
    }
}
