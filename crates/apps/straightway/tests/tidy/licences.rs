//! Licences and sources of dependencies, by the lists in `deny.toml`. `make audit` checks more, with cargo-deny.

use std::{fs, process::Command};

use serde_json::Value;

use crate::{assert_none, files::root};

/// All packages that the workspace of a manifest depends on, according to cargo. An error is what cargo printed.
fn packages(manifest: &str) -> Result<Vec<Value>, String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--locked",
            "--format-version=1",
            "--filter-platform=x86_64-unknown-linux-gnu",
        ])
        .args(["--manifest-path", manifest])
        .current_dir(root())
        .output()
        .unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    Ok(metadata["packages"].as_array().unwrap().clone())
}

/// The licences that `deny.toml` allows.
fn allowed() -> Vec<String> {
    let rules: toml::Table = toml::from_str(&fs::read_to_string(root().join("deny.toml")).unwrap()).unwrap();
    let list = rules["licenses"]["allow"].as_array().unwrap();
    list.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Whether an SPDX expression can be satisfied by allowed licences: `AND` binds more strongly than `OR`.
fn is_satisfied(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let is_allowed = either(&mut rest, allowed);
    is_allowed && rest.is_empty()
}

fn either(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut is_allowed = both(words, allowed);
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        is_allowed |= both(words, allowed);
    }
    is_allowed
}

fn both(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut is_allowed = one(words, allowed);
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        is_allowed &= one(words, allowed);
    }
    is_allowed
}

fn one(words: &mut &[&str], allowed: &[String]) -> bool {
    let Some((first, rest)) = words.split_first() else {
        return false;
    };
    *words = rest;
    if *first == "(" {
        let inner = either(words, allowed);
        let is_closed = words.first() == Some(&")");
        *words = words.get(1..).unwrap_or_default();
        return inner && is_closed;
    }
    let mut name = (*first).to_owned();
    if let ["WITH", exception, rest @ ..] = rest {
        name = format!("{name} WITH {exception}");
        *words = rest;
    }
    allowed.contains(&name)
}

#[test]
fn expressions_of_licences_are_evaluated() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
    for (expression, wanted) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("GPL-3.0 OR MIT AND GPL-2.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("MIT ISC", false),
        ("(MIT", false),
        ("", false),
    ] {
        assert_eq!(is_satisfied(expression, &allowed), wanted, "{expression}");
    }
}

#[test]
fn dependencies_have_allowed_licences_and_known_sources() {
    let allowed = allowed();
    let mut complaints = Vec::new();
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let packages = match packages(manifest) {
            Ok(packages) => packages,
            Err(why) if manifest != "Cargo.toml" && !why.contains("lock file") => {
                println!("left out: the dependencies of {manifest} cannot be fetched");
                continue;
            }
            Err(why) => {
                complaints.push(format!("{manifest}: {why}"));
                continue;
            }
        };
        for package in packages {
            // A package of this repository has no source.
            let Some(source) = package["source"].as_str() else {
                continue;
            };
            let name = package["name"].as_str().unwrap();
            let licence = package["license"].as_str().unwrap_or_default();
            if !source.starts_with("registry+") || !is_satisfied(licence, &allowed) {
                complaints.push(format!("{manifest}: {name}: licence {licence:?}, source {source}"));
            }
        }
    }
    assert_none(&complaints);
}
