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
            Error::new(ErrorKind::Unsupported, "open", name, why)
                .with_hint("use the address that it redirects to")
        };
        let location = location
            .split_once('#')
            .map_or(location, |(front, _)| front);
        let Self { site, target } = self;
        let path = target
            .split_once('?')
            .map_or(target.as_str(), |(path, _)| path);
        let url = if location.contains("://") {
            location.to_owned()
        } else if let Some(rest) = location.strip_prefix("//") {
            format!("{}://{rest}", site.scheme())
        } else if location.starts_with('/') {
            format!("{site}{location}")
        } else if location.starts_with('?') {
            format!("{site}{path}{location}")
        } else {
            let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
            format!("{site}{folder}{location}")
        };
        let url: http::Uri = url
            .parse()
            .map_err(|_| refuse("it redirects to an invalid URL"))?;
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
        ] {
            assert_eq!(
                from.follow(location, "name").unwrap(),
                place(expected),
                "{location}"
            );
        }
    }

    #[test]
    fn redirects_away_from_tls_or_http_are_refused_and_not_shown() {
        let from = place("https://hub.example/a");
        for location in [
            "http://cdn.example/secret",
            "ftp://x/secret",
            "https://u:secret@h/",
            "https://h/ secret",
        ] {
            let error = from.follow(location, "name").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
