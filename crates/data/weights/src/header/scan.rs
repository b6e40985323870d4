//! A fast parser for the form of header that nearly every writer produces.
//!
//! A general JSON parser takes 0.1 s for 200,000 tensors, as long as their bytes take to arrive. This parser expects a
//! fixed form: names without escapes, three fields, small numbers. It returns `None` for anything else, valid or not,
//! and the general parser then reads the header and reports errors. A property test and a fuzz target compare the two.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use straightway_core::Extent;
use straightway_io::parallel::{cores, each};

use super::{Count, Header, NAME_BYTES_MAX, TENSORS_MAX, json::METADATA};
use crate::{Dtype, RANK_MAX, Shape, Tensor, TensorName};

/// The approximate length of a tensor's entry, to reserve memory for the tensors.
const ENTRY_BYTES: usize = 96;

/// The shortest piece of a header that is worth a thread: a millisecond of parsing.
const PIECE_BYTES_MIN: usize = 256 << 10;

/// More threads would only wait for memory.
const THREADS_MAX: usize = 8;

/// Parses a header; `None` if it is not in the common form.
pub(super) fn parse(text: &Arc<String>, count: &Count) -> Option<Header> {
    let pieces = (text.len() / PIECE_BYTES_MIN).min(cores(THREADS_MAX));
    // A cut may fall into a name. The header is then parsed as one piece.
    let header = in_pieces(text, pieces.max(1)).or_else(|| in_pieces(text, 1))?;
    count.admit(header.tensors.len()).then_some(header)
}

/// Parses a header in pieces, on a thread each.
fn in_pieces(text: &Arc<String>, count: usize) -> Option<Header> {
    let body = body(text)?;
    let pieces = cut(text, body.clone(), count);
    let parsed = each(pieces.into_iter(), count, |_, piece| entries(text, piece, &body));
    let mut header = Header::default();
    let mut has_metadata = false;
    for (number, piece) in parsed.into_iter().enumerate() {
        let (tensors, metadata) = piece?;
        if number == 0 {
            header.tensors = tensors;
        } else {
            header.tensors.extend(tensors);
        }
        if let Some(metadata) = metadata {
            if std::mem::replace(&mut has_metadata, true) {
                return None;
            }
            header.metadata = metadata;
        }
    }
    (header.tensors.len() <= TENSORS_MAX).then_some(header)
}

/// The place of the entries: all between the outer braces.
fn body(text: &str) -> Option<Range<usize>> {
    let mut bytes = text.as_bytes();
    // Many writers fill a header up with spaces, to a page for example.
    while let Some(before) = bytes.strip_suffix(&[b' '; 32]) {
        bytes = before;
    }
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    let last = bytes.iter().rposition(|byte| !is_space(byte))?;
    let is_object = last > 0 && bytes[0] == b'{' && bytes[last] == b'}';
    is_object.then_some(1..last)
}

/// Cuts the entries into at most `count` pieces. Each but the first begins behind the comma after an entry: each piece
/// must end there too, so that no cut in another place is accepted.
fn cut(text: &str, body: Range<usize>, count: usize) -> Vec<Range<usize>> {
    let mut pieces = Vec::with_capacity(count);
    let (mut start, step) = (body.start, body.len() / count);
    for _ in 1..count {
        let from = start + step;
        let found = text.as_bytes().get(from..body.end);
        let found = found.and_then(|rest| rest.windows(2).position(|pair| pair == b"},"));
        let Some(found) = found else { break };
        let end = from + found + 2;
        pieces.push(start..end);
        start = end;
    }
    pieces.push(start..body.end);
    pieces
}

/// Tensors, and the metadata if they are among the entries.
type Entries = (Vec<Tensor>, Option<BTreeMap<String, String>>);

