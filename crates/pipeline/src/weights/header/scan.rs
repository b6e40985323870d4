//! A fast parser for the form of header that nearly every writer produces.
//!
//! A general JSON parser takes 0.1 s for 200,000 tensors, as long as their bytes take to arrive. This parser expects a
//! fixed form: names without escapes, three fields, small numbers. It returns `None` for anything else, valid or not,
//! and the general parser then reads the header and reports errors. A property test and a fuzz target compare the two.

use std::{collections::BTreeMap, sync::Arc};

use straightway_core::Extent;

use super::{Count, Header, NAME_BYTES_MAX, TENSORS_MAX, json::METADATA};
use crate::weights::{Dtype, RANK_MAX, Shape, Tensor, TensorName};

/// The approximate length of a tensor's entry, to reserve memory for the tensors.
const ENTRY_BYTES: usize = 96;

/// Parses a header; `None` if it is not in the common form.
pub(super) fn parse(text: &Arc<String>, count: &Count) -> Option<Header> {
    let mut scanner = Scanner {
        text,
        bytes: text.as_bytes(),
        at: 0,
    };
    let mut header = Header {
        tensors: Vec::with_capacity(text.len() / ENTRY_BYTES),
        ..Header::default()
    };
    let mut has_metadata = false;
    scanner.take(b'{')?;
    if scanner.peek()? == b'}' {
        scanner.take(b'}')?;
        return scanner.is_over().then_some(header);
    }
    loop {
        let name = scanner.string()?;
        scanner.take(b':')?;
        if &text[name.clone()] == METADATA {
            if std::mem::replace(&mut has_metadata, true) {
                return None;
            }
            header.metadata = scanner.metadata()?;
        } else {
            if name.len() > NAME_BYTES_MAX || header.tensors.len() == TENSORS_MAX {
                return None;
            }
            let (dtype, shape, extent) = scanner.entry()?;
            header.tensors.push(Tensor {
                name: TensorName::within(text, name),
                dtype,
                shape,
                file: 0,
                extent,
            });
        }
        match scanner.next()? {
            b',' => {}
            b'}' => {
                let fits = scanner.is_over() && count.admit(header.tensors.len());
                return fits.then_some(header);
            }
            _ => return None,
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
    fn string(&mut self) -> Option<std::ops::Range<usize>> {
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
    use crate::weights::header::json;

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
    }

    #[test]
    fn the_fast_parser_reads_the_common_form_and_nothing_else() {
        let parse = |text: &str| parse(&Arc::new(text.to_owned()), &Count::default());
        let entry = "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}";
        let header = parse(&format!(
            "{{\"__metadata__\":{{\"format\":\"pt\"}}, {entry} }}  "
        ))
        .unwrap();
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
            assert!(
                parse(&format!("{{{}}}", entry.replace(old, new))).is_none(),
                "{new}"
            );
        }
    }
}
