//! A bundle: one archive with what the doctor saw, to send to the project.
//!
//! GPUDirect Storage is proven only on hardware that has it. The owner of such a machine sends this archive, which has
//! the verdict, the live transfer, receipts, cuFile's counters, log and configuration, and the versions of everything
//! involved. Every text in it is masked ([`Mask`]): secrets always, names of hosts and users unless they are asked for.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use flate2::{Compression, GzBuilder};
use straightway_core::{Error, Result};
use straightway_sys::root::Root;

use super::{Diagnosis, Style, cufile::Cufile, mask::Mask};

/// The folder in the archive.
const FOLDER: &str = "straightway-bundle";
/// At most this much of a file is bundled: its end, where a log has the latest events.
const FILE_BYTES_MAX: usize = 1 << 20;
/// At most this many receipts are bundled.
const RECEIPTS_MAX: usize = 64;
/// Written into the archive's head, so that a bundle replaces only an older bundle.
const COMMENT: &str = "straightway doctor bundle";
/// The width of the verdict's lines.
const WIDTH: usize = 100;

/// The counters of nvidia-fs.
const COUNTERS: &str = "/proc/driver/nvidia-fs/stats";

/// Files that are bundled as they are, apart from masks: the name in the bundle, the file, and what it is.
const FILES: &[(&str, &str, &str)] = &[
    (
        "nvidia-fs-modules.txt",
        "/proc/driver/nvidia-fs/modules",
        "the storage drivers that registered with nvidia-fs",
    ),
    (
        "nvidia-fs-devices.txt",
        "/proc/driver/nvidia-fs/devices",
        "the devices that nvidia-fs knows",
    ),
    (
        "nvidia-fs-peer-distance.txt",
        "/proc/driver/nvidia-fs/peer_distance",
        "distances between GPUs and storage",
    ),
    (
        "nvidia-parameters.txt",
        "/proc/driver/nvidia/params",
        "the parameters of NVIDIA's driver",
    ),
    (
        "kernel-command-line.txt",
        "/proc/cmdline",
        "the command line of the kernel",
    ),
    ("kernel-modules.txt", "/proc/modules", "the loaded kernel modules"),
];

/// The variables that are bundled: those that change what cuFile, CUDA and this program do.
const VARIABLES: &[&str] = &["CUFILE_", "CUDA_", "NVIDIA_", "STRAIGHTWAY_", "LD_LIBRARY_PATH"];

/// What a bundle is made of.
#[derive(Clone, Copy, Debug)]
pub struct BundleRequest<'a> {
    /// The machine, or a capture of one.
    pub root: &'a Root,
    /// The environment of the process.
    pub environment: &'a BTreeMap<String, String>,
    /// The result of the examination.
    pub diagnosis: &'a Diagnosis,
    /// cuFile's counters before the examination, by [`counters`].
    pub counters_before: Option<&'a str>,
    /// Receipts of transfers, as JSON.
    pub receipts: &'a [String],
    /// The version of this program.
    pub version: &'a str,
    /// Whether the names of hosts and users, and addresses, are kept.
    pub keep_names: bool,
}

/// A bundle: masked files, in memory.
#[derive(Clone, Debug)]
pub struct Bundle {
    files: Vec<BundledFile>,
}

/// A file in a bundle.
#[derive(Clone, Debug)]
pub struct BundledFile {
    /// Its name in the bundle.
    pub name: String,
    /// What it is, in a few words.
    pub what: &'static str,
    text: String,
}

/// The counters of nvidia-fs now, if there are any.
pub fn counters(root: &Root) -> Option<String> {
    root.text(COUNTERS)
}

impl Bundle {
    /// Collects the files of a bundle.
    pub fn of(request: &BundleRequest<'_>) -> Self {
        let mask = if request.keep_names {
            Mask::secrets()
        } else {
            Mask::of(request.root, request.environment)
        };
        let mut collection = Collection {
            mask,
            files: Vec::new(),
        };
        collection.add_diagnosis(request);
        collection.add_cufile(request);
        for (name, path, what) in FILES {
            collection.add_some(name, what, request.root.text(path).as_deref());
        }
        let mut files = collection.files;
        let list = BundledFile {
            name: "README.txt".to_owned(),
            what: "this list",
            text: read_me(&files, request.keep_names),
        };
        files.insert(0, list);
        Self { files }
    }

