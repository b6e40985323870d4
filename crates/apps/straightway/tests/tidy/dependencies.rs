//! Dependencies: each is used, and those between rooms point in one direction.

use std::{collections::BTreeSet, fs, process::Command};

use crate::{
    assert_none,
    files::{files, root, sources},
};

/// The crates that `package` depends on, according to cargo; those of the Python package without its features.
fn dependencies(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "-p", package, "-e", "normal", "--prefix", "none"])
        .args((package == "straightway-python").then_some("--no-default-features"))
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter_map(|l| l.split(' ').next())
        .map(str::to_owned)
        .collect()
}

/// What pure crates must not depend on: interfaces to the system.
const SYSTEM: &[&str] = &["libc", "rustix", "cudarc"];

/// The crates that each crate must not depend on, within its wing or outside this workspace. Names of this workspace's
/// crates are without prefix. `wings.rs` has the rules between wings.
const FORBIDDEN: &[(&str, &[&[&str]])] = &[
    ("core", &[&["sys", "report"], SYSTEM]),
    // The width of a terminal comes from libc.
    ("report", &[&["sys"]]),
    ("sys", &[&["report"]]),
    ("scenario", &[&["report"], SYSTEM]),
    ("pcie", &[&["report", "fabric"], SYSTEM]),
    ("fabric", &[&["report", "pcie"], SYSTEM]),
    ("planner", &[&["report", "view"], SYSTEM]),
    // io <- net <- the stores on web servers.
    ("io", &[&["net", "probe", "stores"]]),
    ("net", &[&["https", "s3"]]),
    ("s3", &[&["https"]]),
    ("cache", &[&["https", "s3"]]),
    ("nvme", &[&["io", "sys"], SYSTEM]),
    ("nvme-host", &[&["nvme-target"]]),
    ("nvme-target", &[&["nvme-host", "io"]]),
    ("copy", &[&["weights", "checkpoint", "probe", "net", "stores"]]),
    ("weights", &[&["copy", "checkpoint", "probe", "net", "stores"]]),
    ("checkpoint", &[&["copy", "probe", "net", "stores"]]),
    ("kv", &[&["copy", "weights", "checkpoint", "probe", "net", "stores"]]),
    ("stores", &[&["copy", "weights", "checkpoint", "nvme-target"]]),
    // `sys` tests with it.
    ("lab", &[&["io", "sys"]]),
    ("straightway", &[&["cli", "python", "planner"]]),
    // The command is a feature of the Python package.
    (
        "python",
        &[&["cli", "planner", "pcie", "fabric", "scenario", "view", "nvme-target"]],
    ),
];

#[test]
fn dependencies_point_in_one_direction() {
    let mut complaints = Vec::new();
    for (room, forbidden) in FORBIDDEN {
        let package = if *room == "straightway" {
            (*room).to_owned()
        } else {
            format!("straightway-{room}")
        };
        let found = dependencies(&package);
        for name in forbidden.iter().copied().flatten() {
            if found.contains(*name) || found.contains(&format!("straightway-{name}")) {
                complaints.push(format!("{room} depends on {name}"));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn nothing_depends_on_an_asynchronous_runtime() {
    assert!(!dependencies("straightway-cli").contains("tokio"));
}

/// The names in a table of a `Cargo.toml`.
pub(crate) fn names_in(manifest: &toml::Table, table: &str) -> Vec<String> {
    let table = manifest.get(table).and_then(toml::Value::as_table);
    table.into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

/// The name of a package in code, where it is not the package's own.
const LIBRARIES: &[(&str, &str)] = &[("md-5", "md5"), ("rust-ini", "ini")];

#[test]
fn every_dependency_is_used() {
    let read = |file: &str| -> toml::Table { toml::from_str(&fs::read_to_string(root().join(file)).unwrap()).unwrap() };
    let mut complaints = Vec::new();
    let mut used = BTreeSet::new();
    for file in files() {
        let Some(folder) = file.strip_suffix("/Cargo.toml").filter(|f| f.starts_with("crates/")) else {
            continue;
        };
        let manifest = read(&file);
        let code: String = sources()
            .filter(|(f, _)| f.starts_with(&format!("{folder}/")))
            .map(|(_, text)| text)
            .collect();
        for name in ["dependencies", "dev-dependencies", "build-dependencies"]
            .iter()
            .flat_map(|table| names_in(&manifest, table))
        {
            let library = LIBRARIES.iter().find(|(package, _)| *package == name);
            let library = library.map_or_else(|| name.replace('-', "_"), |(_, library)| (*library).to_owned());
            if !code
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .any(|word| word == library)
            {
                complaints.push(format!("{file}: {name}"));
            }
            used.insert(name);
        }
    }
    let workspace = read("Cargo.toml");
    let shared = workspace["workspace"].as_table().unwrap();
    let shared = names_in(shared, "dependencies")
        .into_iter()
        .filter(|name| !used.contains(name));
    complaints.extend(shared.map(|name| format!("Cargo.toml: {name}")));
    assert_none(&complaints);
}
