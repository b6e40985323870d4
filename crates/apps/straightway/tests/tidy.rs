//! Rules of the repository that the compiler does not check.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The maximum number of lines of a file before its tests.
const FILE_LINES_MAX: usize = 500;

/// The maximum number of lines of a function: one screen.
const FUNCTION_LINES_MAX: usize = 70;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .canonicalize()
        .unwrap()
}

/// Every tracked file of the checkout, relative to its root; all files without git.
fn files() -> Vec<String> {
    let listed = Command::new("git").args(["ls-files"]).current_dir(root()).output();
    match listed {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect(),
        _ => walk(&root(), ""),
    }
}

fn walk(folder: &Path, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name == "target" || name.starts_with('.') {
            continue;
        }
        let path = format!("{prefix}{name}");
        if entry.path().is_dir() {
            found.extend(walk(&entry.path(), &format!("{path}/")));
        } else {
            found.push(path);
        }
    }
    found
}

fn is_rust(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|e| e == "rs")
}

fn sources() -> impl Iterator<Item = (String, String)> {
    files().into_iter().filter(|f| is_rust(f)).filter_map(|f| {
        // A file that was removed but is still tracked cannot be read.
        let text = fs::read_to_string(root().join(&f)).ok()?;
        Some((f, text))
    })
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn files_and_functions_are_short() {
    let mut complaints = Vec::new();
    for (file, text) in sources() {
        let lines: Vec<_> = text.lines().take_while(|l| *l != "#[cfg(test)]").collect();
        let is_test = file.contains("/tests") || file.contains("/fixtures");
        if lines.len() > FILE_LINES_MAX && !is_test {
            complaints.push(format!("{file}: {} lines before its tests", lines.len()));
        }
        for (number, line) in lines.iter().enumerate() {
            if !is_function(line) || is_test {
                continue;
            }
            let indent: String = line.chars().take_while(|c| *c == ' ').collect();
            let close = format!("{indent}}}");
            let length = lines[number..].iter().position(|l| *l == close).unwrap_or(0);
            if length > FUNCTION_LINES_MAX {
                complaints.push(format!("{file}:{}: {length} lines: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none(&complaints);
}

/// Whether a line begins a function with a body.
fn is_function(line: &str) -> bool {
    let words: Vec<_> = line.split_whitespace().take(5).collect();
    let before_fn = words.iter().take_while(|w| **w != "fn");
    let is_qualifier =
        |w: &&str| w.starts_with("pub") || matches!(*w, "const" | "unsafe" | "extern" | "\"C\"" | "async");
    words.contains(&"fn") && before_fn.into_iter().all(is_qualifier) && !line.ends_with(';')
}

/// The heading in the architecture below which a table gives the reason for each public name with two definitions.
const DEFINED_TWICE: &str = "## Names that are defined twice";

#[test]
fn a_public_type_name_is_defined_once() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, text) in sources() {
        if !file.starts_with("crates/") || !file.contains("/src/") || file.contains("/tests") {
            continue;
        }
        let lines = text.lines().take_while(|l| *l != "#[cfg(test)]");
        for name in lines.filter_map(public_type) {
            places.entry(name.to_owned()).or_default().push(file.clone());
        }
    }
    let architecture = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (_, reasons) = architecture.split_once(DEFINED_TWICE).unwrap();
    let reasons = reasons.split("\n## ").next().unwrap();
    let rows: Vec<_> = reasons.lines().filter(|l| l.starts_with("| `")).collect();
    let has_reason = |name: &str| {
        let named = format!("`{name}`");
        rows.iter().any(|row| row.split('|').nth(1).unwrap().contains(&named))
    };
    let complaints: Vec<_> = places
        .iter()
        .filter(|(name, files)| files.len() > 1 && !has_reason(name))
        .map(|(name, files)| format!("{name} is defined in {}", files.join(", ")))
        .collect();
    assert_none(&complaints);
}

/// The name of the public type that a line defines. `pub(crate)` types are not public.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (keyword, rest) = rest.split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "type", "union"].contains(&keyword);
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    is_type.then(|| &rest[..end.unwrap_or(rest.len())])
}

#[test]
fn every_file_begins_with_documentation() {
    let missing = |(file, text): (String, String)| {
        let says = text.starts_with("//!") || text.starts_with("#!");
        (!says).then(|| format!("{file}: no `//!` on its first line"))
    };
    assert_none(&sources().filter_map(missing).collect::<Vec<_>>());
}

#[test]
fn no_file_or_module_has_a_meaningless_name() {
    let banned = ["utils", "util", "common", "helpers", "helper", "prelude", "misc", "mod"];
    let is_banned = |f: &String| {
        let stem = Path::new(f)
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        is_rust(f) && banned.contains(&stem.as_str())
    };
    assert_none(&files().into_iter().filter(is_banned).collect::<Vec<_>>());
}

#[test]
fn no_file_has_marks_of_unfinished_work() {
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
    ];
    let mut complaints = Vec::new();
    for (file, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) {
                complaints.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn unsafe_code_is_only_in_permitted_crates() {
    let allowed = ["crates/base/sys/", "crates/test/standin/", "crates/apps/python/", "fuzz/"];
    let mut complaints = Vec::new();
    for (file, text) in sources() {
        let has = text.lines().any(|l| {
            let code = l.trim_start();
            !code.starts_with("//")
                && (code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl"))
        });
        if has && !allowed.iter().any(|a| file.starts_with(a)) && !file.ends_with("tidy.rs") {
            complaints.push(file);
        }
    }
    assert_none(&complaints);
}

#[test]
fn only_lanes_and_engines_submit_ios() {
    let allowed = [
        "data/io/src/lane",
        "data/io/src/engine",
        "data/io/src/wrapper",
        "data/cache/src/engine",
        "base/sys/src/uring",
        // Benchmarks of the stages of a route, without lanes.
        "data/probe/src/bench/stage",
    ];
    let is_source = |file: &str| file.contains("/src/") && !file.contains("test");
    let mut complaints = Vec::new();
    for (file, text) in sources().filter(|(file, _)| is_source(file)) {
        let is_allowed = allowed.iter().any(|a| file.starts_with(&format!("crates/{a}")));
        if text.contains(".submit(") && !is_allowed {
            complaints.push(file);
        }
    }
    assert_none(&complaints);
}

/// The crates that `package` depends on, according to cargo.
fn dependencies(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "-p", package, "-e", "normal", "--prefix", "none"])
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

/// Crates that perform I/O. The cluster planner, the simulators and the pages are pure.
const IO: &[&str] = &["libc", "sys", "io", "pipeline", "probe", "tokio", "cudarc"];

/// Crates that plan and simulate. The I/O path does not depend on them. scenario <- pcie, fabric <- planner <- view.
const PLANNING: &[&str] = &["scenario", "pcie", "fabric", "planner", "view"];

/// The crates that each crate must not depend on. Names are those of this workspace's crates (without prefix) or of
/// external ones.
const FORBIDDEN: &[(&str, &[&[&str]])] = &[
    ("core", &[&["rustix"], IO, PLANNING]),
    ("scenario", &[&["report"], IO, PLANNING]),
    ("pcie", &[&["report", "fabric", "planner", "view"], IO]),
    ("fabric", &[&["report", "pcie", "planner", "view"], IO]),
    ("planner", &[&["report", "view"], IO]),
    // The width of a terminal comes from libc.
    ("view", &[&["cli", "sys", "io", "pipeline", "probe", "tokio", "cudarc"]]),
    (
        "report",
        &[&["sys", "io", "pipeline", "probe", "tokio", "cudarc"], PLANNING],
    ),
    ("sys", &[&["io", "probe", "tokio"], PLANNING]),
    // io <- net <- the stores on web servers.
    ("io", &[&["net", "pipeline", "probe", "tokio"], PLANNING]),
    ("net", &[&["https", "s3", "pipeline", "tokio"], PLANNING]),
    ("https", &[&["pipeline", "webserver", "tokio"], PLANNING]),
    ("s3", &[&["https", "lab", "pipeline", "webserver", "tokio"], PLANNING]),
    ("cache", &[&["https", "s3", "pipeline", "webserver", "tokio"], PLANNING]),
    ("nvme", &[&["rustix"], IO, PLANNING]),
    ("nvme-host", &[&["nvme-target", "lab", "pipeline", "tokio"], PLANNING]),
    ("nvme-target", &[&["nvme-host", "lab", "pipeline", "tokio"], PLANNING]),
    ("pipeline", &[&["probe", "cli"], PLANNING]),
    // The store in memory is for tests.
    ("cli", &[&["memory"]]),
];

#[test]
fn dependencies_point_in_one_direction() {
    let mut complaints = Vec::new();
    for (package, forbidden) in FORBIDDEN {
        let found = dependencies(&format!("straightway-{package}"));
        let names = forbidden.iter().copied().flatten().filter(|name| *name != package);
        for name in names {
            if found.contains(*name) || found.contains(&format!("straightway-{name}")) {
                complaints.push(format!("{package} depends on {name}"));
            }
        }
    }
    assert_none(&complaints);
}

/// The names in a table of a `Cargo.toml`.
fn names_in(manifest: &toml::Table, table: &str) -> Vec<String> {
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

#[test]
fn standard_files_exist() {
    let wanted = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "deny.toml",
        "Cargo.lock",
        "docs/architecture.md",
        "docs/receipt.md",
        "docs/security.md",
        ".ci/run",
    ];
    let missing: Vec<_> = wanted
        .iter()
        .filter(|f| !root().join(f).exists())
        .map(|f| (*f).to_owned())
        .collect();
    assert_none(&missing);
}

#[test]
fn links_in_the_documents_are_valid() {
    let mut complaints = Vec::new();
    for file in files()
        .into_iter()
        .filter(|f| Path::new(f).extension().is_some_and(|e| e == "md"))
    {
        let Ok(text) = fs::read_to_string(root().join(&file)) else {
            continue;
        };
        let folder = root().join(&file).parent().unwrap().to_owned();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#', ' ']).next())
        {
            let outside = link.contains("://") || link.is_empty();
            if !outside && !folder.join(link).exists() {
                complaints.push(format!("{file}: {link}"));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn every_field_of_the_receipt_is_documented() {
    let text = fs::read_to_string(root().join("docs/receipt.md")).unwrap();
    let source = fs::read_to_string(root().join("crates/base/core/src/receipt.rs")).unwrap();
    let field = |l: &str| Some(l.trim().strip_prefix("pub ")?.split_once(':')?.0.to_owned());
    let undocumented: Vec<_> = source
        .lines()
        .filter_map(field)
        .filter(|f| !f.contains(' ') && !text.contains(&format!("`{f}`")))
        .collect();
    assert_none(&undocumented);
}
