//! Values that are no tensors, as plain data: what a checkpoint of a stranger may make in this process.
//!
//! A state has sets, dates, shapes and scalars beside its tensors. Python would pickle them, and to unpickle is to run
//! what the file says. Here they are a closed list of types. [`Plain::decode`] reads the encoding that is written today;
//! [`Plain::unpickle`] reads the pickles that 0.1.0 wrote, by an interpreter that knows the types of that list and calls
//! nothing. Both are pure functions from bytes to a [`Plain`]. Whoever makes Python's objects of one looks up only names
//! that stand in this module.
//!
//! The encoding is JSON. `null`, `true`, strings and integers of 64 bits are themselves; all else is an array whose first
//! member is a tag:
//!
//! ```text
//! ["int", hex]                       an integer of any length: two's complement, little-endian
//! ["float", "0.1"]                   a float: decimal, inf or nan
//! ["bytes", hex], ["surrogates", hex]   bytes; a string that is not UTF-8, as Python's `surrogatepass` has it
//! ["list", value, …]                 and "tuple", "set", "frozenset"
//! ["dict", key, value, …]            keys and values in turn
//! ["name", module, attribute]        a type such as `int` or `torch.float32`
//! ["dtype", type]                    a dtype of NumPy; see `plain/dtype.rs`
//! ["array", type, [rows, …], hex]    an array of NumPy, row by row; ["scalar", type, hex] one element
//! ["date", 2026, 1, 2]               an object made by a call, its arguments after the tag; see `plain/maker.rs`
//! ```

mod dtype;
mod maker;
mod pickle;
mod rebuild;
mod text;

pub use dtype::NumpyType;
pub use maker::{Maker, Name};
use straightway_core::{Error, Kind, Result};

/// How deep values may lie in each other.
pub const DEPTH_MAX: usize = 40;

/// The longest encoding.
pub const PLAIN_BYTES_MAX: usize = 256 << 20;

/// How many values may lie in one. Each takes some hundred bytes while it is read.
const VALUES_MAX: usize = 1 << 23;

/// What may be made of a few bytes, in bytes. A pickle can refer to one value many times, and each is made anew.
const BUDGET_BYTES_MIN: usize = 16 << 20;

/// What may be made of each byte of a pickle, in bytes.
const BUDGET_PER_BYTE: usize = 16;

/// A value of one of the types that can do no harm.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Plain {
    /// `None`.
    None,
    /// A bool.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A longer integer: two's complement, little-endian.
    Long(Vec<u8>),
    /// A float.
    Float(f64),
    /// A string.
    Text(String),
    /// A string with surrogates by themselves, which UTF-8 has no bytes for: as Python's `surrogatepass` writes it.
    Surrogates(Vec<u8>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A sequence or a set.
    Items(Sequence, Vec<Plain>),
    /// A dictionary.
    Pairs(Vec<(Plain, Plain)>),
    /// A type or a constant that stands in a table of this module.
    Name(Name),
    /// What a maker gives, called with these arguments. They fit it.
    Object(Maker, Vec<Plain>),
    /// A dtype of NumPy.
    Dtype(NumpyType),
    /// An array of NumPy, or one element of it.
    Array(Box<Array>),
}

/// An array of NumPy. Its bytes are as many as its shape and type say, and none of them is a pointer.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// What its elements are.
    pub dtype: NumpyType,
    /// How long it is along each dimension.
    pub shape: Vec<u64>,
    /// Its elements, row by row.
    pub data: Vec<u8>,
    /// Whether columns follow each other in `data`, and not rows.
    pub is_fortran: bool,
    /// Whether it is no array but a scalar.
    pub is_scalar: bool,
}

/// What holds items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are named as in Python")]
pub enum Sequence {
    List,
    Tuple,
    Set,
    FrozenSet,
}

impl Plain {
    /// The value that a text encodes.
    pub fn decode(text: &str) -> Result<Self> {
        check_length(text.as_bytes())?;
        text::decode(text)
    }