    /// The files.
    pub fn files(&self) -> &[BundledFile] {
        &self.files
    }

    /// The bundle as a compressed tar file.
    pub fn archive(&self) -> Result<Vec<u8>> {
        let failed = |e| Error::os("write", "the bundle", e);
        self.packed().map_err(failed)
    }

    fn packed(&self) -> io::Result<Vec<u8>> {
        let packer = compressed();
        let mut archive = tar::Builder::new(packer);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        for file in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(file.text.len() as u64);
            header.set_mode(0o644);
            header.set_mtime(now.as_ref().map_or(0, Duration::as_secs));
            archive.append_data(&mut header, format!("{FOLDER}/{}", file.name), file.text.as_bytes())?;
        }
        archive.into_inner()?.finish()
    }

    /// The first bytes of every bundle.
    pub fn mark() -> Vec<u8> {
        let mut packer = compressed();
        // The head is written with the first byte.
        let head = packer.write_all(b" ").and_then(|()| packer.finish());
        let mut head = head.expect("memory takes every byte");
        let end = head.windows(COMMENT.len()).position(|part| part == COMMENT.as_bytes());
        head.truncate(end.map_or(0, |end| end + COMMENT.len()));
        head
    }
}

fn compressed() -> flate2::write::GzEncoder<Vec<u8>> {
    GzBuilder::new()
        .comment(COMMENT)
        .write(Vec::new(), Compression::default())
}

/// Files on their way into a bundle.
struct Collection {
    mask: Mask,
    files: Vec<BundledFile>,
}

impl Collection {
    /// Adds what the doctor found, and the versions of what it examined.
    fn add_diagnosis(&mut self, request: &BundleRequest<'_>) {
        let style = Style {
            verbose: true,
            colour: false,
            width: WIDTH,
        };
        let json = serde_json::to_string_pretty(request.diagnosis).expect("a diagnosis is plain data");
        for (name, what, text) in [
            (
                "verdict.txt",
                "the doctor's verdict, with every check",
                request.diagnosis.text(&style),
            ),
            (
                "diagnosis.json",
                "the same, with the live transfers, for programs",
                json,
            ),
            (
                "versions.txt",
                "versions: kernel, driver, nvidia-fs, cuFile, CUDA, OFED",
                versions(request),
            ),
            (
                "environment.txt",
                "the variables that cuFile, CUDA and Straightway read",
                variables(request.environment),
            ),
        ] {
            self.add(name, what, &text);
        }
        for (number, receipt) in (1..=RECEIPTS_MAX).zip(request.receipts) {
            self.add(&format!("receipt-{number}.json"), "a receipt that was given", receipt);
        }
    }

    /// Adds cuFile's counters, configuration and log.
    fn add_cufile(&mut self, request: &BundleRequest<'_>) {
        let root = request.root;
        let config = Cufile::read(root, request.environment).config;
        let folder = config.setting("logging.dir").and_then(|folder| folder.as_str());
        for (name, what, text) in [
            (
                "nvidia-fs-stats-before.txt",
                "nvidia-fs's counters before the live transfer",
                request.counters_before.map(str::to_owned),
            ),
            (
                "nvidia-fs-stats-after.txt",
                "nvidia-fs's counters after it",
                counters(root),
            ),
            ("cufile.json", "cuFile's configuration", root.text(&config.path)),
            ("cufile.log", "the end of cuFile's latest log", log(root, folder)),
        ] {
            self.add_some(name, what, text.as_deref());
        }
    }

    fn add(&mut self, name: &str, what: &'static str, text: &str) {
        let text = self.mask.apply(end_of(text));
        self.files.push(BundledFile {
            name: name.to_owned(),
            what,
            text,
        });
    }

    fn add_some(&mut self, name: &str, what: &'static str, text: Option<&str>) {
        if let Some(text) = text {
            self.add(name, what, text);
        }
    }
}

/// The end of a long text, from a whole line on: a part of a line may have a secret without its name.
fn end_of(text: &str) -> &str {
    if text.len() <= FILE_BYTES_MAX {
        return text;
    }
    let tail = &text.as_bytes()[text.len() - FILE_BYTES_MAX..];
    let cut = tail
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(tail.len(), |at| at + 1);
    &text[text.len() - FILE_BYTES_MAX + cut..]
}

