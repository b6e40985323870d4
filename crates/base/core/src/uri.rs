//! Names of objects: a plain path, or a URI with one of the known schemes.
//!
//! A text is a URI if a scheme of two characters or more is followed by `://`, or if it begins with `memory:`.
//! Everything else is a local path and is used unchanged, even if it is not UTF-8: `C:x`, `a:b`, `//x` and `s3:x` are
//! paths. A path that looks like a URI is written with `./` in front.
//!
//! | scheme | authority | name |
//! |---|---|---|
//! | path | none | the path |
//! | `s3://BUCKET/KEY` | the bucket | the key |
//! | `https://HOST[:PORT]/PATH` | host and port | the path and the query |
//! | `http://HOST[:PORT]/PATH` | host and port | the path and the query; not encrypted, not authenticated |
//! | `nvme-tcp://HOST[:PORT]/NQN[/NSID\|/NAME]` | host and port (4420) | the NQN and the namespace (1) or a name |
//! | `memory:STORE/KEY` | the store's name | the key; for tests |
//!
//! `file:///PATH` is that path of this machine, with `%` escapes decoded, as browsers and Python write it.
//!
//! Nothing is decoded or normalised: `%41` in a key is three characters, and `a//b` has an empty part. Control
//! characters, the parts `.` and `..` (an HTTP client may resolve them), credentials and fragments are refused.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    net::Ipv6Addr,
    os::unix::ffi::OsStringExt,
};

use percent_encoding::percent_decode;

use crate::{Error, ErrorKind, Result};

mod meant;

pub use meant::hint_for_missing;

/// The longest key: the limit of S3.
const KEY_BYTES_MAX: usize = 1024;

/// The longest NVMe qualified name.
const NQN_BYTES_MAX: usize = 223;

/// The default port and the default namespace of NVMe/TCP.
const NVME_PORT: u16 = 4420;
const NSID: u32 = 1;

/// The type of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// The file systems of this machine.
    Path,
    /// An S3 bucket.
    S3,
    /// A web server.
    Https,
    /// A web server without TLS.
    Http,
    /// An NVMe/TCP target.
    NvmeTcp,
    /// Memory of this process, for tests.
    Memory,
}

impl Scheme {
    /// The prefixes of the schemes, and the forms of their URIs.
    const FORMS: [(&'static str, Self, &'static str); 5] = [
        ("s3", Self::S3, "s3://BUCKET/KEY"),
        ("https", Self::Https, "https://HOST[:PORT]/PATH"),
        ("http", Self::Http, "http://HOST[:PORT]/PATH"),
        ("nvme-tcp", Self::NvmeTcp, "nvme-tcp://HOST[:PORT]/NQN[/NSID]"),
        ("memory", Self::Memory, "memory:STORE/KEY"),
    ];

    /// The form of its URIs.
    pub fn form(self) -> &'static str {
        let form = Self::FORMS.iter().find(|(_, scheme, _)| *scheme == self);
        form.map_or("a path", |(_, _, form)| form)
    }

    /// The text in front of the authority.
    fn prefix(self) -> &'static str {
        match self {
            Self::Path => "",
            Self::S3 => "s3://",
            Self::Https => "https://",
            Self::Http => "http://",
            Self::NvmeTcp => "nvme-tcp://",
            Self::Memory => "memory:",
        }
    }
}

/// The name of an object, or of a prefix of object names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Uri {
    scheme: Scheme,
    authority: String,
    name: OsString,
}

impl Uri {
    /// Parses a path or a URI.
    pub fn parse(text: impl AsRef<OsStr>) -> Result<Self> {
        let text = text.as_ref();
        let Some((scheme, rest)) = split_scheme(text) else {
            return Ok(Self {
                scheme: Scheme::Path,
                authority: String::new(),
                name: text.to_owned(),
            });
        };
        let refuse = |why: String| Error::new(ErrorKind::Invalid, "read", without_secrets(text), why);
        if scheme == "file" {
            let name = file_path(rest).map_err(|why| refuse(format!("{why}; expected file:///PATH")))?;
            return Ok(Self {
                scheme: Scheme::Path,
                authority: String::new(),
                name,
            });
        }
        let known = Scheme::FORMS.iter().find(|(name, ..)| *name == scheme);
        let Some((_, scheme, form)) = known else {
            let forms: Vec<_> = Scheme::FORMS.iter().map(|(_, _, form)| *form).collect();
            let forms = forms.join(", ");
            let why = format!("the scheme {scheme:?} is not supported; use {forms}, or a path");
            return Err(refuse(why).with_hint(meant::hint(&scheme, &String::from_utf8_lossy(rest))));
        };
        let refuse = |why: &str| refuse(format!("{why}; expected {form}"));
        let rest = str::from_utf8(rest).map_err(|_| refuse("it is not UTF-8"))?;
        if rest.contains(char::is_control) {
            return Err(refuse("it has a control character"));
        }
        let (authority, name) = rest.split_once('/').unwrap_or((rest, ""));
        let (authority, name) = match scheme {
            Scheme::S3 => bucket(authority).and_then(|authority| Ok((authority, key(name)?))),
            Scheme::Https | Scheme::Http => host(authority).and_then(|authority| Ok((authority, web_path(name)?))),
            Scheme::NvmeTcp => portal(authority).and_then(|portal| Ok((portal, subsystem(name)?))),
            Scheme::Path | Scheme::Memory => plain_name(authority).and_then(|authority| Ok((authority, key(name)?))),
        }
        .map_err(refuse)?;
        Ok(Self {
            scheme: *scheme,
            authority,
            name: name.into(),
        })
    }

