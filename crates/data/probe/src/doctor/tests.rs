//! The doctor on captured machines: healthy, broken, without a GPU, and with damaged files.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use straightway_core::{Leg, Reason, Route, receipt::RouteBytes};
use straightway_standin::expand;
use tempfile::TempDir;

use super::*;

const DGX: &str = include_str!("../../fixtures/dgx-h100.txt");
const TWO_SOCKETS: &str = include_str!("../../fixtures/two-sockets.txt");
const VIRTUAL: &str = include_str!("../../fixtures/virtual-machine.txt");
const NVIDIA_FS: &str = include_str!("../../fixtures/nvidia-fs.txt");
const P2PDMA: &str = include_str!("../../fixtures/p2pdma.txt");
const BROKEN: &str = include_str!("../../fixtures/broken.txt");
const CONTAINER: &str = include_str!("../../fixtures/container.txt");
const H200_VM: &str = include_str!("../../fixtures/h200-vm.txt");
const STORAGE_CLIENT: &str = include_str!("../../fixtures/storage-client.txt");
const WRONG_SOCKET: &str = include_str!("../../fixtures/wrong-socket.txt");

/// A captured machine on disk.
struct Machine {
    folder: TempDir,
    environment: BTreeMap<String, String>,
    measured: Measurements,
}

impl Machine {
    fn new(manifests: &[&str]) -> Self {
        // Hundreds of small files are created and removed, which is faster in memory.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.unwrap();
        for manifest in manifests {
            expand(manifest, folder.path()).unwrap();
        }
        Self {
            folder,
            environment: BTreeMap::new(),
            measured: Measurements::default(),
        }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    fn change(&self, manifest: &str) -> &Self {
        expand(manifest, self.folder.path()).unwrap();
        self
    }

    fn diagnose(&self, path: &str) -> Diagnosis {
        diagnose(&DoctorRequest {
            root: &Root::at(self.folder.path()),
            path: Path::new(path),
            environment: &self.environment,
            measured: &self.measured,
        })
    }
}

fn finding<'a>(diagnosis: &'a Diagnosis, id: &str) -> &'a Finding {
    let found = diagnosis.checks.iter().find(|finding| finding.id == id);
    found.unwrap_or_else(|| panic!("no check {id}"))
}

fn trouble(diagnosis: &Diagnosis) -> Vec<&'static str> {
    let findings = diagnosis.checks.iter();
    findings
        .filter(|finding| finding.state <= State::Warn)
        .map(|finding| finding.id)
        .collect()
}

fn is_open(diagnosis: &Diagnosis, way: CufilePath) -> bool {
    let mut ways = diagnosis.ways.iter();
    ways.any(|state| state.way == way && state.is_open)
}

const PLAIN: Style = Style {
    verbose: false,
    colour: false,
    width: 100,
};

const VERBOSE: Style = Style { verbose: true, ..PLAIN };

fn probe(route: Route, reason: Reason) -> LiveProbe {
    LiveProbe {
        routes: vec![RouteBytes {
            leg: Leg::Read,
            route,
            reason,
            bytes: 64 << 20,
        }],
        seconds: 0.01,
        receipt: None,
        error: None,
    }
}

#[test]
fn a_healthy_machine_with_nvidia_fs_has_no_problem_and_an_open_path() {
    let diagnosis = Machine::new(&[DGX, NVIDIA_FS]).diagnose("/raid/model.safetensors");
    assert_eq!(trouble(&diagnosis), [""; 0]);
    assert!(is_open(&diagnosis, CufilePath::NvidiaFs) && !is_open(&diagnosis, CufilePath::P2pDma));
    assert_eq!(diagnosis.verdict, DoctorVerdict::NotProven, "nothing was transferred");
    insta::assert_snapshot!("nvidia_fs", diagnosis.text(&VERBOSE));
}