/// Parses the entries of a piece of the body. Each piece but the last ends with a comma.
fn entries(text: &Arc<String>, piece: Range<usize>, body: &Range<usize>) -> Option<Entries> {
    let is_last = piece.end == body.end;
    let mut scanner = Scanner {
        text,
        bytes: &text.as_bytes()[..piece.end],
        at: piece.start,
    };
    let mut tensors = Vec::with_capacity(piece.len() / ENTRY_BYTES);
    let mut metadata = None;
    if scanner.is_over() {
        // Only a header without any entries is empty.
        return (piece == *body).then_some((tensors, metadata));
    }
    loop {
        let name = scanner.string()?;
        scanner.take(b':')?;
        if &text[name.clone()] == METADATA {
            if metadata.is_some() {
                return None;
            }
            metadata = Some(scanner.metadata()?);
        } else {
            if name.len() > NAME_BYTES_MAX || tensors.len() == TENSORS_MAX {
                return None;
            }
            let (dtype, shape, extent) = scanner.entry()?;
            tensors.push(Tensor {
                name: TensorName::within(text, name),
                dtype,
                shape,
                file: 0,
                extent,
            });
        }
        match scanner.next() {
            None => return is_last.then_some((tensors, metadata)),
            Some(b',') if scanner.at == piece.end => {
                return (!is_last).then_some((tensors, metadata));
            }
            Some(b',') => {}
            Some(_) => return None,
        }
    }
}

