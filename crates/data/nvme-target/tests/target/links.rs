//! Links below a served folder: followed, followed inside the folder, or not followed.

use std::{fs, os::unix::fs::symlink, path::Path};

use straightway_nvme_target::{Links, NamespaceSource};

use super::host::{Host, Login, config, file, pattern, read, start};

/// A served folder with a file, a link to it, and a link to a file outside of the folder.
fn folder(top: &Path) -> NamespaceSource {
    let served = top.join("m");
    file(top, "m/sub/file", &pattern(4096, 1));
    file(top, "secret", &pattern(4096, 2));
    symlink("sub/file", served.join("inside")).unwrap();
    symlink("../secret", served.join("outside")).unwrap();
    symlink(served.join("sub/file"), served.join("whole")).unwrap();
    NamespaceSource::Path(served)
}

fn names(host: &mut Host) -> Vec<String> {
    let entries = host.index().entries.into_iter();
    let mut names: Vec<_> = entries.map(|entry| String::from_utf8(entry.name).unwrap()).collect();
    names.sort();
    names
}

#[test]
fn links_are_served_as_the_configuration_says() {
    for (links, expected) in [
        (Links::Any, &["m/inside", "m/outside", "m/sub/file", "m/whole"][..]),
        (Links::Inside, &["m/inside", "m/sub/file"]),
        (Links::None, &["m/sub/file"]),
    ] {
        let top = tempfile::tempdir().unwrap();
        let mut config = config(vec![folder(top.path())]);
        config.links = links;
        let (target, address) = start(&config);
        let mut host = Host::new(address, &Login::default());
        assert_eq!(names(&mut host), expected, "{links:?}");
        assert!(target.rescan().unwrap().is_empty(), "{links:?}");
    }
}

#[test]
fn a_file_that_is_replaced_by_a_link_out_of_the_folder_is_not_served() {
    let top = tempfile::tempdir().unwrap();
    let mut config = config(vec![folder(top.path())]);
    config.links = Links::Inside;
    let (target, address) = start(&config);
    let mut host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    let nsid = host.index().find(b"m/sub/file").unwrap().nsid;
    assert!(queue.ok(read(nsid, 0, 8), &[]) == pattern(4096, 1));
    // The file, and the folder that it is in.
    let sub = top.path().join("m/sub");
    fs::remove_file(sub.join("file")).unwrap();
    symlink("../../secret", sub.join("file")).unwrap();
    target.rescan().unwrap();
    assert_eq!(names(&mut host), [""; 0]);
    fs::remove_file(sub.join("file")).unwrap();
    fs::remove_dir(&sub).unwrap();
    symlink("..", &sub).unwrap();
    target.rescan().unwrap();
    assert_eq!(names(&mut host), [""; 0]);
}