    /// The type of its store.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The authority, which names the store; empty for paths.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The name in that store.
    pub fn name(&self) -> &OsStr {
        &self.name
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.scheme.prefix(), self.authority)?;
        if self.scheme != Scheme::Path && !self.name.is_empty() {
            f.write_str("/")?;
        }
        write!(f, "{}", self.name.display())
    }
}

/// The scheme of a URI in lower case, and the rest after it; `None` for a path.
fn split_scheme(text: &OsStr) -> Option<(String, &[u8])> {
    let bytes = text.as_encoded_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let (scheme, rest) = (&bytes[..colon], &bytes[colon + 1..]);
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    if scheme.len() < 2 || !scheme[0].is_ascii_alphabetic() || !scheme.iter().all(fits) {
        return None;
    }
    let scheme = str::from_utf8(scheme).ok()?.to_ascii_lowercase();
    match rest.strip_prefix(b"//") {
        // `memory://x` has an empty store name, which is refused later.
        _ if scheme == "memory" => Some((scheme, rest)),
        Some(rest) => Some((scheme, rest)),
        None => None,
    }
}

/// A URI for an error, without its user name, its password and the query of a web address, which may be signed.
///
/// A URI that is refused may be malformed, and a password may have a `/`, a `?` or an `@`. If the part before the first
/// `/` is no host with a port, everything up to the `@` is left out, and with more than one `@` all of it.
fn without_secrets(text: &OsStr) -> String {
    let text = text.display().to_string();
    let Some((scheme, rest)) = text.split_once("://") else {
        return text;
    };
    let is_web = matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https");
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let may_hide = authority.contains('@') || authority.contains(':') && split_port(authority).is_err();
    let (user, rest) = match rest.rfind('@') {
        Some(at) if may_hide && rest[..at].contains('@') => ("…", ""),
        Some(at) if may_hide => ("…", &rest[at..]),
        _ => ("", rest),
    };
    match rest.split_once('?') {
        Some((rest, _)) if is_web => format!("{scheme}://{user}{rest}?…"),
        _ => format!("{scheme}://{user}{rest}"),
    }
}

/// The reason why a part of a URI is refused.
type Refused = &'static str;

/// The path of a file URI without its scheme.
fn file_path(rest: &[u8]) -> Result<OsString, Refused> {
    let path = rest.strip_prefix(b"localhost").unwrap_or(rest);
    if !path.starts_with(b"/") {
        return Err("it names another machine, or a path that is not absolute");
    }
    let path: Vec<u8> = percent_decode(path).collect();
    if path.contains(&0) {
        return Err("a path has no zero byte");
    }
    Ok(OsString::from_vec(path))
}

fn bucket(text: &str) -> Result<String, Refused> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
    let is_edge = |c: char| c.is_ascii_alphanumeric();
    let has_edges = text.starts_with(is_edge) && text.ends_with(is_edge);
    if (3..=63).contains(&text.len()) && text.chars().all(fits) && has_edges {
        return Ok(text.to_owned());
    }
    Err("a bucket is 3 to 63 lower-case letters, digits, `.` and `-`")
}

fn key(text: &str) -> Result<String, Refused> {
    if text.len() > KEY_BYTES_MAX {
        return Err("a key has at most 1024 bytes");
    }
    if text.split('/').any(|part| matches!(part, "." | "..")) {
        return Err("a key has no part `.` or `..`");
    }
    Ok(text.to_owned())
}

