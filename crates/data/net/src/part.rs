//! A part of an upload, and the tag that the server gives it.

use std::fmt;

use crate::checksum::Md5;

/// A part of an upload, as its request describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadPart {
    /// Its number, from 0.
    pub number: u32,
    /// Its length.
    pub bytes: u64,
    /// Its CRC-64/NVME.
    pub sum: u64,
    /// Its MD5, if the service needs it ([`Service::wants_digest`](crate::Service::wants_digest)).
    pub digest: Option<Md5>,
}

/// A part that the server has stored.
#[derive(Clone, Copy, Debug)]
pub struct StoredPart {
    /// The part.
    pub part: UploadPart,
    /// Its `ETag`.
    pub tag: PartTag,
}

/// The longest tag. Tags of S3 have 34 bytes, with their quotes.
const TAG_BYTES_MAX: usize = 78;

/// The `ETag` of a part. It is stored inline, so that a part costs no allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PartTag {
    bytes: [u8; TAG_BYTES_MAX],
    length: u8,
}

impl PartTag {
    /// A tag; `None` if the text is empty or longer than 78 bytes.
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; TAG_BYTES_MAX];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        let length = u8::try_from(text.len()).ok().filter(|length| *length > 0)?;
        Some(Self { bytes, length })
    }

    /// The tag as the server sent it.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("it was made of text")
    }
}

impl fmt::Debug for PartTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_stored_unchanged_and_an_overlong_one_is_refused() {
        let usual = "\"d41d8cd98f00b204e9800998ecf8427e\"";
        assert_eq!(PartTag::new(usual).unwrap().text(), usual);
        assert_eq!(PartTag::new(""), None);
        assert_eq!(PartTag::new(&"x".repeat(TAG_BYTES_MAX + 1)), None);
        assert!(PartTag::new(&"x".repeat(TAG_BYTES_MAX)).is_some());
    }
}