#[test]
fn a_healthy_machine_with_p2pdma_does_not_miss_nvidia_fs() {
    let diagnosis = Machine::new(&[DGX, P2PDMA]).diagnose("/data");
    assert_eq!(trouble(&diagnosis), [""; 0]);
    assert!(is_open(&diagnosis, CufilePath::P2pDma) && !is_open(&diagnosis, CufilePath::NvidiaFs));
    insta::assert_snapshot!("p2pdma", diagnosis.text(&PLAIN));
    insta::assert_json_snapshot!("p2pdma_json", diagnosis);
}

#[test]
fn a_drive_whose_driver_has_not_registered_is_out_of_reach_of_nvidia_fs() {
    let machine = Machine::new(&[DGX, NVIDIA_FS]);
    machine.change("/proc/driver/nvidia-fs/modules = wekafsio: 1");
    let diagnosis = machine.diagnose("/raid");
    assert!(!is_open(&diagnosis, CufilePath::NvidiaFs));
    assert_eq!(finding(&diagnosis, "nvidia_fs.storage").state, State::Fail);
}

#[test]
fn p2pdma_does_not_serve_a_raid() {
    let diagnosis = Machine::new(&[DGX, P2PDMA]).diagnose("/raid");
    assert!(!is_open(&diagnosis, CufilePath::P2pDma));
    assert!(finding(&diagnosis, "storage.layers").seen.contains("raid0"));
}

#[test]
fn a_machine_broken_in_many_ways_is_told_all_of_them() {
    let diagnosis = Machine::new(&[DGX, NVIDIA_FS, BROKEN]).diagnose("/data");
    let trouble = trouble(&diagnosis);
    for id in [
        "driver.open",
        "cufile.compat",
        "cufile.denylist",
        "kernel.iommu",
        "storage.journal",
        "storage.udev",
        "device.metadata",
        "gpu.link",
        "nvidia_fs.errors",
        "cufile.limits",
        "cufile.logging",
        "kernel.io_uring",
        "kernel.memlock",
        "kernel.dirty",
        "kernel.huge_pages",
        "platform.acs",
        "fabric.links",
        "fabric.rate",
        "fabric.loss",
        "storage.options",
        "device.queue",
    ] {
        assert!(trouble.contains(&id), "{id} was not found");
    }
    insta::assert_snapshot!("broken", diagnosis.text(&PLAIN));
}

#[test]
fn the_h200_virtual_machine_is_told_of_nvidia_fs_p2pdma_and_udev_and_what_each_takes() {
    let diagnosis = Machine::new(&[VIRTUAL, H200_VM]).diagnose("/models");
    for (id, mend) in [
        ("nvidia_fs.module", "modprobe nvidia-fs"),
        ("kernel.p2pdma", "CONFIG_PCI_P2PDMA=y"),
        ("cufile.p2pdma", "use_pci_p2pdma"),
        ("driver.registry", "RMForceStaticBar1=1"),
        ("device.transport", "NVMe drive"),
        ("storage.udev", "E:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE=ext4"),
    ] {
        let finding = finding(&diagnosis, id);
        assert_eq!(finding.state, State::Fail, "{id}");
        assert!(finding.mend.as_ref().unwrap().contains(mend), "{finding:?}");
    }
    let udev = finding(&diagnosis, "storage.udev");
    assert!(udev.mend.as_ref().unwrap().contains("/run/udev/data/b254:0"));
    assert!(udev.why.contains("5027"));
    assert!(!is_open(&diagnosis, CufilePath::Compat));
    insta::assert_snapshot!("h200_vm", diagnosis.text(&PLAIN));
    insta::assert_json_snapshot!("h200_vm_json", diagnosis);
}

