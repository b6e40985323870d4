//! Names that attack the terminal: no command prints control characters or bidirectional marks of the name of a file, a
//! tensor or a scenario.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use straightway_checkpoint::{CheckpointSaver, Rank, SaveSource, SaverOptions, Steps, fresh_run};
use straightway_core::text::is_unsafe;
use straightway_io::{Executor, Settings};
use straightway_weights::{Dtype, Shape};

use crate::test_dir::{Ran, TestDir, noise};

/// Sets the title, clears the screen, forges a line, reverses text, hides characters, in all encodings.
const NAMES: [&str; 6] = [
    "a\x1b]0;owned\x07b",
    "c\x1b[2J\x1b[31md",
    "e\nerror: forged\r\nhint: run this",
    "f\u{9b}2Jg\u{7f}\u{85}h",
    "txt.\u{202e}gpj\u{2066}i\u{200f}\u{61c}",
    "j\u{200b}k\u{feff}\u{2028}l\u{e0041}",
];

/// Fails if a byte of the output would act on a terminal. Line feeds are allowed if no name caused them.
#[track_caller]
fn assert_harmless(ran: &Ran, what: &[impl AsRef<OsStr> + std::fmt::Debug]) {
    assert!(ran.code.is_some_and(|code| code <= 2), "{what:?}: {ran:?}");
    for text in [&ran.out, &ran.err] {
        let text = text.replace("\r\n", "\n");
        let bad = text.chars().find(|c| *c != '\n' && is_unsafe(*c));
        assert_eq!(bad, None, "{what:?}: {text:?}");
        let forged = text
            .lines()
            .any(|line| line.starts_with("error: forged") || line.starts_with("hint: run this"));
        assert!(!forged, "{what:?}: {text}");
    }
}

#[track_caller]
fn run(dir: &TestDir, args: &[&str]) -> Ran {
    let ran = dir.run(args);
    assert_harmless(&ran, args);
    ran
}

/// A model whose tensors, metadata and file have such names.
fn model(path: &Path) {
    let mut header = serde_json::Map::new();
    let metadata: serde_json::Map<_, _> = NAMES.iter().map(|name| (name.to_string(), (*name).into())).collect();
    header.insert("__metadata__".into(), metadata.into());
    for (number, name) in NAMES.iter().enumerate() {
        let entry = serde_json::json!({
            "dtype": "U8", "shape": [4096], "data_offsets": [number * 4096, (number + 1) * 4096],
        });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::to_string(&header).unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&noise(NAMES.len() * 4096, 7));
    fs::write(path, bytes).unwrap();
}