/// A position in a text.
struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    /// The next byte that is not white space, without consuming it.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.bytes.get(self.at)? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    /// Consumes the next byte that is not white space.
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Consumes `expected`.
    fn take(&mut self, expected: u8) -> Option<()> {
        (self.next()? == expected).then_some(())
    }

    /// Whether only white space is left.
    fn is_over(&mut self) -> bool {
        self.peek().is_none()
    }

    /// The range of a string without escapes.
    fn string(&mut self) -> Option<Range<usize>> {
        self.take(b'"')?;
        let start = self.at;
        let is_end = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < 0x20;
        let end = start + self.bytes[start..].iter().position(is_end)?;
        self.at = end + 1;
        (self.bytes[end] == b'"').then_some(start..end)
    }

    /// A number of at most 19 digits, which fits into 64 bits.
    fn number(&mut self) -> Option<u64> {
        const DIGITS_MAX: usize = 19;
        self.peek()?;
        let digits = &self.bytes[self.at..];
        let len = digits
            .iter()
            .take(DIGITS_MAX + 1)
            .take_while(|d| d.is_ascii_digit())
            .count();
        let has_leading_zero = len > 1 && digits[0] == b'0';
        if len == 0 || len > DIGITS_MAX || has_leading_zero {
            return None;
        }
        self.at += len;
        let add = |sum: u64, digit: &u8| sum * 10 + u64::from(digit - b'0');
        Some(digits[..len].iter().fold(0, add))
    }

    /// The value of a tensor's name: three fields in any order, each once.
    fn entry(&mut self) -> Option<(Dtype, Shape, Extent)> {
        let (mut dtype, mut shape, mut extent) = (None, None, None);
        self.take(b'{')?;
        for field in 0..3 {
            if field > 0 {
                self.take(b',')?;
            }
            let key = self.string()?;
            self.take(b':')?;
            match &self.bytes[key] {
                b"dtype" if dtype.is_none() => {
                    let name = self.string()?;
                    dtype = Some(Dtype::named(&self.text[name])?);
                }
                b"shape" if shape.is_none() => shape = Some(self.shape()?),
                b"data_offsets" if extent.is_none() => extent = Some(self.extent()?),
                _ => return None,
            }
        }
        self.take(b'}')?;
        Some((dtype?, shape?, extent?))
    }

    fn shape(&mut self) -> Option<Shape> {
        let mut shape = Shape::default();
        self.take(b'[')?;
        if self.peek()? == b']' {
            self.take(b']')?;
            return Some(shape);
        }
        loop {
            if shape.len() == RANK_MAX {
                return None;
            }
            shape.push(self.number()?);
            match self.next()? {
                b',' => {}
                b']' => return Some(shape),
                _ => return None,
            }
        }
    }

    fn extent(&mut self) -> Option<Extent> {
        self.take(b'[')?;
        let start = self.number()?;
        self.take(b',')?;
        let end = self.number()?;
        self.take(b']')?;
        (start <= end).then(|| Extent::between(start, end))
    }

    fn metadata(&mut self) -> Option<BTreeMap<String, String>> {
        let mut metadata = BTreeMap::new();
        self.take(b'{')?;
        if self.peek()? == b'}' {
            self.take(b'}')?;
            return Some(metadata);
        }
        loop {
            let key = self.string()?;
            self.take(b':')?;
            let value = self.string()?;
            let (key, value) = (&self.text[key], &self.text[value]);
            if metadata.insert(key.to_owned(), value.to_owned()).is_some() {
                return None;
            }
            match self.next()? {
                b',' => {}
                b'}' => return Some(metadata),
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::header::json;

    /// Text that is almost a header: fragments of one, combined at random.
    fn texts() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(
            &[
                "{",
                "}",
                "[",
                "]",
                ",",
                ":",
                "\"",
                " ",
                "0",
                "7",
                "19",
                "\"a\"",
                "\"b\"",
                "\"},\"",
                "\"dtype\"",
                "\"shape\"",
                "\"data_offsets\"",
                "\"F32\"",
                "\"U8\"",
                "\"__metadata__\"",
                "\\u0061",
                "-",
                "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}",
                "\"b\":{\"shape\":[],\"data_offsets\":[8,9],\"dtype\":\"U8\"}",
                "\"__metadata__\":{\"k\":\"v\"}",
                "99999999999999999999",
                "007",
            ][..],
        );
        let inner = prop::collection::vec(piece.clone(), 0..8).prop_map(|p| p.concat());
        let listed = prop::collection::vec(inner.clone(), 0..4).prop_map(|p| p.join(","));
        prop_oneof![inner, listed].prop_map(|text| format!("{{{text}}}"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_fast_parser_agrees_with_the_general_one(text in texts()) {
            let fast = parse(&Arc::new(text.clone()), &Count::default());
            if let Some(fast) = fast {
                let slow = json::parse(&text, &Count::default());
                prop_assert_eq!(Some(fast), slow.ok());
            }
        }

        #[test]
        fn pieces_parse_as_the_whole_or_not_at_all(text in texts(), count in 2_usize..6) {
            let text = Arc::new(text);
            let whole = in_pieces(&text, 1);
            let pieces = in_pieces(&text, count);
            prop_assert!(pieces.is_none() || pieces == whole, "{}", text);
        }
    }

    #[test]
    fn long_headers_are_parsed_in_pieces() {
        let entry = |n: u64| {
            let name = if n == 300 {
                "},".to_owned()
            } else {
                format!("layer.{n}")
            };
            format!(
                "\"{name}\": {{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{n},{}]}}",
                n + 1
            )
        };
        let text: Vec<_> = (0..1000).map(entry).collect();
        let text = Arc::new(format!("{{\"__metadata__\":{{\"a\":\"b\"}},{}}}  ", text.join(", ")));
        let whole = in_pieces(&text, 1).expect("it is in the common form");
        assert_eq!(whole.tensors.len(), 1000);
        for count in 2..9 {
            assert_eq!(in_pieces(&text, count).as_ref(), Some(&whole), "{count}");
        }
        // The cut is searched for inside the entry with this name.
        let at = text.find("\"},\": ").expect("it is there");
        let body = body(&text).expect("it has braces");
        let wrong = [body.start..at + 3, at + 3..body.end];
        assert!(wrong.into_iter().all(|piece| entries(&text, piece, &body).is_none()));
    }

    #[test]
    fn the_fast_parser_reads_the_common_form_and_nothing_else() {
        let parse = |text: &str| parse(&Arc::new(text.to_owned()), &Count::default());
        let entry = "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}";
        let header = parse(&format!("{{\"__metadata__\":{{\"format\":\"pt\"}}, {entry} }}  ")).unwrap();
        assert_eq!(header.metadata["format"], "pt");
        assert_eq!(
            (&*header.tensors[0].name, &*header.tensors[0].shape),
            ("a", &[2, 3][..])
        );
        assert!(parse("{}   ").is_some());
        for text in ["{} x", "{", "", "{\"\\u0061\":1}", "[]"] {
            assert!(parse(text).is_none(), "{text}");
        }
        for (old, new) in [
            ("[2,3]", "[2,3,]"),
            ("24]", "024]"),
            ("\"F32\"", "\"F33\""),
            ("0,", "-0,"),
        ] {
            assert!(parse(&format!("{{{}}}", entry.replace(old, new))).is_none(), "{new}");
        }
    }
}