#[test]
fn writing_the_udev_entry_opens_compat_mode_there() {
    let machine = Machine::new(&[VIRTUAL, H200_VM]);
    machine.change("/run/udev/data/b254:0 = E:ID_FS_USAGE=filesystem");
    let diagnosis = machine.diagnose("/models");
    assert_eq!(finding(&diagnosis, "storage.udev").state, State::Pass);
    assert!(is_open(&diagnosis, CufilePath::Compat) && !is_open(&diagnosis, CufilePath::NvidiaFs));
}

#[test]
fn a_container_is_told_what_to_mount() {
    let machine = Machine::new(&[DGX, NVIDIA_FS, CONTAINER]);
    insta::assert_snapshot!("container", machine.diagnose("/data").text(&PLAIN));
    let image = machine.diagnose("/opt/model");
    assert_eq!(finding(&image, "storage.file_system").state, State::Fail);
}

#[test]
fn a_storage_client_without_a_gpu_gets_fabric_findings_and_no_driver_findings() {
    let diagnosis = Machine::new(&[STORAGE_CLIENT]).diagnose("/");
    assert_eq!(
        trouble(&diagnosis),
        ["gpu.present", "fabric.nvmeof", "fabric.mtu", "fabric.loss"]
    );
    insta::assert_snapshot!("storage_client", diagnosis.text(&PLAIN));
}

#[test]
fn drives_on_the_far_socket_and_hidden_drives_are_named() {
    let machine = Machine::new(&[TWO_SOCKETS, WRONG_SOCKET]);
    let far = machine.diagnose("/far/data");
    assert_eq!(trouble(&far), ["device.queue", "device.distance"]);
    assert!(is_open(&far, CufilePath::P2pDma));
    insta::assert_snapshot!("wrong_socket", far.text(&PLAIN));
    let encrypted = machine.diagnose("/home");
    assert!(!is_open(&encrypted, CufilePath::P2pDma));
    let nfs = machine.diagnose("/vault/model");
    assert_eq!(finding(&nfs, "storage.nfs").state, State::Fail);
    assert!(
        finding(&nfs, "storage.nfs")
            .mend
            .as_ref()
            .unwrap()
            .contains("filer:/vault")
    );
}

#[test]
fn an_empty_machine_is_examined() {
    let diagnosis = Machine::new(&["/sys/"]).diagnose("/anything");
    assert_eq!(trouble(&diagnosis), ["gpu.present", "storage.path"]);
    insta::assert_snapshot!("empty", diagnosis.text(&PLAIN));
}

#[test]
fn only_a_transfer_whose_bytes_were_counted_makes_the_verdict_direct() {
    let mut machine = Machine::new(&[DGX, NVIDIA_FS]);
    for (route, reason, is_direct) in [
        (Route::Direct, Reason::ProvenNvidiaFs, true),
        (Route::Direct, Reason::ProvenP2pdma, true),
        (Route::Direct, Reason::Unknown, false),
        (Route::Direct, Reason::Aligned, false),
        (Route::Staged, Reason::CompatMode, false),
        (Route::Staged, Reason::NotProven, false),
        (Route::Buffered, Reason::Resident, false),
    ] {
        machine.measured.gpu = Some(probe(route, reason));
        let diagnosis = machine.diagnose("/raid");
        assert_eq!(diagnosis.verdict == DoctorVerdict::Direct, is_direct, "{reason:?}");
        let word = if is_direct { "direct:" } else { "not direct:" };
        assert!(diagnosis.summary.starts_with(word), "{}", diagnosis.summary);
    }
    machine.measured.gpu = Some(probe(Route::Direct, Reason::ProvenNvidiaFs));
    insta::assert_snapshot!("proven", machine.diagnose("/raid").text(&PLAIN));
}

#[test]
fn a_transfer_of_which_a_part_was_staged_is_not_direct() {
    let mut mixed = probe(Route::Direct, Reason::ProvenNvidiaFs);
    mixed.routes.extend(probe(Route::Staged, Reason::RaggedEdge).routes);
    assert_eq!(mixed.proof(), None);
    assert_eq!(LiveProbe::default().proof(), None);
}

