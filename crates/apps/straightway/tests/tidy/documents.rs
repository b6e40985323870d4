//! Documents: they exist, their links are valid, and they name every field of a receipt.

use std::{fs, path::Path};

use crate::{
    assert_none,
    files::{files, root},
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
