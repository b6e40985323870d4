//! Manifests of machines become the files of a root.

use straightway_standin::expand;
use straightway_sys::root::Root;

#[test]
fn each_kind_of_line_creates_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = "\
# a machine
/proc/version = Linux version 6.8.0
/sys/block/vda/queue rotational=0 scheduler=[none]_mq-deadline
pci /sys/devices/pci0000:00/0000:00:02.0 vendor=0x1af4
/sys/dev/block/254:0 -> ../../block/vda
/dev/shm/
/proc/mounts <<
| proc /proc proc rw 0 0
|
| sysfs /sys sysfs rw 0 0
/sys/config bytes 8 0x2:0d01
";
    expand(manifest, folder.path()).unwrap();
    let root = Root::at(folder.path());
    assert_eq!(root.text("/proc/version").unwrap(), "Linux version 6.8.0");
    assert_eq!(
        root.text("/sys/block/vda/queue/scheduler").unwrap(),
        "[none] mq-deadline"
    );
    assert_eq!(root.hex("/sys/bus/pci/devices/0000:00:02.0/vendor"), Some(0x1af4));
    assert_eq!(root.value("/sys/dev/block/254:0/queue/rotational"), Some(0));
    assert!(root.exists("/dev/shm") && root.list("/dev/shm").is_empty());
    assert_eq!(root.text("/proc/mounts").unwrap().lines().count(), 3);
    assert_eq!(root.read("/sys/config").unwrap(), [0, 0, 0x0d, 1, 0, 0, 0, 0]);
    expand("!/sys/block", folder.path()).unwrap();
    assert!(!root.exists("/sys/dev/block/254:0"));
}

#[test]
fn a_line_that_leaves_the_root_or_is_malformed_is_refused_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    for line in [
        "/../etc/passwd = x",
        "etc/passwd = x",
        "/sys/block vda",
        "/a bytes 4 0x3:0000",
        "/a bytes 99999999999",
        "!/missing",
    ] {
        let error = expand(&format!("# first\n{line}\n"), folder.path()).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
