//! The form of the code: lengths, names, documentation, unsafe blocks.

use std::{collections::BTreeMap, fs, path::Path};

use crate::{
    assert_none,
    files::{files, is_rust, lines_without_tests, root, sources},
};

/// The maximum number of lines of a file without its tests.
const FILE_LINES_MAX: usize = 500;

/// The maximum number of lines of a function: one screen.
const FUNCTION_LINES_MAX: usize = 70;

#[test]
fn files_and_functions_are_short() {
    let mut complaints = Vec::new();
    for (file, text) in sources() {
        let lines = lines_without_tests(&text);
        let is_test = file.contains("/tests") || file.contains("/fixtures");
        if lines.len() > FILE_LINES_MAX && !is_test {
            complaints.push(format!("{file}: {} lines without its tests", lines.len()));
        }
        for (index, (number, line)) in lines.iter().enumerate() {
            if !is_function(line) || is_test {
                continue;
            }
            let indent: String = line.chars().take_while(|c| *c == ' ').collect();
            let close = format!("{indent}}}");
            let length = lines[index..].iter().position(|(_, l)| *l == close).unwrap_or(0);
            if length > FUNCTION_LINES_MAX {
                complaints.push(format!("{file}:{number}: {length} lines: {}", line.trim()));
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
        let lines = lines_without_tests(&text);
        for name in lines.iter().filter_map(|(_, line)| public_type(line)) {
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
    let allowed = [
        "crates/base/sys/",
        "crates/test/standin/",
        "crates/apps/python/",
        "fuzz/",
    ];
    let mut complaints = Vec::new();
    for (file, text) in sources() {
        let has = text.lines().any(|l| {
            let code = l.trim_start();
            !code.starts_with("//")
                && (code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl"))
        });
        if has && !allowed.iter().any(|a| file.starts_with(a)) && !file.ends_with("tidy/code.rs") {
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