fn web_path(text: &str) -> Result<String, Refused> {
    if text.contains(|c: char| c == '#' || c.is_whitespace()) {
        return Err("a fragment or a space is not allowed in it");
    }
    let mut escapes = text.split('%').skip(1).map(str::as_bytes);
    if !escapes.all(|rest| rest.len() > 1 && rest[..2].iter().all(u8::is_ascii_hexdigit)) {
        return Err("`%` is followed by two hexadecimal digits");
    }
    let path = text.split('?').next().unwrap_or_default();
    if path.split('/').any(|part| matches!(part, "." | "..")) {
        return Err("a path has no part `.` or `..`");
    }
    Ok(text.to_owned())
}

/// A host with or without a port.
fn host(text: &str) -> Result<String, Refused> {
    if text.contains('@') {
        return Err("credentials are not taken from a URI");
    }
    split_port(text).map(|_| text.to_owned())
}

fn portal(text: &str) -> Result<String, Refused> {
    let (host, port) = split_port(text)?;
    Ok(format!("{host}:{}", port.unwrap_or(NVME_PORT)))
}

fn split_port(text: &str) -> Result<(&str, Option<u16>), Refused> {
    let end = match text.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(end) => end + 2,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, port) = text.split_at(end);
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let is_v6 = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    let is_host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(is_v6),
        None => !host.is_empty() && host.chars().all(is_name),
    };
    if !is_host {
        return Err("its host is missing or malformed");
    }
    if port.is_empty() {
        return Ok((host, None));
    }
    let digits = port.strip_prefix(':').filter(|rest| all_digits(rest));
    let port = digits.and_then(|digits| digits.parse().ok()).filter(|port| *port > 0);
    port.map(|port| (host, Some(port))).ok_or("a port is 1 to 65535")
}

fn subsystem(text: &str) -> Result<String, Refused> {
    // The portal itself, whose discovery controller lists the subsystems.
    if text.is_empty() {
        return Ok(String::new());
    }
    let (nqn, rest) = text
        .split_once('/')
        .map_or((text, None), |(nqn, rest)| (nqn, Some(rest)));
    if !nqn.starts_with("nqn.") || nqn.len() > NQN_BYTES_MAX || nqn.contains(char::is_whitespace) {
        return Err("an NQN begins with `nqn.` and has at most 223 bytes");
    }
    let rest = match rest {
        None => NSID.to_string(),
        // 0xFFFFFFFF is the broadcast value for all namespaces.
        Some(digits) if all_digits(digits) => match digits.parse::<u32>() {
            Ok(nsid) if nsid > 0 && nsid < u32::MAX => nsid.to_string(),
            _ => return Err("a namespace is 1 to 4294967294"),
        },
        // A name in the target's index.
        Some(name) => key(name)?,
    };
    Ok(format!("{nqn}/{rest}"))
}