fn versions(request: &BundleRequest<'_>) -> String {
    let root = request.root;
    let first_line = |path: &str| Some(root.text(path)?.lines().next()?.trim().to_owned());
    let library = Cufile::read(root, request.environment).library;
    let distribution = root.text("/etc/os-release").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
        Some(line.trim_matches('"').to_owned())
    });
    let nvidia_fs = ["/proc/driver/nvidia-fs/version", "/sys/module/nvidia_fs/version"];
    let rows = [
        ("straightway", Some(request.version.to_owned())),
        ("kernel", first_line("/proc/sys/kernel/osrelease")),
        ("distribution", distribution),
        ("NVIDIA driver", first_line("/proc/driver/nvidia/version")),
        ("nvidia-fs", nvidia_fs.into_iter().find_map(first_line)),
        (
            "libcufile",
            library
                .as_ref()
                .map(|library| library.version.clone().unwrap_or_default()),
        ),
        (
            "libcufile's path",
            library.map(|library| library.path.display().to_string()),
        ),
        ("CUDA", cuda_version(root)),
        ("OFED (mlx5_core)", first_line("/sys/module/mlx5_core/version")),
    ];
    let row = |(name, value): (&str, Option<String>)| format!("{name}: {}", value.as_deref().unwrap_or("not found"));
    rows.map(row).join("\n") + "\n"
}

/// The version of the toolkit in `/usr/local/cuda/version.json`.
fn cuda_version(root: &Root) -> Option<String> {
    let text = root.text("/usr/local/cuda/version.json")?;
    let value: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(value.get("cuda")?.get("version")?.as_str()?.to_owned())
}

fn variables(environment: &BTreeMap<String, String>) -> String {
    let is_kept = |name: &str| VARIABLES.iter().any(|prefix| name.starts_with(prefix));
    let kept = environment.iter().filter(|(name, _)| is_kept(name));
    let lines: Vec<_> = kept.map(|(name, value)| format!("{name}={value}")).collect();
    lines.join("\n") + "\n"
}

/// cuFile's latest log, in the folder of its configuration or in the current one.
fn log(root: &Root, folder: Option<&str>) -> Option<String> {
    let folder = match folder {
        Some(folder) => PathBuf::from(folder),
        None if root.is_machine() => std::env::current_dir().ok()?,
        None => return None,
    };
    let is_log =
        |name: &String| name.starts_with("cufile") && Path::new(name).extension().is_some_and(|end| end == "log");
    let logs = root
        .list(&folder)
        .into_iter()
        .filter(is_log)
        .map(|name| folder.join(name));
    let changed = |path: &PathBuf| fs::metadata(root.reach(path)).and_then(|meta| meta.modified()).ok();
    root.text(logs.max_by_key(changed)?)
}

fn read_me(files: &[BundledFile], keep_names: bool) -> String {
    let mut text = "What the doctor of Straightway saw on this machine.\n\n".to_owned();
    for file in files {
        writeln!(text, "{:<30} {}", file.name, file.what).expect("writes to a string cannot fail");
    }
    let names = if keep_names {
        "Names of hosts and users, and addresses, were kept, as asked for."
    } else {
        "Names of hosts and users, and IPv4 addresses, are replaced by numbers (host-1, user-1, address-1)."
    };
    text + "\nKeys, tokens and passwords are replaced by [masked]. " + names + "\n" + SENDING
}

