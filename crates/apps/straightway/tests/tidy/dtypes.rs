//! Python's tables of dtypes have every dtype of the Rust table, or a reason why not.

use std::fs;

use crate::{assert_none, files::root};

/// A table in the Python package: its file, its name, and the dtypes that it lacks on purpose.
struct DtypeTable {
    file: &'static str,
    name: &'static str,
    without: &'static [&'static str],
}

const TABLES: &[DtypeTable] = &[
    DtypeTable {
        file: "_container.py",
        name: "_ORDER",
        without: &[],
    },
    // No library has tensors of these.
    DtypeTable {
        file: "_saving.py",
        name: "DTYPE_NAMES",
        without: &["F6_E2M3", "F6_E3M2"],
    },
    // NumPy has no BF16; the next two tables add it. F4 has two elements in a byte, and its own code.
    DtypeTable {
        file: "_framework.py",
        name: "_TORCH_NAMES _NUMPY_NAMES",
        without: &["BF16", "F4", "F6_E2M3", "F6_E3M2"],
    },
    // Integers and BOOL are converted by their width. Values of the others are scales or have no infinities: they are
    // never converted without `cast=True`.
    DtypeTable {
        file: "_conversion.py",
        name: "_FLOATS",
        without: &[
            "BOOL",
            "C64",
            "F4",
            "F6_E2M3",
            "F6_E3M2",
            "F8_E4M3FNUZ",
            "F8_E5M2FNUZ",
            "F8_E8M0",
            "I16",
            "I32",
            "I64",
            "I8",
            "U16",
            "U32",
            "U64",
            "U8",
        ],
    },
];

/// The names in the Rust table, in its order.
fn rust_names() -> Vec<String> {
    let text = fs::read_to_string(root().join("crates/data/weights/src/dtype.rs")).unwrap();
    let rows = text
        .split("dtypes! {")
        .nth(1)
        .and_then(|rest| rest.split('}').next())
        .unwrap();
    let name = |row: &str| Some(row.split('"').nth(1)?.to_owned());
    rows.lines().filter_map(name).collect()
}

/// The words in a Python table that could be dtypes, in its order.
fn python_names(file: &str, table: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("crates/apps/python/python/straightway").join(file)).unwrap();
    let start = format!("\n{table} = ");
    let body = text
        .split(&start)
        .nth(1)
        .unwrap_or_else(|| panic!("{file} has no {table}"));
    let end = if body.starts_with('{') { "\n}" } else { ")." };
    let body = body.split(end).next().unwrap();
    let words = body.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_uppercase());
    words.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn every_dtype_is_in_pythons_tables() {
    let rust = rust_names();
    assert!(rust.len() >= 22, "{rust:?}");
    let mut complaints = Vec::new();
    for table in TABLES {
        let DtypeTable { file, name, without } = table;
        let python: Vec<_> = name.split(' ').flat_map(|name| python_names(file, name)).collect();
        for dtype in &rust {
            match (python.contains(dtype), without.contains(&dtype.as_str())) {
                (false, false) => complaints.push(format!("{file}: {name} lacks {dtype}")),
                (true, true) => complaints.push(format!("{file}: {name} has {dtype}: remove it from this test")),
                _ => {}
            }
        }
        for dtype in python.iter().filter(|name| !rust.contains(name)) {
            complaints.push(format!("{file}: {name} has {dtype}, which dtype.rs lacks"));
        }
    }
    if python_names("_container.py", "_ORDER") != rust {
        complaints.push("_container.py: _ORDER has another order than dtype.rs".to_owned());
    }
    assert_none(&complaints);
}
