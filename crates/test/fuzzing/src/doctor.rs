//! The files of a captured machine, as `doctor --root` reads them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use straightway_core::text::{is_unsafe, shown};
use straightway_probe::doctor::{DoctorRequest, DoctorVerdict, Measurements, Style, checks, diagnose};
use straightway_standin::expand;
use straightway_sys::root::Root;

use crate::capture::{Capture, Entry};

/// Captured machines, and the path that is examined on each.
const FIXTURES: [(&[&str], &str); 4] = [
    (
        &[
            include_str!("../../../data/probe/fixtures/dgx-h100.txt"),
            include_str!("../../../data/probe/fixtures/nvidia-fs.txt"),
            include_str!("../../../data/probe/fixtures/broken.txt"),
        ],
        "/data",
    ),
    (
        &[
            include_str!("../../../data/probe/fixtures/dgx-h100.txt"),
            include_str!("../../../data/probe/fixtures/p2pdma.txt"),
        ],
        "/raid",
    ),
    (
        &[
            include_str!("../../../data/probe/fixtures/virtual-machine.txt"),
            include_str!("../../../data/probe/fixtures/h200-vm.txt"),
        ],
        "/models",
    ),
    (&[include_str!("../../../data/probe/fixtures/storage-client.txt")], "/"),
];

/// The separator of changes: a byte that UTF-8 text does not have.
const BETWEEN: u8 = 0xff;

/// Any bytes as changes to the files of a captured machine. The machine is examined completely and never found direct,
/// and no output contains terminal control sequences.
///
/// The first byte selects the machine. Each change has two bytes that select a file, one byte that selects the kind of
/// change, and the new text.
pub(crate) fn captured_machine(data: &[u8]) {
    static MACHINES: OnceLock<Vec<Machine>> = OnceLock::new();
    let machines = MACHINES.get_or_init(|| FIXTURES.iter().map(Machine::new).collect());
    let Some((first, changes)) = data.split_first() else {
        return;
    };
    let Machine { capture, files, path } = &machines[usize::from(*first) % machines.len()];
    let mut machine = Capture::like(capture);
    for change in changes.split(|byte| *byte == BETWEEN) {
        if let [high, low, kind, text @ ..] = change {
            let number = usize::from(u16::from_be_bytes([*high, *low]));
            let file = files[number % files.len()].as_path();
            match kind % 8 {
                0 => machine.remove(file),
                1 => machine.set(file, Entry::Folder),
                2 => machine.set(file, Entry::Link(String::from_utf8_lossy(text).into_owned().into())),
                _ => machine.set(file, Entry::File(text.to_vec())),
            }
        }
    }
    let diagnosis = diagnose(&DoctorRequest {
        root: &Root::of(Arc::new(machine)),
        path: Path::new(path),
        environment: &BTreeMap::new(),
        measured: &Measurements::default(),
    });
    assert_ne!(diagnosis.verdict, DoctorVerdict::Direct, "nothing was measured");
    assert_eq!(diagnosis.checks.len(), checks().count());
    let style = Style {
        verbose: true,
        colour: false,
        width: 100,
    };
    let text = diagnosis.text(&style);
    assert!(!text.contains(|c| c != '\n' && is_unsafe(c)), "{}", shown(&text));
}

/// A captured machine.
struct Machine {
    capture: Arc<Capture>,
    /// Its files, in order.
    files: Vec<PathBuf>,
    /// The path that is examined.
    path: &'static str,
}

impl Machine {
    /// A machine from its manifests.
    fn new((manifests, path): &(&[&str], &'static str)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        for manifest in *manifests {
            expand(manifest, folder.path()).expect("the fixtures are sound");
        }
        let capture = Capture::of(folder.path()).expect("the written files can be read");
        Self {
            files: capture.files(),
            capture: Arc::new(capture),
            path,
        }
    }
}