#[test]
fn no_name_of_a_file_or_tensor_reaches_the_terminal() {
    let dir = TestDir::new();
    for (number, name) in NAMES.iter().enumerate() {
        let file = format!("{name}.safetensors");
        model(&dir.path(&file));
        let broken = format!("{name}.broken.safetensors");
        fs::write(dir.path(&broken), b"no header").unwrap();
        let target = format!("{name}.copy-{number}");
        let made = run(&dir, &["inspect", &file]);
        assert_eq!(made.code, Some(0), "{}", made.err);
        let said = run(&dir, &["inspect", &file, "--json"]);
        let told: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let names: Vec<_> = told["tensors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t["name"].as_str().unwrap())
            .collect();
        assert!(
            NAMES.iter().all(|name| names.contains(name)),
            "JSON says every name as it is"
        );
        for args in [
            &["inspect", &file, "--csv"][..],
            &["inspect", &file, "--html", &format!("{target}.html")],
            &["inspect", &file, "--filter", name],
            &["inspect", &broken],
            &["inspect", name],
            &["load", &file, "--verify"],
            &["load", &file, "--json"],
            &["load", &file, "--slice", &format!("{name}=9:9")],
            &["load", &broken],
            &["copy", &file, &target, "--verify"],
            &["copy", &file, &target, "--json"],
            &["copy", &file, &file],
            &["copy", name, &target],
            &["copy", &file, "host:"],
            &["rewrite", &file, &format!("{target}-rewritten")],
            &["rewrite", &broken, &format!("{target}-rewritten-too")],
            &["bench", name],
            &["doctor", name],
            &["doctor", &file],
            &["checkpoint", "ls", name],
            &["plan", name],
            &["sim", "pcie", "--scenario", name],
            &["--", name],
            &[&format!("--{name}")],
        ] {
            run(&dir, args);
        }
        let html = fs::read_to_string(dir.path(format!("{target}.html"))).unwrap();
        assert!(!html.contains(|c| c != '\n' && is_unsafe(c)));
    }
    let folder: Vec<_> = NAMES.iter().map(|name| format!("{name}.safetensors")).collect();
    fs::create_dir(dir.path("folder")).unwrap();
    for file in &folder {
        fs::copy(dir.path(file), dir.path("folder").join(file)).unwrap();
    }
    let listed = run(&dir, &["ls", "folder", "--json"]);
    assert_eq!(listed.out.lines().count(), NAMES.len(), "{}", listed.out);
    for line in listed.out.lines() {
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(
            folder
                .iter()
                .any(|name| object["name"].as_str().unwrap().ends_with(name))
        );
    }
    // Two files with one tensor: the error names both.
    run(&dir, &["load", "folder"]);
}

#[test]
fn a_file_name_that_is_not_utf_8_is_escaped() {
    let dir = TestDir::new();
    let name = OsStr::from_bytes(b"\xff\xfe\x1b[2J\x80.safetensors");
    model(&dir.path(name));
    for command in ["inspect", "load", "doctor"] {
        let args = [OsStr::new(command), name];
        assert_harmless(&dir.run(args), &args);
    }
    let args = [OsStr::new("copy"), name, OsStr::from_bytes(b"\xff\x9b2J")];
    assert_harmless(&dir.run(args), &args);
}

#[test]
fn no_name_in_a_checkpoint_reaches_the_terminal() {
    let dir = TestDir::new();
    let store = Steps::create(&dir.path("run")).unwrap();
    let executor = Arc::new(Executor::new(Settings::default()).unwrap());
    let alone = Rank { rank: 0, world: 1 };
    let mut saver = CheckpointSaver::new(store, alone, &fresh_run(), executor, SaverOptions::default()).unwrap();
    for step in [1, 2] {
        let bytes = noise(4096, step);
        let shape = || Shape::from(&[4096][..]);
        let state = NAMES
            .iter()
            .map(|name| SaveSource::whole(name, Dtype::U8, shape(), &bytes));
        let opaque = format!("{}.opaque", NAMES[1]);
        let state: Vec<_> = state.chain([SaveSource::opaque(&opaque, b"1")]).collect();
        let metadata = serde_json::json!({ NAMES[0]: NAMES[1] }).to_string();
        saver.save(step, &state, &metadata).unwrap();
        saver.wait().unwrap();
    }
    for name in NAMES {
        for args in [
            &["checkpoint", "tag", "run", "1", name, "--remove"][..],
            &["checkpoint", "tag", "run", "1", name],
            &["checkpoint", "ls", "run"],
            &["checkpoint", "ls", "run", "--json"],
            &["checkpoint", "ls", "run", "--csv"],
            &["checkpoint", "diff", "run", "1", "2"],
            &["checkpoint", "diff", "run", "1", "2", "--json"],
            &["checkpoint", "verify", "run"],
            &["checkpoint", "restore", "run"],
            &["checkpoint", "export", "run", name],
            &["checkpoint", "prune", "run", "--keep", "1", "--dry-run"],
            &["checkpoint", "prune", name, "--keep", "1"],
        ] {
            run(&dir, args);
        }
    }
    let said = run(&dir, &["checkpoint", "diff", "run", "1", "2"]);
    assert!(said.out.contains(r"\u{1b}]0;owned"), "{}", said.out);
    // A damaged shard: the damage is reported by tensor.
    let shard = fs::read_dir(dir.path("run/step-2")).unwrap().flatten();
    let shard = shard
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains("rank-"))
        .unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..].iter_mut().for_each(|byte| *byte ^= 1);
    fs::write(&shard, bytes).unwrap();
    for command in ["verify", "restore"] {
        run(&dir, &["checkpoint", command, "run"]);
    }
}

