//! Documents: they exist, their links are valid, and they name every field of a receipt.

use std::fs;

use crate::{
    assert_none,
    files::{files, has_extension, root},
};

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
        "Containerfile",
        "mkdocs.yml",
        "docs/README.md",
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
    for file in files().into_iter().filter(|f| has_extension(f, "md")) {
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

#[test]
fn the_store_in_the_guide_is_the_tested_one_and_short() {
    let guide = fs::read_to_string(root().join("docs/adding-a-store.md")).unwrap();
    let store = fs::read_to_string(root().join("crates/test/memory/src/lib.rs")).unwrap();
    let shown = guide
        .split("```rust\n")
        .nth(1)
        .and_then(|rest| rest.split("```\n").next());
    assert!(
        shown == Some(store.as_str()),
        "copy crates/test/memory/src/lib.rs into docs/adding-a-store.md"
    );
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let lines = store.lines().filter(is_code).count();
    assert!(lines < 200, "{lines} lines of code");
}

#[test]
fn the_files_in_the_table_of_changes_exist() {
    let guide = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let table = guide.split("| to change | edit | then |").nth(1).unwrap();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|')).skip(1);
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() >= 10, "{rows:?}");
    let words = rows.iter().flat_map(|row| row.split('`').skip(1).step_by(2));
    // A path has a slash and no blank; the rest are commands and names.
    let paths = words.filter(|word| word.contains('/') && !word.contains(' '));
    let missing = paths.filter(|path| !root().join(path).exists());
    assert_none(
        &missing
            .map(|path| format!("CONTRIBUTING.md: {path}"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn the_readme_names_the_version() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(readme.contains(&format!("version {version}")), "{version}");
}

#[test]
fn every_page_is_in_the_navigation_of_the_site() {
    let navigation = fs::read_to_string(root().join("mkdocs.yml")).unwrap();
    let pages = files()
        .into_iter()
        .filter_map(|file| Some(file.strip_prefix("docs/")?.to_owned()));
    let missing = pages.filter(|page| has_extension(page, "md") && !navigation.contains(&format!(": {page}\n")));
    assert_none(&missing.collect::<Vec<_>>());
}
