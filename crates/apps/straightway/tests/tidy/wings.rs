//! The wings of `crates/`: every crate is in one, and dependencies between wings have one direction.

use std::{collections::BTreeMap, fs};

use crate::{
    assert_none,
    dependencies::names_in,
    files::{files, root},
};

/// The wings that the crates of each wing may depend on, as in `docs/architecture.md`. Tests of any crate may use
/// `test`, and every other wing.
const WINGS: &[(&str, &[&str])] = &[
    ("apps", &["apps", "data", "planner", "base"]),
    ("data", &["data", "base"]),
    ("planner", &["planner", "base"]),
    ("base", &["base"]),
    ("test", &["apps", "data", "planner", "base", "test"]),
];

/// The manifest and the wing of every crate by the crate's name.
fn crates() -> BTreeMap<String, (String, toml::Table)> {
    let mut found = BTreeMap::new();
    for file in files() {
        let Some(folder) = file.strip_prefix("crates/").and_then(|f| f.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let (wing, room) = folder.split_once('/').unwrap_or(("", folder));
        let manifest: toml::Table = toml::from_str(&fs::read_to_string(root().join(&file)).unwrap()).unwrap();
        let name = manifest["package"]["name"].as_str().unwrap().to_owned();
        assert!(
            !room.contains('/') && WINGS.iter().any(|(known, _)| *known == wing),
            "{file} is in no wing"
        );
        assert!(
            name == room || name == format!("straightway-{room}"),
            "{file}: {name} is not the name of its folder"
        );
        found.insert(name, (wing.to_owned(), manifest));
    }
    found
}

/// The dependencies that break the direction between wings.
fn complaints(crates: &BTreeMap<String, (String, toml::Table)>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, (wing, manifest)) in crates {
        let (_, allowed) = WINGS.iter().find(|(known, _)| known == wing).unwrap();
        for used in ["dependencies", "build-dependencies"]
            .iter()
            .flat_map(|table| names_in(manifest, table))
        {
            let target = crates.get(&used).map(|(wing, _)| wing.as_str());
            if target.is_some_and(|target| !allowed.contains(&target)) {
                complaints.push(format!("{name} ({wing}) depends on {used} ({})", target.unwrap()));
            }
        }
    }
    complaints
}

#[test]
fn dependencies_between_wings_point_down() {
    let crates = crates();
    assert!(crates.len() > 25, "only {} crates were found", crates.len());
    assert_none(&complaints(&crates));
}

#[test]
fn a_dependency_between_data_and_planner_is_noticed() {
    let mut crates = crates();
    for (from, to) in [
        ("straightway-io", "straightway-planner"),
        ("straightway-pcie", "straightway-io"),
    ] {
        let (_, manifest) = crates.get_mut(from).unwrap();
        let dependencies = manifest["dependencies"].as_table_mut().unwrap();
        dependencies.insert(to.to_owned(), toml::Value::Boolean(true));
    }
    assert_eq!(complaints(&crates).len(), 2);
}

#[test]
fn the_architecture_names_every_room_of_every_wing() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let missing: Vec<_> = crates()
        .into_keys()
        .map(|name| name.strip_prefix("straightway-").unwrap_or(&name).to_owned())
        .filter(|room| !text.contains(&format!("| `{room}` | ")))
        .collect();
    assert_none(&missing);
}
