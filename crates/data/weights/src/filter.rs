//! Filters that select tensors by name.

use std::{fmt, str::FromStr};

use globset::{GlobBuilder, GlobMatcher};
use hashbrown::HashSet;
use regex::{Regex, RegexBuilder};
use straightway_core::{Error, ErrorKind, Result};

/// The maximum length of a pattern. Longer ones are lists of names, which should be separate filters.
const PATTERN_BYTES_MAX: usize = 1 << 12;

/// The maximum size of a compiled regular expression. The engine runs in linear time.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// A rule that matches tensor names.
///
/// As text: `name:…`, `glob:…` or `regex:…`. Without a prefix, a text with one of `*?[{` is a glob, and any other text
/// an exact name. In a glob, `*` also matches dots and slashes. A regular expression may match anywhere in the name.
#[derive(Clone, Debug)]
pub enum Filter {
    /// The tensor with exactly this name.
    Name(String),
    /// All tensors whose whole name matches.
    Glob(GlobMatcher),
    /// All tensors whose name it matches anywhere.
    Regex(Regex),
}

impl Filter {
    /// All tensors whose whole name matches the glob.
    pub fn glob(pattern: &str) -> Result<Self> {
        check_length("glob", pattern)?;
        let glob = GlobBuilder::new(pattern).literal_separator(false).build();
        let glob = glob.map_err(|e| refused("glob", pattern, e.kind().to_string()))?;
        Ok(Self::Glob(glob.compile_matcher()))
    }

    /// All tensors whose name the regular expression matches anywhere.
    pub fn regex(pattern: &str) -> Result<Self> {
        check_length("regular expression", pattern)?;
        let regex = RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).build();
        let regex = regex.map_err(|e| {
            // The engine's error shows the pattern over several lines; the last line is the reason.
            let text = e.to_string();
            let last = text.lines().last().unwrap_or_default();
            refused(
                "regular expression",
                pattern,
                last.trim_start_matches("error: ").to_owned(),
            )
        })?;
        Ok(Self::Regex(regex))
    }

    /// Whether it matches this name.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Name(this) => this == name,
            Self::Glob(glob) => glob.is_match(name),
            Self::Regex(regex) => regex.is_match(name),
        }
    }
}

impl FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(name) = text.strip_prefix("name:") {
            Ok(Self::Name(name.to_owned()))
        } else if let Some(pattern) = text.strip_prefix("glob:") {
            Self::glob(pattern)
        } else if let Some(pattern) = text.strip_prefix("regex:") {
            Self::regex(pattern)
        } else if text.contains(['*', '?', '[', '{']) {
            Self::glob(text)
        } else {
            Ok(Self::Name(text.to_owned()))
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "name:{name}"),
            Self::Glob(glob) => write!(f, "glob:{}", glob.glob()),
            Self::Regex(regex) => write!(f, "regex:{regex}"),
        }
    }
}

/// A set of filters: a tensor matches if any filter matches it. An empty set matches every tensor.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    names: HashSet<String>,
    patterns: Vec<Filter>,
}

impl Filters {
    /// Whether a tensor with this name is selected.
    pub fn matches(&self, name: &str) -> bool {
        self.is_empty() || self.names.contains(name) || self.patterns.iter().any(|f| f.matches(name))
    }

    /// Whether there are no filters.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.patterns.is_empty()
    }

    /// The exact names among the filters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

impl FromIterator<Filter> for Filters {
    fn from_iter<I: IntoIterator<Item = Filter>>(all: I) -> Self {
        let mut filters = Self::default();
        for filter in all {
            match filter {
                Filter::Name(name) => drop(filters.names.insert(name)),
                pattern => filters.patterns.push(pattern),
            }
        }
        filters
    }
}

fn check_length(what: &str, pattern: &str) -> Result<()> {
    if pattern.len() <= PATTERN_BYTES_MAX {
        return Ok(());
    }
    let start: String = pattern.chars().take(40).collect();
    let message = format!("it is longer than {PATTERN_BYTES_MAX} bytes");
    Err(refused(what, &format!("{start}…"), message))
}

fn refused(what: &str, pattern: &str, why: String) -> Error {
    Error::new(ErrorKind::Invalid, "use", format!("{what} `{pattern}`"), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_as_it_is_shown_and_says_what_it_is() {
        for (text, shown) in [
            ("lm_head.weight", "name:lm_head.weight"),
            ("name:a*", "name:a*"),
            ("model.layers.*.weight", "glob:model.layers.*.weight"),
            ("glob:plain", "glob:plain"),
            ("regex:^a\\.\\d+$", "regex:^a\\.\\d+$"),
        ] {
            let filter: Filter = text.parse().unwrap();
            assert_eq!(filter.to_string(), shown);
            assert_eq!(shown.parse::<Filter>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_glob_matches_dots_and_slashes_and_a_regex_matches_anywhere() {
        let matches = |filter: &str, name: &str| filter.parse::<Filter>().unwrap().matches(name);
        assert!(matches("model.*.weight", "model.layers.3/q.weight"));
        assert!(!matches("model.*", "lm_head.model.x"));
        assert!(matches("layers.[0-3].*", "layers.2.q"));
        assert!(matches("regex:layers\\.(1|2)\\.", "model.layers.2.q"));
        assert!(!matches("regex:^layers", "model.layers.2.q"));
        assert!(matches("name:a*", "a*") && !matches("name:a*", "ab"));
    }

    #[test]
    fn an_invalid_pattern_is_refused_with_the_reason() {
        let error = "regex:(".parse::<Filter>().unwrap_err().to_string();
        assert_eq!(error, "cannot use regular expression `(`: unclosed group");
        assert!("[".parse::<Filter>().is_err());
        assert!(Filter::regex(&"a".repeat(5000)).is_err());
        assert!(Filter::regex("(a{1000}){1000}").is_err());
    }

    #[test]
    fn no_filters_match_everything_and_several_match_what_any_of_them_does() {
        assert!(Filters::default().matches("x"));
        let two: Filters = ["a", "b.*"].map(|f| f.parse().unwrap()).into_iter().collect();
        assert!(two.matches("a") && two.matches("b.c") && !two.matches("c"));
    }
}
