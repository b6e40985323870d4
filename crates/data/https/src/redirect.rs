//! Resolves redirects.

use straightway_core::{Error, ErrorKind, Result};
use straightway_net::Site;

/// An address: a site, and a path with its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) site: Site,
    pub(crate) target: String,
}

impl Place {
    /// Resolves a `Location` against this address. Errors call the object `name`. The location may hold a secret, so
    /// they do not show it.
    pub(crate) fn follow(&self, location: &str, name: &str) -> Result<Self> {
        let refuse = |why: &str| {
            Error::new(ErrorKind::Unsupported, "open", name, why).with_hint("use the address that it redirects to")
        };
        let location = location.split_once('#').map_or(location, |(front, _)| front);
        let Self { site, target } = self;
        let path = target.split_once('?').map_or(target.as_str(), |(path, _)| path);
        let url = if let Some((scheme, rest)) = split_scheme(location) {
            format!("{}:{rest}", scheme.to_ascii_lowercase())
        } else if let Some(rest) = location.strip_prefix("//") {
            format!("{}://{rest}", site.scheme())
        } else if location.is_empty() {
            format!("{site}{target}")
        } else if location.starts_with('?') {
            format!("{site}{path}{location}")
        } else if location.starts_with('/') {
            format!("{site}{}", without_dots(location))
        } else {
            let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
            format!("{site}{}", without_dots(&format!("{folder}{location}")))
        };
        let url: http::Uri = url.parse().map_err(|_| refuse("it redirects to an invalid URL"))?;
        let next = Site::of(&url).map_err(|_| refuse("it redirects to an invalid address"))?;
        if site.is_tls && !next.is_tls {
            return Err(refuse("it redirects from https:// to http://"));
        }
        let target = url.path_and_query().map_or("/", |target| target.as_str());
        Ok(Self {
            site: next,
            target: target.to_owned(),
        })
    }
}

/// Splits an absolute URL after its scheme; `None` for a relative reference. A colon in a path or a query does not end
/// a scheme.
fn split_scheme(location: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = location.split_once(':')?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let begins = scheme.starts_with(|first: char| first.is_ascii_alphabetic());
    (begins && scheme.bytes().all(fits)).then_some((scheme, rest))
}

/// Resolves the parts `.` and `..` of an absolute path, which a query may follow.
fn without_dots(target: &str) -> String {
    let query_at = target.find('?').unwrap_or(target.len());
    let (path, query) = target.split_at(query_at);
    let mut parts = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    // Such a part at the end names a folder.
    let is_folder = path.ends_with("/.") || path.ends_with("/..");
    let end = if is_folder && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}{query}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Place {
        let url: http::Uri = url.parse().unwrap();
        Place {
            site: Site::of(&url).unwrap(),
            target: url.path_and_query().unwrap().to_string(),
        }
    }

    #[test]
    fn a_location_is_resolved_against_its_address() {
        let from = place("https://hub.example/a/b/file?x=1");
        for (location, expected) in [
            (
                "https://cdn.example:8443/z?sig=a%2Fb",
                "https://cdn.example:8443/z?sig=a%2Fb",
            ),
            ("//cdn.example/z", "https://cdn.example/z"),
            ("/z#part", "https://hub.example/z"),
            ("other", "https://hub.example/a/b/other"),
            ("?y=2", "https://hub.example/a/b/file?y=2"),
            ("#part", "https://hub.example/a/b/file?x=1"),
            (
                "/z?u=https://cdn.example/y",
                "https://hub.example/z?u=https://cdn.example/y",
            ),
            (
                "z?u=https://cdn.example/../y",
                "https://hub.example/a/b/z?u=https://cdn.example/../y",
            ),
            ("HTTPS://cdn.example/z", "https://cdn.example/z"),
            ("../z", "https://hub.example/a/z"),
            ("./z", "https://hub.example/a/b/z"),
            ("/a/./b/../../../z/..", "https://hub.example/"),
            ("..", "https://hub.example/a/"),
            ("/a//b/", "https://hub.example/a//b/"),
        ] {
            assert_eq!(from.follow(location, "name").unwrap(), place(expected), "{location}");
        }
    }

    #[test]
    fn redirects_away_from_tls_or_http_are_refused_and_not_shown() {
        let from = place("https://hub.example/a");
        for location in [
            "http://cdn.example/secret",
            "ftp://x/secret",
            "mailto:secret",
            "https://u:secret@h/",
            "https://h/ secret",
        ] {
            let error = from.follow(location, "name").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
