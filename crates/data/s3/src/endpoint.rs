//! The address of a bucket on the network: its service, and the target of a request for a key.

use std::fmt::Write;

use http::uri::{Authority, Scheme, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use straightway_core::{Error, ErrorKind, Result};

use crate::access::Addressing;

/// The characters that are percent-encoded in a query: all but the unreserved ones of RFC 3986. `SigV4` signs the same
/// form.
const IN_QUERY: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The characters that are percent-encoded in a path: the same without the slash.
const IN_PATH: AsciiSet = IN_QUERY.remove(b'/');

/// The address of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The URL of the service in errors: `https://host:port`.
    pub(crate) service: String,
    /// The scheme and authority that requests go to.
    pub(crate) origin: String,
    /// The authority, for the `Host` header.
    pub(crate) authority: String,
    /// The path in front of keys: that of the endpoint, and the bucket with path addressing.
    base: String,
    /// Whether the service is AWS's own.
    pub(crate) is_aws: bool,
}

impl Endpoint {
    /// The endpoint of a bucket. `service` is a URL; `None` is AWS in that region.
    pub(crate) fn new(service: Option<&str>, region: &str, bucket: &str, addressing: Addressing) -> Result<Self> {
        let text = match service {
            Some(text) => text.to_owned(),
            None => amazon(region),
        };
        let refuse = |why: &str| {
            let message = format!("{why}; expected http://HOST[:PORT] or https://HOST[:PORT]");
            let hint = "set ⟦endpoint⟧ or AWS_ENDPOINT_URL_S3 to the address of the service";
            Error::new(ErrorKind::Invalid, "use the endpoint", hide_user(&text), message).with_hint(hint)
        };
        let uri: Uri = text.parse().map_err(|_| refuse("it is not a URL"))?;
        let scheme = uri.scheme().filter(|s| [Scheme::HTTP, Scheme::HTTPS].contains(s));
        let scheme = scheme.ok_or_else(|| refuse("it does not begin with http:// or https://"))?;
        let authority = uri.authority().ok_or_else(|| refuse("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("credentials are not accepted in a URL"));
        }
        if uri.query().is_some() {
            return Err(refuse("it has a query"));
        }
        let is_in_path = match addressing {
            Addressing::Path => true,
            Addressing::Virtual => false,
            // A certificate for `*.s3.amazonaws.com` does not match a bucket name with dots.
            Addressing::Auto => service.is_some() || bucket.contains('.'),
        };
        let authority = without_default_port(scheme, authority);
        let host = if is_in_path {
            authority.clone()
        } else {
            format!("{bucket}.{authority}")
        };
        let path = uri.path().trim_end_matches('/');
        Ok(Self {
            service: format!("{scheme}://{authority}"),
            origin: format!("{scheme}://{host}"),
            authority: host,
            base: if is_in_path {
                format!("{path}/{bucket}")
            } else {
                path.to_owned()
            },
            is_aws: service.is_none() || authority.ends_with(".amazonaws.com"),
        })
    }

    /// The path and query of a request for a key, or with an empty key for the bucket.
    pub(crate) fn target(&self, key: &str, query: &[(&str, &str)]) -> String {
        let mut target = format!("{}/{}", self.base, utf8_percent_encode(key, &IN_PATH));
        for (number, (name, value)) in query.iter().enumerate() {
            target.push(if number == 0 { '?' } else { '&' });
            let (name, value) = (encoded(name), encoded(value));
            write!(target, "{name}={value}").expect("writing to a string never fails");
        }
        target
    }
}

/// A key encoded for the path of a URL.
pub(crate) fn in_path(key: &str) -> percent_encoding::PercentEncode<'_> {
    utf8_percent_encode(key, &IN_PATH)
}

fn encoded(text: &str) -> percent_encoding::PercentEncode<'_> {
    utf8_percent_encode(text, &IN_QUERY)
}

/// The service of AWS in a region.
fn amazon(region: &str) -> String {
    let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
    format!("https://s3.{region}.amazonaws.com{suffix}")
}

/// The authority without a default port. Clients omit that port, and the signature covers the `Host` header as sent.
fn without_default_port(scheme: &Scheme, authority: &Authority) -> String {
    let usual = if *scheme == Scheme::HTTP { 80 } else { 443 };
    match authority.port_u16() {
        Some(port) if port != usual => format!("{}:{port}", authority.host()),
        _ => authority.host().to_owned(),
    }
}

/// A URL without its user name and password.
fn hide_user(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(start), Some(end)) if end > start => {
            format!("{}…{}", &text[..start + 3], &text[end..])
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(service: Option<&str>, bucket: &str, addressing: Addressing) -> Endpoint {
        Endpoint::new(service, "eu-west-1", bucket, addressing).unwrap()
    }

    #[test]
    fn a_bucket_is_in_the_host_name_of_aws_and_in_the_path_of_others() {
        let aws = at(None, "weights", Addressing::Auto);
        assert_eq!(aws.origin, "https://weights.s3.eu-west-1.amazonaws.com");
        assert_eq!(aws.target("a/b", &[]), "/a/b");
        let dotted = at(None, "my.weights", Addressing::Auto);
        assert_eq!(dotted.origin, "https://s3.eu-west-1.amazonaws.com");
        assert_eq!(dotted.target("a", &[]), "/my.weights/a");
        let own = at(Some("http://127.0.0.1:8333/"), "weights", Addressing::Auto);
        assert_eq!((own.origin.as_str(), own.is_aws), ("http://127.0.0.1:8333", false));
        assert_eq!(own.target("a", &[]), "/weights/a");
        let virtual_host = at(Some("https://s3.example:443/base"), "weights", Addressing::Virtual);
        assert_eq!(virtual_host.authority, "weights.s3.example");
        assert_eq!(virtual_host.target("a", &[]), "/base/a");
    }

    #[test]
    fn keys_are_encoded_once_and_nothing_is_normalised() {
        let endpoint = at(Some("http://h"), "bucket", Addressing::Path);
        assert_eq!(
            endpoint.target("/a//b c+ü%41?&=~'(*)!", &[]),
            "/bucket//a//b%20c%2B%C3%BC%2541%3F%26%3D~%27%28%2A%29%21"
        );
        let query = [("list-type", "2"), ("prefix", "a/ +")];
        assert_eq!(endpoint.target("", &query), "/bucket/?list-type=2&prefix=a%2F%20%2B");
    }

    #[test]
    fn an_invalid_endpoint_is_refused_without_showing_a_password() {
        for text in [
            "",
            "host",
            "ftp://host",
            "http://",
            "http://h/?x=1",
            "http://me:hush@host",
        ] {
            let error = Endpoint::new(Some(text), "r", "bucket", Addressing::Auto).unwrap_err();
            assert!(
                error.hint().unwrap().contains("set endpoint or AWS_ENDPOINT_URL_S3"),
                "{text}"
            );
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
