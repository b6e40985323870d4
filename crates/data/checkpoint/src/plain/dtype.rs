//! NumPy dtypes, except those that contain pointers.
//!
//! As JSON, a dtype is a string such as `"<f8"` or `"<M8[ns]"`, `["ml", name]` for one of the package `ml_dtypes`,
//! `["fields", item_bytes, [name, type, offset], …]` for a record, or `["rows", type, rows, …]` for one whose element
//! is an array. A field that has a title, which is a second name, has it after its offset.

use straightway_core::Result;

use super::corrupt;

/// The maximum size of an element.
const ITEM_BYTES_MAX: u64 = 1 << 30;

/// The maximum number of fields of a record.
const FIELDS_MAX: usize = 1 << 12;

/// The maximum nesting depth of records.
pub(super) const RECORDS_DEPTH_MAX: usize = 8;

/// The element sizes of the dtypes of `ml_dtypes`.
const EXTENSIONS: [(u64, &str); 3] = [
    (
        1,
        "float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz \
         float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn int4 uint4 int2 uint2 int1 uint1",
    ),
    (2, "bfloat16"),
    (4, "complex32 bcomplex32"),
];

/// The units of dates and time differences.
const UNITS: [&str; 15] = [
    "generic", "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as",
];

/// The type of an array's elements. None contains a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NumpyType {
    /// A number, a date or text, which `numpy.dtype` accepts as a string.
    Basic(Basic),
    /// One of the package `ml_dtypes`, by name.
    Extension(&'static str),
    /// A record: its size, and its fields.
    Fields(u64, Vec<NumpyField>),
    /// An element that is an array.
    Rows(Box<NumpyType>, Vec<u64>),
}

/// A field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumpyField {
    /// Its name.
    pub name: String,
    /// Its type.
    pub dtype: NumpyType,
    /// Its offset in the record, in bytes.
    pub offset: u64,
    /// Its second name, if it has one.
    pub title: Option<String>,
}

/// A type that has a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basic {
    /// The code, as `numpy.dtype` accepts it.
    pub code: String,
    item_bytes: u64,
    kind: u8,
    is_big_endian: bool,
}

impl NumpyType {
    /// The type of a code such as `<f8`, `|S5` or `<M8[25us]`.
    pub(super) fn basic(code: &str) -> Result<Self> {
        let refuse = || corrupt(format!("{code:?} is not a dtype"));
        let (order, rest) = match code.as_bytes().first() {
            Some(b'<' | b'>' | b'|' | b'=') => code.split_at(1),
            _ => ("=", code),
        };
        let kind = *rest.as_bytes().first().ok_or_else(refuse)?;
        if !kind.is_ascii() {
            return Err(refuse());
        }
        let (digits, unit) = match rest[1..].split_once('[') {
            Some((digits, unit)) => (digits, Some(unit.strip_suffix(']').ok_or_else(refuse)?)),
            None => (&rest[1..], None),
        };
        let is_number = (1..=9).contains(&digits.len()) && digits.bytes().all(|d| d.is_ascii_digit());
        let size: u64 = if is_number {
            digits.parse().map_err(|_| refuse())?
        } else {
            return Err(refuse());
        };
        let fits = match kind {
            b'b' => size == 1,
            b'i' | b'u' => matches!(size, 1 | 2 | 4 | 8),
            b'f' => matches!(size, 2 | 4 | 8 | 12 | 16),
            b'c' => matches!(size, 8 | 16 | 24 | 32),
            b'S' | b'U' | b'V' => true,
            b'm' | b'M' => size == 8,
            _ => false,
        };
        let fits_unit = unit.is_none_or(|unit| matches!(kind, b'm' | b'M') && is_unit(unit));
        let item_bytes = if kind == b'U' { size * 4 } else { size };
        if !fits || !fits_unit || item_bytes > ITEM_BYTES_MAX {
            return Err(refuse());
        }
        Ok(Self::Basic(Basic {
            code: format!("{order}{rest}"),
            item_bytes,
            kind,
            is_big_endian: order == ">",
        }))
    }

    /// The type of `ml_dtypes` with this name.
    pub(super) fn extension(name: &str) -> Result<Self> {
        let refuse = || corrupt(format!("{name:?} is not a dtype"));
        let (name, _) = extension(name).ok_or_else(refuse)?;
        Ok(Self::Extension(name))
    }

    /// A record.
    pub(super) fn fields(item_bytes: u64, fields: Vec<NumpyField>) -> Result<Self> {
        let fits = |field: &NumpyField| {
            let end = field.offset.checked_add(field.dtype.item_bytes());
            end.is_some_and(|end| end <= item_bytes)
        };
        if item_bytes > ITEM_BYTES_MAX || fields.len() > FIELDS_MAX || !fields.iter().all(fits) {
            return Err(corrupt("the fields of a record do not lie inside it"));
        }
        Ok(Self::Fields(item_bytes, fields))
    }