#[test]
fn a_transfer_that_failed_says_why() {
    let mut machine = Machine::new(&[DGX, NVIDIA_FS]);
    machine.measured.gpu = Some(LiveProbe {
        error: Some("cannot register /raid/x: cuFile error 5027".into()),
        ..LiveProbe::default()
    });
    let diagnosis = machine.diagnose("/raid");
    assert_eq!(diagnosis.verdict, DoctorVerdict::NotDirect);
    assert!(diagnosis.summary.contains("5027"), "{}", diagnosis.summary);
}

#[test]
fn variables_override_the_file() {
    let forced = Machine::new(&[DGX, P2PDMA]).with("CUFILE_FORCE_COMPAT_MODE", "true");
    assert_eq!(finding(&forced.diagnose("/data"), "cufile.compat").state, State::Fail);
    let off = Machine::new(&[DGX, P2PDMA]).with("CUFILE_USE_PCIP2PDMA", "false");
    assert!(!is_open(&off.diagnose("/data"), CufilePath::P2pDma));
    let lost = Machine::new(&[DGX, P2PDMA]).with("CUFILE_ENV_PATH_JSON", "/no/such.json");
    let diagnosis = lost.diagnose("/data");
    assert!(finding(&diagnosis, "cufile.config").seen.contains("/no/such.json"));
}

#[test]
fn a_packed_kernel_configuration_is_read() {
    use std::io::Write;
    let machine = Machine::new(&[DGX, P2PDMA]);
    let path = machine.folder.path().join("proc/config.gz");
    let file = fs::File::create(path).unwrap();
    let mut packer = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    packer.write_all(b"# CONFIG_PCI_P2PDMA is not set\n").unwrap();
    packer.finish().unwrap();
    let diagnosis = machine.diagnose("/data");
    assert_eq!(finding(&diagnosis, "kernel.p2pdma").state, State::Fail);
}

#[test]
fn bar1_is_found_behind_a_first_region_of_either_width() {
    let hopper = Machine::new(&[VIRTUAL, H200_VM]).diagnose("/models");
    assert!(finding(&hopper, "gpu.bar1").seen.starts_with("256 GiB"));
    let machine = Machine::new(&[TWO_SOCKETS, WRONG_SOCKET]);
    let ampere = machine.diagnose("/far");
    assert!(finding(&ampere, "gpu.bar1").seen.starts_with("128 GiB"));
    let gpu = "/sys/devices/pci0000:90/0000:90:01.0/0000:91:00.0";
    let small = "| 0xe0000000 0xe0ffffff 0x40200\n| 0xd0000000 0xdfffffff 0x14220c";
    machine.change(&format!("{gpu}/resource <<\n{small}"));
    assert_eq!(finding(&machine.diagnose("/far"), "gpu.bar1").state, State::Fail);
}

#[test]
fn grace_needs_its_iommu_on() {
    let machine = Machine::new(&[DGX, P2PDMA]);
    machine.change("/proc/cpuinfo = CPU implementer : 0x41");
    let iommu = machine.diagnose("/data");
    assert_eq!(finding(&iommu, "kernel.iommu").state, State::Fail);
    machine.change("/sys/class/iommu/smmu3.0/");
    let iommu = machine.diagnose("/data");
    assert_eq!(finding(&iommu, "kernel.iommu").state, State::Pass);
}

#[test]
fn pause_frames_are_judged_by_their_share_of_the_traffic() {
    let mut machine = Machine::new(&[STORAGE_CLIENT]);
    machine.change("/sys/class/net/eth0/statistics rx_packets=1000000 tx_packets=1000000");
    for (frames, state) in [(0, State::Pass), (900, State::Pass), (5000, State::Warn)] {
        machine.measured.pauses = vec![PauseCount {
            interface: "eth0".into(),
            counter: "rx_prio3_pause".into(),
            frames,
        }];
        assert_eq!(finding(&machine.diagnose("/"), "fabric.pause").state, state, "{frames}");
    }
}

