//! The sources of a copy as the user names them: paths, URIs, and patterns such as `s3://models/llama/*.json`.
//!
//! A shell expands patterns of local names. It does not for names in a bucket, and not for quoted ones. `*`, `?` and
//! `[…]` match inside one part of a name, as in a shell: a `*` does not match a slash. A name that exists as it is
//! written is not a pattern. Local names that begin with a dot are matched only by a pattern that does, too; a bucket has
//! no hidden names.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use globset::{GlobBuilder, GlobMatcher};
use straightway_core::{Error, ErrorKind, Result, Scheme, Uri};
use straightway_io::{
    draft,
    store::{ListPage, Location, Missing, NAMES_MAX, Registry, list_all, too_many_names},
};

/// What introduces the version of an object in the name of an S3 object. It is not a pattern.
const VERSION: &[u8] = b"?versionId=";

/// The sources of a copy.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Their locations, those of a pattern in the order of their names.
    pub found: Vec<Location>,
    /// Whether one of them was a pattern. The target is then a folder, however many names matched.
    pub has_pattern: bool,
}

impl Sources {
    /// Finds the locations of paths, URIs and patterns. A pattern that nothing matches is an error.
    pub fn find(stores: &Registry, names: &[impl AsRef<OsStr>]) -> Result<Self> {
        let mut sources = Self {
            found: Vec::new(),
            has_pattern: false,
        };
        for name in names {
            let uri = Uri::parse(name)?;
            let at = Location::from(stores.find(&uri)?);
            let Some(parts) = pattern_parts(&uri).filter(|_| !is_there(&at)) else {
                sources.found.push(at);
                continue;
            };
            let mut search = Search {
                found: Vec::new(),
                names: 0,
            };
            let start = if at.name.is_absolute() { "/" } else { "" };
            let top = Location {
                name: start.into(),
                ..at.clone()
            };
            search.below(&top, &parts)?;
            if search.found.is_empty() {
                return Err(nothing_matches(&at));
            }
            search.found.sort_by(|a, b| a.name.cmp(&b.name));
            sources.found.append(&mut search.found);
            sources.has_pattern = true;
        }
        Ok(sources)
    }
}

/// One part of a pattern.
#[derive(Debug)]
enum Part {
    /// A name without wildcards.
    Name(OsString),
    Glob {
        matcher: GlobMatcher,
        /// Whether it begins with a dot, and so matches hidden names.
        is_hidden: bool,
    },
}

impl Part {
    fn matches(&self, name: &OsStr, is_local: bool) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Glob { matcher, is_hidden } => {
                let hides = is_local && name.as_bytes().starts_with(b".");
                matcher.is_match(Path::new(name)) && (*is_hidden || !hides)
            }
        }
    }
}

/// The parts of a name with wildcards; `None` if it has none. An unclosed `[` is not a wildcard.
fn pattern_parts(uri: &Uri) -> Option<Vec<Part>> {
    if matches!(uri.scheme(), Scheme::Http | Scheme::Https) {
        // A `?` begins the query of a web address, and web servers cannot list.
        return None;
    }
    let is_versioned = uri.scheme() == Scheme::S3 && uri.name().as_bytes().windows(VERSION.len()).any(|w| w == VERSION);
    // A pattern is text. A name that is not is used as it is.
    let name = uri.name().to_str().filter(|_| !is_versioned)?;
    let parts: Vec<_> = name.split('/').filter(|part| !part.is_empty()).map(part).collect();
    let has_glob = parts.iter().any(|part| matches!(part, Part::Glob { .. }));
    has_glob.then_some(parts)
}

