//! The header of NumPy's array files (`.npy`): dtype, order and shape, as the text of a Python dictionary.
//!
//! A file begins with a magic text, a version, and the length of the header. Arrays of Python objects are refused: their
//! elements are a pickle, which would run code. The dtype of a structured array stays text; NumPy reads it.
//!
//! The header is untrusted. It is bounded before it is read, and only the three known keys with plain values are
//! accepted.

use crate::{Error, ErrorKind, Result};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The bytes before the longest form of the header's length and its text.
pub const PREFIX_BYTES: usize = 12;

/// The longest header. NumPy writes less than 200 bytes for a plain array, and refuses more than 10,000 by default.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// The most dimensions: NumPy's limit.
const DIMENSIONS_MAX: usize = 64;

/// The data of a file begins at a multiple of this.
const ALIGN_BYTES: usize = 64;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyHeader {
    /// The dtype: `<f4` without quotes, or the text of a list for a structured array.
    pub descr: String,
    /// Whether the elements are in column-major order.
    pub fortran_order: bool,
    /// The shape.
    pub shape: Vec<u64>,
}

/// A header, and where its data begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyStart {
    /// The header.
    pub header: NpyHeader,
    /// The offset of the first element.
    pub data_offset: u64,
}

impl NpyHeader {
    /// The size of one element of a plain dtype; `None` for a structured array.
    pub fn item_bytes(&self) -> Option<u64> {
        let bytes = self.descr.as_bytes();
        let digits = self.descr.get(2..)?;
        let size: u64 = digits.split('[').next()?.parse().ok()?;
        match bytes[1] {
            // The size of a text is in characters of four bytes.
            b'U' => size.checked_mul(4),
            _ => Some(size),
        }
    }

    /// The number of elements; `None` if it does not fit.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1_u64, |all, size| all.checked_mul(*size))
    }

    /// The header as bytes, padded so that the data is aligned.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let order = if self.fortran_order { "True" } else { "False" };
        let sizes: Vec<_> = self.shape.iter().map(u64::to_string).collect();
        let mut shape = sizes.join(", ");
        if sizes.len() == 1 {
            shape.push(',');
        }
        let is_plain = !self.descr.starts_with('[');
        let quote = if is_plain { "'" } else { "" };
        let descr = &self.descr;
        let text = format!("{{'descr': {quote}{descr}{quote}, 'fortran_order': {order}, 'shape': ({shape}), }}");
        let is_long = text.len() + 128 > usize::from(u16::MAX);
        let prefix = MAGIC.len() + 2 + if is_long { 4 } else { 2 };
        let padded = (prefix + text.len() + 1).next_multiple_of(ALIGN_BYTES) - prefix;
        if padded > HEADER_BYTES_MAX {
            return Err(refused("its header is too long", "make"));
        }
        let mut bytes = MAGIC.to_vec();
        if is_long {
            let length = u32::try_from(padded).expect("bounded above");
            bytes.extend([2, 0]);
            bytes.extend(length.to_le_bytes());
        } else {
            let length = u16::try_from(padded).expect("bounded above");
            bytes.extend([1, 0]);
            bytes.extend(length.to_le_bytes());
        }
        bytes.extend(text.as_bytes());
        bytes.resize(prefix + padded - 1, b' ');
        bytes.push(b'\n');
        // What is written can be read again.
        let again = parse(&bytes)?;
        if again.header != *self {
            return Err(refused("its dtype is not text that a header can have", "make"));
        }
        Ok(bytes)
    }
}

/// The length of a header with its prefix, from the first bytes of a file (at most [`PREFIX_BYTES`] are needed).
pub fn start_bytes(file: &[u8]) -> Result<usize> {
    let refuse = |why| Err(refused(why, "read"));
    let Some(rest) = file.strip_prefix(MAGIC) else {
        return refuse("it does not begin with NumPy's magic text");
    };
    let (prefix, length) = match rest {
        [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([*a, *b]))),
        [2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
        [1..=3, ..] | [] => return refuse("it ends inside its header"),
        _ => return refuse("its version is not 1, 2 or 3"),
    };
    if length > HEADER_BYTES_MAX {
        return refuse("its header is too long");
    }
    Ok(prefix + length)
}