fn plain_name(text: &str) -> Result<String, Refused> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || !text.chars().all(fits) {
        return Err("a store's name is letters, digits, `-`, `_` and `.`");
    }
    Ok(text.to_owned())
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> (Scheme, String, String) {
        let uri = Uri::parse(text).unwrap();
        let name = uri.name().to_str().unwrap().to_owned();
        (uri.scheme(), uri.authority().to_owned(), name)
    }

    #[test]
    fn an_error_shows_neither_a_password_nor_a_signature() {
        for scheme in ["https", "HTTP", "s3", "nvme-tcp", "ftp"] {
            for secret in [
                "user:hunter2@host/x",
                "hunter2@host:70000/x",
                "user:hunter2/@/hunter2@host/x",
                "user:hunter2?hunter2@host/x",
                "user:#hunter2@host/x",
                "user:hunter2@host/x?token=a@hunter2",
            ] {
                let error = Uri::parse(format!("{scheme}://{secret}")).unwrap_err().to_string();
                assert!(!error.contains("hunter2"), "{error}");
                assert!(error.contains(&format!("{scheme}://…")), "{error}");
            }
        }
        let error = Uri::parse("https://host/x y?signature=hunter2@")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("https://host/x y?…") && !error.contains("hunter2"),
            "{error}"
        );
        // An `@` in a name is no secret.
        for plain in [
            "s3://UPPER/a@b",
            "https://host:8080/../a@b",
            "nvme-tcp://host:99999/nqn.x/a",
        ] {
            let error = Uri::parse(plain).unwrap_err().to_string();
            assert!(error.contains(plain), "{error}");
        }
    }

    #[test]
    fn text_that_is_not_a_uri_is_an_unchanged_path() {
        for path in [
            "",
            "x",
            "/x",
            "//x//y",
            "C:x",
            "C:\\x",
            "C://x",
            "a:b",
            "a:b://c",
            "s3:x",
            "s3:/x/y",
            "./s3://x/y",
            "./memory:x",
            "%41",
            "tab\tname",
            "host:",
            "cuda:0",
            "1a://x",
            "a b://c",
            "://x",
            ":",
            "..",
        ] {
            assert_eq!(parsed(path), (Scheme::Path, String::new(), path.to_owned()));
        }
        let odd = OsStr::from_bytes(b"folder/\xff:\xfe//");
        let uri = Uri::parse(odd).unwrap();
        assert_eq!((uri.scheme(), uri.name()), (Scheme::Path, odd));
    }

    #[test]
    fn each_scheme_is_read() {
        let expect = |text: &str, scheme, authority: &str, name: &str| {
            assert_eq!(parsed(text), (scheme, authority.to_owned(), name.to_owned()), "{text}");
        };
        expect("s3://bucket/a/b.safetensors", Scheme::S3, "bucket", "a/b.safetensors");
        expect("S3://bucket", Scheme::S3, "bucket", "");
        expect("s3://bucket//a//b%41 c", Scheme::S3, "bucket", "/a//b%41 c");
        expect(
            "https://h.example:8443/a%20b?x=1",
            Scheme::Https,
            "h.example:8443",
            "a%20b?x=1",
        );
        expect("https://[::1]:80/a", Scheme::Https, "[::1]:80", "a");
        expect("http://h.example/a?b", Scheme::Http, "h.example", "a?b");
        let nqn = "nqn.2014-08.org.example:disk";
        let full = format!("{nqn}/1");
        expect(
            &format!("nvme-tcp://10.0.0.1/{nqn}"),
            Scheme::NvmeTcp,
            "10.0.0.1:4420",
            &full,
        );
        expect(
            &format!("nvme-tcp://[fe80::1]:8009/{nqn}/1"),
            Scheme::NvmeTcp,
            "[fe80::1]:8009",
            &full,
        );
        expect("memory:test/step-1/x", Scheme::Memory, "test", "step-1/x");
        expect("file:///data/a%20b", Scheme::Path, "", "/data/a b");
        expect("FILE://localhost/data", Scheme::Path, "", "/data");
        expect("file:///a%zz#b", Scheme::Path, "", "/a%zz#b");
    }

    #[test]
    fn malformed_uris_are_refused_with_the_expected_form() {
        for (text, why) in [
            (
                "gs://bucket/key",
                "use s3://BUCKET/KEY, https://HOST[:PORT]/PATH, http://HOST[:PORT]/PATH, nvme-tcp://",
            ),
            ("ftp://host/x", "the scheme \"ftp\" is not supported"),
            ("file://host/x", "it names another machine"),
            ("file:///a%00b", "no zero byte"),
            ("s3:///key", "a bucket is 3 to 63"),
            ("s3://Bucket/key", "a bucket is 3 to 63"),
            ("s3://-bucket/key", "a bucket is 3 to 63"),
            ("s3://bucket/a/../b", "no part `.` or `..`"),
            ("s3://bucket/a\nb", "a control character"),
            ("s3://bucket/a\u{85}b", "a control character"),
            ("https://user:pw@host/x", "credentials"),
            ("https:///x", "host is missing"),
            ("https://host:0/x", "a port is"),
            ("https://host:+1/x", "a port is"),
            ("https://host/a b", "a space"),
            ("https://host/a#b", "a fragment"),
            ("https://host/a%4", "two hexadecimal digits"),
            ("https://host/../a?b/..", "no part"),
            ("nvme-tcp://host/disk", "begins with `nqn.`"),
            ("nvme-tcp://host/nqn.a/0", "a namespace is"),
            ("nvme-tcp://host/nqn.a/4294967295", "a namespace is"),
            ("nvme-tcp://[::1/nqn.a", "host is missing"),
            ("memory:", "a store's name"),
            ("memory://x", "a store's name"),
        ] {
            let error = Uri::parse(text).unwrap_err();
            assert!(error.to_string().contains(why), "{text}: {error}");
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        let error = Uri::parse(OsStr::from_bytes(b"s3://bucket/\xff")).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
        let long = format!("s3://bucket/{}", "k".repeat(1025));
        assert!(Uri::parse(long).is_err());
    }

    proptest! {
        #[test]
        fn a_uri_that_is_shown_and_parsed_is_the_same(
            scheme in "(s3://|https?://|nvme-tcp://|memory:|)", rest in "[a-z0-9./:%\\[\\]?#@ -]{0,30}"
        ) {
            let text = format!("{scheme}{rest}");
            if let Ok(uri) = Uri::parse(&text) {
                prop_assert_eq!(Uri::parse(uri.to_string()).unwrap(), uri);
            }
        }
    }
}