    /// An element that is an array.
    pub(super) fn rows(dtype: Self, shape: Vec<u64>) -> Result<Self> {
        let elements = shape.iter().try_fold(1_u64, |all, side| all.checked_mul(*side));
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.item_bytes()));
        if shape.len() > 32 || bytes.is_none_or(|bytes| bytes > ITEM_BYTES_MAX) {
            return Err(corrupt("an element of an array is too long"));
        }
        Ok(Self::Rows(Box::new(dtype), shape))
    }

    /// The size of an element.
    pub(super) fn item_bytes(&self) -> u64 {
        match self {
            Self::Basic(basic) => basic.item_bytes,
            Self::Extension(name) => extension(name).map_or(0, |(_, bytes)| bytes),
            Self::Fields(item_bytes, _) => *item_bytes,
            // `rows` checked that this does not overflow.
            Self::Rows(dtype, shape) => shape.iter().product::<u64>() * dtype.item_bytes(),
        }
    }

    /// Returns an error for values that the type does not have: bools other than 0 and 1, and characters beyond
    /// Unicode.
    pub(super) fn check(&self, data: &[u8]) -> Result<()> {
        let item_bytes = usize::try_from(self.item_bytes()).unwrap_or(usize::MAX);
        if item_bytes == 0 {
            return Ok(());
        }
        match self {
            Self::Basic(basic) => basic.check(data),
            Self::Extension(_) => Ok(()),
            Self::Rows(dtype, _) => dtype.check(data),
            Self::Fields(_, fields) => {
                for item in data.chunks_exact(item_bytes) {
                    for field in fields {
                        let start = usize::try_from(field.offset).unwrap_or(item_bytes);
                        let end = start + usize::try_from(field.dtype.item_bytes()).unwrap_or(0);
                        field.dtype.check(item.get(start..end).unwrap_or_default())?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl Basic {
    fn check(&self, data: &[u8]) -> Result<()> {
        let word = |bytes: &[u8]| {
            let four = [bytes[0], bytes[1], bytes[2], bytes[3]];
            if self.is_big_endian {
                u32::from_be_bytes(four)
            } else {
                u32::from_le_bytes(four)
            }
        };
        let fits = match self.kind {
            b'b' => data.iter().all(|byte| *byte <= 1),
            b'U' => data.chunks_exact(4).all(|bytes| word(bytes) <= 0x10_ffff),
            _ => true,
        };
        let refuse = || corrupt("an array has an element that its dtype does not have");
        fits.then_some(()).ok_or_else(refuse)
    }
}

/// A dtype of `ml_dtypes`, and its element size.
fn extension(name: &str) -> Option<(&'static str, u64)> {
    EXTENSIONS.iter().find_map(|(bytes, names)| {
        let name = names.split(' ').find(|known| *known == name)?;
        Some((name, *bytes))
    })
}

/// Whether a text is valid in the brackets of a date's dtype: a unit, optionally after a count.
fn is_unit(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    digits <= 9 && UNITS.contains(&&text[digits..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_one_that_numpy_has_or_it_is_refused() {
        for (code, bytes) in [
            ("<f8", 8),
            ("|b1", 1),
            (">U5", 20),
            ("S0", 0),
            ("<M8[25us]", 8),
            ("m8", 8),
            ("V8", 8),
        ] {
            assert_eq!(NumpyType::basic(code).unwrap().item_bytes(), bytes, "{code}");
        }
        for code in [
            "",
            "<",
            "O8",
            "|O",
            "f3",
            "<f",
            "f8,O8",
            "i4[ns]",
            "M8[O]",
            "M8[ns",
            "U999999999",
            "T16",
            "é8",
            "V-1",
            "f+8",
        ] {
            assert!(NumpyType::basic(code).is_err(), "{code}");
        }
    }

    #[test]
    fn a_record_lies_inside_its_bytes_and_holds_what_its_types_have() {
        let text = NumpyType::basic("<U1").unwrap();
        let flag = NumpyType::basic("|b1").unwrap();
        let field = |name: &str, dtype, offset| NumpyField {
            name: name.to_owned(),
            dtype,
            offset,
            title: None,
        };
        let fields = vec![field("a", flag, 0), field("b", text, 1)];
        assert!(NumpyType::fields(4, fields.clone()).is_err());
        let record = NumpyType::fields(5, fields).unwrap();
        assert!(record.check(&[1, 65, 0, 0, 0]).is_ok());
        assert!(record.check(&[2, 65, 0, 0, 0]).is_err());
        assert!(record.check(&[1, 65, 0, 0x20, 0]).is_err());
        let huge = NumpyType::rows(record, vec![u64::MAX, 2]);
        assert!(huge.is_err());
    }
}