    /// The value that a pickle has, if it has only types of the list.
    pub fn unpickle(data: &[u8]) -> Result<Self> {
        check_length(data)?;
        pickle::unpickle(data)
    }

    /// An integer of two's complement, little-endian.
    fn integer(mut bytes: Vec<u8>) -> Self {
        // The sign is repeated in bytes that can be left out.
        while let [.., before, last] = bytes[..] {
            let sign = if before & 0x80 == 0 { 0 } else { 0xff };
            if last != sign {
                break;
            }
            bytes.pop();
        }
        if bytes.len() > 8 {
            return Self::Long(bytes);
        }
        let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut wide = if is_negative { [0xff; 8] } else { [0; 8] };
        wide[..bytes.len()].copy_from_slice(&bytes);
        Self::Int(i64::from_le_bytes(wide))
    }

    /// What a tuple holds.
    fn tuple(&self) -> Option<&[Self]> {
        match self {
            Self::Items(Sequence::Tuple, items) => Some(items),
            _ => None,
        }
    }

    /// The string of bytes as Python's `surrogatepass` writes them.
    fn string(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Surrogates(error.into_bytes()),
        }
    }
}

impl Array {
    /// An array that nobody has looked at yet, row by row.
    fn new(dtype: NumpyType, shape: Vec<u64>, data: Vec<u8>) -> Self {
        Self {
            dtype,
            shape,
            data,
            is_fortran: false,
            is_scalar: false,
        }
    }

    /// One element, which nobody has looked at yet.
    fn scalar(dtype: NumpyType, data: Vec<u8>) -> Self {
        Self {
            is_scalar: true,
            ..Self::new(dtype, Vec::new(), data)
        }
    }

    /// An array whose bytes fit its shape and type.
    fn checked(self) -> Result<Plain> {
        if self.shape.len() > 32 {
            return Err(corrupt("an array has more than 32 dimensions"));
        }
        let sides = self.shape.iter().map(|side| u128::from(*side));
        let elements = sides.fold(1, u128::saturating_mul);
        let bytes = elements.saturating_mul(u128::from(self.dtype.item_bytes()));
        if bytes != self.data.len() as u128 {
            let held = self.data.len();
            return Err(corrupt(format!("an array of {bytes} bytes has {held}")));
        }
        // Elements of no bytes cost nothing here, and something elsewhere.
        if elements > (self.data.len().max(1 << 20)) as u128 {
            return Err(corrupt("an array has more elements than bytes"));
        }
        self.dtype.check(&self.data)?;
        Ok(Plain::Array(Box::new(self)))
    }
}

fn check_length(data: &[u8]) -> Result<()> {
    let refuse = || corrupt(format!("it is longer than {PLAIN_BYTES_MAX} bytes"));
    let fits = data.len() <= PLAIN_BYTES_MAX;
    fits.then_some(()).ok_or_else(refuse)
}

/// What bytes are that no writer of ours has written.
fn corrupt(why: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, "read", "a value of the checkpoint", why)
}

/// What only a trusted writer may have made here.
fn untrusted(module: &str, name: &str) -> Error {
    let what = format!("{module}.{name}").escape_debug().to_string();
    let message =
        format!("it is an object of {what}, which is not made unless its writer is trusted");
    Error::new(Kind::Invalid, "read", "a value of the checkpoint", message)
        .with_hint("trust=True, if the checkpoint is your own")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_as_short_as_they_can_be() {
        let cases: [(&[u8], Plain); 6] = [
            (&[], Plain::Int(0)),
            (&[0xff], Plain::Int(-1)),
            (&[0xff, 0], Plain::Int(255)),
            (&[0xff; 12], Plain::Int(-1)),
            (&[0, 0, 0, 0, 0, 0, 0, 0x80], Plain::Int(i64::MIN)),
            (
                &[0, 0, 0, 0, 0, 0, 0, 0x80, 0],
                Plain::Long(vec![0, 0, 0, 0, 0, 0, 0, 0x80, 0]),
            ),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Plain::integer(bytes.to_vec()), expected);
        }
    }
}