/// Reads the header at the beginning of a file.
pub fn parse(file: &[u8]) -> Result<NpyStart> {
    let refuse = |why| refused(why, "read");
    let end = start_bytes(file)?;
    let prefix = if file[6] == 1 { 10 } else { 12 };
    let text = file
        .get(prefix..end)
        .ok_or_else(|| refuse("it ends inside its header"))?;
    let text = std::str::from_utf8(text).map_err(|_| refuse("its header is not text"))?;
    let header = Literal(text).header().map_err(refuse)?;
    let is_plain = !header.descr.starts_with('[');
    if is_plain {
        check_plain(&header).map_err(refuse)?;
    } else if has_objects(&header.descr) {
        return Err(refuse("its elements are Python objects").with_hint("save it again without `dtype=object`"));
    }
    Ok(NpyStart {
        header,
        data_offset: end as u64,
    })
}

/// Checks a dtype that is not structured: byte order, kind, size.
fn check_plain(header: &NpyHeader) -> Result<(), &'static str> {
    let bytes = header.descr.as_bytes();
    if !matches!(
        bytes,
        [
            b'<' | b'>' | b'|' | b'=',
            b'b' | b'i' | b'u' | b'f' | b'c' | b'm' | b'M' | b'S' | b'U' | b'V',
            ..
        ]
    ) {
        let is_object = bytes.contains(&b'O');
        return Err(if is_object {
            "its elements are Python objects"
        } else {
            "its dtype is unknown"
        });
    }
    let unit = header.descr.split_once('[').map_or("", |(_, unit)| unit);
    let is_time = matches!(bytes[1], b'm' | b'M');
    let is_unit = is_time
        && unit
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || c == b']' || c == b'/');
    if !unit.is_empty() && !is_unit {
        return Err("its dtype is unknown");
    }
    let item = header.item_bytes().ok_or("its dtype has no size")?;
    let all = header.elements().and_then(|elements| elements.checked_mul(item));
    all.map(drop).ok_or("its shape is too large")
}

/// Whether a structured dtype has a field of Python objects.
fn has_objects(descr: &str) -> bool {
    let values = descr.split(['\'', '"']).skip(1).step_by(2);
    values
        .into_iter()
        .any(|text| text.trim_start_matches(['|', '<', '>', '=']).starts_with('O'))
}

/// The rest of a header's text.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn header(mut self) -> Result<NpyHeader, &'static str> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.take('}') {
            let key = self.quoted()?;
            self.expect(':')?;
            let is_new = match key {
                "descr" => descr.replace(self.descr()?).is_none(),
                "fortran_order" => fortran_order.replace(self.boolean()?).is_none(),
                "shape" => shape.replace(self.shape()?).is_none(),
                _ => return Err("its header has an unknown key"),
            };
            if !is_new {
                return Err("its header has a key twice");
            }
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        if !self.0.trim().is_empty() {
            return Err("its header has text after its end");
        }
        match (descr, fortran_order, shape) {
            (Some(descr), Some(fortran_order), Some(shape)) => Ok(NpyHeader {
                descr,
                fortran_order,
                shape,
            }),
            _ => Err("its header lacks a key"),
        }
    }

    fn take(&mut self, wanted: char) -> bool {
        let rest = self.0.trim_start();
        match rest.strip_prefix(wanted) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char) -> Result<(), &'static str> {
        self.take(wanted).then_some(()).ok_or("its header is not a dictionary")
    }

    /// A text in quotes, without escapes.
    fn quoted(&mut self) -> Result<&'a str, &'static str> {
        let quote = if self.take('\'') { '\'' } else { '"' };
        if quote == '"' {
            self.expect('"')?;
        }
        let (text, rest) = self.0.split_once(quote).ok_or("a text in its header has no end")?;
        if text.contains(['\\', '\n']) {
            return Err("a text in its header has an escape");
        }
        self.0 = rest;
        Ok(text)
    }

    /// A dtype: a text, or a list in brackets.
    fn descr(&mut self) -> Result<String, &'static str> {
        let rest = self.0.trim_start();
        if !rest.starts_with('[') {
            return self.quoted().map(str::to_owned);
        }
        let (mut depth, mut quote) = (0_u32, None);
        for (at, c) in rest.char_indices() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (Some(_), '\\') => return Err("a text in its header has an escape"),
                (None, '\'' | '"') => quote = Some(c),
                (None, '[') => depth += 1,
                (None, ']') if depth == 1 => {
                    let (list, rest) = rest.split_at(at + 1);
                    self.0 = rest;
                    return Ok(list.to_owned());
                }
                (None, ']') => depth -= 1,
                (Some(_), _) | (None, '(' | ')' | ',' | ' ' | '0'..='9') => {}
                (None, _) => return Err("its dtype is not a list of fields"),
            }
        }
        Err("a list in its header has no end")
    }

    fn boolean(&mut self) -> Result<bool, &'static str> {
        let rest = self.0.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = rest.strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err("its fortran_order is neither True nor False")
    }

    fn shape(&mut self) -> Result<Vec<u64>, &'static str> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            let rest = self.0.trim_start();
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = rest.split_at(digits);
            // Python 2 wrote long integers as `3L`.
            self.0 = rest.strip_prefix('L').unwrap_or(rest);
            shape.push(number.parse().map_err(|_| "its shape has something else than sizes")?);
            if shape.len() > DIMENSIONS_MAX {
                return Err("its shape has too many dimensions");
            }
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}

