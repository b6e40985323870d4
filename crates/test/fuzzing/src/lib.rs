//! The checks of the fuzz targets, one function for each kind of untrusted input.
//!
//! A function takes any bytes and panics if a guarantee is broken: accepted input must be valid, refused input must
//! give an error message, and neither may send control sequences to a terminal. The targets under `fuzz/` pass these
//! functions to libFuzzer, which needs a nightly compiler. The tests of this crate replay its corpus on stable. No
//! function does I/O per call.

mod capture;
mod doctor;
mod fabrics;
mod kv;
mod pdu;
mod plain;
mod profile;
mod scenarios;
mod storage;
mod web;

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use straightway_core::{
    Scheme, Uri,
    text::{is_unsafe, shown_coloured},
};

/// A function that takes any bytes.
pub type FuzzTarget = fn(&[u8]);

/// Every target by its name, which is also the folder name of its corpus.
pub const TARGETS: &[(&str, FuzzTarget)] = &[
    ("doctor", doctor::captured_machine),
    ("fabric", scenarios::fabric),
    ("head", web::head),
    ("index", storage::index),
    ("kv", kv::files),
    ("manifest", storage::manifest),
    ("nvme_auth", fabrics::auth),
    ("nvme_index", fabrics::index),
    ("nvme_page", pdu::page),
    ("nvme_pdu", pdu::pdu),
    ("npy", storage::npy),
    ("pcie", scenarios::pcie),
    ("pickle", plain::pickle),
    ("plain", plain::encoded),
    ("profile", profile::profile),
    ("safetensors", storage::safetensors),
    ("scenario", scenarios::scenario),
    ("tags", storage::tags),
    ("text", text),
    ("uri", uri),
];

/// The target with this name.
pub fn target(name: &str) -> Option<FuzzTarget> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, target)| *target)
}

/// Runs the target with this name.
///
/// # Panics
///
/// Panics if there is no such target, or if a guarantee is broken.
pub fn run(name: &str, data: &[u8]) {
    target(name).expect("a target of that name")(data);
}

/// Any text as it is displayed. It controls the terminal only by line feeds and our own colours.
fn text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    assert_harmless(&straightway_core::text::shown(&text));
    let lines = straightway_core::text::shown_lines(&text);
    assert!(!lines.replace("\r\n", "\n").contains(|c| c != '\n' && is_unsafe(c)));
    // Without the colours, the text is as safe as plain lines.
    let coloured = shown_coloured(&text);
    for part in coloured.split('\x1b').skip(1) {
        let codes = part.strip_prefix('[').expect("only colours are permitted");
        let rest = codes.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        assert!(rest.starts_with('m'));
    }
    let json = serde_json::to_string(&text).expect("a string is JSON");
    let safe = straightway_core::text::shown_json(&json);
    assert_harmless(&safe);
    assert_eq!(serde_json::from_str::<String>(&safe).expect("still JSON"), text);
}

/// Any bytes as the name of an object. It is refused with an error, kept as a path, or parsed as a URI that round-trips
/// and has no `..` component.
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
    assert_eq!(Uri::parse(&shown).expect("it was parsed before"), uri);
    let name = uri.name().to_str().expect("a URI is text");
    let path = name.split('?').next().expect("there is a first part");
    assert!(path.split('/').all(|part| !matches!(part, "." | "..")));
}

/// Fails if a message contains terminal control sequences.
fn assert_harmless(message: &str) {
    assert!(!message.contains(is_unsafe), "{message:?}");
}
