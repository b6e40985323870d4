//! What the fuzz targets check, one function for each kind of input that a stranger can send.
//!
//! A function takes any bytes and panics where a promise is broken: what is accepted must be sound, what is refused
//! must be refused with words, and neither may reach a terminal as commands. The targets under `fuzz/` hand these
//! functions to libFuzzer, which needs a nightly compiler; the corpus that it found is replayed by this crate's
//! tests on stable. Nothing here does any I/O per call.

mod capture;
mod doctor;
mod fabrics;
mod pdu;
mod plain;
mod planner;
mod profile;
mod storage;
mod web;

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use straightway_core::{
    Scheme, Uri,
    text::{is_unsafe, shown_coloured},
};

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also the name of its corpus' folder.
pub const TARGETS: &[(&str, Target)] = &[
    ("doctor", doctor::captured_machine),
    ("fabric", planner::fabric),
    ("head", web::head),
    ("index", storage::index),
    ("manifest", storage::manifest),
    ("nvme_auth", fabrics::auth),
    ("nvme_index", fabrics::index),
    ("nvme_page", pdu::page),
    ("nvme_pdu", pdu::pdu),
    ("pcie", planner::pcie),
    ("pickle", plain::pickle),
    ("plain", plain::encoded),
    ("profile", profile::profile),
    ("safetensors", storage::safetensors),
    ("scenario", planner::scenario),
    ("tags", storage::tags),
    ("text", text),
    ("uri", uri),
];

/// The target called `name`.
pub fn target(name: &str) -> Option<Target> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, target)| *target)
}

/// Runs the target called `name`.
///
/// # Panics
///
/// Where there is no such target, or where a promise is broken.
pub fn run(name: &str, data: &[u8]) {
    target(name).expect("a target of that name")(data);
}

/// Any text as it is shown: nothing in it acts on a terminal but line feeds and our own colours.
fn text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    assert_harmless(&straightway_core::text::shown(&text));
    let lines = straightway_core::text::shown_lines(&text);
    assert!(
        !lines
            .replace("\r\n", "\n")
            .contains(|c| c != '\n' && is_unsafe(c))
    );
    // Colours taken out, the rest is as safe as lines are.
    let coloured = shown_coloured(&text);
    for part in coloured.split('\x1b').skip(1) {
        let codes = part
            .strip_prefix('[')
            .expect("only colours are let through");
        let rest = codes.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        assert!(rest.starts_with('m'));
    }
    let json = serde_json::to_string(&text).expect("a string is JSON");
    let safe = straightway_core::text::shown_json(&json);
    assert_harmless(&safe);
    assert_eq!(
        serde_json::from_str::<String>(&safe).expect("still JSON"),
        text
    );
}

/// Any bytes as the name of an object: refused with words, a path as it is, or a URI that is read back as the same and
/// whose parts lead nowhere else.
fn uri(data: &[u8]) {
    let text = OsStr::from_bytes(data);
    let uri = match Uri::parse(text) {
        Ok(uri) => uri,
        Err(error) => return assert_harmless(&error.to_string()),
    };
    if uri.scheme() == Scheme::Path {
        return assert_eq!((uri.name(), uri.authority()), (text, ""));
    }
    let shown = uri.to_string();
    assert!(!shown.contains(char::is_control) && !uri.authority().contains(['/', '@', ' ']));
    assert_eq!(Uri::parse(&shown).expect("it was read before"), uri);
    let name = uri.name().to_str().expect("a URI is text");
    let path = name.split('?').next().expect("there is a first part");
    assert!(path.split('/').all(|part| !matches!(part, "." | "..")));
}

/// Fails where a message would act on a terminal.
fn assert_harmless(message: &str) {
    assert!(!message.contains(is_unsafe), "{message:?}");
}