fn part(text: &str) -> Part {
    let name = || Part::Name(text.into());
    if !text.contains(['*', '?', '[']) {
        return name();
    }
    // Braces have no meaning here.
    let mut pattern = String::with_capacity(text.len());
    let mut is_class = false;
    for c in text.chars() {
        is_class = (is_class || c == '[') && c != ']';
        if matches!(c, '{' | '}') && !is_class {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    let glob = GlobBuilder::new(&pattern).backslash_escape(true).build();
    glob.map_or_else(
        |_| name(),
        |glob| Part::Glob {
            matcher: glob.compile_matcher(),
            is_hidden: text.starts_with('.'),
        },
    )
}

/// Whether an object or a folder has exactly this name.
fn is_there(at: &Location) -> bool {
    if let Some(path) = at.path() {
        return fs::symlink_metadata(path).is_ok();
    }
    let page = ListPage {
        after: None,
        names_max: 1,
    };
    at.open().is_ok()
        || at
            .below(Missing::Refuse)
            .and_then(|inside| inside.list(&page))
            .is_ok_and(|page| !page.objects.is_empty() || !page.folders.is_empty())
}

/// A search for the names that match a pattern.
struct Search {
    found: Vec<Location>,
    /// The number of names that were looked at.
    names: usize,
}

impl Search {
    /// Adds the names below `folder` that match.
    fn below(&mut self, folder: &Location, parts: &[Part]) -> Result<()> {
        let Some((first, rest)) = parts.split_first() else {
            return Ok(());
        };
        if let (Part::Name(name), false) = (first, rest.is_empty()) {
            return self.below(&folder.join(name), rest);
        }
        let is_local = folder.path().is_some();
        let (objects, folders) = names_below(folder)?;
        self.names += objects.len() + folders.len();
        if self.names > NAMES_MAX {
            return Err(too_many_names(folder.describe(), NAMES_MAX));
        }
        let matching = |names: Vec<OsString>| names.into_iter().filter(|name| first.matches(name, is_local));
        if rest.is_empty() {
            let all = matching(objects).chain(matching(folders));
            self.found.extend(all.map(|name| folder.join(name)));
            return Ok(());
        }
        for name in matching(folders) {
            self.below(&folder.join(name), rest)?;
        }
        Ok(())
    }
}

/// The names of objects and of folders in a folder, which need not exist. A link to a folder is a folder.
fn names_below(folder: &Location) -> Result<(Vec<OsString>, Vec<OsString>)> {
    let Some(path) = folder.path() else {
        let listing = list_all(&*folder.below(Missing::Refuse)?)?;
        let objects = listing.objects.into_iter().map(|object| object.name);
        return Ok((objects.collect(), listing.folders));
    };
    let path = if path.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        path
    };
    let failed = |e| Error::os("list", path.display(), e);
    let entries = match fs::read_dir(&path) {
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok((Vec::new(), Vec::new()));
        }
        entries => entries.map_err(failed)?,
    };
    let (mut objects, mut folders) = (Vec::new(), Vec::new());
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if draft::is_draft(Path::new(&name)) {
            continue;
        }
        let is_folder = fs::metadata(path.join(&name)).is_ok_and(|meta| meta.is_dir());
        if is_folder { &mut folders } else { &mut objects }.push(name);
    }
    Ok((objects, folders))
}

fn nothing_matches(at: &Location) -> Error {
    let message = "no object has this name, and as a pattern it matches nothing";
    at.error(ErrorKind::NotFound, "copy", message)
        .with_hint("`straightway ls` lists the names; a `*` does not match a slash")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        part(pattern).matches(OsStr::new(name), true)
    }

    #[test]
    fn a_pattern_matches_as_in_a_shell() {
        for (pattern, name, is_match) in [
            ("*.json", "a.json", true),
            ("*.json", ".json", false),
            (".*", ".json", true),
            ("model-?.bin", "model-1.bin", true),
            ("model-?.bin", "model-12.bin", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("*{a,b}", "x{a,b}", true),
            ("*{a,b}", "xa", false),
            ("[", "[", true),
            ("a[", "a[", true),
            ("**", "any", true),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
        assert!(
            part("*").matches(OsStr::new(".hidden"), false),
            "a bucket hides nothing"
        );
        assert!(part("*").matches(OsStr::from_bytes(b"\xff\xfe"), true), "any bytes");
    }

    #[test]
    fn versions_and_web_addresses_are_not_patterns() {
        for (name, is_pattern) in [
            ("s3://bucket/a*", true),
            ("s3://bucket/a?versionId=x", false),
            ("https://host/a?b*", false),
            ("a/b?", true),
            ("a/b", false),
            ("a/[b", false),
        ] {
            let uri = Uri::parse(name).expect("it is valid");
            assert_eq!(pattern_parts(&uri).is_some(), is_pattern, "{name}");
        }
    }
}
