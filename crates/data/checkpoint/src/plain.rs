//! Values that are not tensors, as plain data: the only objects that an untrusted checkpoint can create in this
//! process.
//!
//! A state has sets, dates, shapes and scalars besides its tensors. Python would pickle them, and unpickling runs code
//! from the file. Here they are a closed list of types. [`Plain::decode`] reads the encoding of checkpoints.
//! [`Plain::unpickle`] reads the pickles of PyTorch, with an interpreter that knows only the types of that list and
//! calls nothing. Both are pure functions from bytes to a [`Plain`]. The code that makes Python objects from one
//! only looks up names from the tables of this module.
//!
//! The encoding is JSON. `null`, booleans, strings and integers of 64 bits are written as they are. Everything else is
//! an array whose first member is a tag:
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

pub use dtype::{NumpyField, NumpyType};
pub use maker::{Maker, PythonName};
use straightway_core::{Error, ErrorKind, Result};

/// The maximum nesting depth of values.
pub const DEPTH_MAX: usize = 40;

/// The maximum length of an encoding.
pub const PLAIN_BYTES_MAX: usize = 256 << 20;

/// The maximum number of values in one encoding. Each takes about a hundred bytes while it is read.
const VALUES_MAX: usize = 1 << 23;

/// The minimum memory budget of a pickle in bytes. A pickle can refer to one value many times, and each use is a copy.
const BUDGET_BYTES_MIN: usize = 16 << 20;

/// The additional memory budget per byte of a pickle.
const BUDGET_PER_BYTE: usize = 16;

/// A value of one of the safe types.
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
    /// A string with lone surrogates, which UTF-8 cannot encode, as Python's `surrogatepass` writes it.
    Surrogates(Vec<u8>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A sequence or a set.
    Items(Sequence, Vec<Plain>),
    /// A dictionary.
    Pairs(Vec<(Plain, Plain)>),
    /// A type or a constant from a table of this module.
    Name(PythonName),
    /// An object made by calling a maker with these arguments, which were checked.
    Object(Maker, Vec<Plain>),
    /// A dtype of NumPy.
    Dtype(NumpyType),
    /// An array of NumPy, or one element of it.
    Array(Box<Array>),
}

/// A NumPy array. Its length matches its shape and type, and it contains no pointers.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The type of its elements.
    pub dtype: NumpyType,
    /// Its length along each dimension.
    pub shape: Vec<u64>,
    /// Its elements, row by row.
    pub data: Vec<u8>,
    /// Whether `data` is in column-major order instead.
    pub is_fortran: bool,
    /// Whether it is a scalar instead of an array.
    pub is_scalar: bool,
}

/// A sequence or a set type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are named as in Python")]
pub enum Sequence {
    List,
    Tuple,
    Set,
    FrozenSet,
}

impl Plain {
    /// Decodes a value.
    pub fn decode(text: &str) -> Result<Self> {
        check_length(text.as_bytes())?;
        text::decode(text)
    }

    /// Decodes a pickle that contains only types of the list.
    pub fn unpickle(data: &[u8]) -> Result<Self> {
        check_length(data)?;
        pickle::unpickle(data)
    }

    /// An integer from two's complement, little-endian.
    fn integer(mut bytes: Vec<u8>) -> Self {
        // Bytes that only repeat the sign are removed.
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

    /// The items of a tuple.
    fn tuple(&self) -> Option<&[Self]> {
        match self {
            Self::Items(Sequence::Tuple, items) => Some(items),
            _ => None,
        }
    }

    /// A string from bytes that Python's `surrogatepass` wrote.
    fn string(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Surrogates(error.into_bytes()),
        }
    }
}

impl Array {
    /// An unchecked array in row-major order.
    fn new(dtype: NumpyType, shape: Vec<u64>, data: Vec<u8>) -> Self {
        Self {
            dtype,
            shape,
            data,
            is_fortran: false,
            is_scalar: false,
        }
    }

    /// An unchecked scalar.
    fn scalar(dtype: NumpyType, data: Vec<u8>) -> Self {
        Self {
            is_scalar: true,
            ..Self::new(dtype, Vec::new(), data)
        }
    }

    /// Returns the array if its length matches its shape and type.
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
        // Elements without bytes cost nothing here, but cost memory in Python.
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

/// The error of bytes that no writer of this format produces.
fn corrupt(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, "read", "a value of the checkpoint", why)
}

/// The error of an object that is only created for a trusted writer.
fn untrusted(module: &str, name: &str) -> Error {
    let what = format!("{module}.{name}").escape_debug().to_string();
    let message = format!("it is an object of {what}, which is not made unless its writer is trusted");
    Error::new(ErrorKind::Invalid, "read", "a value of the checkpoint", message)
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