fn refused(why: &'static str, operation: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, operation, "the header of a NumPy file", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, text: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend(u16::try_from(text.len()).unwrap().to_le_bytes()),
            _ => bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes()),
        }
        bytes.extend(text.as_bytes());
        bytes
    }

    fn parsed(text: &str) -> Result<NpyHeader> {
        parse(&file(1, text)).map(|start| start.header)
    }

    #[test]
    fn headers_of_numpy_are_read() {
        let header = parsed("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n").unwrap();
        assert_eq!((header.descr.as_str(), header.item_bytes()), ("<f4", Some(4)));
        assert_eq!((header.shape.as_slice(), header.fortran_order), (&[3, 4][..], false));
        let scalar = parsed("{'descr': '|b1', 'fortran_order': True, 'shape': ()}").unwrap();
        assert_eq!((scalar.elements(), scalar.shape.len()), (Some(1), 0));
        let text = parsed("{'shape': (2L,), 'descr': '<U7', 'fortran_order': False}").unwrap();
        assert_eq!((text.item_bytes(), text.elements()), (Some(28), Some(2)));
        let time = parsed("{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,)}").unwrap();
        assert_eq!(time.item_bytes(), Some(8));
        let fields = parsed("{'descr': [('a', '<f4'), ('b', '|u1', (2,))], 'fortran_order': False, 'shape': (5,)}");
        assert_eq!(fields.unwrap().descr, "[('a', '<f4'), ('b', '|u1', (2,))]");
    }

    #[test]
    fn a_written_header_is_aligned_and_reads_back() {
        for (descr, shape) in [
            ("<f8", vec![]),
            ("|V2", vec![7]),
            ("<i4", vec![0, 3]),
            ("[('a', '<f4')]", vec![1, 2, 3]),
        ] {
            let header = NpyHeader {
                descr: descr.to_owned(),
                fortran_order: descr == "<i4",
                shape,
            };
            let bytes = header.to_bytes().unwrap();
            assert!(bytes.len().is_multiple_of(ALIGN_BYTES) && bytes.ends_with(b"\n"));
            let start = parse(&bytes).unwrap();
            assert_eq!((start.header, start.data_offset), (header, bytes.len() as u64));
        }
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let refused = [
            "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
            "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 4)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} evil()",
            "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
            "{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,)}",
            "{'descr': [('a', f())], 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f', 'fortran_order': False, 'shape': (1,)}",
            "",
        ];
        for text in refused {
            let error = parsed(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}: {error}");
        }
        assert!(parse(b"\x93NUMPY\x01").is_err() && parse(b"\x93NUMPY\x09\0\0\0").is_err());
        let long = [MAGIC, &[2, 0, 255, 255, 255, 255]].concat();
        assert!(start_bytes(&long).is_err());
    }
}
