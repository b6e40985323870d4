//! The XML bodies of S3: listings, results and errors. The readers of bodies limit their length. Texts are untrusted.

use quick_xml::{DeError, de::from_str};
use serde::Deserialize;

/// An error's body.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Fault {
    /// The documented error code.
    pub(crate) code: String,
    /// The message for people.
    pub(crate) message: String,
    /// The region of the bucket, if the request was for another.
    pub(crate) region: String,
    /// The endpoint of the bucket, if the request went to another.
    pub(crate) endpoint: String,
}

impl Fault {
    /// Parses an error's body; `None` if it is not one.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let text = str::from_utf8(body).ok()?.trim_start();
        // Some services send blanks first to keep the connection alive.
        let start = text.find("<Error")?;
        let is_first = text[..start].trim().is_empty() || text.starts_with("<?xml");
        let fault: Self = from_str(text).ok().filter(|_| is_first)?;
        Some(fault).filter(|fault| !fault.code.is_empty())
    }
}

/// One page of `ListObjectsV2`.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListBucketResult {
    #[serde(default)]
    pub(crate) is_truncated: bool,
    #[serde(default)]
    pub(crate) next_continuation_token: Option<String>,
    #[serde(default)]
    pub(crate) contents: Vec<Contents>,
    #[serde(default)]
    pub(crate) common_prefixes: Vec<CommonPrefix>,
}

/// An object in a listing.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Contents {
    pub(crate) key: String,
    pub(crate) size: u64,
    #[serde(rename = "ETag", default)]
    pub(crate) etag: Option<String>,
    #[serde(default)]
    pub(crate) last_modified: Option<String>,
}

/// A common prefix of several keys, up to the delimiter.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CommonPrefix {
    pub(crate) prefix: String,
}

impl ListBucketResult {
    /// Parses a page.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, DeError> {
        let text = str::from_utf8(body).map_err(|e| DeError::Custom(e.to_string()))?;
        if !text.contains("<ListBucketResult") {
            return Err(DeError::Custom("it has no ListBucketResult".to_owned()));
        }
        from_str(text)
    }
}

/// The response to `CreateMultipartUpload`.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Initiated {
    pub(crate) upload_id: String,
}

/// One page of `ListMultipartUploads`.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Uploads {
    #[serde(default)]
    pub(crate) is_truncated: bool,
    #[serde(default)]
    pub(crate) next_key_marker: Option<String>,
    #[serde(default)]
    pub(crate) next_upload_id_marker: Option<String>,
    #[serde(default, rename = "Upload")]
    pub(crate) open: Vec<OpenUpload>,
}

/// An upload that was neither completed nor aborted.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct OpenUpload {
    pub(crate) key: String,
    pub(crate) upload_id: String,
    #[serde(default)]
    pub(crate) initiated: Option<String>,
    #[serde(default)]
    pub(crate) initiator: Option<Initiator>,
}

/// Who began an upload.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Initiator {
    #[serde(rename = "ID", default)]
    pub(crate) id: String,
}

/// One page of `ListParts`.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) struct Parts {
    #[serde(default, rename = "Part")]
    pub(crate) parts: Vec<ListedPart>,
}

/// A part in a listing. Only its existence matters.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct ListedPart {}

/// The response to `DeleteObjects`.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Deleted {
    #[serde(default, rename = "Error")]
    pub(crate) errors: Vec<NotDeleted>,
}

/// A key that was not deleted.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct NotDeleted {
    pub(crate) key: String,
    pub(crate) code: String,
    pub(crate) message: String,
}

/// The response to `CopyObject` and `UploadPartCopy`.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct CopyPart {
    #[serde(rename = "ETag")]
    pub(crate) etag: String,
}

/// Parses a body whose root element is `root`.
pub(crate) fn parse<T: for<'de> Deserialize<'de>>(body: &[u8], root: &str) -> Option<T> {
    let text = str::from_utf8(body).ok()?;
    text.contains(&format!("<{root}")).then(|| from_str(text).ok())?
}

/// A text with XML escapes.
pub(crate) fn escaped(text: &str) -> std::borrow::Cow<'_, str> {
    quick_xml::escape::escape(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_parsed_with_its_sizes_tags_and_prefixes() {
        let page = ListBucketResult::parse(
            br#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>a/</Prefix>
            <KeyCount>3</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>true</IsTruncated>
            <NextContinuationToken>t0ken==</NextContinuationToken><EncodingType>url</EncodingType>
            <Contents><Key>a/b+c%26</Key><LastModified>2026-11-16T03:04:05.678Z</LastModified>
            <ETag>&quot;0123&quot;</ETag><Size>5497558138880</Size><StorageClass>STANDARD</StorageClass></Contents>
            <CommonPrefixes><Prefix>a/x/</Prefix></CommonPrefixes>
            <Contents><Key>a/z</Key><Size>0</Size></Contents></ListBucketResult>"#,
        )
        .unwrap();
        assert!(page.is_truncated);
        assert_eq!(page.next_continuation_token.as_deref(), Some("t0ken=="));
        assert_eq!(page.contents[0].key, "a/b+c%26");
        assert_eq!(page.contents[0].etag.as_deref(), Some("\"0123\""));
        assert_eq!((page.contents[0].size, page.contents[1].size), (5 << 40, 0));
        assert_eq!(page.common_prefixes[0].prefix, "a/x/");
    }

    #[test]
    fn an_error_body_is_distinguished_from_other_bodies() {
        let fault = Fault::parse(
            b"<?xml version='1.0'?>\n<Error><Code>AuthorizationHeaderMalformed</Code><Message>no</Message>\
              <Region>eu-central-1</Region><RequestId>1</RequestId></Error>",
        )
        .unwrap();
        assert_eq!(
            (fault.code.as_str(), fault.region.as_str()),
            ("AuthorizationHeaderMalformed", "eu-central-1")
        );
        for other in [
            &b""[..],
            b"<html><body>404</body></html>",
            b"{\"Error\": 1}",
            b"<Error></Error>",
            b"\xff",
        ] {
            assert_eq!(Fault::parse(other), None);
        }
        assert!(ListBucketResult::parse(b"<html></html>").is_err());
        assert!(
            ListBucketResult::parse(b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>").is_err()
        );
    }
}
