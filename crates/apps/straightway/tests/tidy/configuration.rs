//! The page of environment variables lists exactly those that the code reads.

use std::{collections::BTreeSet, fs};

use crate::{
    assert_none,
    files::{files, has_extension, lines_without_tests, root, sources},
};

/// Beginnings of the names of variables.
const PREFIXES: &[&str] = &[
    "AWS_",
    "CUFILE_",
    "HF_",
    "PYTORCH_",
    "SSL_CERT_",
    "STRAIGHTWAY_",
    "XDG_",
];
/// Variables without such a beginning.
const OTHERS: &[&str] = &[
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "FORCE_COLOR",
    "HOME",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "NO_COLOR",
    "SUDO_USER",
    "TERM",
    "USER",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// Calls whose argument is the name of a variable, whatever it is.
const READS: &[&str] = &["env::var(", "env::var_os(", "environ.get(", "environ[", "os.getenv("];
/// The heading of the table of variables that a library reads.
const OF_LIBRARY: &str = "variable of the library";

/// The texts in quotes on a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2)
}

/// Whether this is the name of a known kind of variable, and not only a beginning.
fn is_variable(text: &str) -> bool {
    let is_name = text
        .bytes()
        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_');
    let is_known = PREFIXES
        .iter()
        .any(|prefix| text.len() > prefix.len() && text.starts_with(prefix));
    OTHERS.contains(&text) || (is_name && is_known && !text.ends_with('_'))
}

/// The variables that a line of code reads.
fn variables(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    let mut found: Vec<String> = quoted(code)
        .filter(|text| is_variable(text))
        .map(str::to_owned)
        .collect();
    for call in READS {
        let argument = code.split(call).nth(1).and_then(|rest| rest.strip_prefix('"'));
        found.extend(argument.and_then(|rest| rest.split('"').next()).map(str::to_owned));
    }
    found
}

/// The variables that the program and the Python package read.
fn read_variables() -> BTreeSet<String> {
    let is_ours = |file: &str| !file.starts_with("crates/test/") && file.contains("/src/") && !file.contains("tests");
    let mut found = BTreeSet::new();
    for (_, text) in sources().filter(|(file, _)| is_ours(file)) {
        found.extend(
            lines_without_tests(&text)
                .into_iter()
                .flat_map(|(_, line)| variables(line)),
        );
    }
    let python = files()
        .into_iter()
        .filter(|file| file.starts_with("crates/apps/python/python/") && has_extension(file, "py"));
    for file in python {
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        found.extend(text.lines().flat_map(variables));
    }
    found
}

/// The names in the first column of a page's tables, with the heading of their table.
fn documented() -> Vec<(String, String)> {
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let mut heading = String::new();
    let mut names = Vec::new();
    for line in page.lines() {
        let Some(cell) = line.strip_prefix("| ").and_then(|row| row.split(" | ").next()) else {
            continue;
        };
        if !cell.starts_with('`') {
            cell.clone_into(&mut heading);
        } else if heading.starts_with("variable") {
            names.extend(
                cell.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(|name| (heading.clone(), name.to_owned())),
            );
        }
    }
    names
}

#[test]
fn every_variable_that_is_read_is_on_the_page_and_every_one_on_the_page_is_read() {
    let (read, documented) = (read_variables(), documented());
    assert!(read.len() > 25, "only {read:?}");
    let is_documented = |name: &String| documented.iter().any(|(_, other)| other == name);
    let missing = read.iter().filter(|name| !is_documented(name));
    let mut complaints: Vec<_> = missing
        .map(|name| format!("docs/configuration.md lacks {name}"))
        .collect();
    for (heading, name) in &documented {
        // A library reads its own by itself.
        if heading != OF_LIBRARY && !read.contains(name) {
            complaints.push(format!("docs/configuration.md has {name}, which no code reads"));
        }
    }
    assert_none(&complaints);
}

#[test]
fn variables_are_found_in_code_and_not_in_comments_or_prefixes() {
    assert_eq!(
        variables(r#"get("AWS_REGION").or("HOME") // "AWS_X""#),
        ["AWS_REGION", "HOME"]
    );
    assert_eq!(variables(r#"env::var_os("ANYTHING")"#), ["ANYTHING"]);
    assert_eq!(variables(r#"os.environ.get("VLLM_X", "1")"#), ["VLLM_X"]);
    assert!(variables(r#"name.starts_with("AWS_") || "U8""#).is_empty());
}
