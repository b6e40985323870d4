//! Response heads of web servers.

use straightway_net::{
    HttpResponse, Validator,
    head::{HEAD_BYTES_MAX, Parsed, parse},
};

/// Any bytes as a server's output. The head is found at the same place however the bytes are split, and its fields are
/// valid.
pub(super) fn head(data: &[u8]) {
    let Parsed::Whole(length, status) = parse(data, |answer, _| sound(answer)) else {
        return;
    };
    assert!(length <= data.len().min(HEAD_BYTES_MAX));
    // Bytes after a head do not belong to it, and an incomplete head is not accepted.
    let read = |bytes: &[u8]| parse(bytes, |answer, _| answer.status);
    assert_eq!(read(&data[..length]), Parsed::Whole(length, status));
    let steps = 1.max(length / 64);
    for cut in (0..length).step_by(steps).chain([length - 1]) {
        assert_eq!(read(&data[..cut]), Parsed::Partial, "cut at {cut} of {length}");
    }
}

/// Checks the fields of a head. Returns its status.
fn sound(answer: &HttpResponse<'_>) -> u16 {
    assert!(!(100..200).contains(&answer.status) || answer.status == 101);
    if let Ok(Some(told)) = answer.content_range() {
        let range = told.range.unwrap_or(0..1);
        assert!(range.start < range.end);
        assert!(told.total.is_none_or(|total| total == 0 || range.end <= total));
    }
    if let Ok(Some(length)) = answer.content_length() {
        let digits = answer.text("content-length").expect("a length is text");
        assert_eq!(digits.parse(), Ok(length));
    }
    if let Some(Validator::Tag(text) | Validator::Modified(text)) = Validator::of(answer) {
        // It is sent back in a header, and must not terminate it.
        assert!(text.is_ascii() && !text.contains(['\r', '\n', '\0']));
    }
    let _ = (answer.is_plain(), answer.closes(), answer.retry_after());
    answer.status
}