/// What to do with a bundle.
pub const SENDING: &str = "\
Look through the files before you send them: masks know common forms of secrets, not all of them.
To send the bundle, attach it to an issue in the project's issue tracker.
";

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::doctor::{DoctorRequest, Measurements, diagnose};

    const PLANTED: &[&str] = &[
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "AKIAIOSFODNN7EXAMPLE",
        "hf_PlantedTokenOfTheHub1234567890",
        "planted-password",
        "planted.token.value",
        "trainer7",
        "alice",
        "10.20.30.40",
    ];

    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for manifest in [
            include_str!("../../fixtures/virtual-machine.txt"),
            include_str!("../../fixtures/h200-vm.txt"),
        ] {
            straightway_standin::expand(manifest, folder.path()).unwrap();
        }
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&path);
            fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/hostname", "trainer7\n");
        write("etc/passwd", "alice:x:1001:1001::/home/alice:/bin/sh\n");
        write("proc/driver/nvidia-fs/stats", "Ops : Read=5 on trainer7\n");
        write(
            "proc/cmdline",
            "root=/dev/vda rd.luks.password=planted-password quiet\n",
        );
        write(
            "etc/cufile.json",
            "{ \"logging\": { \"dir\": \"/var/log/alice\" }, // hf_PlantedTokenOfTheHub1234567890\n\
             \"api_token\": \"planted.token.value\", \"rdma_dev_addr_list\": [\"10.20.30.40\"] }\n",
        );
        write(
            "var/log/alice/cufile_1_2026.log",
            "ERROR s3 AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY at trainer7\n",
        );
        folder
    }

    fn unpacked(archive: &[u8]) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
        for file in archive.entries().unwrap() {
            let mut file = file.unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            files.insert(file.path().unwrap().display().to_string(), text);
        }
        files
    }

    fn bundle(keep_names: bool) -> BTreeMap<String, String> {
        let machine = machine();
        let root = Root::at(machine.path());
        let environment = BTreeMap::from([
            ("CUFILE_SECRET".to_owned(), "planted-password".to_owned()),
            ("CUDA_VISIBLE_DEVICES".to_owned(), "0".to_owned()),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), PLANTED[0].to_owned()),
        ]);
        let measured = Measurements::default();
        let path = Path::new("/models");
        let request = DoctorRequest {
            root: &root,
            path,
            environment: &environment,
            measured: &measured,
        };
        let bundle = Bundle::of(&BundleRequest {
            root: &root,
            environment: &environment,
            diagnosis: &diagnose(&request),
            counters_before: Some("Ops : Read=4\n"),
            receipts: &["{\"warnings\": [\"from /home/alice/m by s3://k:planted-password@h\"]}".to_owned()],
            version: "9.9",
            keep_names,
        });
        let archive = bundle.archive().unwrap();
        assert!(archive.starts_with(&Bundle::mark()));
        unpacked(&archive)
    }

    #[test]
    fn a_bundle_has_the_facts_and_none_of_the_planted_secrets_and_names() {
        let files = bundle(false);
        let wanted = [
            "README.txt",
            "verdict.txt",
            "diagnosis.json",
            "versions.txt",
            "environment.txt",
            "receipt-1.json",
            "nvidia-fs-stats-before.txt",
            "nvidia-fs-stats-after.txt",
            "cufile.json",
            "cufile.log",
            "kernel-command-line.txt",
        ];
        for name in wanted {
            assert!(
                files.contains_key(&format!("{FOLDER}/{name}")),
                "{name} not in {:?}",
                files.keys()
            );
        }
        for (name, text) in &files {
            for planted in PLANTED {
                assert!(!text.contains(planted), "{planted} in {name}:\n{text}");
            }
        }
        let versions = &files[&format!("{FOLDER}/versions.txt")];
        for fact in ["straightway: 9.9", "kernel: 6.18.44", "580.159.04", "libcufile: 1.15.1"] {
            assert!(versions.contains(fact), "{fact} not in {versions}");
        }
        assert!(files[&format!("{FOLDER}/nvidia-fs-stats-after.txt")].contains("Read=5"));
        assert!(files[&format!("{FOLDER}/environment.txt")].contains("CUDA_VISIBLE_DEVICES=0"));
        let list = &files[&format!("{FOLDER}/README.txt")];
        assert!(list.contains("issue tracker") && list.contains("cufile.log"), "{list}");
    }

    #[test]
    fn names_are_kept_if_asked_for_and_secrets_never() {
        let files = bundle(true);
        let all: String = files.into_values().collect();
        assert!(all.contains("trainer7") && all.contains("10.20.30.40"), "{all}");
        for secret in &PLANTED[..5] {
            assert!(!all.contains(secret), "{secret} in {all}");
        }
    }

    #[test]
    fn the_end_of_a_long_log_begins_with_a_whole_line() {
        let text = format!(
            "token = first\n{}last\n",
            "x".repeat(30).as_str().to_owned().repeat(40_000) + "\n"
        );
        assert_eq!(end_of(&text), "last\n");
    }
}