#[test]
fn no_text_of_a_scenario_reaches_the_terminal() {
    let dir = TestDir::new();
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
    let commands = [
        ("article-50tb", &["plan", "checkpoint"][..]),
        ("multi-rail", &["plan", "rail"]),
        ("pcie-article-1gpu", &["sim", "pcie"]),
        ("fabric-microburst", &["sim", "fabric"]),
    ];
    for name in NAMES {
        let escape = |c: char| format!("\\U{:08X}", u32::from(c));
        let quoted: String = name.chars().map(escape).collect();
        let quoted = format!("\"{quoted}\"");
        for (file, command) in commands {
            let text = fs::read_to_string(scenarios.join(format!("{file}.toml"))).unwrap();
            // Every title, claim and source; then a refused name; then an unknown key.
            let strings = ["title", "says", "why", "source"];
            let hostile: String = text
                .lines()
                .map(|line| match line.split_once(" = ") {
                    Some((key, _)) if strings.contains(&key) => format!("{key} = {quoted}\n"),
                    _ => format!("{line}\n"),
                })
                .collect();
            let refused = format!("{hostile}\n[{quoted}]\nx = {quoted}\n");
            let unknown = format!("{quoted} = {quoted}\n{hostile}");
            let broken = format!("{name} = \n{hostile}");
            for (number, text) in [&hostile, &refused, &unknown, &broken].into_iter().enumerate() {
                let path = format!("{name}-{number}.toml");
                fs::write(dir.path(&path), text).unwrap();
                for form in [
                    &[][..],
                    &["--json"],
                    &["--csv"],
                    &["--basis"],
                    &["--html", "report.html"],
                ] {
                    let ran = run(&dir, &[command, &["--scenario", &path], form].concat());
                    assert_eq!(ran.code == Some(2), number > 0, "{file} {number}: {}", ran.err);
                }
                fs::remove_file(dir.path(&path)).unwrap();
            }
        }
        run(&dir, &["plan", "checkpoint", "--set", name]);
        run(&dir, &["plan", "checkpoint", "--set", &format!("cluster.gpus={name}")]);
        run(&dir, &["plan", "checkpoint", "--sweep", name]);
    }
}

#[test]
fn no_text_of_a_captured_machine_reaches_the_terminal() {
    let dir = TestDir::new();
    for (number, name) in NAMES.iter().enumerate() {
        let root = format!("machine-{number}");
        for (path, text) in [
            ("proc/version", *name),
            ("proc/mounts", &format!("/dev/{name} / ext4 rw,data={name} 0 0\n")),
            (
                "proc/self/mountinfo",
                &format!("1 0 8:1 / / rw - ext4 /dev/sda1 rw,data={name}\n"),
            ),
            ("proc/driver/nvidia/version", name),
            (
                "proc/modules",
                &format!("{name} 1 1 - Live 0x0\nnvidia_fs 1 1 - Live 0x0\n"),
            ),
            ("etc/os-release", &format!("PRETTY_NAME=\"{name}\"\nID={name}\n")),
            ("etc/cufile.json", &format!("{{\"{name}\": 1 \"x\"}}")),
        ] {
            let path = dir.path(&root).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        run(&dir, &["doctor", "--root", &root]);
        run(&dir, &["doctor", "--root", &root, "--verbose"]);
        run(&dir, &["doctor", "--root", &root, "--json"]);
    }
}