#[test]
fn a_refused_ring_and_a_refused_o_direct_are_reported() {
    let mut machine = Machine::new(&[DGX, NVIDIA_FS]);
    machine.measured.io_uring = Some(Err("cannot set up an io_uring: not permitted".into()));
    machine.measured.host = Some(HostRead {
        error: Some("cannot read by O_DIRECT /raid/x: invalid argument".into()),
        attributes: vec!["encrypted"],
        is_refused: true,
        ..HostRead::default()
    });
    let diagnosis = machine.diagnose("/raid/x");
    assert_eq!(finding(&diagnosis, "kernel.io_uring").state, State::Warn);
    assert_eq!(finding(&diagnosis, "storage.direct").state, State::Fail);
    assert_eq!(finding(&diagnosis, "storage.attributes").state, State::Fail);
    assert!(!is_open(&diagnosis, CufilePath::NvidiaFs));
}

#[test]
fn every_check_has_its_own_name_and_says_why_and_how() {
    let mut ids: Vec<_> = checks().map(|check| check.id).collect();
    ids.sort_unstable();
    let count = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), count);
    for check in checks() {
        assert!(!check.why.is_empty() && !check.mend.is_empty(), "{}", check.id);
        assert!(!check.why.ends_with('.') && !check.mend.ends_with('.'), "{}", check.id);
    }
}

#[test]
fn the_guide_in_docs_is_the_guide_of_the_checks() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/doctor.md");
    let written = fs::read_to_string(path).unwrap();
    let hint = "run `straightway doctor --checks > docs/doctor.md`";
    assert!(written == guide(), "docs/doctor.md is out of step: {hint}");
}

/// All regular files of a machine, in order.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// A damage to a file.
#[derive(Clone, Debug)]
enum Damage {
    Bytes(Vec<u8>),
    Cut(u64),
    Huge,
    Missing,
    Folder,
    Denied,
    Number(i128),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Damage::Bytes),
        (0_u64..40).prop_map(Damage::Cut),
        Just(Damage::Huge),
        Just(Damage::Missing),
        Just(Damage::Folder),
        Just(Damage::Denied),
        any::<i128>().prop_map(Damage::Number),
    ]
}

fn apply(path: &Path, damage: &Damage) {
    match damage {
        Damage::Bytes(bytes) => fs::write(path, bytes).unwrap(),
        Damage::Cut(len) => {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(*len).unwrap();
        }
        Damage::Huge => fs::File::create(path).unwrap().set_len(1 << 40).unwrap(),
        Damage::Missing => fs::remove_file(path).unwrap(),
        Damage::Folder => {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }
        Damage::Denied => fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap(),
        Damage::Number(number) => fs::write(path, format!("{number}\n")).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn damaged_files_do_not_stop_the_examination(
        machine in 0_usize..4,
        damages in proptest::collection::vec((any::<prop::sample::Index>(), damage()), 1..40),
    ) {
        let (manifests, path): (&[&str], &str) = [
            (&[DGX, NVIDIA_FS, BROKEN] as &[&str], "/data"),
            (&[DGX, P2PDMA], "/raid"),
            (&[VIRTUAL, H200_VM], "/models"),
            (&[STORAGE_CLIENT], "/"),
        ][machine];
        let machine = Machine::new(manifests);
        let mut all = Vec::new();
        files(machine.folder.path(), &mut all);
        for (index, damage) in &damages {
            let path = &all[index.index(all.len())];
            if path.is_file() {
                apply(path, damage);
            }
        }
        let diagnosis = machine.diagnose(path);
        prop_assert_ne!(diagnosis.verdict, DoctorVerdict::Direct);
        prop_assert!(!diagnosis.text(&VERBOSE).is_empty());
        prop_assert_eq!(diagnosis.checks.len(), checks().count());
    }
}
