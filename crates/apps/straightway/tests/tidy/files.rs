//! The files of the repository.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .canonicalize()
        .unwrap()
}

/// Every tracked file of the checkout, relative to its root; all files without git.
pub(crate) fn files() -> Vec<String> {
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

pub(crate) fn is_rust(file: &str) -> bool {
    has_extension(file, "rs")
}

pub(crate) fn has_extension(file: &str, extension: &str) -> bool {
    Path::new(file).extension().is_some_and(|e| e == extension)
}

pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    files().into_iter().filter(|f| is_rust(f)).filter_map(|f| {
        // A file that was removed but is still tracked cannot be read.
        let text = fs::read_to_string(root().join(&f)).ok()?;
        Some((f, text))
    })
}

/// The code of a file without its tests: items below `#[cfg(test)]` are left out, wherever they are, and the rest is
/// kept, also behind them. Lines keep their numbers.
pub(crate) fn lines_without_tests(text: &str) -> Vec<(usize, &str)> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let mut kept = Vec::new();
    while let Some((number, line)) = lines.next() {
        if line.trim_start() != "#[cfg(test)]" {
            kept.push((number, line));
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_end = |l: &str| l == format!("{indent}}}") || l == format!("{indent}}};");
        // Further attributes of the item come first. It ends at a semicolon, or at the brace with its indentation.
        let first = lines.find(|(_, l)| !l.trim_start().starts_with("#["));
        if first.is_some_and(|(_, l)| !l.ends_with([';', '}']) && !l.ends_with("},")) {
            lines.find(|(_, l)| is_end(l));
        }
    }
    kept
}

#[test]
fn tests_are_left_out_and_what_follows_them_is_kept() {
    let text = "a\n#[cfg(test)]\nuse x;\nb\n#[cfg(test)]\n#[path = \"y\"]\nmod tests {\n    c\n}\nd\n";
    let kept: Vec<_> = lines_without_tests(text).into_iter().map(|(_, line)| line).collect();
    assert_eq!(kept, ["a", "b", "d"]);
}
