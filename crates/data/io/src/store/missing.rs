//! "Did you mean …?" for a local path that does not exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

use straightway_core::{Error, ErrorKind, nearest::nearest, uri::hint_for_missing};

use super::Location;
use crate::draft::folder_of;

/// The most names of a folder that are compared.
const NAMES_MAX: usize = 10_000;

/// Adds to an error that something does not exist what was probably meant by its location, unless it has a hint.
pub fn with_meant(error: Error, at: &Location) -> Error {
    if error.kind() != ErrorKind::NotFound || error.hint().is_some() {
        return error;
    }
    match at.path().and_then(|path| meant(&path)) {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// The hint for a path that does not exist; `None` if it exists, or if nothing near it does.
fn meant(path: &Path) -> Option<String> {
    let missing = first_missing(path)?;
    let folder = folder_of(&missing);
    let typed = missing.file_name()?.to_str()?;
    let names = fs::read_dir(folder).ok()?.take(NAMES_MAX);
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    if let Some(name) = nearest(typed, names) {
        let near = missing.with_file_name(name);
        let rest = path.strip_prefix(&missing).ok()?;
        let whole = if rest.as_os_str().is_empty() {
            near.clone()
        } else {
            near.join(rest)
        };
        let shown = if whole.exists() { whole } else { near };
        return Some(format!("did you mean {}?", shown.display()));
    }
    // The first part exists if something below it is missing.
    let has_folder = missing.components().count() > 1;
    hint_for_missing(path.as_os_str(), has_folder)
}

/// The first part of a path that does not exist; `None` if all of it exists.
fn first_missing(path: &Path) -> Option<PathBuf> {
    let mut missing = None;
    for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
        if part.symlink_metadata().is_ok() {
            break;
        }
        missing = Some(part.to_owned());
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_in_the_folder_is_suggested() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("model")).unwrap();
        fs::write(at("model/config.json"), "").unwrap();
        let hint = |name: &str| meant(&at(name)).unwrap_or_default();
        let suggests = |name: &str| format!("did you mean {}?", at(name).display());
        assert_eq!(hint("modle"), suggests("model"));
        assert_eq!(hint("modle/config.json"), suggests("model/config.json"));
        assert_eq!(hint("modle/other.json"), suggests("model"));
        assert_eq!(hint("model/confg.json"), suggests("model/config.json"));
        for name in ["model", "data", "model/data"] {
            assert_eq!(hint(name), "", "{name}");
        }
    }

    #[test]
    fn only_an_error_about_a_missing_object_without_a_hint_gets_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("weights"), "").unwrap();
        let at = Location::from(&folder.path().join("wieghts"));
        let error = |kind| Error::new(kind, "open", "x", "why");
        let hint = |error| with_meant(error, &at).hint().unwrap_or_default().to_owned();
        assert!(hint(error(ErrorKind::NotFound)).contains("weights?"));
        assert_eq!(hint(error(ErrorKind::Denied)), "");
        assert_eq!(hint(error(ErrorKind::NotFound).with_hint("other")), "other");
    }
}
