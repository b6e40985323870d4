//! The classes that objects may have: a closed table of Python classes, each with the arguments that it takes.

use straightway_core::Result;

use super::{Plain, Sequence, corrupt};

/// A type or a constant: a Python module and an attribute of it. Both come from a table here, never from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonName {
    /// The module.
    pub module: &'static str,
    /// The attribute of the module.
    pub attribute: &'static str,
}

/// The allowed names, by module: Python's own types, and PyTorch's dtypes, memory formats and layouts.
const NAMES: [(&str, &str); 3] = [
    (
        "builtins",
        "bool bytearray bytes complex dict float frozenset int list range set slice str tuple",
    ),
    ("numpy", "ndarray"),
    (
        "torch",
        "bcomplex32 bfloat16 bit bits16 bits1x8 bits2x4 bits4x2 bits8 bool complex128 complex32 complex64 float16 \
         float32 float4_e2m1fn_x2 float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz \
         float8_e8m0fnu int1 int16 int2 int3 int32 int4 int5 int6 int64 int7 int8 qint32 qint8 quint2x4 quint4x2 \
         quint8 uint1 uint16 uint2 uint3 uint32 uint4 uint5 uint6 uint64 uint7 uint8 channels_last \
         channels_last_3d contiguous_format preserve_format _mkldnn jagged sparse_bsc sparse_bsr sparse_coo \
         sparse_csc sparse_csr strided",
    ),
];

impl PythonName {
    /// The name, if it is in the table.
    pub(super) fn find(module: &str, attribute: &str) -> Option<Self> {
        let (module, attributes) = NAMES.iter().find(|(known, _)| *known == module)?;
        let attribute = attributes.split(' ').find(|known| *known == attribute)?;
        Some(Self { module, attribute })
    }
}

macro_rules! makers {
    ($( $maker:ident = $module:literal $name:literal; )*) => {
        /// A class whose objects are made by a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "they are named as in Python")]
        #[non_exhaustive]
        pub enum Maker {
            $( $maker, )*
        }

        /// Each maker with its module and its name there.
        const MAKERS: &[(Maker, &str, &str)] = &[ $( (Maker::$maker, $module, $name), )* ];
    };
}

makers! {
    ByteArray = "builtins" "bytearray";
    Complex = "builtins" "complex";
    Slice = "builtins" "slice";
    Range = "builtins" "range";
    OrderedDict = "collections" "OrderedDict";
    Counter = "collections" "Counter";
    DefaultDict = "collections" "defaultdict";
    Deque = "collections" "deque";
    Date = "datetime" "date";
    Time = "datetime" "time";
    DateTime = "datetime" "datetime";
    TimeDelta = "datetime" "timedelta";
    TimeZone = "datetime" "timezone";
    Decimal = "decimal" "Decimal";
    Fraction = "fractions" "Fraction";
    Uuid = "uuid" "UUID";
    PosixPath = "pathlib" "PosixPath";
    PurePosixPath = "pathlib" "PurePosixPath";
    TorchSize = "torch" "Size";
    TorchDevice = "torch" "device";
}

/// The maximum length of a `Decimal`'s text.
const NUMERAL_BYTES_MAX: usize = 1 << 16;

impl Maker {
    /// The maker of a tag, which is its name, with the prefix `torch.` for PyTorch.
    pub(super) fn of_tag(tag: &str) -> Option<Self> {
        let of_torch = tag.strip_prefix("torch.");
        let (is_torch, name) = (of_torch.is_some(), of_torch.unwrap_or(tag));
        Self::find(|module, known| (module == "torch") == is_torch && known == name)
    }

    /// The maker that a pickle names.
    pub(super) fn of_global(module: &str, name: &str) -> Option<Self> {
        // Python 3.13 moved its paths, and `Path` means a POSIX path here.
        let wanted = match (module, name) {
            ("pathlib" | "pathlib._local", "Path" | "PosixPath") => ("pathlib", "PosixPath"),
            ("pathlib" | "pathlib._local", "PurePath" | "PurePosixPath") => ("pathlib", "PurePosixPath"),
            named => named,
        };
        Self::find(|module, known| (module, known) == wanted)
    }

    fn find(matches: impl Fn(&str, &str) -> bool) -> Option<Self> {
        let found = MAKERS.iter().find(|(_, module, name)| matches(module, name));
        found.map(|(maker, ..)| *maker)
    }

    /// Its module and attribute in Python.
    pub fn name(self) -> PythonName {
        let found = MAKERS.iter().find(|(maker, ..)| *maker == self);
        let (_, module, attribute) = found.expect("every maker is in the table");
        PythonName { module, attribute }
    }

    /// The keyword of its last argument, if that is passed by keyword: `fold` of a time.
    pub fn keyword(self) -> Option<&'static str> {
        matches!(self, Self::Time | Self::DateTime).then_some("fold")
    }

    /// Makes the object. An error if it does not take these arguments.
    pub(super) fn make(self, arguments: Vec<Plain>) -> Result<Plain> {
        use Plain::{Bytes, Float, Items, Name, None, Object, Pairs, Text};
        let is_whole = |value: &Plain| matches!(value, Plain::Int(_) | Plain::Long(_));
        let is_small = |value: &Plain| matches!(value, Plain::Int(_));
        let is_zone = |value: &Plain| matches!(value, None | Object(Self::TimeZone, _));
        let fits = match (self, &arguments[..]) {
            (Self::ByteArray, [Bytes(_)])
            | (Self::Complex, [Float(_), Float(_)])
            | (Self::Slice, [_, _, _])
            | (Self::OrderedDict | Self::Counter, [Pairs(_)])
            | (Self::DefaultDict, [None | Name(_), Pairs(_)]) => true,
            (Self::Deque, [Items(Sequence::List, _), bound]) => {
                matches!(bound, None | Plain::Int(0..))
            }
            (Self::Range, [_, _, step]) => arguments.iter().all(is_whole) && *step != Plain::Int(0),
            (Self::Date | Self::TimeDelta, [_, _, _]) => arguments.iter().all(is_small),
            (Self::Time | Self::DateTime, [rest @ .., zone, Plain::Int(0 | 1)]) => {
                let parts = if self == Self::Time { 4 } else { 7 };
                rest.len() == parts && rest.iter().all(is_small) && is_zone(zone)
            }
            (Self::TimeZone, [Object(Self::TimeDelta, _), rest @ ..]) => {
                matches!(rest, [] | [Text(_)])
            }
            (Self::Decimal, [Text(numeral)]) => numeral.len() <= NUMERAL_BYTES_MAX && numeral.is_ascii(),
            (Self::Fraction, [_, below]) => arguments.iter().all(is_whole) && *below != Plain::Int(0),
            (Self::Uuid, [Text(digits)]) => digits.len() == 32 && digits.bytes().all(|d| d.is_ascii_hexdigit()),
            (Self::PosixPath | Self::PurePosixPath, parts) => {
                parts.iter().all(|part| matches!(part, Text(_) | Plain::Surrogates(_)))
            }
            (Self::TorchSize, [Items(Sequence::Tuple, sides)]) => sides.iter().all(is_small),
            (Self::TorchDevice, [Text(kind), rest @ ..]) => {
                let is_name = (1..=32).contains(&kind.len())
                    && kind
                        .bytes()
                        .all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b':' | b'_'));
                is_name && matches!(rest, [] | [Plain::Int(0..=65_535)])
            }
            _ => false,
        };
        if fits {
            return Ok(Object(self, arguments));
        }
        let name = self.name().attribute;
        Err(corrupt(format!("a {name} does not take these arguments")))
    }
}
