//! The storage behind paths of the fixture machines and of this one.

use straightway_standin::expand;

use super::*;
use crate::drive::DriveKind;

const DGX: &str = include_str!("../../fixtures/dgx-h100.txt");
const TWO_SOCKETS: &str = include_str!("../../fixtures/two-sockets.txt");
const VIRTUAL: &str = include_str!("../../fixtures/virtual-machine.txt");

fn backing(manifest: &str, path: &str) -> Backing {
    let folder = tempfile::tempdir().unwrap();
    expand(manifest, folder.path()).unwrap();
    Backing::of(&Root::at(folder.path()), Path::new(path)).unwrap()
}

fn names(backing: &Backing) -> Vec<&str> {
    backing.drives.iter().map(|d| d.name.as_str()).collect()
}

#[test]
fn a_raid_leads_to_its_eight_drives_on_two_sockets() {
    let raid = backing(DGX, "/raid/checkpoints/step-100/model.safetensors");
    assert_eq!(raid.mount.file_system, "ext4");
    assert_eq!(raid.device.unwrap().to_string(), "9:0");
    assert_eq!(raid.drives.len(), 8);
    assert_eq!(raid.layers[0].kind, LayerKind::Raid("raid0".into()));
    let nodes: Vec<_> = raid.drives.iter().map(|d| d.numa_node.unwrap()).collect();
    assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn a_drive_reports_its_attachment_and_queue() {
    let data = backing(DGX, "/data");
    let drive = &data.drives[0];
    assert_eq!(drive.kind, DriveKind::Nvme);
    assert_eq!(drive.pci.unwrap().to_string(), "0000:1a:00.0");
    assert_eq!(drive.model.as_deref(), Some("SAMSUNG MZQL23T8HCLS"));
    assert_eq!(drive.nr_requests, Some(1023));
    assert_eq!(drive.metadata_bytes, Some(0));
    assert_eq!(drive.numa_node, Some(0));
}

#[test]
fn a_partition_leads_to_its_drive() {
    let home = backing(DGX, "/home");
    assert_eq!(names(&home), ["nvme8n1"]);
    assert_eq!(home.layers[0].name, "nvme8n1p2");
    assert_eq!(home.device.unwrap().to_string(), "259:10");
}

#[test]
fn lvm_on_an_encrypted_drive_shows_both_layers() {
    let etc = backing(TWO_SOCKETS, "/etc");
    assert_eq!(names(&etc), ["nvme0n1"]);
    let kinds: Vec<_> = etc.layers.iter().map(|layer| &layer.kind).collect();
    assert_eq!(
        kinds,
        [&LayerKind::Mapper("LVM".into()), &LayerKind::Mapper("CRYPT".into())]
    );
}

#[test]
fn a_btrfs_subvolume_leads_to_all_drives_of_its_pool() {
    let pool = backing(TWO_SOCKETS, "/pool/x");
    assert!(pool.mount.device.is_anonymous());
    assert_eq!(names(&pool), ["nvme1n1", "nvme2n1"]);
}

#[test]
fn a_loop_device_leads_to_the_drive_of_its_file() {
    let image = backing(TWO_SOCKETS, "/image");
    assert_eq!(names(&image), ["nvme3n1"]);
    assert_eq!(image.layers[0].kind, LayerKind::Loop("/scratch/image".into()));
}

#[test]
fn network_memory_and_overlay_file_systems_have_no_drive() {
    let nfs = backing(TWO_SOCKETS, "/home/user");
    assert_eq!(nfs.path, Path::new("/vault/home/user"));
    assert_eq!(
        (nfs.mount.file_system.as_str(), nfs.mount.option("proto")),
        ("nfs4", Some("rdma"))
    );
    let fuse = backing(TWO_SOCKETS, "/lake");
    let shm = backing(VIRTUAL, "/dev/shm/x");
    let merged = backing(VIRTUAL, "/merged");
    for backing in [nfs, fuse, shm, merged] {
        assert!(backing.drives.is_empty() && backing.device.is_none());
    }
}

#[test]
fn a_virtual_disk_hangs_from_its_pci_function() {
    let disk = backing(VIRTUAL, "/anywhere/at/all");
    assert_eq!(disk.drives[0].kind, DriveKind::Virtio);
    assert_eq!(disk.drives[0].pci.unwrap().to_string(), "0000:00:01.0");
    assert_eq!(disk.drives[0].numa_node, None);
}

#[test]
fn fabrics_and_multipath_are_told_apart_from_a_plain_drive() {
    let manifest = "\
/sys/devices/virtual/nvme-fabrics/ctl/nvme0 transport=tcp model=Linux address=traddr=10.0.0.1
/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme1 transport=pcie
/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0 -> ../../nvme-fabrics/ctl/nvme0
/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme2 -> ../../nvme-fabrics/ctl/nvme2
/sys/devices/virtual/nvme-fabrics/ctl/nvme2 transport=tcp
/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1 dev=259:0
/sys/devices/virtual/nvme-subsystem/nvme-subsys1/nvme1 -> ../../../pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme1
/sys/devices/virtual/nvme-subsystem/nvme-subsys1/nvme1n1 dev=259:1
/sys/dev/block/259:0 -> ../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1
/sys/dev/block/259:1 -> ../../devices/virtual/nvme-subsystem/nvme-subsys1/nvme1n1
/proc/self/mountinfo <<
| 1 1 259:0 / / rw - xfs /dev/nvme0n1 rw
| 2 1 259:1 / /near rw - xfs /dev/nvme1n1 rw
";
    let far = backing(manifest, "/");
    assert_eq!(far.drives[0].kind, DriveKind::NvmeTcp);
    assert!(far.drives[0].pci.is_none());
    let near = backing(manifest, "/near");
    assert_eq!(near.drives[0].kind, DriveKind::Nvme);
    assert_eq!(near.drives[0].pci.unwrap().to_string(), "0000:01:00.0");
}

#[test]
fn a_cycle_of_devices_ends() {
    let manifest = "\
/sys/devices/virtual/block/dm-0 dev=253:0
/sys/devices/virtual/block/dm-0/slaves/dm-0 -> ../../dm-0
/sys/dev/block/253:0 -> ../../devices/virtual/block/dm-0
/proc/self/mountinfo = 1 1 253:0 / / rw - xfs /dev/dm-0 rw
";
    assert!(backing(manifest, "/").drives.is_empty());
}

#[test]
fn a_path_that_does_not_exist_yet_is_resolved_by_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let here = Backing::of(&Root::machine(), folder.path()).unwrap();
    let later = Backing::of(&Root::machine(), &folder.path().join("a/b")).unwrap();
    assert_eq!(here.mount, later.mount);
    assert_eq!(here.drives, later.drives);
}

#[test]
fn a_machine_without_a_mount_table_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let error = Backing::of(&Root::at(folder.path()), Path::new("/x")).unwrap_err();
    assert!(error.to_string().contains("mountinfo"), "{error}");
}
